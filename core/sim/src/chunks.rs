//! GPUs of a pool: who is resident on which aligned chunk.

/// Largest chunk.
const LARGEST: u64 = 8;

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

/// Equal nodes with GPUs.
#[derive(Debug)]
pub(crate) struct Gpus {
    size: u64,
    nodes: Vec<Vec<Resident>>,
}

impl Gpus {
    pub(crate) fn new(nodes: u64, gpus: u64) -> Self {
        Self { size: gpus, nodes: vec![Vec::new(); nodes as usize] }
    }

    /// A chunk of `gpus` for an action of `service`: one where it is resident, else
    /// free GPUs from the smallest free chunk that holds it, else those whose last use
    /// is longest ago. The first node and GPU of equals.
    pub(crate) fn take(&mut self, service: usize, gpus: u64) -> Option<Chunk> {
        let chunk = self
            .resident(service, gpus)
            .or_else(|| self.free(gpus))
            .or_else(|| self.least_recent(gpus))?;
        let residents = &mut self.nodes[chunk.node];
        residents.retain(|resident| !overlap(resident, chunk.start, gpus));
        let start = chunk.start;
        residents.push(Resident { service, start, gpus, running: true, used: 0 });
        Some(chunk)
    }

    /// The action on a chunk ended; its service stays.
    pub(crate) fn give(&mut self, chunk: Chunk, now: u64) {
        for resident in &mut self.nodes[chunk.node] {
            if resident.start == chunk.start {
                resident.running = false;
                resident.used = now;
            }
        }
    }

    fn resident(&self, service: usize, gpus: u64) -> Option<Chunk> {
        self.nodes.iter().enumerate().find_map(|(node, residents)| {
            let idle = residents.iter().filter(|resident| {
                resident.service == service && resident.gpus == gpus && !resident.running
            });
            let start = idle.map(|resident| resident.start).min()?;
            Some(Chunk { node, start, gpus, resident: true })
        })
    }

    fn free(&self, gpus: u64) -> Option<Chunk> {
        let mut size = gpus;
        while size <= LARGEST.min(self.size) {
            for node in 0..self.nodes.len() {
                let whole = |start: u64, size: u64| {
                    start + size <= self.size && self.on(node, start, size).next().is_none()
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
        for node in 0..self.nodes.len() {
            for start in self.starts(gpus) {
                if self.on(node, start, gpus).any(|resident| resident.running) {
                    continue;
                }
                let used = self.on(node, start, gpus).map(|resident| resident.used).max();
                let used = used.unwrap_or(0);
                if best.is_none_or(|(least, _)| used < least) {
                    best = Some((used, Chunk { node, start, gpus, resident: false }));
                }
            }
        }
        best.map(|(_, chunk)| chunk)
    }

    /// Where chunks of this size begin.
    fn starts(&self, size: u64) -> impl Iterator<Item = u64> + use<> {
        (0..self.size / size).map(move |i| i * size)
    }

    fn on(&self, node: usize, start: u64, gpus: u64) -> impl Iterator<Item = &Resident> {
        self.nodes[node].iter().filter(move |resident| overlap(resident, start, gpus))
    }
}

fn overlap(resident: &Resident, start: u64, gpus: u64) -> bool {
    resident.start < start + gpus && start < resident.start + resident.gpus
}
