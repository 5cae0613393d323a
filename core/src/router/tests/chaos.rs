//! Whatever the order of events, faults and updates included: the rules of the world
//! hold, and everything ends once.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::world::{World, class, done, failed, task, trajectory, worker};
use crate::fault::{Fault, FaultKind};
use crate::router::{Affinity, Ask, Breaker, Config, Event, Outcome, Role, Sticky, WorkerSpec};
use crate::version::{RequestId, Version};

#[derive(Debug, Clone)]
enum Step {
    Join { w: usize, class: usize, role: usize, slots: u32, version: u64, held: bool },
    Leave(usize),
    Drain { w: usize, stays: bool },
    Resize { w: usize, slots: u32 },
    Health { w: usize, well: bool },
    Version { w: usize, version: u64 },
    Hold(usize),
    Release(usize),
    Reserve { w: usize, reserved: bool },
    TakeBack { w: usize, restart: bool },
    Arrive { t: usize, task: usize, priority: i64, least: u64, pinned: u64 },
    Withdraw(usize),
    End { pick: usize, how: usize },
    Prefilled(usize),
    Move { t: usize, w: usize },
    Forget(usize),
    Pass(u64),
}

const WORKERS: usize = 5;

fn step(roles: usize) -> impl Strategy<Value = Step> {
    let w = 0..WORKERS;
    prop_oneof![
        4 => (w.clone(), 0usize..3, 0..roles, 1u32..4, 0u64..3, any::<bool>()).prop_map(
            |(w, class, role, slots, version, held)| Step::Join {
                w, class, role, slots, version, held: held && slots > 2
            }
        ),
        1 => w.clone().prop_map(Step::Leave),
        2 => (w.clone(), any::<bool>()).prop_map(|(w, stays)| Step::Drain { w, stays }),
        1 => (w.clone(), 1u32..4).prop_map(|(w, slots)| Step::Resize { w, slots }),
        2 => (w.clone(), any::<bool>()).prop_map(|(w, well)| Step::Health { w, well }),
        2 => (w.clone(), 0u64..3).prop_map(|(w, version)| Step::Version { w, version }),
        2 => w.clone().prop_map(Step::Hold),
        3 => w.clone().prop_map(Step::Release),
        1 => (w.clone(), any::<bool>()).prop_map(|(w, reserved)| Step::Reserve { w, reserved }),
        1 => (w.clone(), any::<bool>()).prop_map(|(w, restart)| Step::TakeBack { w, restart }),
        20 => (0usize..16, 0usize..3, 0i64..3, 0u64..6, 0u64..12).prop_map(
            |(t, task, priority, least, pinned)| Step::Arrive { t, task, priority, least, pinned }
        ),
        2 => any::<usize>().prop_map(Step::Withdraw),
        20 => (any::<usize>(), 0usize..11).prop_map(|(pick, how)| Step::End { pick, how }),
        3 => any::<usize>().prop_map(Step::Prefilled),
        1 => (0usize..8, w).prop_map(|(t, w)| Step::Move { t, w }),
        1 => (0usize..8).prop_map(Step::Forget),
        5 => (1u64..400).prop_map(Step::Pass),
    ]
}

fn outcome(how: usize) -> Outcome {
    let fault = |kind| Fault::new(kind, "Test", "as the test wants");
    match how {
        0..4 => done(),
        4 => failed(true),
        5 => Outcome::Back,
        6 => failed(false),
        7 => Outcome::Failed { fault: fault(FaultKind::User), resumable: false, prefill: false },
        8 => Outcome::Unreached { fault: fault(FaultKind::Infrastructure), prefill: false },
        9 => Outcome::Unreached { fault: fault(FaultKind::Infrastructure), prefill: true },
        _ => Outcome::Failed { fault: fault(FaultKind::Timeout), resumable: true, prefill: true },
    }
}

fn known(version: u64) -> Option<Version> {
    (version > 0).then_some(Version(version))
}

fn pick(of: &[RequestId], pick: usize) -> Option<RequestId> {
    (!of.is_empty()).then(|| of[pick % of.len()])
}

fn take(world: &mut World, step: &Step) {
    match *step {
        Step::Join { w, class: c, role, slots, version, held } => {
            let role = [Role::Mixed, Role::Prefill, Role::Decode][role];
            let spec = WorkerSpec { class: class(c), role, slots, version: known(version) };
            world.join(w, spec, held);
        }
        Step::Leave(w) => drop(world.about(w, Event::Left(worker(w)))),
        Step::Drain { w, stays: false } => drop(world.about(w, Event::Drain(worker(w)))),
        Step::Drain { w, stays: true } => drop(world.about(w, Event::Stay(worker(w)))),
        Step::Resize { w, slots } => {
            world.about(w, Event::Slots { worker: worker(w), slots });
        }
        Step::Health { w, well: true } => drop(world.about(w, Event::Healthy(worker(w)))),
        Step::Health { w, well: false } => {
            let reason = "no answer".to_owned();
            world.about(w, Event::Unhealthy { worker: worker(w), reason });
        }
        Step::Version { w, version } => {
            world.about(w, Event::Version { worker: worker(w), version: known(version) });
        }
        Step::Hold(w) => drop(world.about(w, Event::Hold(worker(w)))),
        Step::Release(w) => drop(world.about(w, Event::Release(worker(w)))),
        Step::Reserve { w, reserved } => {
            world.about(w, Event::Reserve { worker: worker(w), reserved });
        }
        Step::TakeBack { w, restart } => {
            world.about(w, Event::TakeBack { worker: worker(w), restart });
        }
        Step::Arrive { t, task: n, priority, least, pinned } => {
            world.arrive(&Ask {
                trajectory: (t < 8).then(|| trajectory(t)),
                task: task(n),
                priority,
                at_least: (least < 3).then(|| known(least)).flatten(),
                pinned: (pinned < 3).then(|| known(pinned)).flatten(),
            });
        }
        Step::Withdraw(n) => {
            if let Some(id) = pick(&world.live(), n) {
                world.withdraw(id);
            }
        }
        Step::End { pick: n, how } => {
            if let Some(id) = pick(&world.running(), n) {
                world.end(id, outcome(how));
            }
        }
        Step::Prefilled(n) => {
            if let Some(id) = pick(&world.live(), n) {
                world.prefilled(id);
            }
        }
        Step::Move { t, w } => {
            world.about(w, Event::Move { trajectory: trajectory(t), to: worker(w) });
        }
        Step::Forget(t) => world.forget(t),
        Step::Pass(millis) => drop(world.pass(Duration::from_millis(millis))),
    }
    world.check();
}

fn config(patience: u64) -> Config {
    Config {
        affinity: Affinity::Declared {
            tasks: BTreeMap::from([(task(0), vec![class(0), class(1)])]),
            default: vec![class(1)],
        },
        breaker: Breaker {
            failures: 2,
            base: Duration::from_millis(300),
            max: Duration::from_secs(1),
        },
        sticky: Sticky { margin: 0.4, ..Sticky::default() },
        max_wait: Duration::from_secs(2),
        max_pending: 12,
        patience: Duration::from_millis(patience),
        ..Config::default()
    }
}

fn run(config: Config, steps: &[Step]) {
    let mut world = World::new(config);
    for step in steps {
        take(&mut world, step);
    }
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn mixed_workers(
        steps in prop::collection::vec(step(1), 0..150),
        patience in prop::sample::select(vec![0, 150, 100_000]),
    ) {
        run(config(patience), &steps);
    }

    #[test]
    fn prefill_and_decode_apart(
        steps in prop::collection::vec(step(3), 0..150),
        patience in prop::sample::select(vec![0, 150, 100_000]),
    ) {
        run(config(patience), &steps);
    }

    #[test]
    fn prefill_and_decode_apart_that_do_without_each_other(
        steps in prop::collection::vec(step(3), 0..150),
        patience in prop::sample::select(vec![0, 150, 100_000]),
    ) {
        run(Config { alone: true, ..config(patience) }, &steps);
    }
}
