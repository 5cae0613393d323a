//! Counters of the data path. Labels are bounded: routes, classes of status, workers.

use std::time::Duration;

use http::StatusCode;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

use super::route::Route;

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// Workers beyond have the label of the last.
const WORKERS: u32 = 256;

/// Metrics of the data path.
#[derive(Debug)]
pub struct Metrics {
    replies: Vec<[IntCounter; 5]>,
    head_seconds: Vec<Histogram>,
    failures: IntCounterVec,
    /// Client connections open.
    pub(crate) connections: IntGauge,
    /// Connections refused because too many were open.
    pub(crate) refused_connections: IntCounter,
    /// Turns that went on elsewhere after some of their tokens.
    pub(crate) continued: IntCounter,
    /// Turns that were sent again from their beginning.
    pub(crate) restarted: IntCounter,
    /// Prefills whose KV went to another worker.
    pub(crate) prefilled: IntCounter,
    /// Prefills that kept no KV for another worker.
    pub(crate) without_kv: IntCounter,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let replies = IntCounterVec::new(
            Opts::new("rollwright_gateway_replies_total", "Replies by route and class of status."),
            &["route", "code"],
        )?;
        let head_seconds = HistogramVec::new(
            HistogramOpts::new(
                "rollwright_gateway_head_seconds",
                "Time from a request's head to its reply's head.",
            )
            .buckets(vec![0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0]),
            &["route"],
        )?;
        let failures = IntCounterVec::new(
            Opts::new("rollwright_gateway_engine_failures_total", "Requests that a worker failed."),
            &["worker"],
        )?;
        let connections =
            IntGauge::new("rollwright_gateway_connections", "Client connections open.")?;
        let refused_connections = IntCounter::new(
            "rollwright_gateway_refused_connections_total",
            "Client connections closed at once because too many were open.",
        )?;
        let continued = IntCounter::new(
            "rollwright_gateway_turns_continued_total",
            "Turns continued on a worker after some of their tokens had been generated.",
        )?;
        let restarted = IntCounter::new(
            "rollwright_gateway_turns_restarted_total",
            "Recorded turns that were sent again from their beginning.",
        )?;
        let prefilled = IntCounter::new(
            "rollwright_gateway_prefills_total",
            "Prefills on workers for that alone whose KV went to another one.",
        )?;
        let without_kv = IntCounter::new(
            "rollwright_gateway_prefills_without_kv_total",
            "Prefills that were in vain: the engine has kept no KV for another one.",
        )?;
        registry.register(Box::new(replies.clone()))?;
        registry.register(Box::new(head_seconds.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        registry.register(Box::new(connections.clone()))?;
        for counter in [&refused_connections, &continued, &restarted, &prefilled, &without_kv] {
            registry.register(Box::new(counter.clone()))?;
        }
        let of_route =
            |route: Route| CLASSES.map(|class| replies.with_label_values(&[route.as_str(), class]));
        Ok(Self {
            replies: Route::ALL.into_iter().map(of_route).collect(),
            head_seconds: Route::ALL
                .into_iter()
                .map(|route| head_seconds.with_label_values(&[route.as_str()]))
                .collect(),
            failures,
            connections,
            refused_connections,
            continued,
            restarted,
            prefilled,
            without_kv,
        })
    }

    pub(crate) fn replied(&self, route: Route, status: StatusCode, after: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.replies[route.index()][class].inc();
        self.head_seconds[route.index()].observe(after.as_secs_f64());
    }

    pub(crate) fn failed(&self, worker: u32) {
        self.failures.with_label_values(&[&worker.min(WORKERS).to_string()]).inc();
    }
}
