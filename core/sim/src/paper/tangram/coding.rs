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
    "a trajectory begins with the batch, and has 30-50 turns (003 Table 1, SWE-bench)",
    "a turn's action takes one core for 0.5 s on average, log-normal, cv 3, at least the 1 ms of 001 2.4",
    "the tests take 120 s on one core on average, log-normal, cv 1.5, 5% of it serial, on 1, 2, 4, .. 32 cores",
    "generation is as long as makes actions 47% of a trajectory on an idle pod of four cores (001 Fig. 3(c))",
    "containers start in no time, for both; Kubernetes' control plane costs nothing",
];

/// Mean seconds of a turn's action.
const TURN: f64 = 0.5;
/// Mean seconds of the tests, on one core.
const TESTS: f64 = 120.0;
/// The part of the tests that more cores do not shorten.
const SERIAL: f64 = 0.05;

/// So many nodes.
pub(super) fn cluster(nodes: u64) -> Cluster {
    let kind = PoolKind::Cpu { nodes, cores: CORES, memory: Bytes::from_gib(2400.0) };
    let pool = Pool { name: "cpu".to_owned(), kind };
    Cluster { pools: vec![pool], services: Vec::new(), depth: Some(2) }
}

/// A batch of trajectories that begin together.
pub(super) fn batch(trial: &mut Trial<'_>, size: usize) -> Vec<Trajectory> {
    let acting = |turns: f64| turns * TURN + TESTS * (SERIAL + (1.0 - SERIAL) / POD_LIMIT);
    let generating = acting(40.0) * (1.0 - ACTIVE) / ACTIVE / 40.0;
    let random = &mut trial.random;
    (0..size)
        .map(|i| {
            let mut phases = Vec::new();
            for _ in 0..random.whole(30, 50) {
                phases.push(Phase::Generate(nanos(random.log_normal(generating, 1.0))));
                phases.push(Phase::Act(action(&[1], random.log_normal(TURN, 3.0).max(1e-3), 0.0)));
            }
            let tests = random.log_normal(TESTS, 1.5);
            phases.push(Phase::Act(action(&[1, 2, 4, 8, 16, 32], tests, SERIAL)));
            Trajectory {
                name: format!("t{i}"),
                arrival: 0,
                memory: Bytes::from_gib(4.0),
                phases,
            }
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
