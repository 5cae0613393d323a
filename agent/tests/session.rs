//! The helper and its session, with the real helper as an ordinary process: needs
//! root, for actions run as another user. One test runs it in a Docker container.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rollwright_agent::session::{
    Connected, FileReader, Session, SessionError, SessionEvent, SessionEvents, Target,
};
use rollwright_init::protocol::{
    End, Ended, FileFailureKind, Program, Start, StartFailureKind, Stream,
};
use support::helper::helper;
use support::{Container, LIMIT, grant, skip};

const USER: u32 = 1000;

/// A running helper with a directory of its own.
struct Helper {
    dir: tempfile::TempDir,
    process: Child,
}

impl Helper {
    fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return skip("not root");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        let process = Command::new(helper())
            .arg("--socket")
            .arg(run.join("init.sock"))
            .arg("--workdir")
            .arg(dir.path().join("work"))
            .spawn()
            .unwrap();
        Some(Self { dir, process })
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("run/init.sock")
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    async fn connect(&self) -> Client {
        Client::connect(&self.socket(), self.work().to_str().unwrap()).await
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection, and what was seen of each action.
struct Client {
    session: Session,
    events: SessionEvents,
    known: Vec<String>,
    cwd: String,
    seen: HashMap<String, Seen>,
}

#[derive(Default, Clone)]
struct Seen {
    started: u32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    dropped: u64,
    bytes: u64,
    ended: Option<Ended>,
}

impl Client {
    async fn connect(socket: &Path, cwd: &str) -> Self {
        let begun = Instant::now();
        loop {
            match Session::connect(socket).await {
                Ok(Connected { session, known, events }) => {
                    let known = known.into_iter().map(|action| action.key).collect();
                    let (cwd, seen) = (cwd.to_owned(), HashMap::new());
                    return Self { session, events, known, cwd, seen };
                }
                Err(SessionError::Connect { .. }) if begun.elapsed() < LIMIT => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn spec(&self, key: &str, program: Program) -> Start {
        Start {
            key: key.into(),
            attempt: 1,
            tag: b"tag".to_vec(),
            program,
            env: vec![("GREETING".into(), "hello".into())],
            cwd: self.cwd.clone(),
            uid: USER,
            gid: USER,
            output_limit: 64 * 1024,
            stdin: false,
        }
    }

    async fn start(&self, key: &str, script: &str) {
        let start = self.spec(key, Program::Shell(script.into()));
        self.session.start(start, None, &[]).await.unwrap();
    }

    async fn take(&mut self) -> String {
        let event = tokio::time::timeout(LIMIT, self.events.next()).await.unwrap().unwrap();
        match event {
            SessionEvent::Started { key, .. } => {
                // Reported again, it comes from the beginning again.
                let seen = self.seen.entry(key.clone()).or_default();
                *seen = Seen { started: seen.started + 1, ..Seen::default() };
                key
            }
            SessionEvent::Output(output) => {
                let seen = self.seen.entry(output.key.clone()).or_default();
                assert_eq!(output.offset, seen.bytes, "no byte twice and none left out");
                seen.bytes += output.data.len() as u64;
                seen.dropped += output.dropped_before;
                match output.stream {
                    Stream::Stdout => seen.stdout.extend(output.data),
                    Stream::Stderr => seen.stderr.extend(output.data),
                }
                output.key
            }
            SessionEvent::Ended(ended) => {
                let key = ended.key.clone();
                self.seen.entry(key.clone()).or_default().ended = Some(ended);
                key
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    async fn end_of(&mut self, key: &str) -> Seen {
        loop {
            if let Some(seen) = self.seen.get(key).filter(|seen| seen.ended.is_some()) {
                return seen.clone();
            }
            self.take().await;
        }
    }

    async fn run(&mut self, key: &str, script: &str) -> Seen {
        self.start(key, script).await;
        self.end_of(key).await
    }
}

impl Seen {
    fn end(&self) -> &End {
        &self.ended.as_ref().unwrap().end
    }

    fn failure(&self) -> StartFailureKind {
        let End::NotStarted(failure) = self.end() else { panic!("{:?}", self.end()) };
        assert_eq!(self.started, 0);
        failure.kind
    }

    fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

#[tokio::test]
async fn an_action_reports_its_output_and_how_it_ended() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    let seen = client.run("a", "echo $GREETING; echo oops >&2; id -u; pwd; exit 3").await;
    assert_eq!(seen.text(), format!("hello\n1000\n{}\n", helper.work().display()));
    assert_eq!(seen.stderr, b"oops\n");
    assert_eq!((seen.started, seen.end()), (1, &End::Exited { code: 3 }));
    let ended = seen.ended.unwrap();
    assert!(ended.exec_ns > 0);
    assert_eq!((ended.output_bytes, ended.dropped_bytes), (seen.bytes, 0));
    assert_eq!(client.run("b", "kill -9 $$").await.end(), &End::Signaled { signal: 9 });
    let raw = client.run("c", r"printf '\377\000\376'").await;
    assert_eq!(raw.stdout, [0xff, 0, 0xfe]);
}

#[tokio::test]
async fn a_program_that_cannot_start_says_why() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    fs::write(helper.work().join("plain"), "no program").unwrap();
    fs::write(helper.work().join("broken"), "\x7fELFbroken").unwrap();
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(helper.work().join("broken"), executable).unwrap();
    let cases: [(&[&str], StartFailureKind); 6] = [
        (&["no-such-program"], StartFailureKind::NotFound),
        (&["/no/such/program"], StartFailureKind::NotFound),
        (&[""], StartFailureKind::NotFound),
        (&["./plain"], StartFailureKind::PermissionDenied),
        (&["./broken"], StartFailureKind::BadExecutable),
        (&["true", "zero\0byte"], StartFailureKind::BadArguments),
    ];
    for (number, (args, kind)) in cases.into_iter().enumerate() {
        let program = Program::Argv(args.iter().map(|&arg| arg.into()).collect());
        let start = client.spec(&number.to_string(), program);
        client.session.start(start, None, &[]).await.unwrap();
        assert_eq!(client.end_of(&number.to_string()).await.failure(), kind, "{args:?}");
    }
    let mut start = client.spec("cwd", Program::Shell("true".into()));
    start.cwd = "/no/such/dir".into();
    client.session.start(start, None, &[]).await.unwrap();
    assert_eq!(client.end_of("cwd").await.failure(), StartFailureKind::BadCwd);
    let mut start = client.spec("root", Program::Shell("true".into()));
    start.uid = 0;
    let refused = client.session.start(start, None, &[]).await.unwrap_err();
    assert!(matches!(refused, SessionError::BadRequest(_)));
    // The system takes 128 KiB in one argument, and far more in all.
    let start = client.spec("long", Program::Shell("x".repeat(150 * 1024)));
    client.session.start(start, None, &[]).await.unwrap();
    assert_eq!(client.end_of("long").await.failure(), StartFailureKind::BadArguments);
    let mut start = client.spec("env", Program::Shell("echo ${#V99}".into()));
    start.env = (0..100).map(|n| (format!("V{n}"), "x".repeat(1500))).collect();
    client.session.start(start, None, &[]).await.unwrap();
    assert_eq!(client.end_of("env").await.text(), "1500\n");
    let start = client.spec("large", Program::Shell("x".repeat(200 * 1024)));
    let refused = client.session.start(start, None, &[]).await.unwrap_err();
    assert!(matches!(refused, SessionError::Codec(_)), "{refused}");
}

#[tokio::test]
async fn a_gigabyte_of_output_keeps_head_and_tail() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    let script = "echo first; head -c 1073741824 /dev/zero; echo; echo last";
    let seen = client.run("a", script).await;
    let total = 6 + (1 << 30) + 6;
    assert!(seen.stdout.starts_with(b"first\n") && seen.stdout.ends_with(b"\nlast\n"));
    assert_eq!(seen.stdout.len(), 128 * 1024);
    let ended = seen.ended.unwrap();
    assert_eq!(ended.output_bytes, total);
    assert_eq!(ended.dropped_bytes, total - 128 * 1024);
    assert_eq!(seen.dropped, ended.dropped_bytes);
}

#[tokio::test]
async fn standard_input_is_given_whole() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    let input = vec![b'x'; 1024 * 1024];
    let start = client.spec("a", Program::Shell("wc -c; wc -c".into()));
    client.session.start(start, Some(&input), &[]).await.unwrap();
    let seen = client.end_of("a").await;
    assert_eq!(seen.text().split_whitespace().collect::<Vec<_>>(), ["1048576", "0"]);
    assert_eq!(client.run("none", "wc -c").await.text().trim(), "0");
    let start = client.spec("b", Program::Shell("true".into()));
    let refused = client.session.start(start, Some(&vec![0; (1 << 20) + 1]), &[]).await;
    assert!(matches!(refused, Err(SessionError::BadRequest(_))));
}

#[tokio::test]
async fn one_key_runs_once_however_often_it_is_started() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    for _ in 0..100 {
        client.start("a", "echo x >> runs; echo out").await;
    }
    client.end_of("a").await;
    // A later start reports the same end again, and its output from offset 0.
    client.run("fence", "true").await;
    let mut client = helper.connect().await;
    client.end_of("a").await;
    client.seen.clear();
    client.start("a", "echo x >> runs; echo out").await;
    let seen = client.end_of("a").await;
    assert_eq!((seen.text().as_str(), seen.end()), ("out\n", &End::Exited { code: 0 }));
    assert_eq!(fs::read_to_string(helper.work().join("runs")).unwrap(), "x\n");
}

#[tokio::test]
async fn an_agent_that_reconnects_gets_everything() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    client.start("a", "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two").await;
    client.run("done", "echo done").await;
    while client.seen.get("a").is_none_or(|seen| seen.stdout.is_empty()) {
        client.take().await;
    }
    drop(client);
    fs::write(helper.work().join("go"), "").unwrap();
    let mut client = helper.connect().await;
    assert_eq!(client.known, ["a", "done"]);
    assert_eq!(client.end_of("a").await.text(), "one\ntwo\n");
    assert_eq!(client.end_of("done").await.text(), "done\n");
    client.session.ack("a").await.unwrap();
    client.run("fence", "true").await;
    assert_eq!(helper.connect().await.known, ["done", "fence"]);
}

#[tokio::test]
async fn a_newer_agent_replaces_the_older() {
    let Some(helper) = Helper::start() else { return };
    let mut old = helper.connect().await;
    let mut new = helper.connect().await;
    assert!(matches!(old.events.next().await, Err(SessionError::Closed)));
    assert_eq!(new.run("a", "exit 4").await.end(), &End::Exited { code: 4 });
}

#[tokio::test]
async fn a_daemon_that_keeps_the_pipes_does_not_delay_the_end_and_lives_on() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    let daemon = "setsid sh -c 'while [ ! -e stop ]; do echo noise; sleep 0.01; done; \
                  echo wrote > survived' & echo started";
    let seen = client.run("a", daemon).await;
    assert!(seen.text().contains("started\n"));
    fs::write(helper.work().join("stop"), "").unwrap();
    let survived = helper.work().join("survived");
    client.run("wait", "while [ ! -e survived ]; do sleep 0.01; done").await;
    assert!(survived.exists(), "it was not broken by a closed pipe");
    // A writer without end delays nothing either.
    let seen = client.run("b", "yes & echo $! > pid; sleep 0.05").await;
    assert_eq!(seen.end(), &End::Exited { code: 0 });
    client.run("c", "kill $(cat pid)").await;
}

#[tokio::test]
async fn an_agent_that_does_not_read_holds_nothing_up() {
    let Some(helper) = Helper::start() else { return };
    let silent = helper.connect().await;
    for number in 0..20 {
        let script = format!("head -c 3000000 /dev/zero; touch end{number}");
        silent.start(&number.to_string(), &script).await;
    }
    let begun = Instant::now();
    while !(0..20).all(|number| helper.work().join(format!("end{number}")).exists()) {
        assert!(begun.elapsed() < LIMIT, "actions wait for a reader");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut client = helper.connect().await;
    for number in 0..20 {
        let ended = client.end_of(&number.to_string()).await.ended.unwrap();
        assert_eq!(ended.output_bytes, 3_000_000);
    }
}

#[tokio::test]
async fn an_action_cannot_touch_the_helper() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    let pid = helper.process.id();
    let socket = helper.socket();
    let script = format!(
        "kill -9 {pid} && echo KILLED; kill -STOP {pid} && echo STOPPED; \
         ls /proc/{pid}/fd && echo FDS; cat /proc/{pid}/environ && echo ENV; \
         head -c 1 /proc/{pid}/mem && echo MEM; ls {dir} && echo DIR; cat {socket} && echo SOCKET; \
         echo; ls -l /proc/self/fd | wc -l; grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|SigBlk|SigIgn' \
         /proc/self/status; cat /proc/self/oom_score_adj; umask; id -G",
        dir = socket.parent().unwrap().display(),
        socket = socket.display()
    );
    let text = client.run("a", &script).await.text();
    for word in ["KILLED", "STOPPED", "FDS", "ENV", "MEM", "DIR", "SOCKET"] {
        assert!(!text.contains(word), "{text}");
    }
    // Three standard streams, the directory itself, and the line "total".
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1].trim(), "5", "{text}");
    for line in &lines[2..9] {
        let value = line.split_whitespace().nth(1).unwrap();
        let wanted = u64::from(line.starts_with("NoNewPrivs"));
        let mut value = u64::from_str_radix(value, 16).unwrap();
        if line.starts_with("SigIgn") {
            // Those of the C library's own are nobody's to set.
            value &= 0x7fff_ffff;
        }
        assert_eq!(value, wanted, "{line}");
    }
    assert_eq!(lines[9..], ["500", "0022", "1000"], "{text}");
    // The helper is not traceable even for what has its user's id.
    assert_eq!(fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid(), 0);
    assert_eq!(client.run("b", "exit 6").await.end(), &End::Exited { code: 6 });
}

#[tokio::test]
async fn a_signal_reaches_the_process_group() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    client.start("a", "sleep 1000 & echo up; wait").await;
    while client.seen.get("a").is_none_or(|seen| seen.stdout.is_empty()) {
        client.take().await;
    }
    client.session.kill("a", 15).await.unwrap();
    assert_eq!(client.end_of("a").await.end(), &End::Signaled { signal: 15 });
}

#[tokio::test]
async fn an_action_enters_the_cgroup_it_is_given_and_dies_with_it() {
    let (Some(helper), Some(container)) = (Helper::start(), Container::new()) else { return };
    let sandbox = container.adopt();
    let mut client = helper.connect().await;
    let action = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
    let script = "cat /proc/self/cgroup; grep Cpus_allowed_list /proc/self/status; \
                  (setsid sleep 1000 >/dev/null 2>&1 &); exec sleep 1000";
    let start = client.spec("a", Program::Shell(script.into()));
    client.session.start(start, None, &action.procs_fds().unwrap()).await.unwrap();
    while client.seen.get("a").is_none_or(|seen| !seen.text().contains("Cpus_allowed")) {
        client.take().await;
    }
    let text = client.seen["a"].text();
    let cgroup = format!("/{}/{}", container.path.display(), action.name());
    let entered = text.lines().filter(|line| line.ends_with(&cgroup)).count();
    assert_eq!(entered, action.procs_fds().unwrap().len(), "{text}");
    assert!(text.lines().any(|line| line.split_whitespace().eq(["Cpus_allowed_list:", "1"])));
    action.kill(LIMIT).unwrap();
    assert_eq!(client.end_of("a").await.end(), &End::Signaled { signal: 9 });
    assert!(action.usage().unwrap().cpu_s > 0.0);
    action.park().unwrap();

    // A cgroup that is gone is a start that failed, not an action outside of it.
    let gone = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
    let fds = gone.procs_fds().unwrap();
    gone.park().unwrap();
    let start = client.spec("gone", Program::Shell("true".into()));
    client.session.start(start, None, &fds).await.unwrap();
    assert_eq!(client.end_of("gone").await.failure(), StartFailureKind::Cgroup);
}

#[tokio::test]
async fn a_process_made_ahead_runs_the_action_that_it_was_made_for() {
    let (Some(helper), Some(container)) = (Helper::start(), Container::new()) else { return };
    let sandbox = container.adopt();
    let mut client = helper.connect().await;
    let script = "cat; cat /proc/self/cgroup; ls -l /proc/self/fd | wc -l; id -u; exit 3";
    for slot in ["matching", "other"] {
        let (name, fds) = sandbox.prepare().unwrap().unwrap();
        assert!(sandbox.prepare().unwrap().is_none());
        client.session.prepare(slot, &fds).await.unwrap();
        let action = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
        assert_eq!(action.name(), name);
        let start = client.spec(slot, Program::Shell(script.into()));
        let fds = action.procs_fds().unwrap();
        client.session.start_in("matching", start, Some(b"in\n"), &fds).await.unwrap();
        let seen = client.end_of(slot).await;
        let text = seen.text();
        assert!(text.starts_with("in\n") && text.ends_with("5\n1000\n"), "{text}");
        assert!(text.contains(&format!("/{name}\n")), "{text}");
        assert_eq!((seen.started, seen.end()), (1, &End::Exited { code: 3 }));
        action.kill(LIMIT).unwrap();
        action.park().unwrap();
    }
    // One that died is replaced, and what cannot start says so all the same.
    let (_, fds) = sandbox.prepare().unwrap().unwrap();
    client.session.prepare("dead", &fds).await.unwrap();
    let action = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
    assert!(support::until(|| action.is_populated().unwrap()));
    action.kill(LIMIT).unwrap();
    let start = client.spec("dead", Program::Argv(vec!["no-such-program".into()]));
    client.session.start_in("dead", start, None, &fds).await.unwrap();
    assert_eq!(client.end_of("dead").await.failure(), StartFailureKind::NotFound);
    action.park().unwrap();
    // The helper has the cgroup's files: none need to come with the start.
    let (name, fds) = sandbox.prepare().unwrap().unwrap();
    client.session.prepare("kept", &fds).await.unwrap();
    let action = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
    assert!(support::until(|| action.is_populated().unwrap()));
    action.kill(LIMIT).unwrap();
    let start = client.spec("kept", Program::Shell("cat; cat /proc/self/cgroup".into()));
    client.session.start_in("kept", start, Some(b"in\n"), &[]).await.unwrap();
    let text = client.end_of("kept").await.text();
    assert!(text.starts_with("in\n") && text.contains(&format!("/{name}\n")), "{text}");
    action.park().unwrap();
}

fn target(path: &Path, tar: bool) -> Target {
    Target { path: path.to_str().unwrap().into(), tar, mode: 0, uid: USER, gid: USER }
}

/// Runs a transfer while someone takes the session's events.
async fn with_events<T>(client: &mut Client, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            key = client.take() => { let _ = key; }
        }
    }
}

async fn put(client: &mut Client, target: &Target, data: &[u8]) -> Result<u64, SessionError> {
    let mut writer = client.session.put_file(target, &[]).await?;
    with_events(client, async {
        writer.write(data).await?;
        writer.finish().await
    })
    .await
}

async fn get(client: &mut Client, target: &Target) -> Result<Vec<u8>, SessionError> {
    let mut reader: FileReader = client.session.get_file(target, &[]).await?;
    with_events(client, async {
        let mut all = Vec::new();
        while let Some(piece) = reader.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    })
    .await
}

fn failure(result: Result<impl std::fmt::Debug, SessionError>) -> FileFailureKind {
    match result {
        Err(SessionError::File(failure)) => failure.kind,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn files_go_in_and_out() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    let path = helper.work().join("deep/er/file");
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let to = Target { mode: 0o750, ..target(&path, false) };
    assert_eq!(put(&mut client, &to, &data).await.unwrap(), 3_000_000);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (USER, 0o750));
    assert_eq!(get(&mut client, &to).await.unwrap(), data);
    assert_eq!(put(&mut client, &target(&path, false), b"").await.unwrap(), 0);
    assert_eq!(get(&mut client, &to).await.unwrap(), b"");

    assert_eq!(
        failure(get(&mut client, &target(Path::new("/no/such"), false)).await),
        FileFailureKind::NotFound
    );
    assert_eq!(
        failure(get(&mut client, &target(Path::new("/etc/shadow"), false)).await),
        FileFailureKind::PermissionDenied
    );
    assert_eq!(
        failure(get(&mut client, &target(&helper.work(), false)).await),
        FileFailureKind::WrongType
    );
    assert_eq!(
        failure(put(&mut client, &target(Path::new("/etc/rollwright"), false), b"x").await),
        FileFailureKind::PermissionDenied
    );
    // A transfer that is given up leaves no file.
    let half = helper.work().join("half");
    let mut writer = client.session.put_file(&target(&half, false), &[]).await.unwrap();
    writer.write(b"half a file").await.unwrap();
    drop(writer);
    client.run("wait", "while ls -A | grep -q half; do sleep 0.01; done").await;
    assert!(!half.exists());
}

#[tokio::test]
async fn a_link_of_the_action_leads_nowhere_that_it_may_not_go() {
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    let secret = helper.dir.path().join("secret");
    fs::write(&secret, "root's").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    client.run("links", "ln -s ../secret out; ln -s .. up; mkfifo fifo").await;
    let at = |name: &str| target(&helper.work().join(name), false);
    assert_eq!(failure(get(&mut client, &at("out")).await), FileFailureKind::PermissionDenied);
    assert_eq!(
        failure(put(&mut client, &at("up/new"), b"x").await),
        FileFailureKind::PermissionDenied
    );
    assert_eq!(failure(get(&mut client, &at("fifo")).await), FileFailureKind::WrongType);
    // Replaces the link, not what it leads to.
    put(&mut client, &at("out"), b"mine").await.unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "root's");
}

fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(if kind.is_dir() { 0o555 } else { 0o640 });
        // Past the checks of the library: a hostile archive has none.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        if kind.is_symlink() {
            header.set_link_name(content).unwrap();
            header.set_size(0);
            header.set_cksum();
            builder.append(&header, std::io::empty()).unwrap();
        } else {
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn archives_go_in_and_out_and_never_out_of_their_directory() {
    use tar::EntryType::{Directory, Regular, Symlink};
    let Some(helper) = Helper::start() else { return };
    let mut client = helper.connect().await;
    let tree = target(&helper.work().join("tree"), true);
    let data = archive(&[
        ("d/", Directory, ""),
        ("d/f", Regular, "content"),
        ("l", Symlink, "d/f"),
        ("/abs", Regular, "absolute"),
    ]);
    put(&mut client, &tree, &data).await.unwrap();
    let root = helper.work().join("tree");
    assert_eq!(fs::read_to_string(root.join("l")).unwrap(), "content");
    assert_eq!(fs::read_to_string(root.join("abs")).unwrap(), "absolute");
    assert_eq!(fs::metadata(root.join("d")).unwrap().mode() & 0o777, 0o555);
    assert_eq!(fs::metadata(root.join("d/f")).unwrap().mode() & 0o777, 0o640);

    let packed = get(&mut client, &tree).await.unwrap();
    let mut names: Vec<String> = tar::Archive::new(&packed[..])
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    names.sort();
    assert_eq!(names, [".", "abs", "d", "d/f", "l"]);

    let hostile = target(&helper.work().join("hostile"), true);
    fs::create_dir(helper.work().join("other")).unwrap();
    std::os::unix::fs::chown(helper.work().join("other"), Some(USER), Some(USER)).unwrap();
    for entries in [
        &[("../escaped", Regular, "x")][..],
        &[("../dir/", Directory, "")],
        &[("link", Symlink, "../other"), ("link/escaped", Regular, "x")],
        &[("link2", Symlink, "../other"), ("link2/dir/", Directory, "")],
    ] {
        let failed = failure(put(&mut client, &hostile, &archive(entries)).await);
        assert_eq!(failed, FileFailureKind::BadArchive, "{entries:?}");
    }
    assert!(!helper.work().join("escaped").exists());
    assert!(!helper.work().join("other/escaped").exists());
    let failed = failure(put(&mut client, &hostile, b"this is no archive").await);
    assert_eq!(failed, FileFailureKind::BadArchive);
}
