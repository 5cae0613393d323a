//! Slow environments, and what absorbs them.

use crate::cluster::{Bytes, Cluster, Pool, PoolKind, nanos};
use crate::paper::figure::{Figure, higher};
use crate::paper::groups::{Groups, Settings};
use crate::paper::random::Random;
use crate::paper::trial::{Failed, Trial};
use crate::policy::Policy;
use crate::workload::{Action, Phase, Trajectory, UNIT};

/// Trajectories of a step (003, 7.1).
const BATCH: usize = 512;
/// Mean seconds of an environment's step (003, 7.3).
const STEP: f64 = 10.0;

/// Figure 11(b): every trajectory on its own against environments in step.
pub(super) fn batched() -> Figure {
    Figure::simulated(
        [
            higher(
                "rollart-trajectory-level-sd1",
                "003 Fig. 11(b), R2",
                "step time ratio of batched over trajectory-level environments, deviation 1 s",
                1.23,
            ),
            higher(
                "rollart-trajectory-level-sd10",
                "003 Fig. 11(b), R2",
                "the same, deviation 10 s",
                2.27,
            ),
        ],
        &[
            "512 trajectories (003 7.1) of 5-30 turns (003 Table 1, Web); the environment takes 10 s a turn, Gaussian, not below 0 (003 7.3)",
            "a turn generates for 5 s, log-normal, cv 0.5; training takes 84 s (003 Fig. 3: 23% of 366 s)",
            "trajectories run through the simulator on an environment each",
        ],
        |trial| Ok([levels(trial, 1.0)?, levels(trial, 10.0)?]),
    )
}

/// Seconds of generation and of the environment, turn by turn.
fn turns(random: &mut Random, deviation: f64) -> Vec<(f64, f64)> {
    let turn = |random: &mut Random| {
        (random.log_normal(5.0, 0.5), random.normal(STEP, deviation).max(0.0))
    };
    (0..random.whole(5, 30)).map(|_| turn(random)).collect()
}

fn levels(trial: &mut Trial<'_>, deviation: f64) -> Result<f64, Failed> {
    const TRAINING: f64 = 84.0;
    let batch: Vec<Vec<(f64, f64)>> =
        (0..BATCH).map(|_| turns(&mut trial.random, deviation)).collect();
    // In step: every turn of all waits for the slowest of both.
    let longest = batch.iter().map(Vec::len).max().unwrap_or(0);
    let slowest = |turn: usize, part: fn(&(f64, f64)) -> f64| {
        batch.iter().filter_map(|turns| turns.get(turn)).map(part).fold(0.0, f64::max)
    };
    let in_step: f64 =
        (0..longest).map(|turn| slowest(turn, |turn| turn.0) + slowest(turn, |turn| turn.1)).sum();
    let kind = PoolKind::Cpu { nodes: 1, cores: BATCH as u64, memory: Bytes(0) };
    let pools = vec![Pool { name: "environments".to_owned(), kind }];
    let cluster = Cluster { pools, ..Cluster::default() };
    let phases = |&(generates, acts): &(f64, f64)| {
        let action = Action {
            pool: 0,
            service: None,
            units: vec![UNIT],
            duration: acts,
            serial: 0.0,
            malleable: false,
        };
        [Phase::Generate(nanos(generates)), Phase::Act(action)]
    };
    let trajectory = |(i, turns): (usize, &Vec<(f64, f64)>)| Trajectory {
        name: format!("t{i}"),
        arrival: 0,
        memory: Bytes(0),
        phases: turns.iter().flat_map(phases).collect(),
    };
    let workload: Vec<Trajectory> = batch.iter().enumerate().map(trajectory).collect();
    let (report, _) = trial.simulate(&cluster, &workload, Policy::Elastic)?;
    Ok((in_step + TRAINING) / (report.makespan_s + TRAINING))
}

/// Figure 14(b): more environments than are needed.
pub(super) fn redundant() -> Figure {
    Figure::simulated(
        [higher(
            "rollart-redundant",
            "003 Fig. 14(b)",
            "most rollout speed-up by redundant groups and environments",
            1.62,
        )],
        &[
            "32 groups of 8 are needed; up to 4 more groups and 2 more of each group start, all at once",
            "generation and reset are log-normal, cv 1; the slowest of 128 generates for 198 s and is reset in 55 s on average (003 Fig. 3: 54% and 15% of 366 s)",
            "32 workers of Qwen3-8B slow down by 1.6% with each trajectory more (weights of 15.26 GB and contexts of 2,000 tokens read at 3.35 TB/s: 003 Tables 2 and 3)",
            "groups settle, and what is left over is aborted, by the core's own Trajectories and Buffer",
        ],
        |trial| {
            const NEEDED: usize = 32;
            let scale = 1.0
                / trial.random.mean_of_longest(128, 1_000, |random| random.log_normal(1.0, 1.0));
            let random = trial.random.clone();
            let rollout = |groups: usize, redundant: u32| {
                let settings =
                    Settings { needed: 8, redundant, batch: NEEDED, slots: usize::MAX, bound: 1 };
                let each = groups as f64 * f64::from(8 + redundant) / 32.0;
                let slower = 0.016f64.mul_add(each - 1.0, 1.0) / 0.016f64.mul_add(7.0, 1.0);
                // The same environments for all.
                let mut random = random.clone();
                let draw = move || {
                    let generates = random.log_normal(198.0 * scale, 1.0) * slower;
                    generates + random.log_normal(55.0 * scale, 1.0)
                };
                let mut all = Groups::new(settings, draw);
                for _ in 0..groups {
                    all.open()?;
                }
                all.batch(false)?;
                Ok::<_, Failed>(all.now())
            };
            let plain = rollout(NEEDED, 0)?;
            let mut most = 1.0_f64;
            for groups in [NEEDED, NEEDED + 2, NEEDED + 4] {
                for redundant in [0, 1, 2] {
                    most = most.max(plain / rollout(groups, redundant)?);
                }
            }
            Ok([most])
        },
    )
}

/// Figure 12: GPUs for rollout instead of a reward model of their own.
pub(super) fn reward_gpus() -> Figure {
    Figure::simulated(
        [higher(
            "rollart-serverless",
            "003 Fig. 12, R3",
            "rollout time with 4 GPUs for rollout and 4 for rewards, over 8 for rollout and serverless rewards",
            158.0 / 77.0,
        )],
        &[
            "84 trajectories (003 7.3) of 4,000 tokens on average, log-normal, cv 1, at most 16k, on one worker a GPU",
            "a worker of Qwen3-8B takes turns token by token: 15.26 GB of weights (003 Table 3) and 0.15 MB of context a token of all that run, at 3.35 TB/s (003 Table 2)",
            "a reward takes 1 s on its GPU, and 1 s and 0.01 s of network (003 7.5) serverless",
        ],
        |trial| {
            let random = &mut trial.random;
            let lengths: Vec<f64> =
                (0..84).map(|_| random.log_normal(4_000.0, 1.0).min(16_384.0)).collect();
            let local = generation(&lengths, 4) + 1.0;
            Ok([local / (generation(&lengths, 8) + 1.01)])
        },
    )
}

/// Seconds of the slowest of so many workers, which take trajectories in turn.
fn generation(lengths: &[f64], workers: usize) -> f64 {
    const WEIGHTS: f64 = 15.26 / 3350.0;
    const CONTEXT: f64 = 36.0 * 4096e-9 / 3350.0;
    let mut slowest = 0.0_f64;
    for worker in 0..workers {
        let mut mine: Vec<f64> = lengths.iter().copied().skip(worker).step_by(workers).collect();
        mine.sort_by(f64::total_cmp);
        let (mut seconds, mut from) = (0.0, 0.0);
        for (ended, &length) in mine.iter().enumerate() {
            // All that run have as much context on average between the two ends.
            let context = f64::midpoint(from, length) * (mine.len() - ended) as f64;
            seconds += (length - from) * (WEIGHTS + CONTEXT * context);
            from = length;
        }
        slowest = slowest.max(seconds);
    }
    slowest
}
