//! Random clusters, driven to their end against a model of what the nodes hold.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rollwright_crds::Name;

use super::*;
use crate::job::fleet::{Kind, Node, Pool, Trust};
use crate::job::plan::{Want, plan};
use rollwright_core::router::Role;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A cluster whose processes do as they are told, at their own pace.
struct World {
    pools: BTreeMap<Name, Pool>,
    nodes: Nodes,
    workers: Vec<Worker>,
    wants: Vec<Want>,
    percent: u32,
    made: usize,
    /// Least GPUs that served after each round.
    serving: Vec<u32>,
    below: Vec<u32>,
}

impl World {
    fn new(nodes: u32, gpus: u32, wants: &[(u32, u32)]) -> Self {
        let pool = name("a");
        let node = Node { pool: pool.clone(), gpus, taken: 0, open: true, trust: Trust::Good };
        let settings = Pool { class: name("h20"), gpus_per_node: gpus, promised: 0 };
        let mut world = Self {
            pools: [(pool, settings)].into(),
            nodes: (0..nodes).map(|index| (format!("n{index}"), node.clone())).collect(),
            workers: Vec::new(),
            wants: Vec::new(),
            percent: 50,
            made: 0,
            serving: Vec::new(),
            below: Vec::new(),
        };
        world.want(wants);
        world
    }

    /// Degrees and counts.
    fn want(&mut self, wants: &[(u32, u32)]) {
        let want =
            |&(degree, count)| Want { role: Role::Mixed, degree, pools: vec![name("a")], count };
        self.wants = wants.iter().map(want).collect();
    }

    fn served(&self) -> u32 {
        self.workers.iter().map(serving_gpus).sum()
    }

    fn check_nodes(&self) {
        for (name, node) in &self.nodes {
            let here = self.workers.iter().filter(|worker| worker.nodes.contains(name));
            let held: u32 = here.map(Worker::gpus_per_node).sum();
            assert!(held + node.taken <= node.gpus, "{name} holds {held} of {node:?}");
        }
    }

    /// One look of the controller. True when it did something or waits for something.
    fn look(&mut self, observed: bool) -> bool {
        let plan = plan(&self.wants, &self.pools, &self.nodes, &self.workers);
        let minimum = (plan.gpus(&self.workers) * self.percent).div_ceil(100);
        let bounds = Bounds { minimum, observed };
        let found = converge(&plan, &self.nodes, &self.workers, bounds);
        let again = converge(&plan, &self.nodes, &self.workers, bounds);
        assert_eq!(found, again, "the same look, the same steps");
        let before = self.served();
        for step in &found.steps {
            self.take(step, &plan, observed);
        }
        self.check_nodes();
        let after = self.served();
        if after < before.min(minimum) {
            assert!(found.below.is_some(), "{after} of {minimum} serve, and nobody says so");
            assert!(observed);
            self.below.push(after);
        }
        self.serving.push(after);
        found.unfinished
    }

    fn take(&mut self, step: &Step, plan: &Plan, observed: bool) {
        match step {
            Step::Create(placement) => {
                self.made += 1;
                self.workers.push(Worker {
                    name: format!("w{}", self.made),
                    kind: placement.kind.clone(),
                    nodes: placement.nodes.clone(),
                    stage: Stage::Starting,
                    current: true,
                    idle: true,
                });
                self.check_nodes();
            }
            Step::Drain(name) => {
                assert!(!plan.kept.contains(name), "{name} was to stay");
                let worker = self.worker(name);
                assert!(!worker.vanishing() && observed, "{worker:?}");
                worker.stage = Stage::Draining;
                worker.idle = false;
            }
            Step::Delete(name) => {
                assert!(!plan.kept.contains(name), "{name} was to stay");
                let worker = self.worker(name);
                let may =
                    worker.stage == Stage::Ended || (worker.idle && worker.stage != Stage::Serving);
                assert!(may && worker.stage != Stage::Leaving, "{worker:?}");
                worker.stage = Stage::Leaving;
            }
        }
    }

    fn worker(&mut self, name: &str) -> &mut Worker {
        self.workers.iter_mut().find(|worker| worker.name == name).unwrap()
    }

    /// Worker number `index` goes on by itself.
    fn proceed(&mut self, index: usize) {
        let Some(worker) = self.workers.get_mut(index) else { return };
        match worker.stage {
            Stage::Starting => (worker.stage, worker.idle) = (Stage::Serving, false),
            Stage::Draining => worker.idle = true,
            Stage::Leaving => drop(self.workers.remove(index)),
            Stage::Serving | Stage::Failing | Stage::Ended => {}
        }
    }

    /// Nothing happens any more but what has to.
    fn settle(&mut self) {
        for _ in 0..2_000 {
            let unfinished = self.look(true);
            for index in (0..self.workers.len()).rev() {
                self.proceed(index);
            }
            if !unfinished {
                return;
            }
        }
        panic!("no end: {:#?}", self.workers);
    }

    /// Serving workers by degree.
    fn degrees(&self) -> BTreeMap<u32, u32> {
        let mut found = BTreeMap::new();
        for worker in self.workers.iter().filter(|worker| worker.stage == Stage::Serving) {
            *found.entry(worker.kind.degree).or_default() += 1;
        }
        found
    }

    /// How many of each degree there is room for, the larger first: each size divides the next,
    /// so it does not matter which of the nodes the larger are on.
    fn feasible(&self) -> BTreeMap<u32, u32> {
        let mut found = BTreeMap::new();
        let mut wants: Vec<(u32, u32)> =
            self.wants.iter().map(|want| (want.degree, want.count)).collect();
        wants.sort_by(|left, right| right.cmp(left));
        let mut taken = 0;
        for (degree, count) in wants {
            let open = self.nodes.values().filter(|node| node.open);
            let slots: u32 = open.map(|node| (node.gpus - node.taken) / degree).sum();
            let fits = count.min(slots.saturating_sub(taken / degree));
            taken += fits * degree;
            if fits > 0 {
                *found.entry(degree).or_default() += fits;
            }
        }
        found
    }
}

#[test]
fn the_one_node_is_freed_and_that_is_said() {
    let mut world = World::new(1, 8, &[(1, 8)]);
    world.settle();
    assert_eq!(world.degrees(), [(1, 8)].into());
    world.want(&[(8, 1)]);
    world.settle();
    assert_eq!(world.degrees(), [(8, 1)].into());
    assert_eq!(world.below, [0], "said once, when it is done");
}

#[test]
fn two_full_nodes_take_turns() {
    let mut world = World::new(2, 8, &[(1, 16)]);
    world.settle();
    world.serving.clear();
    world.want(&[(8, 2)]);
    world.settle();
    assert_eq!(world.degrees(), [(8, 2)].into());
    assert_eq!(world.serving.iter().min(), Some(&8), "{:?}", world.serving);
    assert!(world.below.is_empty());
}

#[test]
fn one_node_goes_by_halves_where_that_is_enough() {
    let mut world = World::new(1, 8, &[(1, 8)]);
    world.settle();
    world.serving.clear();
    world.want(&[(4, 2)]);
    world.settle();
    assert_eq!(world.degrees(), [(4, 2)].into());
    assert_eq!(world.serving.iter().min(), Some(&4));
    assert!(world.below.is_empty());
}

#[test]
fn what_is_to_be_replaced_stands_in_until_the_new_serves() {
    let mut world = World::new(2, 8, &[(8, 1)]);
    world.settle();
    world.serving.clear();
    for worker in &mut world.workers {
        worker.current = false;
    }
    world.settle();
    assert_eq!(world.degrees(), [(8, 1)].into());
    assert!(world.workers.iter().all(|worker| worker.current));
    assert_eq!(world.serving.iter().min(), Some(&8), "made before broken");
}

#[test]
fn an_unreachable_gateway_is_no_reason_to_touch_what_serves() {
    let mut world = World::new(1, 8, &[(1, 8)]);
    world.settle();
    world.want(&[(8, 1)]);
    for _ in 0..5 {
        assert!(world.look(false), "it is not done");
        assert_eq!(world.served(), 8);
    }
    world.want(&[]);
    world.look(false);
    assert_eq!(world.served(), 8);
}

#[test]
fn a_failing_worker_makes_room_and_is_replaced_elsewhere() {
    let mut world = World::new(2, 2, &[(2, 1)]);
    world.settle();
    let before = world.workers[0].nodes.clone();
    world.workers[0].stage = Stage::Failing;
    world.workers[0].idle = true;
    world.settle();
    assert_eq!(world.degrees(), [(2, 1)].into());
    assert_ne!(world.workers[0].nodes, before);
}

#[test]
fn a_node_that_is_gone_takes_its_workers_along() {
    let mut world = World::new(2, 8, &[(4, 2)]);
    world.settle();
    let lost = world.workers[0].nodes[0].clone();
    world.nodes.remove(&lost);
    for worker in world.workers.iter_mut().filter(|worker| worker.nodes[0] == lost) {
        // Its kubelet never says that it ended.
        worker.stage = Stage::Leaving;
    }
    world.look(true);
    let alive = world.workers.iter().filter(|worker| worker.alive()).count();
    assert_eq!(alive, 2);
    world.settle();
    assert_eq!(world.degrees(), [(4, 2)].into());
}

#[test]
fn suspension_drains_all() {
    let mut world = World::new(2, 8, &[(4, 3)]);
    world.settle();
    world.want(&[]);
    world.settle();
    assert!(world.workers.is_empty());
}

/// What happens to a world beside what it does by itself.
#[derive(Clone, Debug)]
enum Happening {
    Look { observed: bool },
    Proceed(usize),
    Fail(usize),
    End(usize),
    Foreign { node: usize, gpus: u32 },
    Close { node: usize, open: bool },
    Outdate,
    Want(Vec<(u32, u32)>),
}

fn wants() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let degree = prop::sample::select(vec![1, 2, 4, 8]);
    prop::collection::vec((degree, 1..6_u32), 0..3)
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => prop::bool::weighted(0.9).prop_map(|observed| Happening::Look { observed }),
        8 => (0..20_usize).prop_map(Happening::Proceed),
        1 => (0..20_usize).prop_map(Happening::Fail),
        1 => (0..20_usize).prop_map(Happening::End),
        1 => (0..4_usize, 0..9_u32).prop_map(|(node, gpus)| Happening::Foreign { node, gpus }),
        1 => (0..4_usize, any::<bool>()).prop_map(|(node, open)| Happening::Close { node, open }),
        1 => Just(Happening::Outdate),
        2 => wants().prop_map(Happening::Want),
    ]
}

impl World {
    fn happens(&mut self, happening: Happening) {
        match happening {
            Happening::Look { observed } => {
                self.look(observed);
            }
            Happening::Proceed(index) => self.proceed(index),
            Happening::Fail(index) => {
                if let Some(worker) = self.workers.get_mut(index).filter(|worker| worker.alive()) {
                    (worker.stage, worker.idle) = (Stage::Failing, true);
                }
            }
            Happening::End(index) => {
                if let Some(worker) = self.workers.get_mut(index).filter(|worker| worker.alive()) {
                    (worker.stage, worker.idle) = (Stage::Ended, true);
                }
            }
            // The scheduler gives others only what is free.
            Happening::Foreign { node, gpus } => {
                let name = format!("n{node}");
                let here = self.workers.iter().filter(|worker| worker.nodes.contains(&name));
                let held: u32 = here.map(Worker::gpus_per_node).sum();
                if let Some(node) = self.nodes.get_mut(&name) {
                    node.taken = gpus.min(node.gpus - held);
                }
            }
            Happening::Close { node, open } => {
                if let Some(node) = self.nodes.get_mut(&format!("n{node}")) {
                    node.open = open;
                }
            }
            Happening::Outdate => {
                for worker in &mut self.workers {
                    worker.current = false;
                }
            }
            Happening::Want(wants) => self.want(&wants),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Safety is checked at every look; at the end all that there is room for serves, and
    /// nothing else is left where that is all.
    #[test]
    fn random_clusters_come_to_rest(
        nodes in 1..5_u32,
        first in wants(),
        percent in prop::sample::select(vec![0, 25, 50, 80, 100]),
        happenings in prop::collection::vec(happening(), 0..80),
    ) {
        let mut world = World::new(nodes, 8, &first);
        world.percent = percent;
        for happening in happenings {
            world.happens(happening);
        }
        for node in world.nodes.values_mut() {
            node.open = true;
        }
        world.settle();
        let (feasible, degrees) = (world.feasible(), world.degrees());
        let wanted: u32 = world.wants.iter().map(|want| want.count).sum();
        if feasible.values().sum::<u32>() == wanted {
            prop_assert_eq!(&degrees, &feasible);
            prop_assert!(world.workers.iter().all(|worker| worker.stage == Stage::Serving));
        } else {
            // What was there before stands in for what has no room.
            let least = |(degree, count)| degrees.get(degree).is_some_and(|have| have >= count);
            prop_assert!(feasible.iter().all(least), "{:?} of {:?}", degrees, feasible);
        }
    }
}

#[test]
fn a_worker_over_several_nodes_takes_them_whole() {
    let mut world = World::new(3, 4, &[(1, 2), (8, 1)]);
    world.settle();
    assert_eq!(world.degrees(), [(1, 2), (8, 1)].into());
    let large = world.workers.iter().find(|worker| worker.kind.degree == 8).unwrap();
    assert_eq!(large.nodes.len(), 2);
    let kind = Kind { pool: name("a"), role: Role::Mixed, degree: 8 };
    assert_eq!(large.kind, kind);
}

#[test]
fn where_nothing_can_be_planned_only_what_is_under_way_ends() {
    let worker = |called: &str, stage, idle| Worker {
        name: called.to_owned(),
        kind: Kind { pool: name("a"), role: Role::Mixed, degree: 1 },
        nodes: vec!["n0".to_owned()],
        stage,
        current: false,
        idle,
    };
    let workers = [
        worker("drained", Stage::Draining, true),
        worker("draining", Stage::Draining, false),
        worker("ended", Stage::Ended, true),
        worker("failing", Stage::Failing, true),
        worker("leaving", Stage::Leaving, true),
        worker("serving", Stage::Serving, true),
        worker("starting", Stage::Starting, true),
    ];
    for observed in [true, false] {
        let bounds = Bounds { minimum: 0, observed };
        let found = converge(&Plan::as_is(&workers), &Nodes::new(), &workers, bounds);
        let gone = ["drained", "ended"].map(|name| Step::Delete(name.to_owned()));
        assert_eq!(found.steps, gone);
        assert!(found.unfinished);
    }
}
