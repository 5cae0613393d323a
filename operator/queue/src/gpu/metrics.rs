//! Metrics of GPU pools. Services are settings, so their names are bounded labels.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// The metrics.
#[derive(Debug)]
pub(crate) struct GpuMetrics {
    /// Engines launched and woken.
    pub(super) restores: IntCounterVec,
    pub(super) evictions: IntCounterVec,
    /// Calls started, by whether their engine was resident when they came.
    pub(super) calls: IntCounterVec,
    pub(super) ended: IntCounterVec,
    pub(super) failures: IntCounterVec,
    pub(super) restore_seconds: HistogramVec,
    pub(super) evict_seconds: HistogramVec,
    pub(super) queue_seconds: HistogramVec,
    pub(super) exec_seconds: HistogramVec,
    pub(super) act_seconds: HistogramVec,
    pub(super) waiting: IntGaugeVec,
    pub(super) running: IntGaugeVec,
    pub(super) residents: IntGaugeVec,
    pub(super) gpus: IntGaugeVec,
    pub(super) lost_gpus: IntGaugeVec,
    /// 1 where a node of the pool is a fake of GPUs.
    pub(super) fake: IntGaugeVec,
}

impl GpuMetrics {
    /// All at zero.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let made =
                IntCounterVec::new(Opts::new(format!("rollwright_gpu_{name}"), help), labels)?;
            registry.register(Box::new(made.clone()))?;
            Ok::<_, prometheus::Error>(made)
        };
        let gauges = |name: &str, help: &str, label: &str| {
            let made =
                IntGaugeVec::new(Opts::new(format!("rollwright_gpu_{name}"), help), &[label])?;
            registry.register(Box::new(made.clone()))?;
            Ok::<_, prometheus::Error>(made)
        };
        let histograms = |name: &str, help: &str, first: f64| {
            let buckets = (0..16).map(|step| first * 2_f64.powi(step)).collect();
            let opts = HistogramOpts::new(format!("rollwright_gpu_{name}"), help);
            let made = HistogramVec::new(opts.buckets(buckets), &["service"])?;
            registry.register(Box::new(made.clone()))?;
            Ok::<_, prometheus::Error>(made)
        };
        Ok(Self {
            restores: counters("restores_total", "Engines made resident", &["service", "how"])?,
            evictions: counters("evictions_total", "Engines put to sleep", &["service"])?,
            calls: counters("calls_total", "Calls started", &["service", "resident"])?,
            ended: counters("calls_ended_total", "Calls ended", &["service", "kind"])?,
            failures: counters("engine_failures_total", "Engines that failed", &["service"])?,
            restore_seconds: histograms("restore_seconds", "Order to verified resident", 0.005)?,
            evict_seconds: histograms("evict_seconds", "Order to memory given back", 0.001)?,
            queue_seconds: histograms("queue_seconds", "Submission to start of a call", 0.001)?,
            exec_seconds: histograms("exec_seconds", "Start of a call to its end", 0.001)?,
            act_seconds: histograms("act_seconds", "Submission to answer of a call", 0.001)?,
            waiting: gauges("waiting_calls", "Calls that wait", "service")?,
            running: gauges("running_calls", "Calls that run", "service")?,
            residents: gauges("residents", "Engines on the device", "service")?,
            gpus: gauges("devices", "GPUs of nodes with a link", "pool")?,
            lost_gpus: gauges("devices_lost", "GPUs that fell off", "pool")?,
            fake: gauges("fake", "1: a node of the pool is a fake of GPUs", "pool")?,
        })
    }
}
