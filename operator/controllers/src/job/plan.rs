//! Which workers a job shall have, and on which nodes: pure.
//!
//! Workers are placed by falling degree. Degrees are powers of two, so that each divides the
//! next and first-fit by falling size wastes no node (Coffman, Garey and Johnson, "Bin packing
//! with divisible item sizes", 1987). A worker of the right kind stays where it is unless a
//! larger one needs its GPUs, so a plan for what is there already changes nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rollwright_crds::Name;

use super::fleet::{Kind, Node, Nodes, Pool, Stage, Trust, Worker};
use rollwright_core::router::Role;

mod wants;

pub use wants::{Ground, wants};

/// Equal workers that a job asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// What they do.
    pub role: Role,
    /// GPUs of each.
    pub degree: u32,
    /// Pools that they may be on, the preferred first.
    pub pools: Vec<Name>,
    /// How many.
    pub count: u32,
}

/// A worker that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// What it is.
    pub kind: Kind,
    /// Where.
    pub nodes: Vec<String>,
}

impl Placement {
    /// GPUs that it takes on each of its nodes.
    pub fn gpus_per_node(&self) -> u32 {
        self.kind.degree / self.nodes.len().max(1) as u32
    }
}

/// A worker on another pool than the first of its want.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fallback {
    /// The pool that had no room.
    pub from: Name,
    /// The pool that had.
    pub to: Name,
}

/// Which workers stay, come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Names of workers that stay.
    pub kept: BTreeSet<String>,
    /// Workers to make.
    pub placed: Vec<Placement>,
    /// Workers that nothing has room for, on their preferred pool.
    pub waiting: BTreeMap<Kind, u32>,
    /// How many of the kept and the placed are on another pool than preferred.
    pub fallbacks: BTreeMap<Fallback, u32>,
}

impl Plan {
    /// All that is there stays, but for what is on its way out already.
    pub fn as_is(workers: &[Worker]) -> Self {
        let stay = workers.iter().filter(|worker| !worker.vanishing());
        Self { kept: stay.map(|worker| worker.name.clone()).collect(), ..Self::default() }
    }

    /// GPUs of the workers that stay or are to be made.
    pub fn gpus(&self, workers: &[Worker]) -> u32 {
        let kept = workers.iter().filter(|worker| self.kept.contains(&worker.name));
        let placed = self.placed.iter().map(|placement| placement.kind.degree);
        kept.map(|worker| worker.kind.degree).chain(placed).sum()
    }

    /// Workers wanted of each kind: those that stay, come, and wait.
    pub fn wanted(&self, workers: &[Worker]) -> BTreeMap<Kind, u32> {
        let mut wanted = self.waiting.clone();
        let kept = workers.iter().filter(|worker| self.kept.contains(&worker.name));
        let placed = self.placed.iter().map(|placement| &placement.kind);
        for kind in kept.map(|worker| &worker.kind).chain(placed) {
            *wanted.entry(kind.clone()).or_default() += 1;
        }
        wanted
    }
}

/// Finds the plan. `workers` are all that the job has.
pub fn plan(
    wants: &[Want],
    pools: &BTreeMap<Name, Pool>,
    nodes: &Nodes,
    workers: &[Worker],
) -> Plan {
    let mut planner = Planner::new(pools, nodes, workers);
    let mut order: Vec<&Want> = wants.iter().filter(|want| !want.pools.is_empty()).collect();
    order.sort_by_key(|want| Reverse(want.degree));
    for same_degree in order.chunk_by(|left, right| left.degree == right.degree) {
        let mut missing: Vec<u32> = same_degree.iter().map(|want| want.count).collect();
        // All that can have their first choice before any that cannot.
        let ranks = same_degree.iter().map(|want| want.pools.len()).max().unwrap_or(0);
        for rank in 0..ranks {
            for (want, missing) in same_degree.iter().zip(&mut missing) {
                planner.keep(want, rank, missing);
            }
        }
        for (want, missing) in same_degree.iter().zip(missing) {
            planner.place(want, missing);
        }
    }
    planner.plan
}

struct Planner<'a> {
    pools: &'a BTreeMap<Name, Pool>,
    nodes: &'a Nodes,
    workers: &'a [Worker],
    /// The workers of each node.
    at: BTreeMap<&'a str, Vec<&'a Worker>>,
    /// GPUs of each node that no larger worker of the plan has.
    room: BTreeMap<&'a str, u32>,
    /// The same of each pool, over its open nodes.
    pool_room: BTreeMap<&'a Name, u32>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn new(pools: &'a BTreeMap<Name, Pool>, nodes: &'a Nodes, workers: &'a [Worker]) -> Self {
        let mut room = BTreeMap::new();
        let mut pool_room: BTreeMap<&Name, u32> = BTreeMap::new();
        for (name, node) in nodes {
            let gpus = node.gpus.saturating_sub(node.taken);
            room.insert(name.as_str(), gpus);
            if node.open {
                *pool_room.entry(&node.pool).or_default() += gpus;
            }
        }
        let mut at: BTreeMap<&str, Vec<&Worker>> = BTreeMap::new();
        for worker in workers {
            for node in &worker.nodes {
                at.entry(node).or_default().push(worker);
            }
        }
        Self { pools, nodes, workers, at, room, pool_room, plan: Plan::default() }
    }

    fn take(&mut self, node: &str, gpus: u32) {
        let Some((name, found)) = self.nodes.get_key_value(node) else { return };
        if let Some(room) = self.room.get_mut(name.as_str()) {
            *room = room.saturating_sub(gpus);
        }
        if let Some(room) = self.pool_room.get_mut(&found.pool).filter(|_| found.open) {
            *room = room.saturating_sub(gpus);
        }
    }

    /// Keeps up to `missing` of the workers that fit the want's pool number `rank`.
    fn keep(&mut self, want: &Want, rank: usize, missing: &mut u32) {
        let Some(pool) = want.pools.get(rank) else { return };
        let mut fitting: Vec<&Worker> = self
            .workers
            .iter()
            .filter(|worker| worker.alive() && worker.current)
            .filter(|worker| worker.kind.degree == want.degree && worker.kind.role == want.role)
            .filter(|worker| worker.kind.pool == *pool)
            .filter(|worker| !self.plan.kept.contains(&worker.name))
            .collect();
        // Those that serve, then where most of the job's workers are, so that nodes empty.
        let crowd = |worker: &Worker| {
            let first = worker.nodes.first().and_then(|node| self.at.get(node.as_str()));
            first.map_or(0, |here| here.iter().filter(|other| other.alive()).count())
        };
        fitting.sort_by_cached_key(|worker| {
            (worker.stage, Reverse(crowd(worker)), worker.nodes.clone(), worker.name.clone())
        });
        for worker in fitting {
            if *missing == 0 {
                break;
            }
            let gpus = worker.gpus_per_node();
            let room = |node: &String| self.room.get(node.as_str()).copied();
            // A node that is gone holds no pod for long: that worker is replaced.
            if !worker.nodes.iter().all(|node| room(node).is_some_and(|room| room >= gpus)) {
                continue;
            }
            for node in &worker.nodes {
                self.take(node, gpus);
            }
            self.plan.kept.insert(worker.name.clone());
            *missing -= 1;
            self.note_fallback(want, rank);
        }
    }

    /// Finds nodes for `missing` new workers.
    fn place(&mut self, want: &Want, missing: u32) {
        for made in 0..missing {
            let found = want.pools.iter().enumerate().find_map(|(rank, pool)| {
                self.find(pool, want.degree).map(|(nodes, gpus)| (rank, pool, nodes, gpus))
            });
            let Some((rank, pool, nodes, gpus)) = found else {
                let kind =
                    Kind { pool: want.pools[0].clone(), role: want.role, degree: want.degree };
                *self.plan.waiting.entry(kind).or_default() += missing - made;
                return;
            };
            for node in &nodes {
                self.take(node, gpus);
            }
            let kind = Kind { pool: pool.clone(), role: want.role, degree: want.degree };
            self.plan.placed.push(Placement { kind, nodes });
            self.note_fallback(want, rank);
        }
    }

    /// Nodes of `pool` for one worker, and the GPUs that it takes on each.
    fn find(&self, pool: &Name, degree: u32) -> Option<(Vec<String>, u32)> {
        let settings = self.pools.get(pool)?;
        let (count, gpus) = settings.shape(degree);
        let whole = degree.max(gpus);
        if self.pool_room.get(pool)?.checked_sub(whole)? < settings.promised {
            return None;
        }
        let fits = |(name, node): &(&'a String, &'a Node)| {
            node.pool == *pool
                && node.open
                && node.trust != Trust::None
                && self.room.get(name.as_str()).is_some_and(|room| *room >= gpus)
        };
        let mut fitting: Vec<_> = self
            .nodes
            .iter()
            .filter(fits)
            .map(|(name, _)| (self.score(name, gpus), name))
            .collect();
        if fitting.len() < count {
            return None;
        }
        fitting.sort();
        Some((fitting.into_iter().take(count).map(|(_, name)| name.clone()).collect(), gpus))
    }

    /// How good a node is for a worker that takes `gpus` of it.
    fn score(&self, node: &str, gpus: u32) -> Score {
        let room = self.room.get(node).copied().unwrap_or(0);
        let (mut held, mut vanishing) = (0, 0);
        let mut failing = self.nodes.get(node).is_some_and(|node| node.trust != Trust::Good);
        for worker in self.at.get(node).into_iter().flatten() {
            if worker.vanishing() {
                vanishing += worker.gpus_per_node();
            } else if !self.plan.kept.contains(&worker.name) {
                held += worker.gpus_per_node();
            }
            failing |= worker.stage == Stage::Failing;
        }
        let displaced = gpus.saturating_sub(room.saturating_sub(held));
        let unheld = room.saturating_sub(held).saturating_sub(vanishing);
        Score { failing, displaced, awaited: gpus.saturating_sub(unheld), room }
    }

    fn note_fallback(&mut self, want: &Want, rank: usize) {
        if rank > 0 {
            let fallback = Fallback { from: want.pools[0].clone(), to: want.pools[rank].clone() };
            *self.plan.fallbacks.entry(fallback).or_default() += 1;
        }
    }
}

/// How good a node is for a new worker, the least first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// A worker of the job fails on it, or did lately.
    failing: bool,
    /// GPUs of the job's workers that would have to go.
    displaced: u32,
    /// The same, and those of workers that are going anyway.
    awaited: u32,
    /// GPUs that are left: the fullest node first, so that others stay whole.
    room: u32,
}

#[cfg(test)]
mod tests;
