//! The hub of server-sent events: a bounded ring of the latest, and a bounded queue for
//! each subscriber. Whoever reads too slowly is cut off with a `gap` and comes back.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::Version;
use serde_json::json;
use tokio::sync::mpsc;

/// When a subscriber that was turned away should come back.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Stop working on this trajectory.
    Abort {
        /// The trajectory.
        trajectory: TrajectoryId,
        /// Its group.
        group: GroupId,
        /// Why, for people.
        reason: String,
    },
    /// Begin with this trajectory, which replaces another.
    Start {
        /// The trajectory.
        trajectory: TrajectoryId,
        /// Its group.
        group: GroupId,
    },
    /// The group is settled.
    Settled {
        /// The group.
        group: GroupId,
        /// The trajectories that were kept.
        kept: Vec<TrajectoryId>,
    },
    /// A new version of the weights is current.
    Version(Version),
}

impl Event {
    /// The group that it is about; a version is about all.
    fn group(&self) -> Option<&GroupId> {
        match self {
            Self::Abort { group, .. } | Self::Start { group, .. } | Self::Settled { group, .. } => {
                Some(group)
            }
            Self::Version(_) => None,
        }
    }

    fn to_text(&self, id: u64) -> Bytes {
        let (name, data) = match self {
            Self::Abort { trajectory, group, reason } => (
                "abort",
                json!({ "trajectory": trajectory.as_str(), "group": group.as_str(), "reason": reason }),
            ),
            Self::Start { trajectory, group } => {
                ("start", json!({ "trajectory": trajectory.as_str(), "group": group.as_str() }))
            }
            Self::Settled { group, kept } => {
                let kept: Vec<&str> = kept.iter().map(TrajectoryId::as_str).collect();
                ("settled", json!({ "group": group.as_str(), "kept": kept }))
            }
            Self::Version(version) => ("version", json!({ "version": version.0 })),
        };
        format!("id: {id}\nevent: {name}\ndata: {data}\n\n").into()
    }
}

/// Which events a subscriber gets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Filter {
    /// All.
    Everything,
    /// Those of one group, and new versions.
    Group(GroupId),
}

impl Filter {
    fn admits(&self, group: Option<&GroupId>) -> bool {
        match (self, group) {
            (Self::Everything, _) | (_, None) => true,
            (Self::Group(own), Some(group)) => own == group,
        }
    }
}

/// Bounds of an [`EventHub`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubLimits {
    /// Latest events that are remembered for those who come back.
    pub ring: usize,
    /// Subscribers at a time.
    pub subscribers: usize,
    /// Events that a subscriber may be behind.
    pub queue: usize,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self { ring: 8192, subscribers: 1024, queue: 1024 }
    }
}

/// Where events are published and subscribed to.
pub struct EventHub {
    limits: HubLimits,
    state: Mutex<State>,
}

struct State {
    /// Id of the next event.
    next: u64,
    ring: VecDeque<Sent>,
    subscribers: HashMap<Filter, Vec<Subscriber>>,
    count: usize,
    next_subscriber: u64,
    closed: bool,
}

struct Sent {
    id: u64,
    group: Option<GroupId>,
    text: Bytes,
}

struct Subscriber {
    number: u64,
    queue: mpsc::Sender<Bytes>,
}

impl EventHub {
    /// An empty hub. `first` is the id of its first event: it must be greater than every
    /// id of an earlier hub of the same job (the time in microseconds is), or a client
    /// that comes back after a restart would miss events without a `gap`.
    pub fn new(first: u64, limits: HubLimits) -> Arc<Self> {
        let state = State {
            next: first,
            ring: VecDeque::new(),
            subscribers: HashMap::new(),
            count: 0,
            next_subscriber: 0,
            closed: false,
        };
        Arc::new(Self { limits, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody whom it concerns. Never blocks.
    pub fn publish(&self, event: &Event) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let id = state.next;
        state.next += 1;
        let text = event.to_text(id);
        let filters = match event.group() {
            Some(group) => vec![Filter::Everything, Filter::Group(group.clone())],
            None => state.subscribers.keys().cloned().collect(),
        };
        for filter in &filters {
            state.deliver(filter, &text);
        }
        if state.ring.len() == self.limits.ring {
            state.ring.pop_front();
        }
        state.ring.push_back(Sent { id, group: event.group().cloned(), text });
    }

    /// Events from now on, or from after the one with the id `after`, with a `gap` first
    /// where some of them are forgotten.
    pub fn subscribe(
        self: &Arc<Self>,
        filter: Filter,
        after: Option<u64>,
    ) -> Result<Subscription, Fault> {
        let mut state = self.state();
        if state.count >= self.limits.subscribers {
            let bound = self.limits.subscribers;
            let message = format!(
                "{bound} subscribers are connected, which is the most: share one subscription \
                 in a process, or come back"
            );
            let fault = Fault::new(FaultKind::Infrastructure, "TooManySubscribers", message);
            return Err(Fault { retry_after: Some(RETRY_AFTER), ..fault });
        }
        let replay = after.map_or_else(VecDeque::new, |after| state.since(after, &filter));
        let (queue, messages) = mpsc::channel(self.limits.queue.max(1));
        let number = state.next_subscriber;
        state.next_subscriber += 1;
        if !state.closed {
            let subscriber = Subscriber { number, queue };
            state.subscribers.entry(filter.clone()).or_default().push(subscriber);
            state.count += 1;
        }
        drop(state);
        Ok(Subscription { hub: Arc::clone(self), filter, number, replay, messages, ended: false })
    }

    /// Ends all subscriptions, and those to come.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.count = 0;
        state.subscribers.clear();
    }

    /// How many are subscribed now.
    pub fn subscribers(&self) -> usize {
        self.state().count
    }
}

impl State {
    /// Puts the message in the queues of one filter; who has no room is cut off.
    fn deliver(&mut self, filter: &Filter, text: &Bytes) {
        let Some(subscribers) = self.subscribers.get_mut(filter) else { return };
        let before = subscribers.len();
        subscribers.retain(|subscriber| subscriber.queue.try_send(text.clone()).is_ok());
        self.count -= before - subscribers.len();
        if subscribers.is_empty() {
            self.subscribers.remove(filter);
        }
    }

    /// What came after the event `after`, as far as it is remembered.
    fn since(&self, after: u64, filter: &Filter) -> VecDeque<Bytes> {
        let oldest = self.ring.front().map_or(self.next, |sent| sent.id);
        let newest = self.next - 1;
        if after > newest || after + 1 < oldest {
            return VecDeque::from([gap(Some(newest))]);
        }
        let missed = self.ring.iter().filter(|sent| sent.id > after);
        let admitted = missed.filter(|sent| filter.admits(sent.group.as_ref()));
        admitted.map(|sent| sent.text.clone()).collect()
    }
}

/// Events were missed: the subscriber has to read the state. With an id, what follows
/// counts from there.
fn gap(newest: Option<u64>) -> Bytes {
    let id = newest.map_or_else(String::new, |id| format!("id: {id}\n"));
    format!("{id}event: gap\ndata: {{}}\n\n").into()
}

/// One subscriber's events, as the bytes to send. Dropping it unsubscribes.
pub struct Subscription {
    hub: Arc<EventHub>,
    filter: Filter,
    number: u64,
    replay: VecDeque<Bytes>,
    messages: mpsc::Receiver<Bytes>,
    ended: bool,
}

impl Subscription {
    /// The next event; `None` when the hub is closed, or after the `gap` of a subscriber
    /// that was cut off. May be dropped and called again.
    pub async fn next(&mut self) -> Option<Bytes> {
        if let Some(text) = self.replay.pop_front() {
            return Some(text);
        }
        let message = self.messages.recv().await;
        if message.is_none() && !self.ended {
            self.ended = true;
            return (!self.hub.state().closed).then(|| gap(None));
        }
        message
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        let Some(subscribers) = state.subscribers.get_mut(&self.filter) else { return };
        let before = subscribers.len();
        subscribers.retain(|subscriber| subscriber.number != self.number);
        let gone = before - subscribers.len();
        if subscribers.is_empty() {
            state.subscribers.remove(&self.filter);
        }
        state.count -= gone;
    }
}

#[cfg(test)]
mod tests;
