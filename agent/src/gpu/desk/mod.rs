//! Between the queue's messages and the [`super::Driver`]: what is told of engines and calls,
//! and what is still to be told when the link is back.

mod calls;
mod ending;
mod limits;
mod wire;
mod work;

use rollwright_proto::v1 as pb;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use tokio::sync::{mpsc, oneshot};

use self::work::Work;
use super::station::Station;

/// Messages that wait for the desk, and for the driver.
const INBOX: usize = 1024;

enum Input {
    Queue(Box<FromQueue>),
    /// A stream begins: what the hello says. Until [`Self::Attach`] nothing is sent.
    Hello(oneshot::Sender<pb::GpuNode>),
    /// The hello is out: desk --messages--> queue.
    Attach(mpsc::Sender<pb::AgentMessage>),
    Detach,
    /// End; engines as well where `clear`.
    Stop {
        clear: bool,
        done: oneshot::Sender<()>,
    },
}

/// A running desk. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Desk {
    inbox: mpsc::Sender<Input>,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Input")
    }
}

impl Desk {
    /// Finds the engines of an earlier process of the agent, and takes messages.
    pub async fn open(station: Station) -> Self {
        let (inbox, inbox_rx) = mpsc::channel(INBOX);
        Work::open(station, inbox_rx).await;
        Self { inbox }
    }

    /// Hands over a message of the queue.
    pub async fn handle(&self, message: FromQueue) {
        self.send(Input::Queue(Box::new(message))).await;
    }

    /// A stream begins: what the hello says of the GPUs.
    pub async fn hello(&self) -> Option<pb::GpuNode> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Hello(reply)).await;
        answer.await.ok()
    }

    /// The hello is out: what was not acknowledged follows it.
    pub async fn attach(&self, outbox: mpsc::Sender<pb::AgentMessage>) {
        self.send(Input::Attach(outbox)).await;
    }

    /// The stream is gone.
    pub async fn detach(&self) {
        self.send(Input::Detach).await;
    }

    /// Ends the desk, and with `clear` all engines. They live on without.
    pub async fn stop(&self, clear: bool) {
        let (done, ended) = oneshot::channel();
        self.send(Input::Stop { clear, done }).await;
        // An error is the end as well.
        let _ = ended.await;
    }

    async fn send(&self, input: Input) {
        // The desk ends only when it is told to.
        drop(self.inbox.send(input).await);
    }
}
