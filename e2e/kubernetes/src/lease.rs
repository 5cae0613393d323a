//! A hold on the shared cluster: while one process has it, the cluster is up.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context as _, bail, ensure};
use sha2::{Digest as _, Sha256};

/// How long a cluster may take to come up, its binaries being built included.
const UP: Duration = Duration::from_mins(45);
/// Longer than a cluster stays up that nobody holds.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// The exit code of `node.sh` when the cluster is up, or coming up, already.
const IS_UP: i32 = 75;

/// Where the cluster of this checkout keeps its state and logs. Short, so that the sockets
/// below it fit in 108 bytes.
pub fn state_dir() -> anyhow::Result<PathBuf> {
    let cache = match env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    let checkout = Sha256::digest(env!("CARGO_MANIFEST_DIR"));
    let [a, b, c, d, ..] = checkout[..] else { bail!("a digest is longer") };
    Ok(cache.join(format!("rollwright/cluster-{a:02x}{b:02x}{c:02x}{d:02x}")))
}

/// A connection to the process that holds the cluster's daemons. It ends the cluster some time
/// after the last connection is gone, which the kernel sees to when a process dies.
#[derive(Debug)]
pub struct Lease {
    stream: Mutex<BufReader<UnixStream>>,
    pid: i32,
    state: PathBuf,
}

impl Lease {
    /// Waits until the cluster is up; starts it when nobody did.
    pub fn acquire() -> anyhow::Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "a cluster needs root: run this as root");
        let state = state_dir()?;
        let deadline = Instant::now() + UP;
        let (mut starter, mut said) = (None, false);
        loop {
            if let Some(stream) = connect(&state)?
                && let Some(lease) = Self::greet(stream, &state)?
            {
                return Ok(lease);
            }
            match &mut starter {
                None => {
                    if !said {
                        eprintln!("waiting for a cluster (log: {})", log(&state).display());
                        said = true;
                    }
                    starter = Some(start(&state)?);
                }
                Some(child) => match child.try_wait()? {
                    // Another process is at it, or the cluster just ended.
                    Some(status) if status.code() == Some(IS_UP) => starter = None,
                    Some(status) => bail!("no cluster ({status}): see {}", log(&state).display()),
                    None => {}
                },
            }
            ensure!(
                Instant::now() < deadline,
                "no cluster within {UP:?}: see {}",
                log(&state).display()
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until no cluster is up, for who needs a new one: one that nobody holds ends after a
    /// while.
    pub fn wait_for_none(limit: Duration) -> anyhow::Result<()> {
        let state = state_dir()?;
        let deadline = Instant::now() + limit;
        let mut said = false;
        while connect(&state)?.is_some() {
            ensure!(
                Instant::now() < deadline,
                "a cluster has been up for {limit:?}: end what uses it"
            );
            if !said {
                eprintln!("waiting for the end of the cluster of an earlier run");
                said = true;
            }
            // To connect is to hold it once more: meanwhile it is looked at from outside.
            let again = Instant::now() + LOOK_AGAIN;
            while state.join("socket").exists() && Instant::now() < again {
                thread::sleep(Duration::from_millis(200));
            }
        }
        Ok(())
    }

    /// Nothing, where the cluster ended just now: nobody had used it for a while.
    fn greet(stream: UnixStream, state: &Path) -> anyhow::Result<Option<Self>> {
        let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get();
        let stream = Mutex::new(BufReader::new(stream));
        let lease = Self { stream, pid, state: state.to_owned() };
        Ok(match lease.line()?.as_deref() {
            Some("ok") => Some(lease),
            Some(error) => bail!("the cluster did not come up: {error}"),
            None => None,
        })
    }

    /// Process id of one that lives inside the cluster's namespaces.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// State and logs of the cluster.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// A command inside the cluster's namespaces, with its programs first on the `PATH` and its
    /// API server, Docker engine and containerd as the default ones.
    pub fn command(&self, program: &str) -> Command {
        let path = env::var("PATH").unwrap_or_default();
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.pid.to_string(), "--all", "--wdns=.", "--", program])
            .env("PATH", format!("{}/bin:{path}:/usr/sbin:/sbin", self.state.display()))
            .env("KUBECONFIG", "/etc/kubernetes/admin.kubeconfig")
            .env("DOCKER_HOST", "unix:///run/docker.sock")
            .env("CONTAINERD_NAMESPACE", "k8s.io");
        command
    }

    /// Ends a daemon (`kube-apiserver`, `dockerd`, ...) with SIGKILL and leaves it down.
    pub fn kill(&self, daemon: &str) -> anyhow::Result<()> {
        self.ask(&format!("kill {daemon}"))
    }

    /// Starts a daemon that is down.
    pub fn start(&self, daemon: &str) -> anyhow::Result<()> {
        self.ask(&format!("start {daemon}"))
    }

    fn ask(&self, request: &str) -> anyhow::Result<()> {
        {
            let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            writeln!(stream.get_mut(), "{request}")?;
        }
        self.answer().with_context(|| request.to_owned())
    }

    fn answer(&self) -> anyhow::Result<()> {
        match self.line()?.as_deref() {
            Some("ok") => Ok(()),
            Some(error) => bail!("{error}"),
            None => bail!("the cluster ended: see {}", self.state.join("logs").display()),
        }
    }

    /// The next line of the other side, until it ends.
    fn line(&self) -> anyhow::Result<Option<String>> {
        let mut line = String::new();
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        match stream.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(line.trim_end().to_owned())),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn log(state: &Path) -> PathBuf {
    state.join("logs/node.log")
}

fn connect(state: &Path) -> anyhow::Result<Option<UnixStream>> {
    match UnixStream::connect(state.join("socket")) {
        Ok(stream) => Ok(Some(stream)),
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).context(format!("{}", state.join("socket").display())),
    }
}

/// Starts `node.sh` in a session of its own, so that neither Ctrl-C nor the end of this process
/// reaches it.
fn start(state: &Path) -> anyhow::Result<Child> {
    let program = beside("rollwright-cluster")?;
    let path = log(state);
    fs::create_dir_all(state.join("logs"))?;
    let log = fs::OpenOptions::new().create(true).append(true).open(&path)?;
    Command::new("setsid")
        .arg("--wait")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/node.sh"))
        .args([state, &program])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("setsid")
}

/// A program that was built along with this one.
fn beside(program: &str) -> anyhow::Result<PathBuf> {
    let this = env::current_exe()?;
    this.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(program))
        .find(|path| path.exists())
        .with_context(|| format!("{program} is not beside {}: build it", this.display()))
}
