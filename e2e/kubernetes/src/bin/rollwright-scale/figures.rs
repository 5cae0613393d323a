//! From what was measured to the rows of the table.

use std::collections::BTreeMap;
use std::time::Duration;

use super::run::{Measured, Plan};
use super::samples::{Sample, Samples};
use super::table::Row;

/// Counter of the controllers' requests.
const REQUESTS: &str = "rollwright_controllers_api_requests_total";
/// Their reconciliations without the time of others.
const OWN: &str = "rollwright_controllers_reconcile_own_seconds";
/// The API server's counter.
const SERVED: &str = "apiserver_request_total";
/// Kinds that the controllers write; a node's status, which its kubelet writes, aside.
const WRITTEN: [&str; 14] = [
    "rolloutjobs",
    "resourcepools",
    "actionqueues",
    "rewardservices",
    "pods",
    "services",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
    "deployments",
    "statefulsets",
    "networkpolicies",
    "events",
    "nodes",
];

/// Requests of the controllers that may change something; the renewal of their Lease, which
/// says that they live, aside.
pub(crate) fn own_writes(samples: &Samples) -> u64 {
    let by = samples.by(REQUESTS, "verb");
    count(by.iter().filter(|(verb, _)| !is_read(verb)).map(|(_, count)| *count))
}

/// Counters come as floating-point numbers, and are whole.
fn count(of: impl Iterator<Item = f64>) -> u64 {
    of.map(|count| count as u64).sum()
}

fn is_read(verb: &str) -> bool {
    matches!(verb, "get" | "list" | "lease")
}

/// What the API server was asked to write, of the kinds that the controllers write.
fn served_writes(samples: &Samples) -> BTreeMap<String, f64> {
    let is_write = |of: &&Sample| {
        let verbs = ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"];
        let heartbeat = of.label("resource") == "nodes" && of.label("subresource") == "status";
        verbs.contains(&of.label("verb")) && WRITTEN.contains(&of.label("resource")) && !heartbeat
    };
    let mut sums = BTreeMap::new();
    for sample in samples.of(SERVED).filter(is_write).filter(|of| of.value() > 0.0) {
        let what = format!("{} {}", sample.label("verb"), sample.label("resource"));
        *sums.entry(what).or_default() += sample.value();
    }
    sums
}

fn seconds(of: Duration) -> String {
    format!("{:.1} s", of.as_secs_f64())
}

/// The table.
pub(crate) fn rows(plan: &Plan, of: &Measured) -> Vec<Row> {
    let size = plan.size;
    let beside = || of.plain.map(seconds).unwrap_or_default();
    let mut rows = vec![
        Row::new(
            format!("{} nodes, {} jobs: all {} workers run", size.nodes, size.jobs, size.workers),
            seconds(of.running),
        )
        .beside(beside()),
    ];
    let settled = Row::new("and all conditions as expected", seconds(of.settled)).beside(beside());
    rows.push(match of.plain {
        Some(deployments) => {
            let reached = of.settled <= deployments + Duration::from_mins(1);
            settled.target("at most 60 s more", reached)
        }
        None => settled,
    });
    rows.push(Row::new("from then until the last write", seconds(of.last_write)));
    rows.push(
        Row::new("workers made beyond those wanted", of.surplus.to_string())
            .target("0", of.surplus == 0),
    );
    rows.push(
        Row::new(
            "peak memory of the controllers",
            format!("{:.1} MiB", of.memory as f64 / 1_048_576.0),
        )
        .target("< 256 MiB", of.memory < 256 << 20),
    );
    for (when, samples, cpu) in [
        ("until settled", &of.rise, of.rise_cpu),
        ("while nothing changes", &of.steady, of.steady_cpu),
    ] {
        rows.extend(reconciliations(when, samples));
        let all = count(samples.by(&format!("{OWN}_count"), "kind").into_values());
        let each = cpu.as_secs_f64() * 1e3 / all.max(1) as f64;
        let figure = format!("processor time {when}, and for each reconciliation");
        rows.push(Row::new(figure, format!("{}, {each:.2} ms", seconds(cpu))));
    }

    let span = plan.steady.as_secs();
    let (own, served) = (own_writes(&of.steady), served_writes(&of.steady_server));
    rows.push(
        Row::new(format!("writes in {span} s in which nothing changes"), own.to_string())
            .target("0", own == 0),
    );
    let total = count(served.values().copied());
    let kinds: Vec<String> = served.iter().map(|(what, count)| format!("{count} {what}")).collect();
    let what =
        if kinds.is_empty() { "0".to_owned() } else { format!("{total}: {}", kinds.join(", ")) };
    rows.push(
        Row::new("the same as the API server counts, all clients", what).target("0", total == 0),
    );
    let reads = of.steady.by(REQUESTS, "verb");
    let reads = count(reads.iter().filter(|(verb, _)| is_read(verb)).map(|(_, count)| *count));
    rows.push(Row::new(
        "reads and Lease renewals meanwhile",
        format!("{:.2}/s", reads as f64 / span as f64),
    ));
    let cores = of.steady_cpu.as_secs_f64() / plan.steady.as_secs_f64();
    rows.push(Row::new("processor meanwhile", format!("{cores:.3} cores")));

    let requests = of.rise.by(REQUESTS, "verb");
    let each = |count: f64| format!("{:.2}", count / f64::from(size.jobs));
    let all = requests.values().sum();
    rows.push(Row::new("API requests of the controllers per job", each(all)));
    rows.extend(requests.iter().map(|(verb, count)| Row::new(format!("  {verb}"), each(*count))));
    let failed: f64 = of.rise.by(REQUESTS, "outcome").get("failed").copied().unwrap_or(0.0);
    rows.push(Row::new("  of these refused or failed", each(failed)));
    rows
}

/// Time of the reconciliations of each kind, without that of others.
fn reconciliations(when: &str, samples: &Samples) -> Vec<Row> {
    let counts = samples.by(&format!("{OWN}_count"), "kind");
    let row = |(kind, count): (&String, &f64)| {
        let quantile = |q| samples.quantile(OWN, ("kind", kind), q);
        let (p50, p99) = (quantile(0.5)?, quantile(0.99)?);
        let figure = format!("{kind}, p50 / p99 of {count} reconciliations {when}");
        let row = Row::new(figure, format!("{:.2} / {:.2} ms", p50 * 1e3, p99 * 1e3));
        Some(row.target("p99 < 5 ms", p99 < 5e-3))
    };
    counts.iter().filter_map(row).collect()
}
