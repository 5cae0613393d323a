//! A machine with fake GPUs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

/// Generous: a slow machine is no failure.
pub(crate) const LIMIT: Duration = Duration::from_mins(3);
/// Bytes that a context takes on a device of the fake.
pub(crate) const CONTEXT: u64 = 8 << 20;
/// A directory for the part of a test that runs on the machine.
const STATE: &str = "ROLLWRIGHT_TEST_STATE";
const DEVICES: &str = "ROLLWRIGHT_FAKE_CUDA";

/// The devices and their driver, and what was started there.
pub(crate) struct Machine(tempfile::TempDir);

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The libraries, compiled once.
fn libraries() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let made = Command::new(root().join("e2e/fake-cuda/build.sh")).arg(dir.path()).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        dir
    });
    built.path()
}

impl Machine {
    /// With so many devices of so many bytes.
    pub(crate) fn new(gpus: u32, bytes: u64) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(machine.state()).unwrap();
        std::fs::write(machine.0.path().join("gpus"), format!("{gpus} {bytes}")).unwrap();
        machine
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("node")
    }

    /// Runs a test that is ignored elsewhere, in a process with this machine's driver. None of
    /// its calls may be wrong, and nothing may be left.
    pub(crate) async fn run(&self, test: &str) {
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        command.env(DEVICES, self.0.path()).env(STATE, self.state());
        command.env("LD_LIBRARY_PATH", libraries()).env_remove("CUDA_DEVICE_ORDER");
        command.env_remove("CUDA_VISIBLE_DEVICES").kill_on_drop(true).stdin(Stdio::null());
        let output = tokio::time::timeout(2 * LIMIT, command.output()).await;
        let output = output.expect("it ends").unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let logs = self.logs();
        assert!(output.status.success(), "{said}\n{errors}\nengines: {logs}");
        assert!(said.contains("1 passed"), "there is no test {test}: {said}");
        for file in ["violations", "leaks"] {
            let found = std::fs::read_to_string(self.0.path().join(file)).unwrap_or_default();
            assert_eq!(found, "", "{file} of {test}");
        }
    }

    fn logs(&self) -> String {
        let entries = std::fs::read_dir(self.state().join("engines")).into_iter().flatten();
        let logs = entries.flatten().filter(|e| e.path().extension().is_some_and(|x| x == "log"));
        logs.filter_map(|log| std::fs::read_to_string(log.path()).ok()).collect()
    }
}

impl Drop for Machine {
    /// Engines that a failed test leaves are ended.
    fn drop(&mut self) {
        let entries = std::fs::read_dir(self.state().join("engines")).into_iter().flatten();
        let records = entries.flatten().filter_map(|entry| std::fs::read(entry.path()).ok());
        let records = records.filter_map(|bytes| serde_json::from_slice(&bytes).ok());
        for record in records.collect::<Vec<serde_json::Value>>() {
            let pid = record["runs"]["Process"]["pid"].as_i64().unwrap_or_default();
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _gone = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

/// Inside: a directory for what the node keeps.
pub(crate) fn state() -> PathBuf {
    std::env::var_os(STATE).expect("run by its test").into()
}

/// Inside: orders something of the devices; see the fake's README.
pub(crate) fn order(name: &str, what: &str) {
    let path = devices().join(name);
    // Whole, since the driver reads it at any time.
    let draft = path.with_extension("draft");
    std::fs::write(&draft, what).unwrap();
    std::fs::rename(draft, path).unwrap();
}

/// Inside: an order that the driver waits for until something is written to it.
pub(crate) fn hang(name: &str) -> PathBuf {
    let path = devices().join(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Inside: takes an order back.
pub(crate) fn take_back(name: &str) {
    std::fs::remove_file(devices().join(name)).unwrap();
}

/// Inside: whether an order still waits for its call.
pub(crate) fn is_ordered(name: &str) -> bool {
    devices().join(name).exists()
}

fn devices() -> PathBuf {
    std::env::var_os(DEVICES).expect("run by its test").into()
}

/// A Python that can run the reference reward server; `None`, and why, where none can be had.
pub(crate) fn python() -> Option<String> {
    let output = Command::new(root().join("e2e/reward-server/python.sh")).output().unwrap();
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    writeln!(std::io::stdout(), "skipped: no Python for the reward server: {why}").unwrap();
    None
}
