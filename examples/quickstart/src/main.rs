//! Runs the quickstart's rollouts through `rollwright standalone`, once with CPU given to
//! each action and once with cores held for life, and prints both side by side.
#![forbid(unsafe_code)]

mod agent;
mod experiment;
mod interrupt;
mod progress;
mod record;
mod replay;
mod report;
mod service;
mod trace;

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main]
async fn main() -> ExitCode {
    match experiment::run(experiment::Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
