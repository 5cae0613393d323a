//! Several jobs over one index: random interleavings of their passes, of what the API server
//! makes of their requests, and of what the watch tells of it, late. Whatever the order, what is
//! booked and what is there never exceed what a node has, and no worker is made twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use rollwright_core::router::Role;
use serde_json::json;

use super::*;
use crate::job::fleet::{Kind, Node, Stage, Trust};

const NAMESPACE: &str = "research";
const GPUS: u32 = 8;
const NODES: u32 = 3;

/// What becomes of a request to make a worker.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Made,
    Refused,
    /// No answer comes, and it was made.
    MadeUnheard,
    /// No answer comes, and nothing was made.
    Lost,
    /// The pass ends here.
    Cut,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A pass over this job goes one step further.
    Step(usize, Fate),
    /// The watch tells the next change.
    Tell,
    /// The scheduler binds one of this job's pods.
    Bind(usize),
    /// Somebody deletes one of this job's pods.
    Delete(usize),
    /// Another watch began anew, and all is read from the cache again.
    Reread,
    /// The watch of pods begins anew.
    Relist,
    /// The watch tells all, and so much time passes that what was not told never was.
    Wait,
}

enum Phase {
    Rests,
    Looked { labelled: Vec<String>, workers: Vec<Worker> },
    Decided { labelled: Vec<String>, decision: Decision },
    Makes { decision: Decision, next: usize },
}

struct Job {
    key: Key,
    degree: u32,
    count: u32,
    phase: Phase,
}

struct World {
    index: Index,
    pools: BTreeMap<Name, Pool>,
    nodes: Nodes,
    /// What the API server holds.
    there: BTreeMap<String, Pod>,
    /// What the cache holds.
    cache: BTreeMap<String, Pod>,
    /// What the watch has not told yet.
    untold: VecDeque<(Pod, bool)>,
    jobs: Vec<Job>,
    names: usize,
    now: Instant,
}

fn pool() -> Name {
    "h20".parse().unwrap()
}

fn pod(job: &str, name: &str, node: &str, gpus: u32) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": NAMESPACE,
            "annotations": {"rollwright.dev/nodes": node},
            "labels": {"app.kubernetes.io/component": "worker", "rollwright.dev/pool": "h20",
                "app.kubernetes.io/instance": job}},
        "spec": {"containers": [{"name": "engine",
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
    }))
    .unwrap()
}

fn node_of(pod: &Pod) -> String {
    pod.metadata.annotations.as_ref().unwrap()["rollwright.dev/nodes"].clone()
}

fn job_of(pod: &Pod) -> &str {
    &pod.metadata.labels.as_ref().unwrap()["app.kubernetes.io/instance"]
}

impl World {
    /// Jobs of so many workers of a degree.
    fn new(jobs: &[(u32, u32)]) -> Self {
        let node = Node { pool: pool(), gpus: GPUS, taken: 0, open: true, trust: Trust::default() };
        let settings = Pool { class: pool(), gpus_per_node: GPUS, promised: 0 };
        let jobs = jobs.iter().enumerate().map(|(index, (degree, count))| Job {
            key: (NAMESPACE.to_owned(), format!("job-{index}")),
            degree: *degree,
            count: *count,
            phase: Phase::Rests,
        });
        Self {
            index: Index::default(),
            pools: [(pool(), settings)].into(),
            nodes: (0..NODES).map(|index| (format!("n{index}"), node.clone())).collect(),
            there: BTreeMap::new(),
            cache: BTreeMap::new(),
            untold: VecDeque::new(),
            jobs: jobs.collect(),
            names: 0,
            now: Instant::now(),
        }
    }

    fn names_of(&self, job: usize) -> Vec<String> {
        let own = |(_, pod): &(&String, &Pod)| job_of(pod) == self.jobs[job].key.1;
        self.there.iter().filter(own).map(|(name, _)| name.clone()).collect()
    }

    fn put(&mut self, pod: Pod) {
        self.there.insert(pod.metadata.name.clone().unwrap(), pod.clone());
        self.untold.push_back((pod, false));
    }

    fn tell(&mut self) {
        let Some((pod, gone)) = self.untold.pop_front() else { return };
        let name = pod.metadata.name.clone().unwrap();
        if gone {
            self.cache.remove(&name);
        } else {
            self.cache.insert(name, pod.clone());
        }
        self.index.pod(&pod, gone);
    }

    fn step(&mut self, job: usize, fate: Fate) {
        let phase = std::mem::replace(&mut self.jobs[job].phase, Phase::Rests);
        self.jobs[job].phase = match phase {
            Phase::Rests => self.look(job),
            Phase::Looked { labelled, workers } => self.decide(job, labelled, &workers),
            // As a pass asks the API server for its own pods before it makes any.
            Phase::Decided { labelled, decision } if labelled == self.names_of(job) => {
                Phase::Makes { decision, next: 0 }
            }
            Phase::Decided { .. } => Phase::Rests,
            Phase::Makes { decision, next } => self.make(job, decision, next, fate),
        };
    }

    fn look(&self, job: usize) -> Phase {
        let Job { key, degree, .. } = &self.jobs[job];
        let labelled = self.index.pods_of(key);
        let worker = |name: &String| Worker {
            name: name.clone(),
            kind: Kind { pool: pool(), role: Role::Mixed, degree: *degree },
            nodes: vec![node_of(&self.cache[name])],
            stage: Stage::Serving,
            current: true,
            idle: false,
        };
        let workers = labelled.iter().map(worker).collect();
        Phase::Looked { labelled, workers }
    }

    fn decide(&mut self, job: usize, labelled: Vec<String>, workers: &[Worker]) -> Phase {
        let Job { key, degree, count, .. } = &self.jobs[job];
        let want = Want { role: Role::Mixed, degree: *degree, pools: vec![pool()], count: *count };
        let ours = labelled.iter().cloned().collect();
        let asked = Asked {
            job: key,
            wants: &[want],
            pools: &self.pools,
            nodes: &self.nodes,
            labelled: &labelled,
            ours: &ours,
            workers,
            min_serving_percent: 50,
            observed: true,
        };
        let first = self.names;
        let name = |index| format!("{}-worker-{}", key.1, first + index);
        let Ok(decision) = decide(&asked, &self.index, self.now, name) else {
            return Phase::Rests;
        };
        self.names += decision.steps.steps.len();
        // Its wish never changes: it has no reason to give up a worker.
        let given_up = decision.steps.steps.iter().find(|of| !matches!(of, Step::Create(_)));
        assert_eq!(given_up, None, "{:?}", self.jobs[job].key);
        Phase::Decided { labelled, decision }
    }

    fn make(&mut self, job: usize, decision: Decision, next: usize, fate: Fate) -> Phase {
        let Some((name, placement)) = decision.made.get(next) else { return Phase::Rests };
        let booking = decision.booking.as_ref().unwrap();
        if let Fate::Cut = fate {
            return Phase::Rests;
        }
        booking.sent(name, self.now);
        match fate {
            Fate::Made | Fate::MadeUnheard => {
                let Job { key, degree, .. } = &self.jobs[job];
                let made = pod(&key.1, name, &placement.nodes[0], *degree);
                self.put(made);
            }
            Fate::Refused => booking.refused(name),
            Fate::Lost | Fate::Cut => {}
        }
        match fate {
            Fate::Made => Phase::Makes { next: next + 1, decision },
            _ => Phase::Rests,
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Step(job, fate) => self.step(job % self.jobs.len(), fate),
            Event::Tell => self.tell(),
            Event::Bind(job) => {
                let names = self.names_of(job % self.jobs.len());
                let unbound = names
                    .iter()
                    .filter_map(|name| self.there.get(name))
                    .find(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()));
                if let Some(mut pod) = unbound.cloned() {
                    pod.spec.as_mut().unwrap().node_name = Some(node_of(&pod));
                    self.put(pod);
                }
            }
            Event::Delete(job) => {
                if let Some(name) = self.names_of(job % self.jobs.len()).pop() {
                    let pod = self.there.remove(&name).unwrap();
                    self.untold.push_back((pod, true));
                }
            }
            Event::Reread => self.index.refill(|| self.cached()),
            Event::Relist => {
                self.untold.clear();
                self.cache.clone_from(&self.there);
                self.index.refill(|| self.cached());
            }
            Event::Wait => {
                while !self.untold.is_empty() {
                    self.tell();
                }
                self.now += Duration::from_mins(1);
            }
        }
        self.check();
    }

    fn cached(&self) -> Vec<Arc<Pod>> {
        self.cache.values().cloned().map(Arc::new).collect()
    }

    fn check(&self) {
        let mut held: BTreeMap<String, u32> = BTreeMap::new();
        for pod in self.there.values() {
            let job = self.jobs.iter().find(|job| job.key.1 == job_of(pod)).unwrap();
            *held.entry(node_of(pod)).or_default() += job.degree;
        }
        for ((_, name), booked) in self.index.books(self.now).booked() {
            for node in booked.nodes.iter().filter(|_| !self.there.contains_key(name)) {
                *held.entry(node.clone()).or_default() += booked.gpus;
            }
        }
        assert!(held.values().all(|gpus| *gpus <= GPUS), "more than there is: {held:?}");
        for (index, job) in self.jobs.iter().enumerate() {
            assert!(self.names_of(index).len() <= job.count as usize, "{:?} twice", job.key);
        }
    }

    /// Everything comes to rest.
    fn finish(&mut self) {
        let steps = self.jobs.iter().map(|job| job.count as usize + 5).max().unwrap();
        for _ in 0..2 {
            for job in 0..self.jobs.len() {
                self.apply(Event::Wait);
                for _ in 0..steps {
                    self.apply(Event::Step(job, Fate::Made));
                }
                // A pass that is half done is over.
                self.jobs[job].phase = Phase::Rests;
            }
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let fate = prop_oneof![
        12 => Just(Fate::Made),
        1 => Just(Fate::Refused),
        1 => Just(Fate::MadeUnheard),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Cut),
    ];
    prop_oneof![
        24 => (0..4_usize, fate).prop_map(|(job, fate)| Event::Step(job, fate)),
        8 => Just(Event::Tell),
        2 => (0..4_usize).prop_map(Event::Bind),
        1 => (0..4_usize).prop_map(Event::Delete),
        1 => Just(Event::Reread),
        1 => Just(Event::Relist),
        1 => Just(Event::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_is_booked_or_made_twice_in_any_order(
        jobs in proptest::collection::vec((0..3_u32, 1..8_u32), 2..5),
        uniform in proptest::option::of(0..4_u32),
        events in proptest::collection::vec(event(), 20..300),
    ) {
        let degree = |power: u32| 1 << uniform.unwrap_or(power);
        let jobs: Vec<_> = jobs.into_iter().map(|(power, count)| (degree(power), count)).collect();
        let mut world = World::new(&jobs);
        for event in events {
            world.apply(event);
        }
        world.finish();
        // Workers of one size fill the nodes whatever the order; of several sizes they may not.
        let wanted: u32 = jobs.iter().map(|(degree, count)| degree * count).sum();
        if uniform.is_some() {
            let there: u32 = (0..jobs.len())
                .map(|job| world.names_of(job).len() as u32 * jobs[job].0)
                .sum();
            prop_assert_eq!(there, wanted.min(NODES * GPUS));
        }
    }
}

/// The pass that was seen to do harm: a job that has made workers, and is shown half of them,
/// books nothing for the others once more. Another one would see its own GPUs as taken, and make
/// way.
#[test]
fn a_job_whose_workers_are_not_all_shown_books_nothing() {
    let mut world = World::new(&[(1, 8), (1, 8)]);
    for _ in 0..11 {
        world.apply(Event::Step(0, Fate::Made));
    }
    assert_eq!(world.names_of(0).len(), 8);
    for _ in 0..4 {
        world.apply(Event::Tell);
    }
    world.jobs[0].phase = Phase::Rests;
    world.apply(Event::Step(0, Fate::Made));
    world.apply(Event::Step(0, Fate::Made));
    assert!(matches!(world.jobs[0].phase, Phase::Rests));
    assert_eq!(world.index.books(world.now).booked().count(), 4);
}
