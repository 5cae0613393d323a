//! Prometheus metrics of a queue, `rollwright_queue_*`, with bounded labels.

use crate::gpu::GpuMetrics;
use prometheus::{
    Encoder as _, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry, TextEncoder,
};

/// Everything that a queue counts. Profiles are bounded by the configuration.
pub struct Metrics {
    /// Of the GPU pools.
    pub(crate) gpu: GpuMetrics,
    registry: Registry,
    pub(crate) waiting: IntGauge,
    pub(crate) running: IntGauge,
    pub(crate) trajectories: IntGauge,
    pub(crate) links: IntGauge,
    pub(crate) buffered_bytes: IntGauge,
    pub(crate) accepted: IntCounter,
    pub(crate) ended: IntCounterVec,
    pub(crate) refused: IntCounterVec,
    pub(crate) act_seconds: HistogramVec,
    pub(crate) queue_seconds: HistogramVec,
    pub(crate) exec_seconds: HistogramVec,
    pub(crate) overhead_seconds: HistogramVec,
    pub(crate) decision_seconds: Histogram,
    pub(crate) commit_batch: Histogram,
    pub(crate) commit_seconds: Histogram,
    pub(crate) slow_readers: IntCounter,
    pub(crate) output_lost: IntCounter,
    pub(crate) evicted: IntCounter,
    pub(crate) exclusive_cores: IntGauge,
    pub(crate) shared_cores: IntGauge,
}

/// From 100 us to about 28 minutes.
fn act_buckets() -> Vec<f64> {
    (0..13).map(|step| 1e-4 * 4_f64.powi(step)).collect()
}

impl Metrics {
    /// All metrics at zero, in a registry of their own.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(format!("rollwright_queue_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(format!("rollwright_queue_{name}"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let opts = Opts::new(format!("rollwright_queue_{name}"), help);
            let counters = IntCounterVec::new(opts, labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let histograms = |name: &str, help: &str| {
            let opts = HistogramOpts::new(format!("rollwright_queue_{name}"), help);
            let histograms = HistogramVec::new(opts.buckets(act_buckets()), &["profile"])?;
            registry.register(Box::new(histograms.clone()))?;
            Ok::<_, prometheus::Error>(histograms)
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| {
            let opts = HistogramOpts::new(format!("rollwright_queue_{name}"), help);
            let histogram = Histogram::with_opts(opts.buckets(buckets))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let micros = (0..12).map(|step| 1e-5 * 3_f64.powi(step)).collect::<Vec<_>>();
        Ok(Self {
            waiting: gauge("waiting_actions", "Actions accepted and not started")?,
            running: gauge("running_actions", "Actions started and not ended")?,
            trajectories: gauge("trajectories", "Trajectories open, or on their way in or out")?,
            links: gauge("links", "Agents with a live link")?,
            buffered_bytes: gauge("buffered_bytes", "Bytes of requests and outputs in memory")?,
            accepted: counter("accepted_total", "Actions accepted")?,
            ended: counters("ended_total", "Actions ended", &["kind"])?,
            refused: counters("refused_total", "Requests refused", &["kind"])?,
            act_seconds: histograms("act_seconds", "Submission to result of an action")?,
            queue_seconds: histograms("queue_seconds", "Submission to grant of an action")?,
            exec_seconds: histograms("exec_seconds", "Start of the program to its end")?,
            overhead_seconds: histograms("overhead_seconds", "The rest of an action's time")?,
            decision_seconds: histogram(
                "decision_seconds",
                "One scheduling round over a batch of events",
                micros.clone(),
            )?,
            commit_batch: histogram(
                "commit_batch_records",
                "Records made durable by one commit",
                (0..14).map(|step| f64::from(1 << step)).collect(),
            )?,
            commit_seconds: histogram("commit_seconds", "One commit to the store", micros)?,
            slow_readers: counter("slow_readers_total", "Streams ended because nobody read them")?,
            output_lost: counter(
                "output_lost_bytes_total",
                "Bytes of output dropped since too much was held in memory",
            )?,
            evicted: counter(
                "results_evicted_total",
                "Results dropped before their time, since there were too many",
            )?,
            exclusive_cores: gauge("exclusive_cores", "Cores granted exclusively, on all nodes")?,
            shared_cores: gauge("shared_cores", "Cores that shares occupy, on all nodes")?,
            gpu: GpuMetrics::new(&registry)?,
            registry,
        })
    }

    /// The text form that Prometheus scrapes.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
