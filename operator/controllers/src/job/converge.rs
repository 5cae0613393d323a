//! From the workers that there are to those that are planned, a few steps at a time: pure.
//!
//! Nothing is remembered between two calls: what goes on is read off the workers' stages. So
//! the steps of a call that was cut short, or made twice, do no harm.
//!
//! The stated minimum: the GPUs of serving workers do not fall below `minimum` by a step of
//! ours. Where the arithmetic leaves no way (8 workers of 1 GPU become 1 of 8 on the only node),
//! nothing else is under way, and the wanted worker is otherwise impossible, the workers that
//! stand in its way are drained nevertheless, and `below` says so.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet::{Nodes, Stage, Worker};
use super::plan::{Placement, Plan};

/// Most workers made by one call; the next one goes on.
const MOST_AT_ONCE: usize = 64;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a worker.
    Create(Placement),
    /// Send it nothing more, and let it end what it has.
    Drain(String),
    /// Remove it.
    Delete(String),
}

/// What bounds the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// GPUs of serving workers that are kept.
    pub minimum: u32,
    /// Who serves is known: the gateway answers. Else nothing that may serve is touched.
    pub observed: bool,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// In this order.
    pub steps: Vec<Step>,
    /// More is to come after these, or workers are on their way.
    pub unfinished: bool,
    /// GPUs that will serve where that is less than the minimum, and no other way is left.
    pub below: Option<u32>,
}

/// Finds the steps.
pub fn converge(plan: &Plan, nodes: &Nodes, workers: &[Worker], bounds: Bounds) -> Steps {
    let mut converger = Converger::new(plan, nodes, workers, bounds);
    converger.create();
    converger.remove();
    converger.make_way();
    converger.retire();
    converger.force();
    converger.finish()
}

struct Converger<'a> {
    plan: &'a Plan,
    nodes: &'a Nodes,
    workers: &'a [Worker],
    bounds: Bounds,
    /// GPUs of each node that nobody holds.
    free: BTreeMap<&'a str, u32>,
    /// GPUs of each node that become free without a further step.
    vanishing: BTreeMap<&'a str, u32>,
    /// Planned workers that have no room yet.
    blocked: Vec<&'a Placement>,
    /// Workers that stand in their way, and wait for leave to be drained.
    deferred: Vec<Vec<&'a Worker>>,
    /// Workers that may still be drained or deleted.
    surplus: BTreeSet<&'a str>,
    /// GPUs that serve after the steps.
    serving: u32,
    /// The minimum was passed over.
    forced: bool,
    out: Steps,
}

impl<'a> Converger<'a> {
    fn new(plan: &'a Plan, nodes: &'a Nodes, workers: &'a [Worker], bounds: Bounds) -> Self {
        let mut free: BTreeMap<&str, u32> = nodes
            .iter()
            .map(|(name, node)| (name.as_str(), node.gpus.saturating_sub(node.taken)))
            .collect();
        let mut vanishing: BTreeMap<&str, u32> = BTreeMap::new();
        for worker in workers {
            for node in &worker.nodes {
                if let Some(free) = free.get_mut(node.as_str()) {
                    *free = free.saturating_sub(worker.gpus_per_node());
                }
                if worker.vanishing() {
                    *vanishing.entry(node).or_default() += worker.gpus_per_node();
                }
            }
        }
        let serves = |worker: &&Worker| worker.stage == Stage::Serving;
        let surplus = workers
            .iter()
            .filter(|worker| !worker.vanishing() && !plan.kept.contains(&worker.name))
            .map(|worker| worker.name.as_str());
        Self {
            plan,
            nodes,
            workers,
            bounds,
            free,
            vanishing,
            blocked: Vec::new(),
            deferred: Vec::new(),
            surplus: surplus.collect(),
            serving: workers.iter().filter(serves).map(|worker| worker.kind.degree).sum(),
            forced: false,
            out: Steps::default(),
        }
    }

    /// Makes what has room.
    fn create(&mut self) {
        for placement in &self.plan.placed {
            let gpus = placement.gpus_per_node();
            let room = |node: &String| self.free.get(node.as_str()).copied().unwrap_or(0);
            if !placement.nodes.iter().all(|node| room(node) >= gpus) {
                self.blocked.push(placement);
                continue;
            }
            self.out.unfinished = true;
            if self.out.steps.len() >= MOST_AT_ONCE {
                continue;
            }
            for node in &placement.nodes {
                if let Some(free) = self.free.get_mut(node.as_str()) {
                    *free -= gpus;
                }
            }
            self.out.steps.push(Step::Create(placement.clone()));
        }
    }

    /// Removes what has ended, and what has nothing in flight any more.
    fn remove(&mut self) {
        for worker in self.workers {
            let over = match worker.stage {
                Stage::Ended => true,
                Stage::Draining => worker.idle,
                Stage::Failing | Stage::Starting => {
                    worker.idle && self.surplus.contains(worker.name.as_str())
                }
                Stage::Serving | Stage::Leaving => false,
            };
            if over {
                self.out.steps.push(Step::Delete(worker.name.clone()));
                self.gone(worker);
            }
            self.out.unfinished |= worker.vanishing();
        }
    }

    /// Drains what stands in the way of planned workers, as far as the minimum allows.
    fn make_way(&mut self) {
        for placement in std::mem::take(&mut self.blocked) {
            self.out.unfinished = true;
            let in_way = self.in_way(placement);
            let lost: u32 = in_way.iter().map(|worker| serving_gpus(worker)).sum();
            let allowed = lost == 0 || self.serving.saturating_sub(lost) >= self.bounds.minimum;
            if allowed {
                for worker in in_way {
                    self.drain(worker);
                }
                self.reserve(placement);
            } else {
                self.deferred.push(in_way);
            }
        }
    }

    /// The workers that have to go before `placement` has room: those that cost least first.
    fn in_way(&self, placement: &Placement) -> Vec<&'a Worker> {
        let gpus = placement.gpus_per_node();
        let mut found: Vec<&Worker> = Vec::new();
        for node in &placement.nodes {
            let freed = |worker: &&&Worker| worker.nodes.contains(node);
            let coming: u32 = found.iter().filter(freed).map(|worker| worker.gpus_per_node()).sum();
            let amount = |of: &BTreeMap<&str, u32>| of.get(node.as_str()).copied().unwrap_or(0);
            let mut short =
                gpus.saturating_sub(amount(&self.free) + amount(&self.vanishing) + coming);
            let mut here: Vec<&Worker> = self
                .workers
                .iter()
                .filter(|worker| worker.nodes.contains(node))
                .filter(|worker| self.surplus.contains(worker.name.as_str()))
                .filter(|worker| !found.iter().any(|other| other.name == worker.name))
                .collect();
            here.sort_by_key(|worker| (serving_gpus(worker), &worker.name));
            for worker in here {
                if short == 0 {
                    break;
                }
                short = short.saturating_sub(worker.gpus_per_node());
                found.push(worker);
            }
        }
        found
    }

    /// The GPUs that `placement` waits for are not for another.
    fn reserve(&mut self, placement: &Placement) {
        for node in &placement.nodes {
            let mut gpus = placement.gpus_per_node();
            for pot in [&mut self.free, &mut self.vanishing] {
                if let Some(amount) = pot.get_mut(node.as_str()) {
                    let taken = gpus.min(*amount);
                    *amount -= taken;
                    gpus -= taken;
                }
            }
        }
    }

    /// Drains what no plan needs: at once where it does not serve, else as soon as all that is
    /// planned serves without it. Until then it stands in for what is missing.
    fn retire(&mut self) {
        let waiting: BTreeSet<&str> =
            self.deferred.iter().flatten().map(|worker| worker.name.as_str()).collect();
        let planned = self.plan.gpus(self.workers)
            + self.plan.waiting.iter().map(|(kind, count)| kind.degree * count).sum::<u32>();
        for worker in self.workers {
            let name = worker.name.as_str();
            if !self.surplus.contains(name) {
                continue;
            }
            let lost = serving_gpus(worker);
            let spare = self.serving.saturating_sub(lost) >= planned.max(self.bounds.minimum);
            if lost == 0 || (spare && !waiting.contains(name)) {
                self.drain(worker);
            } else {
                self.out.unfinished |= !self.plan.placed.is_empty();
            }
        }
    }

    /// Where nothing else goes on and planned workers are still in want of room, makes way for
    /// the one that costs least, below the minimum.
    fn force(&mut self) {
        // On a node that does not answer, what was deleted may stay for ever.
        let open = |name: &String| self.nodes.get(name).is_some_and(|node| node.open);
        let moves = |worker: &Worker| match worker.stage {
            Stage::Starting => self.plan.kept.contains(&worker.name),
            Stage::Draining => true,
            Stage::Leaving | Stage::Ended => worker.nodes.iter().all(open),
            Stage::Serving | Stage::Failing => false,
        };
        if self.workers.iter().any(moves) || !self.out.steps.is_empty() || !self.bounds.observed {
            return;
        }
        let cost = |in_way: &Vec<&Worker>| in_way.iter().map(|of| serving_gpus(of)).sum::<u32>();
        let Some(in_way) = self.deferred.drain(..).min_by_key(cost) else { return };
        self.forced = true;
        for worker in in_way {
            self.drain(worker);
        }
    }

    fn drain(&mut self, worker: &'a Worker) {
        if !self.bounds.observed && !worker.idle {
            self.out.unfinished = true;
            return;
        }
        if !self.surplus.contains(worker.name.as_str()) {
            return;
        }
        self.serving -= serving_gpus(worker);
        let step = if worker.idle && worker.stage != Stage::Serving {
            Step::Delete(worker.name.clone())
        } else {
            Step::Drain(worker.name.clone())
        };
        self.out.steps.push(step);
        self.gone(worker);
    }

    fn gone(&mut self, worker: &'a Worker) {
        self.out.unfinished = true;
        if self.surplus.remove(worker.name.as_str()) {
            for node in &worker.nodes {
                *self.vanishing.entry(node).or_default() += worker.gpus_per_node();
            }
        }
    }

    fn finish(mut self) -> Steps {
        let starting = |worker: &Worker| worker.stage == Stage::Starting;
        self.out.unfinished |= self.workers.iter().any(starting);
        let draining = self.workers.iter().any(|worker| worker.stage == Stage::Draining);
        let below = (self.forced || draining) && self.serving < self.bounds.minimum;
        self.out.below = below.then_some(self.serving);
        self.out
    }
}

fn serving_gpus(worker: &Worker) -> u32 {
    if worker.stage == Stage::Serving { worker.kind.degree } else { 0 }
}

#[cfg(test)]
mod tests;
