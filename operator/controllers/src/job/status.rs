//! What a job's status says: pure.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use rollwright_crds::RolloutJob;
use rollwright_crds::conditions::{Condition, reasons, types};
use rollwright_crds::job::{DegreeCount, Phase, Plan as Chosen, RolloutJobStatus, WorkerCount};

use super::fleet::{Kind, Stage, Worker};
use super::gateway;
use super::observe::Seen;
use super::plan::{Ground, Plan};
use super::validate::Problem;
use crate::conditions::{Wish, merge};
use crate::gateway_client::JobState;

/// A figure is written when it moves by more than this part of itself: a rate that trembles
/// is no news.
const TOLERANCE: f64 = 0.2;
/// Troubles that a message names.
const MOST_TROUBLES: usize = 3;

/// What came out of a reconciliation.
#[derive(Clone, Debug)]
pub struct Outcome<'a> {
    /// What stands in the way.
    pub problems: &'a [Problem],
    /// Keys of the API server are not known yet.
    pub waits_for_keys: bool,
    /// The workers.
    pub seen: &'a [Seen],
    /// What they are to be; absent where it could not be planned.
    pub plan: Option<(&'a Plan, &'a Ground)>,
    /// Serving GPUs and the minimum, where there are fewer and no other way.
    pub below: Option<u32>,
    /// GPUs that are to serve at all times.
    pub minimum: u32,
    /// The gateway's answer, or why there is none.
    pub job: Result<&'a JobState, &'a str>,
    /// Workers are replaced, drained or on their way.
    pub unfinished: bool,
    /// Why the API server lets no worker be made, in its words.
    pub refused: Option<&'a str>,
    /// Nodes that get no worker for a while, as one failed on them.
    pub resting: &'a [&'a str],
}

impl Outcome<'_> {
    fn serving(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(|seen| seen.worker.stage == Stage::Serving)
    }

    fn serving_gpus(&self) -> u32 {
        self.serving().map(|seen| seen.worker.kind.degree).sum()
    }
}

/// The status and its conditions.
pub fn status(
    job: &RolloutJob,
    outcome: &Outcome<'_>,
    now: Timestamp,
) -> (RolloutJobStatus, Vec<Wish>) {
    let old = job.status.clone().unwrap_or_default();
    let workers = counts(outcome);
    let wishes = conditions(job, outcome, &workers, &old.conditions);
    let conditions = merge(&old.conditions, wishes.clone(), job.metadata.generation, now);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let heard = outcome.job.ok();
    let status = RolloutJobStatus {
        observed_generation: job.metadata.generation,
        conditions,
        phase: Some(phase(job, outcome)),
        workers_ready: workers.iter().map(|count| count.ready).sum(),
        workers,
        plan: outcome.plan.map(|(plan, ground)| chosen(plan, ground, outcome.seen)),
        policy_version: version(outcome).or(old.policy_version),
        buffer_depth: heard.map_or(old.buffer_depth, |heard| {
            steady(Some(f64::from(old.buffer_depth)), f64::from(heard.buffer.trajectories)) as u32
        }),
        kept_fraction: figure(old.kept_fraction, heard, |heard| heard.kept_fraction),
        straggler_tax: figure(old.straggler_tax, heard, |heard| heard.straggler_tax),
        tokens_per_second: figure(old.tokens_per_second, heard, |heard| heard.tokens_per_second),
        endpoint: Some(gateway::endpoint(namespace, name)),
    };
    (status, wishes)
}

/// The old figure while the gateway is silent, or while the new one is near it.
fn figure(
    old: Option<f64>,
    heard: Option<&JobState>,
    of: impl Fn(&JobState) -> Option<f64>,
) -> Option<f64> {
    let Some(heard) = heard else { return old };
    of(heard).filter(|new| new.is_finite()).map(|new| steady(old, new))
}

fn steady(old: Option<f64>, new: f64) -> f64 {
    match old {
        Some(old) if old != 0.0 && new != 0.0 && ((new - old) / old).abs() <= TOLERANCE => old,
        // Three digits, so that what is written can be read.
        _ if new == 0.0 => 0.0,
        _ => {
            let scale = 10_f64.powf(2.0 - new.abs().log10().floor());
            (new * scale).round() / scale
        }
    }
}

fn counts(outcome: &Outcome<'_>) -> Vec<WorkerCount> {
    let workers: Vec<Worker> = outcome.seen.iter().map(|seen| seen.worker.clone()).collect();
    let mut of: BTreeMap<(String, u32), (u32, u32)> = BTreeMap::new();
    let key = |kind: &Kind| (kind.pool.to_string(), kind.degree);
    if let Some((plan, _)) = outcome.plan {
        for (kind, wanted) in plan.wanted(&workers) {
            of.entry(key(&kind)).or_default().0 += wanted;
        }
    }
    for seen in outcome.serving() {
        of.entry(key(&seen.worker.kind)).or_default().1 += 1;
    }
    let count = |((pool, degree), (wanted, ready))| WorkerCount { pool, degree, wanted, ready };
    of.into_iter().map(count).collect()
}

fn chosen(plan: &Plan, ground: &Ground, seen: &[Seen]) -> Chosen {
    let workers: Vec<Worker> = seen.iter().map(|seen| seen.worker.clone()).collect();
    let mut degrees: BTreeMap<u32, u32> = BTreeMap::new();
    for (kind, count) in plan.wanted(&workers) {
        *degrees.entry(kind.degree).or_default() += count;
    }
    let count = |(degree, workers)| DegreeCount { degree, workers };
    Chosen {
        degrees: degrees.into_iter().rev().map(count).collect(),
        ground: ground.clone(),
        makespan_seconds: None,
    }
}

/// The version that all serving workers hold at least.
fn version(outcome: &Outcome<'_>) -> Option<i64> {
    let versions: Option<Vec<i64>> = outcome.serving().map(|seen| seen.version).collect();
    versions?.into_iter().min()
}

fn phase(job: &RolloutJob, outcome: &Outcome<'_>) -> Phase {
    let serving = outcome.serving_gpus() > 0;
    let current = outcome.job.ok().map(|state| state.version);
    let behind = |seen: &Seen| seen.version.is_some() && seen.version < current;
    if job.spec.suspend && outcome.seen.is_empty() {
        Phase::Suspended
    } else if !outcome.problems.is_empty() && !serving {
        Phase::Failed
    } else if serving && outcome.serving().any(behind) {
        Phase::SyncingWeights
    } else if serving {
        Phase::Running
    } else {
        Phase::Pending
    }
}

fn conditions(
    job: &RolloutJob,
    outcome: &Outcome<'_>,
    workers: &[WorkerCount],
    old: &[Condition],
) -> Vec<Wish> {
    let mut wishes = vec![ready(job, outcome, workers), progressing(outcome), resolved(outcome)];
    wishes.push(match outcome.job {
        Ok(_) => Wish::is_true(types::GATEWAY_REACHABLE, reasons::AS_SPECIFIED, ""),
        Err(why) => Wish::is_false(
            types::GATEWAY_REACHABLE,
            reasons::UNREACHABLE,
            format!("{why}; workers stay as they are"),
        ),
    });
    wishes.push(fallback(outcome));
    let suspended = job.spec.suspend && outcome.seen.is_empty();
    wishes.push(if suspended {
        Wish::is_true(types::SUSPENDED, reasons::SUSPENDED_BY_SPEC, "no worker runs")
    } else if job.spec.suspend {
        Wish::is_false(types::SUSPENDED, reasons::SUSPENDED_BY_SPEC, "workers are being drained")
    } else {
        Wish::is_false(types::SUSPENDED, reasons::AS_SPECIFIED, "")
    });
    wishes.push(capacity(outcome, old));
    let current = outcome.job.ok().map(|state| state.version);
    let behind = outcome.serving().any(|seen| current.is_some() && seen.version != current);
    wishes.push(if behind {
        Wish::is_false(
            types::WEIGHTS_CURRENT,
            reasons::WEIGHTS_UPDATING,
            "workers do not all hold the newest version",
        )
    } else {
        Wish::is_true(types::WEIGHTS_CURRENT, reasons::AS_SPECIFIED, "")
    });
    wishes
}

fn ready(job: &RolloutJob, outcome: &Outcome<'_>, workers: &[WorkerCount]) -> Wish {
    let no = |reason, message: String| Wish::is_false(types::READY, reason, message);
    if let Some(problem) = outcome.problems.first() {
        return no(problem.reason, problem.message.clone());
    }
    if job.spec.suspend {
        return no(reasons::SUSPENDED_BY_SPEC, "spec.suspend is set".to_owned());
    }
    if outcome.waits_for_keys {
        let message = "the API server's keys for service account tokens are not known yet";
        return no(reasons::WAITING_FOR_KEYS, message.to_owned());
    }
    if let Err(why) = outcome.job {
        return no(reasons::UNREACHABLE, why.to_owned());
    }
    let (wanted, ready) = workers
        .iter()
        .fold((0, 0), |(wanted, ready), of| (wanted + of.wanted, ready + of.ready.min(of.wanted)));
    if let Some(said) = outcome.refused.filter(|_| ready < wanted) {
        let message = format!("{ready} of {wanted} workers serve; {}", refusal(said));
        return no(reasons::API_REFUSED, message);
    }
    if ready < wanted {
        return no(reasons::WAITING_FOR_PODS, format!("{ready} of {wanted} workers serve"));
    }
    Wish::is_true(types::READY, reasons::AS_SPECIFIED, format!("{ready} workers serve"))
}

fn progressing(outcome: &Outcome<'_>) -> Wish {
    let waiting: u32 = outcome
        .plan
        .iter()
        .flat_map(|(plan, _)| &plan.waiting)
        .map(|(kind, n)| kind.degree * n)
        .sum();
    let failing = outcome.seen.iter().filter(|seen| seen.worker.stage == Stage::Failing).count();
    let troubles: Vec<String> = outcome
        .seen
        .iter()
        .filter_map(|seen| Some(format!("{}: {}", seen.worker.name, seen.trouble.as_ref()?)))
        .take(MOST_TROUBLES)
        .collect();
    let troubles = troubles.join("; ");
    if failing > 0 {
        let message = format!(
            "{failing} workers failed again and again and are replaced, elsewhere where there is \
             room; {troubles}"
        );
        return Wish::is_true(types::PROGRESSING, reasons::WORKERS_FAILING, message);
    }
    if let Some(said) = outcome.refused {
        return Wish::is_true(types::PROGRESSING, reasons::API_REFUSED, refusal(said));
    }
    if waiting > 0 {
        let pools: Vec<String> = outcome
            .plan
            .iter()
            .flat_map(|(plan, _)| &plan.waiting)
            .map(|(kind, count)| format!("{count} of degree {} on `{}`", kind.degree, kind.pool))
            .collect();
        let message = format!("no room for {}", pools.join(", "));
        if outcome.resting.is_empty() {
            return Wish::is_true(types::PROGRESSING, reasons::WAITING_FOR_GPUS, message);
        }
        let named = outcome.resting.iter().take(MOST_TROUBLES).copied().collect::<Vec<_>>();
        let message = format!(
            "{message}: a worker failed on {} of the nodes ({}), which get another one after a \
             wait",
            outcome.resting.len(),
            named.join(", ")
        );
        return Wish::is_true(types::PROGRESSING, reasons::WORKERS_FAILING, message);
    }
    if !troubles.is_empty() {
        return Wish::is_true(types::PROGRESSING, reasons::WAITING_FOR_PODS, troubles);
    }
    let replaced = outcome.seen.iter().any(|seen| seen.worker.vanishing());
    if replaced {
        let message = "workers are drained and removed";
        return Wish::is_true(types::PROGRESSING, reasons::REPLACING_WORKERS, message);
    }
    if outcome.unfinished {
        let message = "workers are on their way";
        return Wish::is_true(types::PROGRESSING, reasons::WAITING_FOR_PODS, message);
    }
    Wish::is_false(types::PROGRESSING, reasons::AS_SPECIFIED, "")
}

fn refusal(said: &str) -> String {
    format!("the API server refuses a worker's pod: {said}")
}

fn resolved(outcome: &Outcome<'_>) -> Wish {
    match outcome.problems {
        [] => Wish::is_true(types::RESOLVED, reasons::AS_SPECIFIED, ""),
        [first, ..] => {
            let all: Vec<&str> =
                outcome.problems.iter().map(|problem| problem.message.as_str()).collect();
            Wish::is_false(types::RESOLVED, first.reason, all.join("; "))
        }
    }
}

fn fallback(outcome: &Outcome<'_>) -> Wish {
    let fallbacks = outcome.plan.iter().flat_map(|(plan, _)| &plan.fallbacks);
    let moved: Vec<String> = fallbacks
        .map(|(way, count)| {
            format!("{count} workers are on `{}`: `{}` had no room", way.to, way.from)
        })
        .collect();
    if moved.is_empty() {
        return Wish::is_false(types::AFFINITY_FALLBACK, reasons::AS_SPECIFIED, "");
    }
    let message = format!("{}; they stay there until they are replaced", moved.join(", "));
    Wish::is_true(types::AFFINITY_FALLBACK, reasons::CLASS_EXHAUSTED, message)
}

/// It holds from the step that goes below the minimum until the minimum serves again.
fn capacity(outcome: &Outcome<'_>, old: &[Condition]) -> Wish {
    let kind = types::CAPACITY_BELOW_MINIMUM;
    let was = old.iter().any(|condition| condition.type_ == kind && condition.status == "True");
    let serving = outcome.serving_gpus();
    if outcome.below.is_none() && !(was && serving < outcome.minimum) {
        return Wish::is_false(kind, reasons::AS_SPECIFIED, "");
    }
    let message = format!(
        "fewer than {} GPUs serve: the nodes have no room for the new workers beside the old",
        outcome.minimum
    );
    Wish::is_true(kind, reasons::REPLACING_WORKERS, message)
}

#[cfg(test)]
mod tests;
