//! The program `engine-sim`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panic")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_engine-sim");

/// Kills the program at the end of a test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn it_prints_its_address_and_serves() {
    let mut child = Command::new(PROGRAM)
        .args(["--dialect", "sglang", "--model", "m", "--weight-version", "5"])
        .args(["--fault", r#"{"fault":"server_error","path":"/v1/loads"}"#])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _running = Running(child);
    assert!(line.contains("simulator"), "{line}");
    let address = line.trim().rsplit_once("http://").unwrap().1;
    assert!(address.starts_with("127.0.0.1:"), "{line}");
    assert!(get(address, "/get_model_info").contains(r#""weight_version":"5""#));
    assert!(get(address, "/v1/loads").starts_with("HTTP/1.1 500"));
    assert!(get(address, "/v1/loads").starts_with("HTTP/1.1 200"));
}

#[test]
fn it_listens_where_it_is_told() {
    let mut child =
        Command::new(PROGRAM).args(["--host", "127.0.0.2"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _running = Running(child);
    let address = line.trim().rsplit_once("http://").unwrap().1;
    assert!(address.starts_with("127.0.0.2:"), "{line}");
    assert!(get(address, "/health").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_wrong_fault_or_script_is_named() {
    for (arguments, part) in [
        (["--fault", r#"{"fault":"explode"}"#], "explode"),
        (["--script", "/nothing/here"], "/nothing/here"),
        (["--stream-tokens", "3"], "--fast"),
        (["--ttft-ms=-1", "--fast"], "--ttft-ms -1"),
        (["--host", "192.0.2.1"], "192.0.2.1"),
    ] {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(part), "{arguments:?}: {error}");
    }
}

#[test]
fn the_help_says_that_it_is_a_simulator_and_shows_how() {
    let output = Command::new(PROGRAM).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for part in ["SIMULATOR", "/sim/faults", "version.json", "Examples:"] {
        assert!(help.contains(part), "{part}");
    }
}
