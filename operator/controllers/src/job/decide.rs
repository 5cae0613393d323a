//! Plans, and books GPUs for what is to be made: jobs do so one after the other, and what one
//! books the next sees. Pure but for the books.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rollwright_crds::Name;

use super::converge::{Bounds, Step, Steps, converge};
use super::fleet::{Nodes, Pool, Worker};
use super::plan::{Placement, Plan, Want, plan};
use crate::index::{Booking, Books, Index, Key};

/// What a job asks for, and what it has as a pass saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// Its namespace and name.
    pub(super) job: &'a Key,
    /// The workers that it wants.
    pub(super) wants: &'a [Want],
    /// Its pools.
    pub(super) pools: &'a BTreeMap<Name, Pool>,
    /// Their nodes, without what others hold on them.
    pub(super) nodes: &'a Nodes,
    /// Names of all pods that are labelled as its own.
    pub(super) labelled: &'a [String],
    /// Of these, its workers and their parts.
    pub(super) ours: &'a BTreeSet<String>,
    /// Its workers.
    pub(super) workers: &'a [Worker],
    /// Percentage of its GPUs that serve at all times.
    pub(super) min_serving_percent: u32,
    /// The gateway says who serves.
    pub(super) observed: bool,
}

/// What a pass does about the workers.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// The plan, where there is one.
    pub(super) plan: Option<Plan>,
    /// GPUs that serve at all times.
    pub(super) minimum: u32,
    /// What to do now.
    pub(super) steps: Steps,
    /// The workers to make, with their names.
    pub(super) made: Vec<(String, Placement)>,
    /// Their GPUs.
    pub(super) booking: Option<Booking>,
}

/// The job has other workers than the pass saw: ones that were made, and that are shown since or
/// not yet. Counted as others' they would take the room of its own, and be made once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lags;

/// Decides. `name` names the new worker of a step.
pub(super) fn decide(
    asked: &Asked<'_>,
    index: &Index,
    now: Instant,
    name: impl Fn(usize) -> String,
) -> Result<Decision, Lags> {
    let mut books = index.books(now);
    let known = |worker: &str| asked.workers.iter().any(|of| of.name == worker);
    let own = |worker: &Key, of: &str| worker.0 == asked.job.0 && of == asked.job.1;
    let unshown = books.booked().any(|(worker, of)| own(worker, &of.job) && !known(&worker.1));
    if unshown || books.pods_of(asked.job) != asked.labelled {
        return Err(Lags);
    }
    let nodes = with_others(asked, &books);
    let plan = plan(asked.wants, asked.pools, &nodes, asked.workers);
    let percent = u64::from(asked.min_serving_percent);
    let minimum = (u64::from(plan.gpus(asked.workers)) * percent).div_ceil(100) as u32;
    let bounds = Bounds { minimum, observed: asked.observed };
    let steps = converge(&plan, &nodes, asked.workers, bounds);
    let made: Vec<(String, Placement)> = steps
        .steps
        .iter()
        .enumerate()
        .filter_map(|(index, step)| match step {
            Step::Create(placement) => Some((name(index), placement.clone())),
            Step::Drain(_) | Step::Delete(_) => None,
        })
        .collect();
    let workers = made.iter().map(|(name, placement)| {
        (name.clone(), placement.nodes.clone(), placement.gpus_per_node())
    });
    let booking = (!made.is_empty()).then(|| books.book(index, asked.job, workers));
    Ok(Decision { plan: Some(plan), minimum, steps, made, booking })
}

/// The nodes with what others hold, run or have booked there.
fn with_others(asked: &Asked<'_>, books: &Books<'_>) -> Nodes {
    let ours = |pod: &Key| pod.0 == asked.job.0 && asked.ours.contains(&pod.1);
    let mut nodes = asked.nodes.clone();
    for (name, node) in &mut nodes {
        node.taken = node.taken.saturating_add(books.held(name, ours));
    }
    for (worker, booked) in books.booked() {
        // A set of its own whose pods are on their way counts as a worker.
        if worker.0 == asked.job.0 && booked.job == asked.job.1 {
            continue;
        }
        for node in &booked.nodes {
            if let Some(node) = nodes.get_mut(node) {
                node.taken = node.taken.saturating_add(booked.gpus);
            }
        }
    }
    nodes
}

#[cfg(test)]
mod tests;
