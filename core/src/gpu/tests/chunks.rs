//! Chunks against brute force: whatever comes and goes, each choice is the one that a look at
//! every chunk would make.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::gpu::{
    Barred, Chunk, Chunks, Degree, EngineId, InvalidDegree, Kind, Place, ServiceIndex, State,
    Tenant, Turn,
};
use crate::time::Time;

/// The turn of one before whom all others came.
const LAST: Turn = Turn::MAX;

fn degree(gpus: u32) -> Degree {
    Degree::new(gpus).unwrap()
}

fn kind(service: usize, gpus: u32) -> Kind {
    Kind { service: ServiceIndex(service), degree: degree(gpus) }
}

fn none() -> Barred {
    Barred::new()
}

/// A pool whose engines have `bytes` of a GPU's `memory`, and what is in it.
struct Map {
    chunks: Chunks,
    sizes: Vec<u32>,
    memory: u64,
    engines: BTreeMap<EngineId, Tenant>,
    last: u64,
    clock: u64,
}

impl Map {
    fn new(sizes: &[u32], memory: u64) -> Self {
        let mut chunks = Chunks::default();
        for gpus in sizes {
            chunks.add_node(*gpus, memory);
        }
        let engines = BTreeMap::new();
        Self { chunks, sizes: sizes.to_vec(), memory, engines, last: 0, clock: 0 }
    }

    /// An action of `kind` comes, with `bytes` on each GPU, and begins where nobody executes;
    /// `None` where it has to wait. Moves take no time.
    fn begin(&mut self, kind: Kind, bytes: u64) -> Option<(EngineId, Option<Place>)> {
        let resident = |map: &Self| map.chunks.resident(kind, &none(), &BTreeSet::new());
        if let Some(engine) = resident(self) {
            self.change(engine, |tenant| tenant.executing = true);
            return Some((engine, None));
        }
        let asleep = self.chunks.asleep(kind, bytes, LAST, &none());
        let place = asleep.or_else(|| self.chunks.place(kind, bytes, LAST, &none()))?;
        for victim in &place.evict {
            self.change(*victim, |tenant| tenant.state = State::Asleep);
        }
        for victim in &place.stop {
            self.chunks.remove(*victim);
            self.engines.remove(victim);
        }
        let engine = place.asleep.unwrap_or_else(|| {
            self.last += 1;
            EngineId(self.last)
        });
        let tenant = Tenant {
            kind,
            chunk: place.chunk,
            state: State::Resident,
            device: bytes,
            residue: u64::from(self.memory > 1),
            movable: false,
            executing: false,
            fresh: false,
            on_term: false,
            wanted: None,
            pinned: kind.service.0 == 0,
            used: Time::ZERO,
        };
        self.engines.insert(engine, tenant);
        self.chunks.insert(engine, tenant);
        if let Some(engine) = resident(self) {
            self.change(engine, |tenant| tenant.executing = true);
        }
        Some((engine, Some(place)))
    }

    fn end(&mut self, engine: EngineId) {
        self.clock += 1;
        let used = Time::from_nanos(self.clock);
        self.change(engine, |tenant| (tenant.executing, tenant.used) = (false, used));
    }

    fn change(&mut self, engine: EngineId, change: impl Fn(&mut Tenant)) {
        change(self.chunks.get_mut(engine).unwrap());
        change(self.engines.get_mut(&engine).unwrap());
    }

    /// Every aligned interval of so many GPUs.
    fn every(&self, gpus: u32) -> Vec<(usize, u32)> {
        let nodes = self.sizes.iter().enumerate();
        nodes
            .flat_map(|(node, size)| (0..*size).map(move |start| (node, start, *size)))
            .filter(|(_, start, size)| start % gpus == 0 && start + gpus <= *size)
            .map(|(node, start, _)| (node, start))
            .collect()
    }

    fn on(&self, node: usize, start: u32, gpus: u32) -> Vec<(EngineId, Tenant)> {
        let overlaps = |tenant: &Tenant| {
            let range = tenant.chunk.gpus();
            tenant.chunk.node == node && range.start < start + gpus && start < range.end
        };
        let there = self.engines.iter().filter(|(_, tenant)| overlaps(tenant));
        there.map(|(id, tenant)| (*id, *tenant)).collect()
    }

    fn nobody(&self, node: usize, start: u32, gpus: u32) -> bool {
        self.on(node, start, gpus).iter().all(|(_, tenant)| tenant.state == State::Asleep)
    }

    /// Size of the largest aligned free interval around a free one.
    fn largest_free(&self, node: usize, start: u32, gpus: u32) -> u32 {
        let around = [8, 4, 2, 1].into_iter().filter(|size| *size >= gpus).find(|size| {
            let at = start / size * size;
            at + size <= self.sizes[node] && self.nobody(node, at, *size)
        });
        around.unwrap()
    }

    /// Where an engine that is nowhere must go when each fills its GPUs.
    fn expected(&self, gpus: u32) -> Option<(usize, u32)> {
        let every = self.every(gpus);
        let free = every.iter().copied().filter(|(node, at)| self.nobody(*node, *at, gpus));
        let smallest =
            free.min_by_key(|(node, at)| (self.largest_free(*node, *at, gpus), *node, *at));
        smallest.or_else(|| {
            let may = every.into_iter().filter(|(node, at)| {
                let there = self.on(*node, *at, gpus);
                there.iter().all(|(_, tenant)| !tenant.executing && !tenant.pinned)
            });
            may.min_by_key(|(node, at)| {
                let there = self.on(*node, *at, gpus);
                (there.iter().map(|(_, tenant)| tenant.used).max(), *node, *at)
            })
        })
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (node, start) in self.every(1) {
            let there = self.on(node, start, 1);
            let executing = there.iter().filter(|(_, tenant)| tenant.executing).count();
            prop_assert!(executing <= 1, "{} execute on GPU {start} of node {node}", executing);
            let bytes: u64 = there.iter().map(|(_, tenant)| tenant.held()).sum();
            prop_assert!(bytes <= self.memory, "{} bytes of {}", bytes, self.memory);
        }
        for tenant in self.engines.values() {
            let gpus = tenant.chunk.gpus();
            prop_assert!(gpus.start.is_multiple_of(tenant.kind.degree.gpus()));
            prop_assert_eq!(gpus.end - gpus.start, tenant.kind.degree.gpus());
            prop_assert!(gpus.end <= self.sizes[tenant.chunk.node]);
        }
        let mut counts = [0; 4];
        for degree in Degree::ALL {
            let gpus = degree.gpus();
            let maximal = self.every(gpus).into_iter().filter(|(node, at)| {
                self.nobody(*node, *at, gpus) && self.largest_free(*node, *at, gpus) == gpus
            });
            counts[degree.level()] = maximal.count() as u32;
        }
        prop_assert_eq!(self.chunks.free().counts(), counts);
        let free = self.every(1).iter().filter(|(node, at)| self.nobody(*node, *at, 1)).count();
        prop_assert_eq!(self.chunks.free().gpus(), free as u64);
        let fragmentation = self.chunks.fragmentation();
        prop_assert!((0.0..=1.0).contains(&fragmentation));
        prop_assert!(free > 0 || fragmentation == 0.0);
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Step {
    Begin(usize, u32),
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..6, prop::sample::select(&[1u32, 1, 2, 2, 4, 8][..]))
            .prop_map(|(service, gpus)| Step::Begin(service, gpus)),
        2 => any::<usize>().prop_map(Step::End),
    ]
}

fn sizes() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop::sample::select(&[8u32, 8, 16, 6, 4, 1][..]), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Each engine fills its GPUs: the smallest free chunk, else the least recently used.
    #[test]
    fn alone_on_its_gpus(sizes in sizes(), steps in prop::collection::vec(step(), 0..80)) {
        let mut map = Map::new(&sizes, 1);
        for step in steps {
            match step {
                Step::Begin(service, gpus) => {
                    let kind = kind(service, gpus);
                    let idle = map.engines.iter().find(|(_, tenant)| {
                        tenant.kind == kind && tenant.state == State::Resident && !tenant.executing
                    });
                    let idle = idle.map(|(id, _)| *id);
                    let sleeping: Vec<_> = map.engines.values().copied().filter(|tenant| {
                        let gpus = tenant.chunk.gpus();
                        let (node, width) = (tenant.chunk.node, gpus.end - gpus.start);
                        let there = map.on(node, gpus.start, width);
                        let asleep = |tenant: &Tenant| tenant.state == State::Asleep;
                        tenant.kind == kind && asleep(tenant)
                            && there.iter().all(|(_, t)| !t.executing && (asleep(t) || !t.pinned))
                    }).map(|tenant| tenant.chunk).collect();
                    let expected = map.expected(gpus);
                    let begun = map.begin(kind, 1);
                    match (idle, begun) {
                        (Some(idle), begun) => {
                            let (engine, place) = begun.expect("a resident is idle");
                            prop_assert!(place.is_none() && map.engines[&engine].kind == kind);
                            prop_assert!(map.engines.contains_key(&idle));
                        }
                        (None, Some((_, Some(place)))) if !sleeping.is_empty() => {
                            prop_assert!(sleeping.contains(&place.chunk));
                        }
                        (None, begun) => {
                            let at = begun.map(|(engine, _)| map.engines[&engine].chunk);
                            let at = at.map(|chunk| (chunk.node, chunk.start()));
                            prop_assert_eq!(at, expected);
                        }
                    }
                }
                Step::End(pick) => {
                    let busy = map.engines.iter().filter(|(_, tenant)| tenant.executing);
                    let busy: Vec<EngineId> = busy.map(|(id, _)| *id).collect();
                    if !busy.is_empty() {
                        map.end(busy[pick % busy.len()]);
                    }
                }
            }
            map.check()?;
        }
    }

    /// Engines share GPUs as far as memory goes, and keep a byte of it asleep. They are placed
    /// beside what executes too. Whoever is moved was idle, and no more are moved than is
    /// needed.
    #[test]
    fn beside_each_other(
        sizes in sizes(),
        memory in 4u64..12,
        steps in prop::collection::vec((step(), 2u64..5), 0..80),
    ) {
        let mut map = Map::new(&sizes, memory);
        for (step, bytes) in steps {
            match step {
                Step::Begin(service, gpus) => {
                    let before = map.engines.clone();
                    let could = map.every(gpus).into_iter().any(|(node, at)| {
                        let own = |t: &Tenant| {
                            t.kind == kind(service, gpus) && t.state == State::Resident
                        };
                        let stays = |gpu: u32| -> u64 {
                            let on = map.on(node, gpu, 1);
                            let stays = on.iter().filter(|(_, t)| t.pinned || t.executing);
                            stays.map(|(_, t)| t.held()).sum()
                        };
                        map.on(node, at, gpus).iter().all(|(_, t)| !own(t))
                            && (at..at + gpus).all(|gpu| stays(gpu) + bytes <= memory)
                    });
                    let begun = map.begin(kind(service, gpus), bytes);
                    prop_assert!(begun.is_some() || !could, "a chunk could be cleared");
                    let Some((_, Some(place))) = begun else { continue };
                    for victim in place.evict.iter().chain(&place.stop) {
                        let was = before[victim];
                        prop_assert!(!was.executing && !was.pinned && was.chunk.overlaps(place.chunk));
                    }
                    if let Some(last) = place.evict.last() {
                        // Without the last eviction it would not have fitted.
                        let was = before[last];
                        let with = was.chunk.gpus().filter(|gpu| place.chunk.gpus().contains(gpu));
                        let full = with.into_iter().any(|gpu| {
                            let on = map.on(place.chunk.node, gpu, 1);
                            let now: u64 = on.iter().map(|(_, tenant)| tenant.held()).sum();
                            now + was.device - was.residue > memory
                        });
                        prop_assert!(full || !place.stop.is_empty(), "{:?} was in nobody's way", was);
                    }
                }
                Step::End(pick) => {
                    let busy = map.engines.iter().filter(|(_, tenant)| tenant.executing);
                    let busy: Vec<EngineId> = busy.map(|(id, _)| *id).collect();
                    if !busy.is_empty() {
                        map.end(busy[pick % busy.len()]);
                    }
                }
            }
            map.check()?;
        }
    }
}

#[test]
fn a_degree_is_a_power_of_two_up_to_eight() {
    let valid: Vec<u32> = (0..20).filter(|gpus| Degree::new(*gpus).is_ok()).collect();
    assert_eq!(valid, [1, 2, 4, 8]);
    let error: InvalidDegree = Degree::new(3).unwrap_err();
    assert_eq!(error.to_string(), "3 GPUs are no degree: use 1, 2, 4 or 8");
    assert_eq!(Chunk::new(0, 2, degree(4)), None);
    assert_eq!(Chunk::new(0, 128, degree(1)), None);
    assert_eq!(Chunk::new(0, 4, degree(4)).unwrap().to_string(), "GPUs 4-7");
}

#[test]
fn a_lost_gpu_is_given_to_nobody() {
    let mut map = Map::new(&[4], 1);
    map.chunks.set_lost(0, 1, true);
    assert_eq!(map.chunks.free().counts(), [1, 1, 0, 0]);
    assert_eq!(map.chunks.place(kind(0, 4), 1, LAST, &none()), None);
    let place = map.chunks.place(kind(0, 1), 1, LAST, &none()).unwrap();
    assert_eq!(place.chunk.start(), 0);
    map.chunks.set_lost(0, 1, false);
    assert_eq!(map.chunks.free().counts(), [0, 0, 1, 0]);
}

#[test]
fn fragmentation_is_what_lies_outside_the_largest_chunks() {
    let mut map = Map::new(&[8, 8], 1);
    assert!(map.chunks.fragmentation().abs() < 1e-9);
    map.begin(kind(1, 1), 1).unwrap();
    // 7 of 15 free GPUs are in no chunk of 8.
    assert!((map.chunks.fragmentation() - 7.0 / 15.0).abs() < 1e-9);
}
