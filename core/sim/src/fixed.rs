//! `fixed:N`: first come first served within each line.

use std::collections::{BTreeMap, VecDeque};

use crate::chunks::Chunk;
use crate::cluster::Service;
use crate::lines::{Change, CpuLine, CpuNode, Discipline, GpuLine, GpuPool, Queued};
use crate::workload::{Action, UNIT};

/// Each action on the largest of its units up to a limit, else its smallest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fixed {
    /// Millionths.
    pub(crate) limit: u64,
}

impl Fixed {
    fn units(self, action: &Action) -> u64 {
        action.largest_up_to(self.limit).unwrap_or(action.smallest())
    }
}

impl<'a> Discipline<'a> for Fixed {
    type Cpu = CpuFixed<'a>;
    type Gpu = GpuFixed<'a>;

    fn cpu(&self, _cores: u64) -> CpuFixed<'a> {
        CpuFixed { fixed: *self, line: BTreeMap::new() }
    }

    fn gpu(&self, _services: &'a [Service]) -> GpuFixed<'a> {
        GpuFixed { fixed: *self, line: VecDeque::new() }
    }

    fn call(&self, action: &Action) -> u64 {
        self.units(action)
    }
}

/// The line of a node, by submission.
pub(crate) struct CpuFixed<'a> {
    fixed: Fixed,
    line: BTreeMap<u64, Queued<'a>>,
}

impl<'a> CpuLine<'a> for CpuFixed<'a> {
    fn submitted(&mut self, queued: Queued<'a>, _opens: bool, _node: &CpuNode<'a>, _now: u64) {
        self.line.insert(queued.order, queued);
    }

    fn round(&mut self, node: &CpuNode<'a>, _now: u64, changes: &mut Vec<Change<'a>>) -> bool {
        let mut cores = node.cores.clone();
        while let Some(first) = self.line.first_entry() {
            let units = self.fixed.units(first.get().action);
            if !cores.take(units) {
                break;
            }
            changes.push(Change::Start(first.remove(), units));
        }
        false
    }
}

/// The line of a GPU pool.
pub(crate) struct GpuFixed<'a> {
    fixed: Fixed,
    line: VecDeque<Queued<'a>>,
}

impl<'a> GpuLine<'a> for GpuFixed<'a> {
    fn submitted(&mut self, queued: Queued<'a>, _pool: &GpuPool) {
        self.line.push_back(queued);
    }

    fn round(&mut self, pool: &mut GpuPool, _now: u64) -> Vec<(Queued<'a>, Chunk)> {
        let mut starts = Vec::new();
        while let Some(&queued) = self.line.front() {
            let gpus = self.fixed.units(queued.action) / UNIT;
            let Some(chunk) = pool.gpus.take(queued.action.service.unwrap_or(0), gpus) else {
                break;
            };
            self.line.pop_front();
            starts.push((queued, chunk));
        }
        starts
    }
}
