//! The helper as process 1 of Docker containers, with the rights that a sandbox has
//! and no others, in an image with a shell and in an empty one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rollwright_agent::cgroup::{Hierarchy, SandboxCgroup, container_cgroup};
use rollwright_agent::session::{Connected, Session, SessionEvent};
use rollwright_init::protocol::{End, Ended, Program, Start};
use support::helper::helper;
use support::{LIMIT, grant, skip, until};

/// A container, and the directory that holds its socket. Both gone at the end.
struct Sandbox {
    name: String,
    dir: tempfile::TempDir,
}

fn docker(args: &[&str]) -> Result<String, String> {
    let output = Command::new("/usr/bin/docker")
        .args(args)
        .env("DOCKER_API_VERSION", "1.41")
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// An image with these files, made on the spot.
fn image(name: &str, files: &[(&str, &str)]) -> Result<(), String> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir("tmp", "/tmp").unwrap();
    for (inside, outside) in files {
        builder.append_path_with_name(outside, inside).map_err(|error| error.to_string())?;
    }
    let archive = builder.into_inner().unwrap();
    let mut import = Command::new("/usr/bin/docker")
        .args(["import", "-", name])
        .env("DOCKER_API_VERSION", "1.41")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    import.stdin.take().unwrap().write_all(&archive).map_err(|error| error.to_string())?;
    let status = import.wait().unwrap();
    status.success().then_some(()).ok_or_else(|| format!("docker import ended with {status}"))
}

impl Sandbox {
    fn start(kind: &str, files: &[(&str, &str)]) -> Option<Self> {
        if let Err(error) = docker(&["version"]) {
            return skip(&format!("no Docker engine: {error}"));
        }
        let name = format!("rollwright-init-test-{kind}-{}", std::process::id());
        image(&name, files).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let mounts = [
            format!("{}:/.rollwright/init:ro", helper().display()),
            format!("{}:/.rollwright/run", dir.path().display()),
        ];
        let sandbox = Self { name: name.clone(), dir };
        let [helper, run] = &mounts;
        #[rustfmt::skip]
        docker(&[
            "run", "--detach", "--name", &name, "--network", "none", "--memory", "67108864",
            "--pids-limit", "64", "--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID",
            "--cap-add", "KILL", "--cap-add", "CHOWN", "--security-opt", "no-new-privileges",
            "--volume", helper, "--volume", run, "--entrypoint", "/.rollwright/init",
            &name, "--workdir", "/workspace",
        ])
        .unwrap();
        Some(sandbox)
    }

    fn pid(&self) -> u32 {
        docker(&["inspect", "--format", "{{.State.Pid}}", &self.name]).unwrap().parse().unwrap()
    }

    async fn connect(&self) -> Connected {
        let socket = self.dir.path().join("init.sock");
        assert!(until(|| socket.exists()), "{:?}", docker(&["logs", &self.name]));
        Session::connect(&socket).await.unwrap()
    }

    fn cgroup(&self) -> SandboxCgroup {
        let hierarchy = Hierarchy::detect(Path::new("/sys/fs/cgroup")).unwrap();
        let path = container_cgroup(&hierarchy, Path::new("/proc"), self.pid()).unwrap();
        SandboxCgroup::adopt(&hierarchy, &path).unwrap()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = docker(&["rm", "--force", &self.name]);
        let _ = docker(&["rmi", "--force", &self.name]);
    }
}

/// Runs an action in a cgroup of its own; what it wrote, how it ended, and whether
/// the kernel killed for want of memory.
async fn run(
    connected: &mut Connected,
    sandbox: &SandboxCgroup,
    args: &[&str],
) -> (String, Ended, u64) {
    let action = sandbox.create_action(&grant(&[0, 1], 1.0)).unwrap();
    let start = Start {
        key: action.name().to_owned(),
        attempt: 1,
        tag: Vec::new(),
        program: Program::Argv(args.iter().map(|&arg| arg.into()).collect()),
        env: vec![("PATH".into(), "/bin".into())],
        cwd: "/workspace".into(),
        uid: 1000,
        gid: 1000,
        output_limit: 65536,
        stdin: false,
    };
    connected.session.start(start, None, &action.procs_fds().unwrap()).await.unwrap();
    let mut text = String::new();
    loop {
        let event = tokio::time::timeout(LIMIT, connected.events.next()).await.unwrap().unwrap();
        match event {
            SessionEvent::Output(output) => text += &String::from_utf8_lossy(&output.data),
            SessionEvent::Ended(ended) => {
                let oom_kills = action.usage().unwrap().oom_kills;
                action.kill(LIMIT).unwrap();
                action.park().unwrap();
                connected.session.ack(&ended.key).await.unwrap();
                return (text, ended, oom_kills);
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn process_one_of_a_container_with_a_shell() {
    let busybox = "/bin/busybox";
    let files: Vec<(String, &str)> =
        ["sh", "dd", "id", "kill", "cat", "ls", "sleep", "grep", "setsid"]
            .map(|name| (format!("bin/{name}"), busybox))
            .into();
    let files: Vec<(&str, &str)> = files.iter().map(|(a, b)| (a.as_str(), *b)).collect();
    let Some(sandbox) = Sandbox::start("shell", &files) else { return };
    let mut connected = sandbox.connect().await;
    let cgroup = sandbox.cgroup();

    let script = "id -u; echo mine > file && cat file; kill -9 1; kill -STOP 1; \
                  cat /.rollwright/run/init.sock; ls /.rollwright/run; ls /proc/1/fd; \
                  echo x > /.rollwright/init; exit 7";
    let (text, ended, _) = run(&mut connected, &cgroup, &["sh", "-c", script]).await;
    // Two streams: only the order within each is known.
    assert!(["1000", "mine"].iter().all(|word| text.lines().any(|line| line == *word)), "{text}");
    let refusals = ["not permitted", "ermission denied", "Read-only file system"];
    let refused = text.lines().filter(|line| refusals.iter().any(|word| line.contains(word)));
    assert_eq!((refused.count(), text.lines().count()), (6, 8), "{text}");
    assert_eq!(ended.end, End::Exited { code: 7 });

    // The kernel's kill and the program's own 137 are told apart.
    let hog = "dd if=/dev/zero of=/dev/null bs=256M count=1; exit $?";
    let (_, ended, oom_kills) = run(&mut connected, &cgroup, &["sh", "-c", hog]).await;
    assert_eq!((ended.end, oom_kills), (End::Exited { code: 137 }, 1));
    let (_, ended, oom_kills) = run(&mut connected, &cgroup, &["sh", "-c", "exit 137"]).await;
    assert_eq!((ended.end, oom_kills), (End::Exited { code: 137 }, 0));

    // A fork bomb ends in a kill, and the sandbox works on. Orphans are reaped.
    let bomb = "b() { b & b & }; b; b; setsid sleep 1000 & exit 5";
    run(&mut connected, &cgroup, &["sh", "-c", bomb]).await;
    let zombies = "cat /proc/[0-9]*/status | grep -c 'State:.*zombie'; exit 0";
    let (text, ended, _) = run(&mut connected, &cgroup, &["sh", "-c", zombies]).await;
    assert_eq!((text.trim(), ended.end), ("0", End::Exited { code: 0 }));

    let status = fs::read_to_string(format!("/proc/{}/status", sandbox.pid())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(field("Threads"), 1);
    let _ =
        writeln!(std::io::stderr(), "helper in its container: {} KiB anonymous", field("RssAnon"));
    assert!(field("RssAnon") < 1024);
    // It ends when it is told to, long before Docker would kill it.
    docker(&["stop", "--time", "120", &sandbox.name]).unwrap();
    assert_eq!(
        docker(&["inspect", "--format", "{{.State.ExitCode}}", &sandbox.name]).unwrap(),
        "0"
    );
}

#[tokio::test]
async fn process_one_of_an_empty_container() {
    let Some(sandbox) = Sandbox::start("empty", &[]) else { return };
    let mut connected = sandbox.connect().await;
    let cgroup = sandbox.cgroup();
    let (text, ended, _) = run(&mut connected, &cgroup, &["/.rollwright/init", "--version"]).await;
    assert_eq!(ended.end, End::Exited { code: 0 });
    assert!(text.starts_with("rollwright-init "), "{text}");
    let (_, ended, _) = run(&mut connected, &cgroup, &["sh"]).await;
    assert!(matches!(ended.end, End::NotStarted(_)), "{ended:?}");
}
