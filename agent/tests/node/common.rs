//! A node of its own for each test, and what a queue would see of it.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rollwright_agent::AgentConfig;
use rollwright_agent::metrics::Metrics;
use rollwright_agent::node::{self, NodeHandle};
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::command::Program;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use rollwright_proto::v1::{
    ActionEnded, AgentMessage, CloseSandbox, Command, Fault, Finished, Hello, OpenSandbox,
    QueueMessage, SandboxReady, SandboxSpec, StartAction, action_ended,
};
use tokio::sync::mpsc;

use crate::docker::busybox;
pub(crate) use crate::docker::docker;
use crate::helper::helper;

/// Generous: a slow machine is no failure.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);
/// Image of the sandboxes, made from this machine's busybox.
pub(crate) const IMAGE: &str = "rollwright-test/agent:busybox";

/// Why these tests cannot run here, if they cannot.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    if !Path::new("/bin/busybox").exists() {
        return Some("no /bin/busybox");
    }
    docker(&["version"]).is_none().then_some("no Docker engine")
}

fn image() {
    static IMAGE_MADE: OnceLock<()> = OnceLock::new();
    IMAGE_MADE.get_or_init(|| {
        if docker(&["image", "inspect", IMAGE]).is_some() {
            return;
        }
        let commands = [
            "sh", "sleep", "cat", "id", "echo", "true", "false", "kill", "head", "yes", "dd", "nc",
            "wget", "env", "pwd", "touch", "ls", "setsid", "nproc", "grep", "ps", "tail", "seq",
        ];
        let directories = [("tmp", 0o1777), ("proc", 0o755), ("etc", 0o755)];
        busybox(IMAGE, "FROM_IMAGE=yes PATH=/bin", &commands, &directories);
    });
}

/// A node and the queue's end of its link.
pub(crate) struct TestNode {
    pub(crate) config: AgentConfig,
    pub(crate) node: NodeHandle,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) hello: Hello,
    inbox_rx: mpsc::Receiver<AgentMessage>,
    seen: Vec<FromAgent>,
    state: Option<tempfile::TempDir>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl TestNode {
    /// `None`, with a word on why, where these tests cannot run.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut AgentConfig)) -> Option<Self> {
        if let Some(why) = missing() {
            let _ = writeln!(std::io::stderr(), "SKIPPED, nothing was tested: {why}");
            return None;
        }
        image();
        let state = tempfile::Builder::new().prefix("rwt").tempdir().unwrap();
        let mut config = AgentConfig::new(format!("test-{:08x}", rand::random::<u32>()));
        config.state_dir = state.path().to_owned();
        config.init = helper().to_owned();
        config.remove_on_exit = true;
        change(&mut config);
        Some(Self::with(config, Some(state)).await)
    }

    async fn with(config: AgentConfig, state: Option<tempfile::TempDir>) -> Self {
        let metrics = Arc::new(Metrics::new().unwrap());
        // Its own runtime, so that a crash takes all of its tasks.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let starting = runtime.spawn(node::start(config.clone(), Arc::clone(&metrics)));
        let node = starting.await.unwrap().unwrap();
        let (outbox_tx, inbox_rx) = mpsc::channel(1024);
        node.link_up(outbox_tx).await.unwrap();
        let hello = Hello::default();
        let runtime = Some(runtime);
        let seen = Vec::new();
        let mut test = Self { config, node, metrics, hello, inbox_rx, seen, state, runtime };
        test.hello = test
            .expect(|m| match m {
                FromAgent::Hello(hello) => Some(hello.clone()),
                _ => None,
            })
            .await;
        test
    }

    /// As if the agent had been killed, these containers removed, and the agent
    /// started again. The old node lives in a runtime of its own that is dropped.
    pub(crate) async fn crash(mut self, removed: &[&str]) -> Self {
        let runtime = self.runtime.take().unwrap();
        runtime.shutdown_background();
        for name in removed {
            docker(&["rm", "-f", name]);
        }
        let state = self.state.take();
        let config = self.config.clone();
        // Nothing of this node is to be cleaned up by its end.
        self.config.node = String::new();
        Self::with(config, state).await
    }

    /// A new stream; what the node says into it from the hello on.
    pub(crate) async fn relink(&mut self) {
        self.node.link_down().await;
        let (outbox_tx, inbox_rx) = mpsc::channel(1024);
        self.node.link_up(outbox_tx).await.unwrap();
        self.inbox_rx = inbox_rx;
        self.seen.clear();
        self.hello = self
            .expect(|m| match m {
                FromAgent::Hello(hello) => Some(hello.clone()),
                _ => None,
            })
            .await;
    }

    pub(crate) async fn say(&self, message: FromQueue) {
        self.node.handle(QueueMessage { message: Some(message) }).await.unwrap();
    }

    /// The first message, seen or to come, that `wanted` takes; it is taken out.
    pub(crate) async fn expect<T>(&mut self, wanted: impl Fn(&FromAgent) -> Option<T>) -> T {
        if let Some(at) = self.seen.iter().position(|message| wanted(message).is_some()) {
            return wanted(&self.seen.remove(at)).unwrap();
        }
        loop {
            let next = tokio::time::timeout(LIMIT, self.inbox_rx.recv()).await;
            let next = next.unwrap_or_else(|_| panic!("not said; seen: {:#?}", self.seen));
            let message = next.expect("the node stopped").message.unwrap();
            if let Some(found) = wanted(&message) {
                return found;
            }
            self.seen.push(message);
        }
    }

    pub(crate) async fn open(
        &mut self,
        trajectory: &str,
        spec: SandboxSpec,
    ) -> Result<SandboxReady, Fault> {
        let trajectory_id = trajectory.to_owned();
        let open = OpenSandbox { trajectory_id: trajectory_id.clone(), spec: Some(spec) };
        self.say(FromQueue::OpenSandbox(open)).await;
        self.expect(|message| match message {
            FromAgent::SandboxReady(ready) if ready.trajectory_id == trajectory_id => {
                Some(Ok(ready.clone()))
            }
            FromAgent::SandboxFailed(failed) if failed.trajectory_id == trajectory_id => {
                Some(Err(failed.fault.clone().unwrap()))
            }
            _ => None,
        })
        .await
    }

    pub(crate) async fn close(&mut self, trajectory: &str) {
        let trajectory_id = trajectory.to_owned();
        self.say(FromQueue::CloseSandbox(CloseSandbox { trajectory_id })).await;
        self.expect(|message| match message {
            FromAgent::SandboxClosed(closed) if closed.trajectory_id == trajectory => Some(()),
            _ => None,
        })
        .await;
    }

    pub(crate) async fn lost(&mut self, trajectory: &str) -> Fault {
        self.expect(|message| match message {
            FromAgent::SandboxFailed(failed) if failed.trajectory_id == trajectory => {
                failed.fault.clone()
            }
            _ => None,
        })
        .await
    }

    pub(crate) async fn ended(&mut self, action: &str) -> ActionEnded {
        self.expect(|message| match message {
            FromAgent::ActionEnded(ended) if ended.action_id == action => Some(ended.clone()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn started(&mut self, action: &str) {
        self.expect(|message| match message {
            FromAgent::ActionStarted(started) if started.action_id == action => Some(()),
            _ => None,
        })
        .await;
    }

    /// Runs an action to its end; its output and how it ended.
    pub(crate) async fn run(&mut self, start: StartAction) -> (String, ActionEnded) {
        let id = start.action_id.clone();
        self.say(FromQueue::StartAction(start)).await;
        let ended = self.ended(&id).await;
        (self.output(&id), ended)
    }

    /// What an action printed so far.
    pub(crate) fn output(&mut self, action: &str) -> String {
        let mut text = Vec::new();
        for message in &self.seen {
            if let FromAgent::ActionOutput(output) = message
                && output.action_id == action
            {
                text.extend_from_slice(&output.output.as_ref().unwrap().data);
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Container names of this node.
    /// Socket of the helper of the only sandbox.
    pub(crate) fn helper_socket(&self) -> PathBuf {
        let mut runs = std::fs::read_dir(self.config.state_dir.join("run")).unwrap();
        runs.next().unwrap().unwrap().path().join("init.sock")
    }

    pub(crate) fn containers(&self) -> Vec<String> {
        containers(&self.config.node)
    }

    /// Waits until Docker holds so many containers of this node.
    pub(crate) async fn until_containers(&self, count: usize) {
        until(|| self.containers().len() == count).await;
    }

    /// One fact of the only container's configuration.
    pub(crate) fn inspect(&self, format: &str) -> String {
        let names = self.containers();
        docker(&["inspect", "-f", format, &names[0]]).unwrap()
    }

    /// Everything is removed, and nothing is left.
    pub(crate) async fn finish(self) {
        self.node.stop().await;
        assert_eq!(self.containers(), Vec::<String>::new());
        let runs = std::fs::read_dir(self.config.state_dir.join("run")).unwrap();
        assert_eq!(runs.count(), 0, "directories of sockets are left");
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        if self.config.node.is_empty() {
            return;
        }
        for name in containers(&self.config.node) {
            docker(&["rm", "-f", &name]);
        }
    }
}

fn containers(node: &str) -> Vec<String> {
    let filter = format!("label=rollwright.dev/agent={node}");
    let names = docker(&["ps", "-a", "--filter", &filter, "--format", "{{.Names}}"]);
    names.unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Waits for a condition of the outside world.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(LIMIT, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.expect("the condition never came true");
}

pub(crate) fn spec() -> SandboxSpec {
    SandboxSpec {
        template: "test".into(),
        image: IMAGE.into(),
        memory_bytes: 64 << 20,
        pids: 64,
        ..Default::default()
    }
}

pub(crate) fn shell(line: &str) -> Command {
    Command { program: Some(Program::Shell(line.into())), ..Default::default() }
}

pub(crate) fn action(id: &str, trajectory: &str, line: &str) -> StartAction {
    StartAction {
        action_id: id.into(),
        attempt: 1,
        trajectory_id: trajectory.into(),
        command: Some(shell(line)),
        cores: vec![0],
        cpu_units: 1.0,
        output_limit: 1 << 16,
        ..Default::default()
    }
}

pub(crate) fn finished(ended: &ActionEnded) -> &Finished {
    match ended.end.as_ref().unwrap() {
        action_ended::End::Finished(finished) => finished,
        action_ended::End::Fault(fault) => panic!("{fault:?}"),
    }
}

pub(crate) fn fault(ended: &ActionEnded) -> &Fault {
    match ended.end.as_ref().unwrap() {
        action_ended::End::Fault(fault) => fault,
        action_ended::End::Finished(finished) => panic!("{finished:?}"),
    }
}

pub(crate) fn env(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
