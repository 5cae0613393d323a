//! AI coding as the text describes it: environments that are used in between, then the
//! tests, which alone are elastic.

use crate::cluster::{Bytes, Cluster, Pool, PoolKind, nanos};
use crate::paper::Trial;
use crate::paper::trial::Failed;
use crate::policy::Policy;
use crate::workload::{Action, Phase, Trajectory, UNIT};
use crate::world::Record;

/// Cores of a node (001, 6.1).
pub(super) const CORES: u64 = 256;
/// Nodes for 1,280 cores (001, 6.3).
pub(super) const NODES: u64 = 5;
/// The part of a trajectory in which it acts (001, Fig. 3(c)).
const ACTIVE: f64 = 0.47;
/// Cores of a pod at most (001, 6.1).
const POD_LIMIT: f64 = 4.0;
/// Pods that share cores, as the text configures them.
pub(super) const KUBERNETES: Policy = Policy::Kubernetes { request: UNIT / 2, limit: POD_LIMIT };

/// What the text leaves open.
pub(super) const ASSUMED: &[&str] = &[
    "a trajectory begins with the batch and has 30-50 turns (003 Table 1, SWE-bench); it generates for 100 s on average, log-normal, cv 1 (004), a turn's part log-normal, cv 1",
    "durations follow from 0.975 s of execution per action (001 Table 1) on as many cores as it may have, and 47% of a trajectory in actions (001 Fig. 3(c)) on an idle pod: 0.53 s on one core for a turn's action, log-normal, cv 3, at least 1 ms (001 2.4), and 234 s on one core for the tests, log-normal, cv 1.5, 5% of it serial, on 1, 2, 4, .. 32 cores",
    "containers start in no time, for both; Kubernetes' control plane costs nothing",
];

/// Mean seconds of a trajectory's generation.
const GENERATION: f64 = 100.0;
/// Mean seconds of execution of an action, on as many cores as it may have (001, Table 1).
const EXECUTION: f64 = 0.975;
/// Turns on average.
const TURNS: f64 = 40.0;
/// The part of the tests that more cores do not shorten.
const SERIAL: f64 = 0.05;
/// Most cores of the tests (001, 6.4).
const MOST: f64 = 32.0;

/// Mean seconds on one core of a turn's action and of the tests: what both statements
/// of the text allow.
fn durations() -> (f64, f64) {
    let part = |cores: f64| SERIAL + (1.0 - SERIAL) / cores;
    let on_most = (TURNS + 1.0) * EXECUTION;
    let on_pod = GENERATION * ACTIVE / (1.0 - ACTIVE);
    let tests = (on_pod - on_most) / (part(POD_LIMIT) - part(MOST));
    ((on_most - tests * part(MOST)) / TURNS, tests)
}

/// So many nodes.
pub(super) fn cluster(nodes: u64) -> Cluster {
    let kind = PoolKind::Cpu { nodes, cores: CORES, memory: Bytes::from_gib(2400.0) };
    let pool = Pool { name: "cpu".to_owned(), kind };
    Cluster { pools: vec![pool], services: Vec::new(), depth: Some(2) }
}

/// A batch of trajectories that begin together.
pub(super) fn batch(trial: &mut Trial<'_>, size: usize) -> Vec<Trajectory> {
    let (turn, tests) = durations();
    let random = &mut trial.random;
    (0..size)
        .map(|i| {
            let turns = random.whole(30, 50);
            let generation = random.log_normal(GENERATION, 1.0) / turns as f64;
            let mut phases = Vec::new();
            for _ in 0..turns {
                phases.push(Phase::Generate(nanos(random.log_normal(generation, 1.0))));
                phases.push(Phase::Act(action(&[1], random.log_normal(turn, 3.0).max(1e-3), 0.0)));
            }
            let tests = random.log_normal(tests, 1.5);
            phases.push(Phase::Act(action(&[1, 2, 4, 8, 16, 32], tests, SERIAL)));
            Trajectory { name: format!("t{i}"), arrival: 0, memory: Bytes::from_gib(4.0), phases }
        })
        .collect()
}

fn action(units: &[u64], duration: f64, serial: f64) -> Action {
    let units = units.iter().map(|units| units * UNIT).collect();
    Action { pool: 0, service: None, units, duration, serial, malleable: false }
}

/// What a batch came to, in seconds.
pub(super) struct Served {
    /// Completion times of a trajectory's actions, summed; the mean over trajectories.
    pub(super) act: f64,
    /// The part of those between turns.
    pub(super) turns: f64,
    /// The part of the tests.
    pub(super) tests: f64,
    /// Until the last trajectory ended.
    pub(super) makespan: f64,
}

/// Runs a batch.
pub(super) fn serve(
    trial: &mut Trial<'_>,
    cluster: &Cluster,
    batch: &[Trajectory],
    policy: Policy,
) -> Result<Served, Failed> {
    let (report, records) = trial.simulate(cluster, batch, policy)?;
    let is_tests = |record: &&Record| record.phase + 1 == batch[record.trajectory].phases.len();
    let seconds = |record: &Record| (record.ended - record.submitted) as f64 / 1e9;
    let all: f64 = records.iter().map(seconds).sum();
    let tests: f64 = records.iter().filter(is_tests).map(seconds).sum();
    let each = 1.0 / batch.len() as f64;
    Ok(Served {
        act: all * each,
        turns: (all - tests) * each,
        tests: tests * each,
        makespan: report.makespan_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fit_what_the_text_states() {
        let (turn, tests) = durations();
        assert!((turn - 0.53).abs() < 0.01 && (tests - 234.0).abs() < 1.0, "{turn} {tests}");
        let executes = (40.0 * turn + tests * (0.05 + 0.95 / 32.0)) / 41.0;
        assert!((executes - 0.975).abs() < 1e-9, "{executes}");
        let acts = 40.0 * turn + tests * (0.05 + 0.95 / 4.0);
        assert!((acts / (acts + 100.0) - 0.47).abs() < 1e-9, "{acts}");
    }
}
