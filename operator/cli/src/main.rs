//! `kubectl-rollwright`: run as `kubectl rollwright` or by its own name.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use rollwright_cli::{Cli, run};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli, &mut std::io::stdin().lock(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}
