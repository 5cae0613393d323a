//! Prometheus metrics of a gateway beside its data path, `rollwright_gateway_*`, with
//! bounded labels.

use prometheus::{
    Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use rollwright_core::fault::Fault;
use rollwright_core::ids::WorkerId;
use rollwright_core::reward::Answer;
use rollwright_core::rollout::Rollout;
use rollwright_core::time::Time;
use rollwright_core::weights::Committed;

use crate::engine::control::Load;
use crate::weights::Pulled;

/// Workers beyond are counted together.
const MAX_WORKERS: usize = 256;

/// What the driver counts, and what is read of the core at a scrape.
pub(crate) struct Metrics {
    registry: Registry,
    fallbacks: IntCounter,
    store_failures: IntCounter,
    evicted: IntCounter,
    scores: IntCounterVec,
    exposed_seconds: Histogram,
    pull_seconds: Histogram,
    pulled_bytes: IntCounter,
    engine: GaugeVec,
    groups: IntGaugeVec,
    trajectories: IntGaugeVec,
    ended: IntGaugeVec,
    pending: IntGauge,
    version: IntGauge,
    workers: IntGaugeVec,
    trainer_waited: Gauge,
    trainer_held: Gauge,
    batches: IntGaugeVec,
    straggler_tax: Gauge,
    kept_fraction: Gauge,
}

type Made<T> = Result<T, prometheus::Error>;

/// From 1 ms to about 17 minutes.
fn seconds() -> Vec<f64> {
    (0..11).map(|step| 1e-3 * 4_f64.powi(step)).collect()
}

impl Metrics {
    /// All at zero, in a registry of their own.
    pub(crate) fn new() -> Made<Self> {
        let registry = Registry::new();
        let full = |name: &str| format!("rollwright_gateway_{name}");
        let counter = |name: &str, help: &str| -> Made<IntCounter> {
            let made = IntCounter::new(full(name), help)?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        let gauge = |name: &str, help: &str| -> Made<Gauge> {
            let made = Gauge::new(full(name), help)?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        let integer = |name: &str, help: &str| -> Made<IntGauge> {
            let made = IntGauge::new(full(name), help)?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        let integers = |name: &str, help: &str, label: &str| -> Made<IntGaugeVec> {
            let made = IntGaugeVec::new(Opts::new(full(name), help), &[label])?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        let histogram = |name: &str, help: &str| -> Made<Histogram> {
            let made =
                Histogram::with_opts(HistogramOpts::new(full(name), help).buckets(seconds()))?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        let scores = IntCounterVec::new(
            Opts::new(full("scores_total"), "Calls of reward services, by how they ended."),
            &["end"],
        )?;
        registry.register(Box::new(scores.clone()))?;
        let engine = GaugeVec::new(
            Opts::new(full("engine"), "What an engine says of itself."),
            &["worker", "what"],
        )?;
        registry.register(Box::new(engine.clone()))?;
        Ok(Self {
            fallbacks: counter(
                "fallbacks_total",
                "Times that a task went to another class of hardware than it prefers.",
            )?,
            store_failures: counter("store_failures_total", "Writes of the store that failed.")?,
            evicted: counter(
                "evicted_trajectories_total",
                "Scored trajectories that were too old for the trainer.",
            )?,
            scores,
            exposed_seconds: histogram(
                "weights_exposed_seconds",
                "How long a worker got no requests because of an update, in the mean.",
            )?,
            pull_seconds: histogram(
                "weights_pull_seconds",
                "Time to pull the buckets of a version.",
            )?,
            pulled_bytes: counter("weights_pulled_bytes_total", "Bytes of buckets pulled.")?,
            engine,
            groups: integers("groups", "Groups, open or in the buffer.", "where")?,
            trajectories: integers("trajectories", "Trajectories by what they do.", "state")?,
            ended: integers(
                "trajectories_ended",
                "Trajectories by how they ended, since the start.",
                "end",
            )?,
            pending: integer("requests_pending", "Requests that wait for a worker.")?,
            version: integer("policy_version", "The current version of the weights.")?,
            workers: integers("workers", "Workers by what they do.", "state")?,
            trainer_waited: gauge(
                "trainer_waited_seconds",
                "How long somebody waited in batches for one that was not there, since the start.",
            )?,
            trainer_held: gauge(
                "trainer_held_seconds",
                "How long a batch was out and not acknowledged, since the start.",
            )?,
            batches: integers("batches", "Batches, since the start.", "what")?,
            straggler_tax: gauge(
                "straggler_tax",
                "Longest over mean trajectory time of a group, less 1, in the mean.",
            )?,
            kept_fraction: gauge(
                "kept_fraction",
                "Part of the ended trajectories that went to the trainer.",
            )?,
            registry,
        })
    }

    /// Where the data path registers its own.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn fell_back(&self, away: bool) {
        if away {
            self.fallbacks.inc();
        }
    }

    pub(crate) fn store_failed(&self) {
        self.store_failures.inc();
    }

    pub(crate) fn evicted(&self, trajectories: usize) {
        self.evicted.inc_by(trajectories as u64);
    }

    pub(crate) fn scored(&self, outcome: &Result<Answer, Fault>) {
        let end = outcome.as_ref().map_or_else(|fault| fault.kind.as_str(), |_| "scored");
        self.scores.with_label_values(&[end]).inc();
    }

    pub(crate) fn committed(&self, committed: &Committed) {
        self.exposed_seconds.observe(committed.exposed.as_secs_f64());
    }

    pub(crate) fn pulled(&self, pulled: &Pulled) {
        self.pull_seconds.observe(pulled.pull.as_secs_f64());
        self.pulled_bytes.inc_by(pulled.bytes);
    }

    /// What an engine says of itself; workers beyond the first 256 are not shown.
    pub(crate) fn engine_load(&self, worker: &WorkerId, index: u32, load: &Load) {
        if index as usize >= MAX_WORKERS {
            return;
        }
        let set = |what: &str, value: f64| {
            self.engine.with_label_values(&[worker.as_str(), what]).set(value);
        };
        set("running", load.running as f64);
        set("waiting", load.waiting as f64);
        if let Some(kv_used) = load.kv_used {
            set("kv_used", kv_used);
        }
    }

    /// A worker is gone, and its label with it.
    pub(crate) fn worker_left(&self, worker: &WorkerId) {
        for what in ["running", "waiting", "kv_used"] {
            // One that was never shown has none.
            let _ = self.engine.remove_label_values(&[worker.as_str(), what]);
        }
    }

    /// Takes from the core what a scrape shows.
    pub(crate) fn read(&self, core: &Rollout, now: Time) {
        let set = |of: &IntGaugeVec, label: &str, value: u64| {
            of.with_label_values(&[label]).set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let counts = core.trajectories().counts();
        set(&self.groups, "open", counts.groups as u64);
        set(&self.groups, "buffered", core.buffer().groups() as u64);
        set(&self.trajectories, "running", counts.running as u64);
        set(&self.trajectories, "scoring", counts.scoring as u64);
        set(&self.trajectories, "scored", counts.scored as u64);
        set(&self.trajectories, "buffered", core.buffer().trajectories() as u64);
        let stats = core.trajectories().stats();
        for (end, count) in [
            ("settled", stats.settled),
            ("surplus", stats.surplus),
            ("stale", stats.stale),
            ("failed", stats.failed),
            ("cancelled", stats.cancelled),
        ] {
            set(&self.ended, end, count);
        }
        self.straggler_tax.set(stats.straggler_tax().unwrap_or(0.0));
        self.kept_fraction.set(stats.kept_fraction().unwrap_or(0.0));
        self.pending.set(i64::try_from(core.router().pending()).unwrap_or(i64::MAX));
        self.version.set(i64::try_from(core.weights().current().0).unwrap_or(i64::MAX));
        self.workers.reset();
        for worker in core.router().workers().take(MAX_WORKERS) {
            self.workers.with_label_values(&[worker.state.as_str()]).inc();
        }
        let batches = core.buffer().stats(now);
        self.trainer_waited.set(batches.trainer_waited.as_secs_f64());
        self.trainer_held.set(batches.trainer_held.as_secs_f64());
        set(&self.batches, "taken", batches.batches);
        set(&self.batches, "acknowledged", batches.acknowledged);
    }

    /// The Prometheus text format.
    pub(crate) fn render(&self) -> Made<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
