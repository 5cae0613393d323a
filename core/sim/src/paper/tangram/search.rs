//! `DeepSearch`: calls of an API with a quota, queued or each on its own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rollwright_core::quota::{Quota, QuotaLimit, Rate};
use rollwright_core::time::Time;

use super::OURS;
use crate::cluster::{Bytes, Cluster, Pool, PoolKind, nanos};
use crate::paper::figure::{Figure, higher};
use crate::paper::random::Random;
use crate::workload::{Action, Phase, Trajectory, UNIT};

/// Trajectories of a step (001, 6.1).
const BATCH: usize = 2048;
/// Tries after the first (001, 6.1).
const RETRIES: u32 = 3;
/// Seconds of a call.
const CALL: f64 = 1.5;
/// Mean seconds between calls.
const GENERATION: f64 = 10.0;
/// Calls that a batch would start in a second if all were let through.
const WANTED: f64 = BATCH as f64 / (GENERATION + CALL);
/// Training's part of a step of theirs (003, Fig. 3).
const TRAINING: f64 = 0.23;

pub(super) fn figure() -> Figure {
    Figure::simulated(
        [higher(
            "tangram-step-search",
            "001 Fig. 6, 6.2",
            "step time ratio against calls that give up after three retries",
            1.5,
        )],
        &[
            "a trajectory calls 5-30 times (003 Table 1, Web); 10 s of generation between, log-normal, cv 1; a call takes 1.5 s",
            "the quota lets through 60-100% of the calls that the batch would start, in each second",
            "a call that is refused tries again after 1, 2 and 4 s, then its trajectory counts for nothing and another is begun, until there are 2,048",
            "training takes what is 23% of the baseline's step (003 Fig. 3)",
        ],
        |trial| {
            let batch: Vec<Vec<f64>> = (0..BATCH).map(|_| generations(&mut trial.random)).collect();
            let limit = limit(WANTED * trial.random.uniform(0.6, 1.0));
            let theirs = alone(batch.clone(), limit, &mut trial.random);
            let training = theirs * TRAINING / (1.0 - TRAINING);
            let (report, _) = trial.simulate(&cluster(limit), &trajectories(&batch), OURS)?;
            Ok([(theirs + training) / (report.makespan_s + training)])
        },
    )
}

fn limit(per_second: f64) -> QuotaLimit {
    let rate = Rate { amount: per_second as u32, period: Duration::from_secs(1) };
    QuotaLimit { concurrency: None, rate: Some(rate) }
}

fn cluster(limit: QuotaLimit) -> Cluster {
    let pool = Pool { name: "search".to_owned(), kind: PoolKind::Quota(limit) };
    Cluster { pools: vec![pool], ..Cluster::default() }
}

/// Seconds of generation before each call of a trajectory.
fn generations(random: &mut Random) -> Vec<f64> {
    (0..random.whole(5, 30)).map(|_| random.log_normal(GENERATION, 1.0)).collect()
}

fn trajectories(batch: &[Vec<f64>]) -> Vec<Trajectory> {
    let call = Action {
        pool: 0,
        service: None,
        units: vec![UNIT],
        duration: CALL,
        serial: 0.0,
        malleable: false,
    };
    let phases = |generations: &Vec<f64>| {
        let pairs = generations
            .iter()
            .map(|&seconds| [Phase::Generate(nanos(seconds)), Phase::Act(call.clone())]);
        pairs.flatten().collect()
    };
    let trajectory = |(i, generations): (usize, &Vec<f64>)| Trajectory {
        name: format!("t{i}"),
        arrival: 0,
        memory: Bytes(0),
        phases: phases(generations),
    };
    batch.iter().enumerate().map(trajectory).collect()
}

/// A simulator of the baseline: every trajectory calls by itself. Seconds until as many
/// have ended well as began.
fn alone(mut batch: Vec<Vec<f64>>, limit: QuotaLimit, random: &mut Random) -> f64 {
    let mut quota = Quota::new(limit);
    // When a trajectory calls, which it is, its call, and how often it was refused.
    let mut calls = BinaryHeap::new();
    for (of, generations) in batch.iter().enumerate() {
        calls.push(Reverse((nanos(generations[0]), of, 0, 0)));
    }
    let (mut wanted, mut end) = (batch.len(), 0);
    while let Some(Reverse((now, of, call, refused))) = calls.pop() {
        if wanted == 0 {
            break;
        }
        if quota.try_take(1, Time::from_nanos(now)) {
            let after = now + nanos(CALL);
            if let Some(&generation) = batch[of].get(call + 1) {
                calls.push(Reverse((after + nanos(generation), of, call + 1, 0)));
            } else {
                wanted -= 1;
                end = end.max(after);
            }
        } else if refused < RETRIES {
            calls.push(Reverse((now + nanos(f64::from(1 << refused)), of, call, refused + 1)));
        } else {
            batch[of] = generations(random);
            calls.push(Reverse((now + nanos(batch[of][0]), of, 0, 0)));
        }
    }
    end as f64 / 1e9
}
