//! `kubectl-rollwright`: run as `kubectl rollwright` or by its own name.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;
use rollwright_cli::{Cli, run};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help was asked for, or is what a lone command needs.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.exit()
        }
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            eprintln!("{}", usage(&error));
            return ExitCode::from(2);
        }
    };
    match run(&cli, &mut std::io::stdin().lock(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}

/// A wrong command line, in one line.
fn usage(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let words: Vec<&str> = what.split_whitespace().collect();
    format!("error: command line:$: {}: see --help", words.join(" "))
}
