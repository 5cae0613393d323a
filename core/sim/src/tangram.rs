//! `tangram`: ARL-Tangram's Algorithms 1 and 2 on every line, first come first served.

use std::collections::BTreeMap;

use rollwright_core::elastic::{
    ChunkLine, ChunkWaiting, Line, Running, Waiting, Work, tangram, tangram_on_chunks,
};

use crate::chunks::Chunk;
use crate::cluster::Service;
use crate::known::{at, demand, millionths, units, work};
use crate::lines::{Change, CpuLine, CpuNode, Discipline, GpuLine, GpuPool, Queued};
use crate::workload::Action;

/// The paper's policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tangram {
    /// Entries of its units that are tried for the first that waits on; `None`: all.
    pub(crate) depth: Option<usize>,
}

impl<'a> Discipline<'a> for Tangram {
    type Cpu = CpuTangram<'a>;
    type Gpu = GpuTangram<'a>;

    fn cpu(&self, cores: u64) -> CpuTangram<'a> {
        let cores = u32::try_from(cores).unwrap_or(u32::MAX);
        CpuTangram { depth: self.depth, cores, line: BTreeMap::new() }
    }

    fn gpu(&self, services: &'a [Service]) -> GpuTangram<'a> {
        GpuTangram { depth: self.depth, services, line: BTreeMap::new() }
    }

    fn call(&self, action: &Action) -> u64 {
        action.largest()
    }
}

/// The line of a node, by submission.
pub(crate) struct CpuTangram<'a> {
    depth: Option<usize>,
    cores: u32,
    line: BTreeMap<u64, (Queued<'a>, Work)>,
}

impl<'a> CpuLine<'a> for CpuTangram<'a> {
    fn submitted(&mut self, queued: Queued<'a>, _opens: bool, _node: &CpuNode<'a>, _now: u64) {
        let Some(work) = work(queued.action) else { return };
        self.line.insert(queued.order, (queued, work));
    }

    fn round(&mut self, node: &CpuNode<'a>, now: u64, changes: &mut Vec<Change<'a>>) -> bool {
        let running = node.running.iter().map(|one| Running {
            ends: at(one.ends),
            units: units(one.units),
            resizable: None,
        });
        let waiting = self.line.values().map(|(queued, work)| Waiting {
            work,
            submitted: at(queued.submitted),
            resizable: false,
        });
        let (running, waiting): (Vec<_>, Vec<_>) = (running.collect(), waiting.collect());
        let line = Line {
            now: at(now),
            cores: self.cores,
            running: &running,
            waiting: &waiting,
            beyond: 0,
            idle_trajectories: 0,
        };
        // A prefix of the line.
        for given in tangram(&line, self.depth) {
            let Some((_, (queued, _))) = self.line.pop_first() else { break };
            changes.push(Change::Start(queued, millionths(given.units)));
        }
        false
    }
}

/// The line of a GPU pool, by submission.
pub(crate) struct GpuTangram<'a> {
    depth: Option<usize>,
    services: &'a [Service],
    line: BTreeMap<u64, (Queued<'a>, Work)>,
}

impl<'a> GpuLine<'a> for GpuTangram<'a> {
    fn submitted(&mut self, queued: Queued<'a>, _pool: &GpuPool) {
        let Some(work) = work(queued.action) else { return };
        self.line.insert(queued.order, (queued, work));
    }

    fn round(&mut self, pool: &mut GpuPool, now: u64) -> Vec<(Queued<'a>, Chunk)> {
        let waiting = self.line.values().map(|(queued, work)| ChunkWaiting {
            work,
            demand: demand(queued.action, self.services),
            submitted: at(queued.submitted),
        });
        let running = pool.running.iter().map(|one| (at(one.ends), one.chunk));
        let (running, waiting): (Vec<_>, Vec<_>) = (running.collect(), waiting.collect());
        let line = ChunkLine {
            now: at(now),
            pool: &pool.gpus,
            running: &running,
            waiting: &waiting,
            beyond: 0,
        };
        let mut starts = Vec::new();
        for given in tangram_on_chunks(&line, self.depth) {
            let Some(first) = self.line.first_entry() else { break };
            let service = first.get().0.action.service.unwrap_or(0);
            // Residents may lie so that not all of them fit.
            let Some(chunk) = pool.gpus.take(service, u64::from(given.units.ceil())) else { break };
            starts.push((first.remove().0, chunk));
        }
        starts
    }
}
