//! From an action's command to the program, environment and directory that run. Pure.

use std::collections::BTreeMap;

use rollwright_core::fault::Fault;
use rollwright_proto::v1::command::Program;
use rollwright_proto::v1::{Argv, Command};

use crate::fault;

/// What is replaced by the granted units in a command.
const PLACEHOLDER: &str = "${parallel_num}";
/// Environment variable of the granted units.
pub const CPUS: &str = "ROLLWRIGHT_CPUS";
/// Search path where neither image nor template has one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Granted units as a program counts them: whole, at least 1.
pub fn whole_cpus(units: f64) -> u64 {
    if units.is_finite() { (units.ceil() as u64).max(1) } else { 1 }
}

/// The command with everything filled in: units, whole environment, directory.
pub fn resolve(
    command: Command,
    cpu_units: f64,
    base: &BTreeMap<String, String>,
    workdir: &str,
) -> Result<Command, Fault> {
    let cpus = whole_cpus(cpu_units).to_string();
    let fill = |text: &str| text.replace(PLACEHOLDER, &cpus);
    let program = match command.program {
        Some(Program::Shell(line)) => Program::Shell(fill(&line)),
        Some(Program::Argv(argv)) => {
            if argv.args.is_empty() {
                return Err(fault::user("InvalidCommand", "argv needs at least the program"));
            }
            Program::Argv(Argv { args: argv.args.iter().map(|arg| fill(arg)).collect() })
        }
        None => return Err(fault::user("InvalidCommand", "a command needs `shell` or `argv`")),
    };
    let mut env: std::collections::HashMap<String, String> =
        base.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    env.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
    env.entry("HOME".into()).or_insert_with(|| workdir.into());
    for (name, value) in command.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(fault::user(
                "InvalidCommand",
                format!("`{name}` cannot be an environment variable: no `=` and no zero byte"),
            ));
        }
        env.insert(name, value);
    }
    env.insert(CPUS.into(), cpus);
    let cwd = if command.cwd.is_empty() { workdir.to_owned() } else { command.cwd };
    Ok(Command { program: Some(program), env, cwd, stdin: command.stdin })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Command {
        Command { program: Some(Program::Shell(line.into())), ..Default::default() }
    }

    #[test]
    fn granted_units_reach_command_and_environment() {
        let base = BTreeMap::from([("A".to_owned(), "base".to_owned())]);
        let mut command = shell("pytest -n ${parallel_num}");
        command.env.insert("A".into(), "own".into());
        let got = resolve(command, 2.0, &base, "/workspace").unwrap();
        assert_eq!(got.program, Some(Program::Shell("pytest -n 2".into())));
        assert_eq!(got.env[CPUS], "2");
        assert_eq!(got.env["A"], "own");
        assert_eq!(got.env["HOME"], "/workspace");
        assert_eq!(got.cwd, "/workspace");
    }

    #[test]
    fn a_share_counts_as_one() {
        for (units, cpus) in [(0.1, 1), (1.0, 1), (1.5, 2), (8.0, 8), (f64::NAN, 1)] {
            assert_eq!(whole_cpus(units), cpus);
        }
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let argv = Command { program: Some(Program::Argv(Argv::default())), ..Default::default() };
        let mut bad_env = shell("true");
        bad_env.env.insert("A=B".into(), String::new());
        for command in [Command::default(), argv, bad_env] {
            assert!(resolve(command, 1.0, &BTreeMap::new(), "/").is_err());
        }
    }
}
