//! `elastic`: the core's default policy, one for each line.

use std::collections::BTreeMap;

use rollwright_core::elastic::{
    CHUNK_WINDOW, ChunkLine, ChunkWaiting, Decision, Elastic, ElasticChunks, Line, Remaining,
    Resizable, Running, Waiting, Work,
};
use rollwright_core::time::Time;

use crate::chunks::Chunk;
use crate::cluster::Service;
use crate::known::{at, demand, millionths, units, work};
use crate::lines::{Change, CpuLine, CpuNode, Discipline, GpuLine, GpuPool, Queued};
use crate::workload::{Action, Phase};

/// Lines in the order of rank, each decision the core's.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ByPromise {
    /// Short actions first.
    Actions,
    /// The same without bounds on the look-ahead, on CPU nodes.
    Unbounded,
    /// Those first whose trajectory will last longest.
    Trajectories,
}

impl<'a> Discipline<'a> for ByPromise {
    type Cpu = CpuElastic<'a>;
    type Gpu = GpuElastic<'a>;

    fn cpu(&self, cores: u64) -> CpuElastic<'a> {
        CpuElastic {
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            policy: match self {
                Self::Actions => Elastic::default(),
                Self::Unbounded => Elastic::unbounded(),
                Self::Trajectories => Elastic::for_makespan(),
            },
            prediction: self.prediction(),
            waiting: BTreeMap::new(),
            resizable: BTreeMap::new(),
        }
    }

    fn gpu(&self, services: &'a [Service]) -> GpuElastic<'a> {
        let policy = match self {
            Self::Actions | Self::Unbounded => ElasticChunks::default(),
            Self::Trajectories => ElasticChunks::for_makespan(),
        };
        GpuElastic { services, policy, prediction: self.prediction(), waiting: BTreeMap::new() }
    }

    fn call(&self, action: &Action) -> u64 {
        action.largest()
    }
}

impl ByPromise {
    fn prediction(self) -> Option<Remaining> {
        matches!(self, Self::Trajectories).then(Remaining::default)
    }
}

/// In the order of how long trajectories will last: here the simulator knows.
fn order(prediction: &mut Remaining, work: Work, queued: &Queued<'_>) -> Work {
    let after = &queued.trajectory.phases[queued.phase + 1..];
    prediction.order(work, Some(after.iter().map(Phase::seconds).sum()))
}

/// The line of a node, by rank.
pub(crate) struct CpuElastic<'a> {
    cores: u32,
    policy: Elastic,
    prediction: Option<Remaining>,
    waiting: BTreeMap<(Time, u64), (Queued<'a>, Work)>,
    /// Trajectory -> the choices of its action that runs and can be resized.
    resizable: BTreeMap<usize, Work>,
}

impl<'a> CpuElastic<'a> {
    fn decide(&mut self, node: &CpuNode<'a>, now: u64) -> Decision {
        let running = node.running.iter().map(|one| {
            let work = one.action.malleable.then(|| self.resizable.get(&one.of)).flatten();
            let resizable = work.map(|work| Resizable {
                work,
                submitted: at(one.submitted),
                left: one.left(now),
            });
            Running { ends: at(one.ends), units: units(one.units), resizable }
        });
        let waiting = self.waiting.values().take(self.policy.window()).map(|(queued, work)| {
            let resizable = queued.action.malleable;
            Waiting { work, submitted: at(queued.submitted), resizable }
        });
        let (running, waiting): (Vec<_>, Vec<_>) = (running.collect(), waiting.collect());
        self.policy.newcomers(node.newcomers);
        self.policy.decide(&Line {
            now: at(now),
            cores: self.cores,
            running: &running,
            waiting: &waiting,
            beyond: self.waiting.len() - waiting.len(),
            idle_trajectories: node.sandboxes.saturating_sub(self.waiting.len()),
        })
    }
}

impl<'a> CpuLine<'a> for CpuElastic<'a> {
    fn submitted(&mut self, queued: Queued<'a>, opens: bool, node: &CpuNode<'a>, now: u64) {
        let Some(mut work) = work(queued.action) else { return };
        if let Some(prediction) = &mut self.prediction {
            work = order(prediction, work, &queued);
        }
        self.policy.newcomers(node.newcomers);
        self.policy.submitted(at(now), opens, work.clone());
        let rank = work.rank(at(queued.submitted));
        self.waiting.insert((rank, queued.order), (queued, work));
    }

    fn finished(&mut self, of: usize) {
        self.resizable.remove(&of);
    }

    fn round(&mut self, node: &CpuNode<'a>, now: u64, changes: &mut Vec<Change<'a>>) -> bool {
        let decision = self.decide(node, now);
        let resized = decision.resizes.iter();
        changes.extend(resized.map(|given| Change::Resize(given.index, millionths(given.units))));
        let seen = decision.starts.iter().map(|given| given.index + 1).max().unwrap_or(0);
        let seen: Vec<(Time, u64)> = self.waiting.keys().take(seen).copied().collect();
        for given in &decision.starts {
            let Some((queued, work)) = self.waiting.remove(&seen[given.index]) else { continue };
            if queued.action.malleable {
                self.resizable.insert(queued.of, work);
            }
            changes.push(Change::Start(queued, millionths(given.units)));
        }
        decision.starts.len() == self.policy.window() && !self.waiting.is_empty()
    }
}

/// The line of a GPU pool, by rank.
pub(crate) struct GpuElastic<'a> {
    services: &'a [Service],
    policy: ElasticChunks,
    prediction: Option<Remaining>,
    waiting: BTreeMap<(Time, u64), (Queued<'a>, Work)>,
}

impl<'a> GpuLine<'a> for GpuElastic<'a> {
    fn submitted(&mut self, queued: Queued<'a>, pool: &GpuPool) {
        let Some(mut work) = work(queued.action) else { return };
        if let Some(prediction) = &mut self.prediction {
            work = order(prediction, work, &queued);
        }
        let submitted = at(queued.submitted);
        self.policy.newcomers(pool.newcomers);
        self.policy.submitted(submitted, work.clone(), demand(queued.action, self.services));
        self.waiting.insert((work.rank(submitted), queued.order), (queued, work));
    }

    fn round(&mut self, pool: &mut GpuPool, now: u64) -> Vec<(Queued<'a>, Chunk)> {
        let seen: Vec<(Time, u64)> = self.waiting.keys().take(CHUNK_WINDOW).copied().collect();
        let waiting = self.waiting.values().take(CHUNK_WINDOW).map(|(queued, work)| ChunkWaiting {
            work,
            demand: demand(queued.action, self.services),
            submitted: at(queued.submitted),
        });
        let running = pool.running.iter().map(|one| (at(one.ends), one.chunk));
        let (running, waiting): (Vec<_>, Vec<_>) = (running.collect(), waiting.collect());
        self.policy.newcomers(pool.newcomers);
        let decided = self.policy.decide(&ChunkLine {
            now: at(now),
            pool: &pool.gpus,
            running: &running,
            waiting: &waiting,
            beyond: self.waiting.len() - seen.len(),
        });
        let mut starts = Vec::new();
        for given in decided {
            let Some(&(queued, _)) = self.waiting.get(&seen[given.index]) else { continue };
            let service = queued.action.service.unwrap_or(0);
            let chunk = pool.gpus.take(service, u64::from(given.units.ceil()));
            let Some(chunk) = chunk else { break };
            self.waiting.remove(&seen[given.index]);
            starts.push((queued, chunk));
        }
        starts
    }
}
