//! The kubectl plug-in: plans and simulations at the command line.
#![forbid(unsafe_code)]

mod command;
mod failure;
pub mod input;
mod paper;
mod plan;
mod progress;
mod report;
mod simulate;

use std::io::{Read, Write};

pub use command::Cli;
use command::{Command, Simulate};
pub use failure::Failure;

/// Runs one command. Nothing is written to `out` unless all went well.
pub fn run(cli: &Cli, stdin: &mut impl Read, out: &mut impl Write) -> Result<(), Failure> {
    let text = match &cli.command {
        Command::Plan(plan) => plan::run(plan, stdin)?,
        Command::Simulate(Simulate::Actions(args)) => simulate::actions(args, stdin)?,
        Command::Paper(args) => paper::run(args)?,
    };
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::Output { to: "standard output".to_owned(), error })
}
