//! The agent's metrics. Labels are bounded: templates beyond a number count as `other`.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use prometheus::{
    Encoder as _, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use rollwright_core::fault::Fault;

/// Most templates with a label value of their own.
const MAX_TEMPLATES: usize = 64;

/// Bounds of resets in seconds: from a warm start to a long pull.
const RESET_BUCKETS: [f64; 12] =
    [0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0];
/// Bounds of the agent's own part of an action, in seconds.
const OVERHEAD_BUCKETS: [f64; 10] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0];

/// All metrics of one agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    templates: Mutex<BTreeSet<String>>,
    /// Sandboxes by state: `resetting`, `ready`, `warm`.
    pub sandboxes: IntGaugeVec,
    /// Actions that run.
    pub actions_running: IntGauge,
    /// Actions that ended, by how: `exit`, `signal`, or the kind of fault.
    pub actions_ended: IntCounterVec,
    /// Time from the order to start an action until its program is started.
    pub start_seconds: Histogram,
    /// Parts of reset: `image`, `start`, `setup`, by template.
    reset_seconds: HistogramVec,
    /// Resets that failed, by reason.
    pub reset_failures: IntCounterVec,
    /// Sandboxes taken from the warm pool.
    pub warm_hits: IntCounter,
    /// Sandboxes that had to be made although their template keeps warm ones.
    pub warm_misses: IntCounter,
    /// Images removed to free the disk.
    pub images_removed: IntCounter,
    /// Streams to the queue that were set up.
    pub link_connects: IntCounter,
    /// 1 while a stream to the queue stands.
    pub link_up: IntGauge,
    /// Bytes of output read from actions.
    pub output_bytes: IntCounter,
    /// Free bytes of the file system of Docker's root.
    pub disk_free_bytes: IntGauge,
}

impl Metrics {
    /// Registers everything in a registry of its own.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let name = |name: &str| format!("rollwright_agent_{name}");
        macro_rules! registered {
            ($metric:expr) => {{
                let metric = $metric?;
                registry.register(Box::new(metric.clone()))?;
                metric
            }};
        }
        let buckets = |what: &str, help: &str, buckets: &[f64]| {
            HistogramOpts::new(name(what), help).buckets(buckets.to_vec())
        };
        let build = Opts::new(name("build_info"), "1, with the version as a label")
            .const_label("version", env!("CARGO_PKG_VERSION"));
        registered!(IntGauge::with_opts(build)).set(1);
        Ok(Self {
            templates: Mutex::default(),
            sandboxes: registered!(IntGaugeVec::new(
                Opts::new(name("sandboxes_count"), "Sandboxes by state"),
                &["state"]
            )),
            actions_running: registered!(IntGauge::new(
                name("actions_running_count"),
                "Actions that run"
            )),
            actions_ended: registered!(IntCounterVec::new(
                Opts::new(name("actions_ended_total"), "Actions that ended, by how"),
                &["end"]
            )),
            start_seconds: registered!(Histogram::with_opts(buckets(
                "action_start_seconds",
                "From the order to start an action until its program is started",
                &OVERHEAD_BUCKETS
            ))),
            reset_seconds: registered!(HistogramVec::new(
                buckets("reset_seconds", "Parts of making a sandbox ready", &RESET_BUCKETS),
                &["part", "template"]
            )),
            reset_failures: registered!(IntCounterVec::new(
                Opts::new(name("reset_failures_total"), "Resets that failed, by reason"),
                &["reason"]
            )),
            warm_hits: registered!(IntCounter::new(
                name("warm_hits_total"),
                "Sandboxes taken from the warm pool"
            )),
            warm_misses: registered!(IntCounter::new(
                name("warm_misses_total"),
                "Sandboxes made although their template keeps warm ones"
            )),
            images_removed: registered!(IntCounter::new(
                name("images_removed_total"),
                "Images removed to free the disk"
            )),
            link_connects: registered!(IntCounter::new(
                name("link_connects_total"),
                "Streams to the queue that were set up"
            )),
            link_up: registered!(IntGauge::new(
                name("link_up"),
                "1 while a stream to the queue stands"
            )),
            output_bytes: registered!(IntCounter::new(
                name("action_output_bytes"),
                "Bytes of output read from actions"
            )),
            disk_free_bytes: registered!(IntGauge::new(
                name("disk_free_bytes"),
                "Free bytes of the file system of Docker's root"
            )),
            registry,
        })
    }

    /// The node has ended, and another may begin: nothing runs.
    pub fn node_ended(&self) {
        self.sandboxes.reset();
        self.actions_running.set(0);
    }

    /// One part of a reset took so long.
    pub fn reset(&self, part: &str, template: &str, seconds: f64) {
        let template = self.bounded(template);
        self.reset_seconds.with_label_values(&[part, &template]).observe(seconds);
    }

    /// A reset failed. Reasons are words of this program, so their number is bounded.
    pub fn reset_failed(&self, fault: &Fault) {
        self.reset_failures.with_label_values(&[fault.reason.as_ref()]).inc();
    }

    /// The text that Prometheus scrapes.
    pub fn render(&self) -> String {
        let mut bytes = Vec::new();
        let families = self.registry.gather();
        if let Err(error) = TextEncoder::new().encode(&families, &mut bytes) {
            tracing::error!(%error, "cannot encode the metrics");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn bounded(&self, template: &str) -> String {
        let mut templates = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
        if !templates.contains(template) {
            if templates.len() >= MAX_TEMPLATES {
                return "other".to_owned();
            }
            templates.insert(template.to_owned());
        }
        template.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let metrics = Metrics::new().unwrap();
        for i in 0..1000 {
            metrics.reset("image", &format!("t{i}"), 0.1);
        }
        let text = metrics.render();
        let series = text.lines().filter(|line| line.contains("reset_seconds_count")).count();
        assert_eq!(series, MAX_TEMPLATES + 1);
        assert!(text.contains("rollwright_agent_build_info{version="));
    }
}
