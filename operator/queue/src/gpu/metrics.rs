//! Metrics of GPU pools. Services are settings, so their names are bounded labels.

use prometheus::{
    CounterVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
};
use rollwright_core::fault::FaultKind;
use rollwright_core::gpu::Trouble;

use super::config::GpuService;

/// The metrics.
#[derive(Debug)]
pub(crate) struct GpuMetrics {
    /// Engines launched and woken.
    pub(super) restores: IntCounterVec,
    pub(super) evictions: IntCounterVec,
    /// Calls started, by whether their engine was resident when they came.
    pub(super) calls: IntCounterVec,
    pub(super) ended: IntCounterVec,
    /// Engines that failed, by reason.
    pub(super) failures: IntCounterVec,
    pub(super) restore_seconds: HistogramVec,
    pub(super) evict_seconds: HistogramVec,
    pub(super) queue_seconds: HistogramVec,
    pub(super) exec_seconds: HistogramVec,
    pub(super) act_seconds: HistogramVec,
    /// The part of `act_seconds` in which engines were being made resident.
    pub(super) restore_wait_seconds: CounterVec,
    pub(super) waiting: IntGaugeVec,
    pub(super) running: IntGaugeVec,
    pub(super) residents: IntGaugeVec,
    /// 1: an engine of the service failed, and none of its degree came up since.
    pub(super) in_trouble: IntGaugeVec,
    /// What engines have or are about to have, as declared.
    pub(super) device_held: IntGaugeVec,
    pub(super) host_held: IntGaugeVec,
    pub(super) device_memory: IntGaugeVec,
    pub(super) host_memory: IntGaugeVec,
    pub(super) gpus: IntGaugeVec,
    pub(super) lost_gpus: IntGaugeVec,
    /// 1 where a node of the pool is a fake of GPUs.
    pub(super) fake: IntGaugeVec,
}

impl GpuMetrics {
    /// Nothing is counted yet.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let made =
                IntCounterVec::new(Opts::new(format!("rollwright_gpu_{name}"), help), labels)?;
            registry.register(Box::new(made.clone()))?;
            Ok::<_, prometheus::Error>(made)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let made = IntGaugeVec::new(Opts::new(format!("rollwright_gpu_{name}"), help), labels)?;
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
        let restore_wait_seconds = CounterVec::new(
            Opts::new(
                "rollwright_gpu_restore_wait_seconds_total",
                "Of the time of ended calls, that in which their engines were made resident",
            ),
            &["service"],
        )?;
        registry.register(Box::new(restore_wait_seconds.clone()))?;
        Ok(Self {
            restores: counters("restores_total", "Engines made resident", &["service", "how"])?,
            evictions: counters("evictions_total", "Engines put to sleep", &["service"])?,
            calls: counters("calls_total", "Calls started", &["service", "resident"])?,
            ended: counters("calls_ended_total", "Calls ended", &["service", "kind"])?,
            failures: counters(
                "engine_failures_total",
                "Engines that failed",
                &["service", "reason"],
            )?,
            restore_seconds: histograms("restore_seconds", "Order to verified resident", 0.005)?,
            evict_seconds: histograms("evict_seconds", "Order to memory given back", 0.001)?,
            queue_seconds: histograms("queue_seconds", "Submission to start of a call", 0.001)?,
            exec_seconds: histograms("exec_seconds", "Start of a call to its end", 0.001)?,
            act_seconds: histograms("act_seconds", "Submission to answer of a call", 0.001)?,
            restore_wait_seconds,
            waiting: gauges("waiting_calls", "Calls that wait", &["service"])?,
            running: gauges("running_calls", "Calls that run", &["service"])?,
            residents: gauges("residents", "Engines on the device", &["service", "degree"])?,
            in_trouble: gauges(
                "in_trouble",
                "1: an engine failed and none of its degree came up since",
                &["service"],
            )?,
            device_held: gauges(
                "device_memory_held_bytes",
                "Memory of GPUs that engines have, as declared",
                &["pool", "service"],
            )?,
            host_held: gauges(
                "host_memory_held_bytes",
                "Memory of nodes that engines have, as declared",
                &["pool", "service"],
            )?,
            device_memory: gauges(
                "device_memory_bytes",
                "Memory of the GPUs of nodes with a link",
                &["pool"],
            )?,
            host_memory: gauges(
                "host_memory_bytes",
                "Memory of nodes with a link that engines may have",
                &["pool"],
            )?,
            gpus: gauges("devices", "GPUs of nodes with a link", &["pool"])?,
            lost_gpus: gauges("devices_lost", "GPUs that fell off", &["pool"])?,
            fake: gauges("fake", "1: a node of the pool is a fake of GPUs", &["pool"])?,
        })
    }

    /// Begins the counts of a service at 0: of a counter that is not there yet, Prometheus would
    /// not see the first event.
    pub(super) fn begin(&self, service: &GpuService) {
        let name = service.core.name.as_str();
        for how in ["launch", "wake"] {
            self.restores.with_label_values(&[name, how]);
        }
        for resident in ["yes", "no"] {
            self.calls.with_label_values(&[name, resident]);
        }
        let faults = [FaultKind::Infrastructure, FaultKind::Timeout, FaultKind::Cancelled];
        for kind in ["answered"].into_iter().chain(faults.map(FaultKind::as_str)) {
            self.ended.with_label_values(&[name, kind]);
        }
        for reason in Trouble::REASONS {
            self.failures.with_label_values(&[name, reason]);
        }
        self.evictions.with_label_values(&[name]);
        self.restore_wait_seconds.with_label_values(&[name]);
        for times in [
            &self.restore_seconds,
            &self.evict_seconds,
            &self.queue_seconds,
            &self.exec_seconds,
            &self.act_seconds,
        ] {
            times.with_label_values(&[name]);
        }
    }
}
