//! GPUs of a pool: who is resident on which aligned chunk.

use rollwright_core::arrange::Chunks;
use rollwright_core::elastic::ChunkPool;
use rollwright_core::time::Time;

/// Largest chunk.
const LARGEST: u64 = 8;

/// Most GPUs of a node.
pub const MOST_GPUS: u64 = 128;

/// A service on a chunk, at one degree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Resident {
    service: usize,
    start: u64,
    gpus: u64,
    running: bool,
    /// When its last action ended.
    used: u64,
}

/// A chunk that an action was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) node: usize,
    pub(crate) start: u64,
    pub(crate) gpus: u64,
    /// The service was resident: nothing is to be restored.
    pub(crate) resident: bool,
}

/// Nodes that are looked at before any action came.
const FIRST_NODES: u64 = 1024;

/// Equal nodes with GPUs, at most [`MOST_GPUS`] each.
#[derive(Debug, Clone)]
pub(crate) struct Gpus {
    size: u64,
    /// How many there are.
    most: u64,
    /// The first of them; nobody needed the others yet.
    nodes: Vec<Node>,
}

/// One node, with a bit for each GPU.
#[derive(Debug, Clone, Default)]
struct Node {
    residents: Vec<Resident>,
    /// Some service is resident.
    occupied: u128,
    /// An action runs.
    running: u128,
}

impl Gpus {
    pub(crate) fn new(nodes: u64, gpus: u64) -> Self {
        let first = vec![Node::default(); nodes.min(FIRST_NODES) as usize];
        Self { size: gpus, most: nodes, nodes: first }
    }

    /// One more action will need a chunk, and so one more node at most.
    pub(crate) fn expect(&mut self) {
        if (self.nodes.len() as u64) < self.most {
            self.nodes.push(Node::default());
        }
    }

    /// A chunk of `gpus` for an action of `service`: one where it is resident, else
    /// free GPUs from the smallest free chunk that holds it, else those whose last use
    /// is longest ago. The first node and GPU of equals.
    pub(crate) fn take(&mut self, service: usize, gpus: u64) -> Option<Chunk> {
        let chunk = self
            .resident(service, gpus)
            .or_else(|| self.free(gpus))
            .or_else(|| self.least_recent(gpus))?;
        let node = &mut self.nodes[chunk.node];
        let start = chunk.start;
        node.residents.retain(|resident| {
            let stays = !overlap(resident, start, gpus);
            if !stays {
                node.occupied &= !bits(resident.start, resident.gpus);
            }
            stays
        });
        node.residents.push(Resident { service, start, gpus, running: true, used: 0 });
        node.occupied |= bits(start, gpus);
        node.running |= bits(start, gpus);
        Some(chunk)
    }

    /// The action on a chunk ended; its service stays.
    pub(crate) fn give(&mut self, chunk: Chunk, now: u64) {
        let node = &mut self.nodes[chunk.node];
        node.running &= !bits(chunk.start, chunk.gpus);
        for resident in &mut node.residents {
            if resident.start == chunk.start {
                resident.running = false;
                resident.used = now;
            }
        }
    }

    fn resident(&self, service: usize, gpus: u64) -> Option<Chunk> {
        self.nodes.iter().enumerate().find_map(|(i, node)| {
            let idle = node.residents.iter().filter(|resident| {
                resident.service == service && resident.gpus == gpus && !resident.running
            });
            let start = idle.map(|resident| resident.start).min()?;
            Some(Chunk { node: i, start, gpus, resident: true })
        })
    }

    fn free(&self, gpus: u64) -> Option<Chunk> {
        let mut size = gpus;
        while size <= LARGEST.min(self.size) {
            for (node, gpus_of) in self.nodes.iter().enumerate() {
                let whole = |start: u64, size: u64| {
                    start + size <= self.size && gpus_of.occupied & bits(start, size) == 0
                };
                let found = self.starts(size).find(|&start| {
                    // Not a part of a larger free chunk.
                    let parent = start / (2 * size) * (2 * size);
                    whole(start, size) && !(size < LARGEST && whole(parent, 2 * size))
                });
                if let Some(start) = found {
                    return Some(Chunk { node, start, gpus, resident: false });
                }
            }
            size *= 2;
        }
        None
    }

    fn least_recent(&self, gpus: u64) -> Option<Chunk> {
        let mut best: Option<(u64, Chunk)> = None;
        for (i, node) in self.nodes.iter().enumerate() {
            for start in self.starts(gpus) {
                if node.running & bits(start, gpus) != 0 {
                    continue;
                }
                let on = node.residents.iter().filter(|resident| overlap(resident, start, gpus));
                let used = on.map(|resident| resident.used).max().unwrap_or(0);
                if best.is_none_or(|(least, _)| used < least) {
                    best = Some((used, Chunk { node: i, start, gpus, resident: false }));
                }
            }
        }
        best.map(|(_, chunk)| chunk)
    }

    /// Where chunks of this size begin.
    fn starts(&self, size: u64) -> impl Iterator<Item = u64> + use<> {
        (0..self.size / size).map(move |i| i * size)
    }
}

impl ChunkPool for Gpus {
    type Chunk = Chunk;

    fn gpus(&self) -> u64 {
        self.size * self.most
    }

    fn idle(&self) -> Chunks {
        let mut counts = [0_u32; 4];
        for node in &self.nodes {
            let mut start = 0;
            while start < self.size {
                // The largest aligned chunk that begins here.
                let fits = |size: u64| {
                    start % size == 0
                        && start + size <= self.size
                        && node.running & bits(start, size) == 0
                };
                let level = (0..4).rev().find(|&level| fits(1 << level));
                if let Some(level) = level {
                    counts[level] += 1;
                }
                start += level.map_or(1, |level| 1 << level);
            }
        }
        Chunks::new(counts)
    }

    fn fits(&self, gpus: u64) -> bool {
        let idle = |node: &Node| self.starts(gpus).any(|at| node.running & bits(at, gpus) == 0);
        self.nodes.iter().any(idle)
    }

    fn residents(&self, service: usize, gpus: u64) -> (usize, usize) {
        let all = self.nodes.iter().flat_map(|node| &node.residents);
        let same = all.filter(|one| one.service == service && one.gpus == gpus);
        same.fold((0, 0), |(idle, all), one| (idle + usize::from(!one.running), all + 1))
    }

    fn take(&mut self, service: usize, gpus: u64) -> Option<(Chunk, bool)> {
        let chunk = Self::take(self, service, gpus)?;
        Some((chunk, !chunk.resident))
    }

    fn give_back(&mut self, chunk: Chunk, now: Time) {
        self.give(chunk, now.as_nanos());
    }

    fn size(chunk: Chunk) -> u64 {
        chunk.gpus
    }
}

/// The bits of a chunk.
fn bits(start: u64, gpus: u64) -> u128 {
    ((1 << gpus) - 1) << start
}

fn overlap(resident: &Resident, start: u64, gpus: u64) -> bool {
    resident.start < start + gpus && start < resident.start + resident.gpus
}
