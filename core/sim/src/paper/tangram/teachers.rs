//! MOPD as the text describes it: trajectories of several tasks, each scored by the
//! teacher of its task, which reads the whole of it once.

use super::batching::Request;
use crate::cluster::{Bytes, Cluster, Pool, PoolKind, Service, nanos};
use crate::paper::Trial;
use crate::workload::{Action, Phase, Trajectory, UNIT};

/// What the text leaves open.
pub(super) const ASSUMED: &[&str] = &[
    "teachers are asked for unequally, the n-th by 1/n (001 Fig. 3(b): activity differs by model; the values are lost); mean lengths of their tasks lie between 4,000 and 32,000 tokens, log-uniform, lengths about them are log-normal with cv 1 (004), at most 58k (003 8: prompts to 12k, responses to 46k)",
    "all begin with the batch and generate a token in 20 ms",
    "a teacher is Qwen3-32B (61.02 GB: 003 Table 3) and reads a trajectory once, at half of 989.5 TFLOPS a GPU (003 Table 2), attention included",
    "a degree of 8 instead of 4 leaves a tenth of the time as it is; a chunk is restored at 57 GB/s a GPU (PCIe 5 x16)",
    "SGLang does 1.2 times as much on several requests as on one, and works on 48 at once: reading is bound by compute",
    "ServerlessLLM loads a model from the disks of the node, at 12 GB/s, wherever it is not resident; its queues and chunks are those of fixed:4",
];

/// Requests that a static replica works on at once.
pub(super) const MOST_RUNNING: usize = 48;
/// GPUs of a static replica (001, 6.1).
pub(super) const REPLICA: u64 = 4;
/// GB of weights (003, Table 3).
const WEIGHTS: f64 = 61.02;
/// GB/s from host memory to a GPU.
const HOST_TO_DEVICE: f64 = 57.0;
/// Parameters of a teacher.
const PARAMETERS: f64 = 32e9;
/// FLOP of attention by the square of the tokens: 64 layers of 64 heads of 128, each pair
/// of tokens once, scores and values.
const ATTENTION: f64 = 2.0 * 64.0 * 64.0 * 128.0;
/// FLOP/s of a GPU that are put to use (003, Table 2).
const FLOPS: f64 = 989.5e12 * 0.5;
/// The part that more GPUs do not shorten.
const SERIAL: f64 = 0.1;

/// Seconds to bring a teacher to four GPUs.
pub(super) const RESTORE: f64 = WEIGHTS / REPLICA as f64 / HOST_TO_DEVICE;

/// A scored trajectory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    teacher: usize,
    /// Seconds that it generates.
    generates: f64,
    tokens: f64,
}

/// A batch over so many teachers.
pub(super) fn batch(trial: &mut Trial<'_>, size: usize, teachers: usize) -> Vec<Sample> {
    let random = &mut trial.random;
    let means: Vec<f64> = (0..teachers).map(|_| random.log_uniform(4_000.0, 32_000.0)).collect();
    let shares: f64 = (1..=teachers).map(|n| 1.0 / n as f64).sum();
    (0..size)
        .map(|_| {
            let mut left = random.uniform(0.0, shares);
            let asked = (0..teachers).find(|&i| {
                left -= 1.0 / (i + 1) as f64;
                left < 0.0
            });
            let teacher = asked.unwrap_or(0);
            let tokens = random.log_normal(means[teacher], 1.0).min(58_000.0);
            Sample { teacher, generates: tokens * 0.020, tokens }
        })
        .collect()
}

/// Seconds on one GPU, of which [`SERIAL`] would stay on many.
fn on_one_gpu(tokens: f64) -> f64 {
    // So that four GPUs take what their FLOP/s say.
    let on_four = (2.0 * PARAMETERS + ATTENTION * tokens) * tokens / (FLOPS * REPLICA as f64);
    on_four / (SERIAL + (1.0 - SERIAL) / REPLICA as f64)
}

/// The requests of each teacher, for replicas of four GPUs.
pub(super) fn requests(batch: &[Sample], teachers: usize) -> Vec<Vec<Request>> {
    let mut requests = vec![Vec::new(); teachers];
    for sample in batch {
        let work = on_one_gpu(sample.tokens) * (SERIAL + (1.0 - SERIAL) / REPLICA as f64);
        requests[sample.teacher].push(Request { arrival: sample.generates, work });
    }
    requests
}

/// The same as trajectories for the simulator.
pub(super) fn trajectories(batch: &[Sample]) -> Vec<Trajectory> {
    let trajectory = |(i, sample): (usize, &Sample)| {
        let action = Action {
            pool: 0,
            service: Some(sample.teacher),
            units: vec![4 * UNIT, 8 * UNIT],
            duration: on_one_gpu(sample.tokens),
            serial: SERIAL,
            malleable: false,
        };
        Trajectory {
            name: format!("t{i}"),
            arrival: 0,
            memory: Bytes(0),
            phases: vec![Phase::Generate(nanos(sample.generates)), Phase::Act(action)],
        }
    };
    batch.iter().enumerate().map(trajectory).collect()
}

/// GPUs in nodes of eight, or of four where eight do not divide them.
pub(super) fn cluster(gpus: u64, teachers: usize, restore: f64) -> Cluster {
    let of_node = if gpus.is_multiple_of(8) { 8 } else { 4 };
    let kind = PoolKind::Gpu { nodes: gpus / of_node, gpus: of_node };
    let degrees = if of_node == 8 { vec![4, 8] } else { vec![4] };
    let service = |i: usize| Service {
        name: format!("teacher-{i}"),
        pool: 0,
        degrees: degrees.clone(),
        restore: nanos(restore),
    };
    Cluster {
        pools: vec![Pool { name: "gpu".to_owned(), kind }],
        services: (0..teachers).map(service).collect(),
        depth: Some(2),
    }
}
