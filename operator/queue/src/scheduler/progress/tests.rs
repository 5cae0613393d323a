//! The order of an action's events, where its agent is faster than the disk.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use futures::FutureExt as _;
use pb::agent_message::Message as FromAgent;
use pb::queue_message::Message as ToAgent;
use rollwright_auth::Caller;
use tokio::sync::oneshot;

use super::*;
use crate::clock::Clock;
use crate::config::{QueueConfig, Template};
use crate::mailbox::{Budget, LIMIT, Mailbox};
use crate::metrics::Metrics;
use crate::scheduler::{Input, Parts};
use crate::store::{Durable, Retention, Store, StoreError, Writer};

/// A scheduler with one node and one trajectory, whose rounds the test makes: it learns what
/// became durable when the test lets it.
struct Bench {
    scheduler: Scheduler,
    commits: mpsc::Receiver<Result<Vec<Durable>, StoreError>>,
    agent: Arc<Mailbox<pb::QueueMessage>>,
    node: NodeId,
    epoch: u64,
    budget: Arc<Budget>,
}

impl Bench {
    fn new(dir: &Path) -> Self {
        let (clock, budget) = (Clock::new(), Arc::new(Budget::default()));
        let metrics = Arc::new(Metrics::new().unwrap());
        let mut config = QueueConfig::new("test", dir);
        let spec = pb::SandboxSpec { memory_bytes: 1, ..pb::SandboxSpec::default() };
        config.templates.insert("box".to_owned(), Template { spec, warm: 0 });
        let retention =
            Retention { keep_for: Duration::from_hours(1), max_results: 10, max_bytes: 1 << 20 };
        let (store, recovered) = Store::open(dir, retention, clock.now()).unwrap();
        let (told, commits) = mpsc::channel();
        // A test that has ended hears nothing.
        let notify = move |outcome| drop(told.send(outcome));
        let writer = Writer::spawn(Arc::new(store), clock, Arc::clone(&metrics), notify).unwrap();
        let (lookups, _) = mpsc::sync_channel(1);
        let parts = Parts { config, clock, metrics, budget: Arc::clone(&budget), writer, lookups };
        let mut scheduler = Scheduler::new(parts, recovered).unwrap();
        let agent = Arc::new(Mailbox::new(Arc::clone(&budget), LIMIT));
        let (reply, mut linked) = oneshot::channel();
        let hello = pb::Hello {
            node: "n".to_owned(),
            pool: "cpu".to_owned(),
            numa: vec![pb::NumaNode { cores: vec![0, 1] }],
            memory_bytes: 1 << 20,
            ..pb::Hello::default()
        };
        let hello = Box::new(hello);
        scheduler.round(&mut vec![Input::LinkUp { hello, outbox: Arc::clone(&agent), reply }]);
        let (node, epoch) = linked.try_recv().unwrap().unwrap();
        let mut bench = Self { scheduler, commits, agent, node, epoch, budget };
        bench.open();
        bench
    }

    fn open(&mut self) {
        let request = pb::OpenTrajectoryRequest {
            trajectory_id: "t".to_owned(),
            template: "box".to_owned(),
            ..pb::OpenTrajectoryRequest::default()
        };
        let (reply, mut opened) = oneshot::channel();
        self.round(Input::Open { caller: Caller::local(), request, reply });
        self.commit(|durable| matches!(durable, Durable::Trajectory(_)));
        let trajectory_id = "t".to_owned();
        self.says(FromAgent::SandboxReady(pb::SandboxReady {
            trajectory_id,
            ..pb::SandboxReady::default()
        }));
        opened.try_recv().unwrap().unwrap();
    }

    fn round(&mut self, input: Input) {
        self.scheduler.round(&mut vec![input]);
    }

    /// Tells of commits until there was one with this.
    fn commit(&mut self, wanted: impl Fn(&Durable) -> bool) {
        loop {
            let durable = self.commits.recv_timeout(Duration::from_mins(1)).unwrap().unwrap();
            let found = durable.iter().any(&wanted);
            self.round(Input::Stored(Ok(durable)));
            if found {
                return;
            }
        }
    }

    fn says(&mut self, message: FromAgent) {
        self.says_at_once([message]);
    }

    fn says_at_once(&mut self, messages: impl IntoIterator<Item = FromAgent>) {
        let (node, epoch) = (self.node.clone(), self.epoch);
        let message = |message| pb::AgentMessage { message: Some(message) };
        let messages = messages.into_iter().map(message).collect();
        self.round(Input::LinkBatch { node, epoch, messages });
    }

    /// Submits an action that needs the whole node.
    fn submit(&mut self, id: &str) -> Arc<Mailbox<pb::ActionEvent>> {
        let mailbox = Arc::new(Mailbox::new(Arc::clone(&self.budget), LIMIT));
        mailbox.expect(1);
        let to = Subscriber { mailbox: Arc::clone(&mailbox), single: true };
        let program = pb::command::Program::Shell("true".to_owned());
        let command = pb::Command { program: Some(program), ..pb::Command::default() };
        let request = pb::ExecuteRequest {
            action_id: id.to_owned(),
            trajectory_id: "t".to_owned(),
            command: Some(command),
            cpu_units: vec![2.0],
            ..pb::ExecuteRequest::default()
        };
        self.round(Input::Execute { caller: Caller::local(), requests: vec![request], to });
        mailbox
    }

    /// Submits one that is ordered at once.
    fn begin(&mut self) -> (Arc<Mailbox<pb::ActionEvent>>, pb::StartAction) {
        let mailbox = self.submit("a");
        let orders = self.agent.read().now_or_never().unwrap().unwrap().unwrap();
        let start = orders.into_iter().find_map(|order| match order.message {
            Some(ToAgent::StartAction(start)) => Some(start),
            _ => None,
        });
        (mailbox, start.unwrap())
    }

    fn started(&mut self, start: &pb::StartAction) {
        self.says(started(start));
        self.says(output(start));
    }

    fn finished(&mut self, start: &pb::StartAction) {
        self.says(finished(start));
    }
}

fn started(start: &pb::StartAction) -> FromAgent {
    let (action_id, attempt) = (start.action_id.clone(), start.attempt);
    FromAgent::ActionStarted(pb::ActionStarted { action_id, attempt })
}

fn output(start: &pb::StartAction) -> FromAgent {
    let output = Some(pb::Output { data: "x".into(), ..pb::Output::default() });
    let action_id = start.action_id.clone();
    FromAgent::ActionOutput(pb::ActionOutput { action_id, output, offset: 0 })
}

fn finished(start: &pb::StartAction) -> FromAgent {
    let (action_id, attempt) = (start.action_id.clone(), start.attempt);
    let end = Some(pb::action_ended::End::Finished(pb::Finished::default()));
    FromAgent::ActionEnded(pb::ActionEnded { action_id, attempt, end, not_started: false })
}

/// Names of the events that wait.
fn read(mailbox: &Mailbox<pb::ActionEvent>) -> Vec<&'static str> {
    let Some(events) = mailbox.read().now_or_never() else { return Vec::new() };
    let events = events.map_or_else(Vec::new, Result::unwrap);
    let name = |event: pb::ActionEvent| {
        assert!(!event.action_id.is_empty());
        match event.event.unwrap() {
            Happened::Queued(_) => "queued",
            Happened::Started(_) => "started",
            Happened::Output(_) => "output",
            Happened::Finished(_) => "finished",
            Happened::Cancelled(_) => "cancelled",
            Happened::Failed(_) => "failed",
        }
    };
    events.into_iter().map(name).collect()
}

#[test]
fn one_that_starts_before_its_acceptance_is_durable_is_queued_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(dir.path());
    let (mailbox, start) = bench.begin();
    bench.started(&start);
    assert!(read(&mailbox).is_empty());
    bench.commit(|durable| matches!(durable, Durable::Accepted(_)));
    assert_eq!(read(&mailbox), ["queued", "started", "output"]);
    bench.finished(&start);
    assert_eq!(read(&mailbox), ["finished"]);
}

#[test]
fn one_that_ends_before_its_acceptance_is_durable_tells_all_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(dir.path());
    let (mailbox, start) = bench.begin();
    bench.started(&start);
    bench.finished(&start);
    assert_eq!(read(&mailbox), ["queued", "started", "output", "finished"]);
    bench.commit(|durable| matches!(durable, Durable::Ended { .. }));
    assert!(read(&mailbox).is_empty());
}

#[test]
fn one_that_is_cancelled_in_the_line_was_queued() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(dir.path());
    let _runs = bench.begin();
    let mailbox = bench.submit("b");
    let (reply, mut answer) = oneshot::channel();
    let action = ActionId::new("b").unwrap();
    bench.round(Input::Cancel { caller: Caller::local(), job: String::new(), action, reply });
    assert!(read(&mailbox).is_empty() && answer.try_recv().is_err());
    // In one commit with its acceptance, or in one of its own.
    bench.commit(|durable| matches!(durable, Durable::Ended { .. }));
    assert_eq!(read(&mailbox), ["queued", "cancelled"]);
    assert!(answer.try_recv().unwrap().unwrap());
}

#[test]
fn output_that_comes_with_the_start_is_told_after_it() {
    let dir = tempfile::tempdir().unwrap();
    for ends_too in [false, true] {
        let mut bench = Bench::new(&dir.path().join(ends_too.to_string()));
        let (mailbox, start) = bench.begin();
        bench.commit(|durable| matches!(durable, Durable::Accepted(_)));
        assert_eq!(read(&mailbox), ["queued"]);
        let ends = ends_too.then(|| finished(&start));
        bench.says_at_once([started(&start), output(&start)].into_iter().chain(ends));
        let expected = ["started", "output", "finished"];
        assert_eq!(read(&mailbox), expected[..if ends_too { 3 } else { 2 }]);
    }
}
