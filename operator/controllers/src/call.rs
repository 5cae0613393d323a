//! Every request to the API server goes through [`Calls`]: bounded in time, counted, and kept
//! apart from our own time.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{CallError, CallFault};
use crate::metrics::Metrics;

/// Longest wait for one answer.
const LONGEST: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// Time that the running reconciliation has waited for others.
    static OUTSIDE: Cell<Duration>;
}

/// Runs a reconciliation; returns what it returned and how long it waited for others.
pub(crate) async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    OUTSIDE
        .scope(Cell::new(Duration::ZERO), async {
            let result = work.await;
            (result, OUTSIDE.with(Cell::get))
        })
        .await
}

/// Waits for somebody else; the time is not counted as ours.
pub async fn outside<T>(work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let result = work.await;
    // Outside of a reconciliation nobody counts.
    let _ = OUTSIDE.try_with(|spent| spent.set(spent.get() + begun.elapsed()));
    result
}

/// Requests to the API server.
#[derive(Clone)]
pub struct Calls {
    metrics: Arc<Metrics>,
}

impl Calls {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }

    /// Makes one request: `verb` as in RBAC, `what` as [`crate::error::named`] writes it.
    pub async fn call<T>(
        &self,
        verb: &'static str,
        what: impl FnOnce() -> String,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        let begun = Instant::now();
        let result = match outside(tokio::time::timeout(LONGEST, request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(CallFault::Kube(error)),
            Err(_) => Err(CallFault::TimedOut(LONGEST)),
        };
        let outcome = if result.is_ok() { "ok" } else { "failed" };
        self.metrics.requested(verb, outcome, begun.elapsed());
        result.map_err(|fault| CallError { verb, what: what(), fault })
    }
}
