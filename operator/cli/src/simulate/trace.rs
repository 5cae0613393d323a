//! A simulation as a Chrome trace, which Perfetto shows too.

use rollwright_sim::Record;
use rollwright_sim::cluster::Cluster;
use rollwright_sim::workload::{Phase, Trajectory, UNIT};
use serde_json::{Value, json};

/// A process for each pool, a thread for each trajectory; waiting and running.
pub(super) fn chrome(cluster: &Cluster, workload: &[Trajectory], records: &[Record]) -> String {
    let mut events: Vec<Value> = Vec::new();
    for (i, pool) in cluster.pools.iter().enumerate() {
        let args = json!({"name": pool.name});
        events.push(json!({"name": "process_name", "ph": "M", "pid": i, "args": args}));
    }
    for record in records {
        let trajectory = &workload[record.trajectory];
        let Some(Phase::Act(action)) = trajectory.phases.get(record.phase) else { continue };
        let mut span = |name: &str, from: u64, to: u64| {
            let units = record.units as f64 / UNIT as f64;
            events.push(json!({
                "name": name, "ph": "X", "pid": action.pool, "tid": record.trajectory,
                "ts": from as f64 / 1e3, "dur": (to - from) as f64 / 1e3,
                "args": {"trajectory": trajectory.name, "phase": record.phase, "units": units},
            }));
        };
        if record.started > record.submitted {
            span("waits", record.submitted, record.started);
        }
        span("runs", record.started, record.ended);
    }
    json!({"traceEvents": events}).to_string()
}
