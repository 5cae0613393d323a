//! The program, where another agent has its state directory.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

const AGENT: &str = env!("CARGO_BIN_EXE_rollwright-agent");

#[test]
fn an_agent_that_waits_for_its_state_directory_says_so() {
    let dir = tempfile::Builder::new().prefix("rwt").tempdir().unwrap();
    let other = File::create(dir.path().join("lock")).unwrap();
    other.lock().unwrap();
    let mut agent = Command::new(AGENT);
    agent.args(["--node", "n", "--queue", "unix:/nowhere", "--docker-socket", "/nowhere"]);
    agent.args(["--init", AGENT, "--state-dir"]).arg(dir.path());
    agent.env_remove("RUST_LOG").stderr(Stdio::piped());
    let mut agent = agent.spawn().unwrap();
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The error that it ends with in the end does not say that it waits.
    let said = lines.find(|line| line.contains("waiting"));
    agent.kill().unwrap();
    agent.wait().unwrap();
    let said = said.expect("it says that it waits");
    for part in ["another agent uses the state directory", "give this one a directory of its own"] {
        assert!(said.contains(part), "{said}");
    }
}
