//! `rollwright`: the roles of Rollwright that need no privilege, and standalone.

use std::process::ExitCode;

use clap::Parser as _;
use rollwright_runtime::{Cli, run};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
