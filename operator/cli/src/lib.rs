//! The kubectl plug-in: plans at the command line, by the same code that the running
//! roles plan with.
#![forbid(unsafe_code)]

mod command;
mod failure;
pub mod input;
mod plan;
mod report;

use std::io::{Read, Write};

pub use command::Cli;
pub use failure::Failure;

/// Runs one command. Nothing is written to `out` unless all went well.
pub fn run(cli: &Cli, stdin: &mut impl Read, out: &mut impl Write) -> Result<(), Failure> {
    let command::Command::Plan(plan) = &cli.command;
    let text = plan::run(plan, stdin)?;
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}
