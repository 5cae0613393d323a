//! The `rollwright` binary: one module a role, and what they share.
//!
//! Nothing is decided here: a role reads its settings, starts what other crates
//! provide and stops it again.

#![forbid(unsafe_code)]

mod cli;
mod controllers;
mod gateway;
mod logs;
mod manifests;
mod pause;
mod queue;
mod shutdown;
mod standalone;

pub use cli::Cli;

/// Runs the role that the command line names, until it ends or is told to end.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    logs::start(cli.log_format);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match cli.role {
            cli::Role::Standalone(args) => standalone::run(args).await,
            cli::Role::Queue(args) => queue::run(args).await,
            cli::Role::Gateway(args) => gateway::run(args).await,
            cli::Role::Controllers(args) => controllers::run(args).await,
            cli::Role::Pause => pause::run().await,
        }
    })
}
