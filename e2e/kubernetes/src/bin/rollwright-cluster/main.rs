//! `rollwright-cluster`: the test cluster's daemons, and a shell inside it.
//!
//! `node.sh` runs `serve STATE` inside the cluster's namespaces; people run `shell`.
#![forbid(unsafe_code)]

mod daemon;
mod daemons;
mod serve;

use std::env;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};

use rollwright_e2e_kubernetes::Lease;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["serve", state] => serve::run(Path::new(state)).map(|()| ExitCode::SUCCESS),
        ["shell", ref command @ ..] => shell(command),
        _ => {
            eprintln!("usage: rollwright-cluster shell [COMMAND [ARGUMENT...]]");
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs a command, or a shell, inside the cluster's namespaces. The cluster is up for as long as
/// it runs.
fn shell(command: &[&str]) -> anyhow::Result<ExitCode> {
    let lease = Lease::acquire()?;
    let (program, arguments) = command.split_first().unwrap_or((&"bash", &[]));
    let status = lease.command(program).args(arguments).status()?;
    Ok(code(status))
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
