//! `make bench-scale`: how the controllers do with many nodes, jobs and workers, beside plain
//! Deployments of the same pods in the same run.
//!
//! Real: etcd, API server, scheduler, controller-manager, and our controllers as a process with
//! the rights of the chart's account. SIMULATED: the nodes and all that runs on them (KWOK), and
//! the jobs' gateways (one fake answers for all of them).
#![forbid(unsafe_code)]

mod census;
mod documents;
mod figures;
mod gateway_fake;
mod objects;
mod process;
mod run;
mod samples;
mod size;
mod table;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rollwright_e2e_kubernetes::{Cluster, Lease};

use self::size::Size;

/// Measures the controllers on a cluster with fake nodes.
#[derive(Debug, Parser)]
struct Cli {
    /// Fake nodes.
    #[arg(long, default_value_t = 1000)]
    nodes: u32,
    /// Jobs.
    #[arg(long, default_value_t = 500)]
    jobs: u32,
    /// Workers of all jobs together.
    #[arg(long, default_value_t = 4000)]
    workers: u32,
    /// Seconds of a settled cluster over which writes are counted.
    #[arg(long, default_value_t = 150)]
    steady: u64,
    /// Minutes after which a phase that does not end is given up.
    #[arg(long, default_value_t = 20)]
    limit: u64,
    /// Leave out the plain Deployments.
    #[arg(long)]
    without_plain: bool,
    /// The built `kwok`.
    #[arg(long)]
    kwok: PathBuf,
    /// The built `rollwright`.
    #[arg(long)]
    rollwright: PathBuf,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let plan = run::Plan {
        size: Size { nodes: cli.nodes, jobs: cli.jobs, workers: cli.workers },
        steady: Duration::from_secs(cli.steady),
        limit: Duration::from_secs(60 * cli.limit),
        plain: !cli.without_plain,
        kwok: cli.kwok,
        rollwright: cli.rollwright,
    };
    match measure(&plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(plan: &run::Plan) -> anyhow::Result<()> {
    // Before a cluster is started for nothing.
    plan.size.layout()?;
    // What an earlier run left on its cluster would be counted.
    Lease::wait_for_none(Duration::from_mins(5))?;
    let cluster = Cluster::shared()?;
    let measured = cluster.runtime()?.block_on(run::run(cluster, plan))?;
    println!("\n{}", table::render(&figures::rows(plan, &measured)));
    println!(
        "\nSIMULATED: the nodes and all that runs on them (KWOK says that pods run), and the \
         gateways (one fake\nanswers for all jobs: every worker serves). Real: etcd, API server, \
         scheduler, controller-manager, controllers."
    );
    Ok(())
}
