//! Prometheus metrics of the controllers, `rollwright_controllers_*`, with bounded labels.

use std::time::Duration;

use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// Bounds of the histograms in seconds: 5 ms, within which a reconciliation is to decide, is one.
const BUCKETS: [f64; 17] = [
    1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0,
];

/// Everything that the controllers count.
pub struct Metrics {
    registry: Registry,
    reconcile: HistogramVec,
    decide: HistogramVec,
    failures: IntCounterVec,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    malformed: IntCounterVec,
    leader: IntGauge,
}

impl Metrics {
    /// All metrics at zero, in a registry of their own.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let opts = Opts::new(format!("rollwright_controllers_{name}"), help);
            let counters = IntCounterVec::new(opts, labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let histograms = |name: &str, help: &str, label: &str| {
            let opts = HistogramOpts::new(format!("rollwright_controllers_{name}"), help);
            let histograms = HistogramVec::new(opts.buckets(BUCKETS.to_vec()), &[label])?;
            registry.register(Box::new(histograms.clone()))?;
            Ok::<_, prometheus::Error>(histograms)
        };
        let failures = counters(
            "reconcile_failures_total",
            "Reconciliations that failed",
            &["kind", "category"],
        )?;
        let malformed =
            counters("malformed_objects_total", "Custom resources found not to parse", &["kind"])?;
        // A counter that begins at 1 has not increased, to Prometheus.
        for kind in ["ActionQueue", "ResourcePool", "RewardService", "RolloutJob"] {
            malformed.with_label_values(&[kind]);
            failures.with_label_values(&[&kind.to_lowercase(), "ApiUnavailable"]);
        }
        let leader = IntGauge::new("rollwright_controllers_leader", "1 in the replica that acts")?;
        registry.register(Box::new(leader.clone()))?;
        Ok(Self {
            reconcile: histograms("reconcile_seconds", "One reconciliation", "kind")?,
            decide: histograms(
                "reconcile_own_seconds",
                "One reconciliation without the time of the API server and of queues and gateways",
                "kind",
            )?,
            failures,
            requests: counters(
                "api_requests_total",
                "Requests to the API server, watches aside",
                &["verb", "outcome"],
            )?,
            request_seconds: histograms(
                "api_request_seconds",
                "One request to the API server",
                "verb",
            )?,
            malformed,
            leader,
            registry,
        })
    }

    /// One reconciliation took `whole`, of which `outside` was spent waiting for others.
    pub(crate) fn reconciled(&self, kind: &str, whole: Duration, outside: Duration) {
        self.reconcile.with_label_values(&[kind]).observe(whole.as_secs_f64());
        let own = whole.saturating_sub(outside);
        self.decide.with_label_values(&[kind]).observe(own.as_secs_f64());
    }

    /// One reconciliation failed.
    pub(crate) fn failed(&self, kind: &str, category: &str) {
        self.failures.with_label_values(&[kind, category]).inc();
    }

    /// One request to the API server ended.
    pub(crate) fn requested(&self, verb: &str, outcome: &str, took: Duration) {
        self.requests.with_label_values(&[verb, outcome]).inc();
        self.request_seconds.with_label_values(&[verb]).observe(took.as_secs_f64());
    }

    /// A custom resource does not parse.
    pub(crate) fn malformed(&self, kind: &str) {
        self.malformed.with_label_values(&[kind]).inc();
    }

    /// Whether this replica acts.
    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// The text form that Prometheus scrapes.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_object_that_does_not_parse_is_an_increase() {
        let metrics = Metrics::new().unwrap();
        let series = r#"rollwright_controllers_malformed_objects_total{kind="RolloutJob"}"#;
        let value = |metrics: &Metrics| {
            let text = String::from_utf8(metrics.render().unwrap()).unwrap();
            text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<u32>().ok())
        };
        assert_eq!(value(&metrics), Some(0));
        metrics.malformed("RolloutJob");
        assert_eq!(value(&metrics), Some(1));
    }
}
