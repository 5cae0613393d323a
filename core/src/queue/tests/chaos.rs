//! Whatever the order of events, lost links and lost processes included: no core is
//! held twice, nothing runs twice, nothing leaks, every accepted action ends once.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::world::{World, action, permit, quota, trajectory};
use crate::queue::{Config, Event, Policy};
use crate::quota::{QuotaLimit, Rate};
use crate::resources::Units;

#[derive(Debug, Clone)]
enum Step {
    Open { t: usize, j: usize, memory: u64 },
    Close(usize),
    Submit { a: usize, t: usize, units: usize, quota: u32 },
    Cancel(usize),
    Acquire { p: usize, amount: u32 },
    Release { p: usize, retry: bool },
    LinkUp(usize),
    LinkUpAndCancel { n: usize, a: usize },
    MakeReady(usize),
    LinkDown(usize),
    Deliver(usize),
    Hear(usize),
    Finish { n: usize, pick: usize },
    LoseSandbox { n: usize, pick: usize },
    RestartQueue,
    Pass(u64),
}

const UNITS: [&[f64]; 7] =
    [&[1.0], &[0.3], &[0.6, 1.0], &[2.0], &[1.0, 2.0, 4.0], &[0.5, 1.0, 2.0], &[1.0, 2.0, 3.0]];
const NODES: usize = 2;

fn step() -> impl Strategy<Value = Step> {
    let n = 0..NODES;
    prop_oneof![
        4 => (0usize..8, 0usize..3, 1u64..60).prop_map(|(t, j, memory)| Step::Open { t, j, memory }),
        1 => (0usize..8).prop_map(Step::Close),
        12 => (0usize..40, 0usize..8, 0..UNITS.len(), 0u32..3)
            .prop_map(|(a, t, units, quota)| Step::Submit { a, t, units, quota }),
        2 => (0usize..40).prop_map(Step::Cancel),
        2 => (0usize..6, 1u32..3).prop_map(|(p, amount)| Step::Acquire { p, amount }),
        2 => (0usize..6, any::<bool>()).prop_map(|(p, retry)| Step::Release { p, retry }),
        3 => n.clone().prop_map(Step::LinkUp),
        1 => (n.clone(), 0usize..40).prop_map(|(n, a)| Step::LinkUpAndCancel { n, a }),
        8 => n.clone().prop_map(Step::MakeReady),
        1 => n.clone().prop_map(Step::LinkDown),
        20 => n.clone().prop_map(Step::Deliver),
        14 => n.clone().prop_map(Step::Hear),
        8 => (n.clone(), any::<usize>()).prop_map(|(n, pick)| Step::Finish { n, pick }),
        1 => (n, any::<usize>()).prop_map(|(n, pick)| Step::LoseSandbox { n, pick }),
        1 => Just(Step::RestartQueue),
        2 => (1u64..120).prop_map(Step::Pass),
    ]
}

fn take(world: &mut World, step: &Step) {
    match *step {
        Step::Open { t, j, memory } => world.open(t, j, memory),
        Step::Close(t) => drop(world.send(Event::Close(trajectory(t)))),
        Step::Submit { a, t, units, quota } => drop(world.submit(a, t, UNITS[units], quota)),
        Step::Cancel(a) => drop(world.send(Event::Cancel(action(a)))),
        Step::Acquire { p, amount } => world.acquire(p, amount),
        Step::Release { p, retry } => {
            let retry_after = retry.then_some(Duration::from_nanos(30));
            world.send(Event::Release { permit: permit(p), retry_after });
        }
        Step::LinkUp(n) => world.link_up(n),
        Step::LinkUpAndCancel { n, a } => world.link_up_and(n, Some(Event::Cancel(action(a)))),
        Step::MakeReady(n) => drop(world.make_ready(n)),
        Step::LinkDown(n) => world.link_down(n),
        Step::Deliver(n) => drop(world.deliver(n)),
        Step::Hear(n) => drop(world.hear(n)),
        Step::Finish { n, pick } => world.finish(n, pick),
        Step::LoseSandbox { n, pick } => world.lose_sandbox(n, pick),
        Step::RestartQueue => world.restart_queue(),
        Step::Pass(nanos) => world.pass(nanos),
    }
    world.check();
}

fn config(policy: Policy) -> Config {
    let limit = QuotaLimit {
        concurrency: Some(3),
        rate: Some(Rate { amount: 4, period: Duration::from_nanos(50) }),
    };
    Config {
        policy,
        quotas: BTreeMap::from([(quota(), limit)]),
        node_grace: Duration::from_nanos(300),
        nodes_settle: Duration::from_nanos(20),
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn elastic(steps in prop::collection::vec(step(), 0..200), shared_cores in 0u16..3) {
        let config = Config { shared_cores, ..config(Policy::Elastic) };
        let mut world = World::new(config, &[vec![2, 2], vec![3]]);
        for step in &steps {
            take(&mut world, step);
        }
        world.settle();
    }

    #[test]
    fn elastic_by_trajectory(steps in prop::collection::vec(step(), 0..200)) {
        let mut world = World::new(config(Policy::ElasticTrajectory), &[vec![2, 2], vec![3]]);
        for step in &steps {
            take(&mut world, step);
        }
        world.settle();
    }

    #[test]
    fn fixed_dop(steps in prop::collection::vec(step(), 0..200), dop in 1u16..5, shared_cores in 0u16..3) {
        let config = Config { shared_cores, ..config(Policy::FixedDop { dop: Units::cores(dop) }) };
        let mut world = World::new(config, &[vec![2, 2], vec![3]]);
        for step in &steps {
            take(&mut world, step);
        }
        world.settle();
    }

    #[test]
    fn cores_held_for_life(steps in prop::collection::vec(step(), 0..200), cores in 1u16..3) {
        let mut world = World::new(config(Policy::Static { cores }), &[vec![2, 2], vec![3]]);
        for step in &steps {
            take(&mut world, step);
        }
        world.settle();
    }
}
