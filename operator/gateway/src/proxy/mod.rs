//! The data path: requests of the OpenAI interface and of `SGLang`'s, from trainers and
//! agents to engines.
//!
//! Each thread has a listener, its connections and a pool of connections to engines of its
//! own; what they share is the [`Dispatch`] and what never changes.

mod abort;
mod body;
mod exchange;
mod generate;
mod identity;
mod incoming;
mod listen;
mod metrics;
mod pair;
mod pool;
mod recorded;
mod relay;
mod reply;
mod route;
mod service;
mod stall;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use rollwright_auth::Authenticator;
use rollwright_core::ids::{JobId, Task};

use crate::dispatch::Dispatch;
pub use listen::{Listen, ListenError, Server};
pub use metrics::Metrics;
use pool::Pool;
pub use reply::error_json;
pub use route::Route;
use upload::Budget;

/// Limits in time and memory of the data path.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that serve.
    pub threads: usize,
    /// Client connections of one thread; those beyond are closed at once.
    pub max_connections: usize,
    /// The longest body of a request, in bytes.
    pub max_body: usize,
    /// Bodies up to so many bytes are kept until the reply begins, so that another worker
    /// can be asked. Longer ones are passed on as they come, and a failure of their worker
    /// is reported; only a recorded turn, or one whose id stands in the body, is kept whole.
    pub max_kept: usize,
    /// Memory of all bodies longer than `max_kept` that must be kept, in bytes.
    pub max_large: usize,
    /// For a request's head; also how long a connection may be idle.
    pub head_timeout: Duration,
    /// For a request's whole body.
    pub body_timeout: Duration,
    /// For a connection to an engine.
    pub connect_timeout: Duration,
    /// From a request's end to the head of its reply, which comes with the last token where
    /// nothing is streamed.
    pub first_byte_timeout: Duration,
    /// Between two pieces of a reply.
    pub idle_timeout: Duration,
    /// A client that has not taken what it is sent for so long is cut off. It bounds how long
    /// such a client holds up an update of the weights.
    pub write_timeout: Duration,
    /// How long requests in flight may take to end at shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            max_connections: 16_384,
            max_body: 64 << 20,
            max_kept: 1 << 20,
            max_large: 1 << 30,
            head_timeout: Duration::from_mins(1),
            body_timeout: Duration::from_mins(2),
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_hours(1),
            idle_timeout: Duration::from_mins(10),
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(20),
        }
    }
}

/// What the data path is made with.
pub struct Parts {
    /// The job that is served.
    pub job: JobId,
    /// Tells callers on TCP apart; those on a Unix socket need show nothing.
    pub auth: Option<Authenticator>,
    /// Where requests go.
    pub dispatch: Arc<Dispatch>,
    /// `/rollout/v1`. It finds the [`rollwright_auth::Caller`] in the request's extensions.
    pub api: axum::Router,
    /// Where the calls of `api` run, so that a long one does not hold back generation.
    pub api_runtime: tokio::runtime::Handle,
    /// Counters.
    pub metrics: Metrics,
    /// Limits.
    pub limits: Limits,
    /// The domain of requests that name none.
    pub task: Task,
    /// Names that `/v1/models` answers with; where there are none, an engine is asked.
    pub models: Vec<String>,
}

/// What the threads share.
struct Shared {
    parts: Parts,
    budget: Arc<Budget>,
}

/// What one thread has.
pub(crate) struct Shard {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
}

impl Shard {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, pool: Arc::default() }
    }

    fn parts(&self) -> &Parts {
        &self.shared.parts
    }

    fn limits(&self) -> &Limits {
        &self.shared.parts.limits
    }
}
