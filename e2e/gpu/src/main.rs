//! Figures of reward services that share a GPU: restores against the bandwidth of pinned
//! memory, evict-on-execution against static placement and against loading on demand, and
//! outputs compared bit for bit. `--fake` gives the same table on a **fake** of a GPU.

mod bandwidth;
mod engines;
mod load;
mod run;
mod settings;
mod table;
mod timed;

use anyhow::Context as _;
use clap::Parser as _;

use settings::{Args, Keeps};
use table::Table;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let scratch = tempfile::tempdir_in(&args.scratch).context("no scratch directory")?;
    let card = bandwidth::measure(&args).await?;
    let mut table = Table::new(&args, &card);

    let large = scratch.path().join("large");
    engines::make_model(&args, &large, args.large_file(), args.services).await?;
    let restores = run::restores(&args, &large, scratch.path()).await?;
    table.restores(&restores, args.large(), card.pinned);
    // Its disk is needed for the others.
    std::fs::remove_dir_all(&large).context("cannot remove the large model")?;
    let models = engines::make_models(&args, scratch.path()).await?;

    let candidates = run::calibrate(&args, &models, scratch.path()).await?;
    let load = load::Load::new(&args, candidates);
    let ours = run::shared(&args, &models, scratch.path(), Keeps::Pinned, &load).await?;
    let fixed = run::fixed(&args, &models, scratch.path(), &load).await?;
    let on_demand = run::shared(&args, &models, scratch.path(), Keeps::Nothing, &load).await?;
    table.services(&ours, &fixed, &on_demand);
    table.overhead(&ours, load.candidates);
    table.write(args.out.as_deref())
}
