//! An engine that keeps failing: it is tried again, each time after a longer while.

use super::reports::Outcome;
use super::rules::pair;
use super::world::{World, action, kind, secs};
use crate::fault::FaultKind;
use crate::gpu::Order;
use crate::time::Time;

/// Fails what is ordered for the first service, `times` times: when each restore was ordered.
fn crash(world: &mut World, outcome: Outcome, times: usize) -> Vec<Time> {
    let mut tried = Vec::new();
    while tried.len() < times {
        let Some(task) = world.tasks.first() else {
            let next = world.pool.next_deadline().expect("it is to be tried again");
            world.pass(next.since(world.now));
            continue;
        };
        match task.what {
            Order::Launch | Order::Wake => {
                tried.push(world.now);
                world.report(0, outcome);
            }
            Order::Evict | Order::Stop => world.report(0, Outcome::Good),
        }
    }
    tried
}

fn gaps(tried: &[Time]) -> Vec<u64> {
    tried.windows(2).map(|two| two[1].since(two[0]).as_secs()).collect()
}

#[test]
fn the_back_off_of_a_crash_loop_doubles_up_to_its_bound_and_ends_with_a_success() {
    for outcome in [Outcome::Dies, Outcome::Refused, Outcome::Mute] {
        let mut world = pair();
        world.submit(0, kind(0, 1), 1000);
        // From one second to eight: see `World::new`.
        assert_eq!(gaps(&crash(&mut world, outcome, 7)), [1, 2, 4, 8, 8, 8], "{outcome:?}");
        assert_eq!((world.result(0), world.pool.stats().failures), (None, 7), "it waits");
        world.settle();
        world.pass(secs(8));
        world.settle();
        assert_eq!(world.result(0), Some(Ok(())));
        // What came up is no crash loop any more.
        world.submit(1, kind(1, 1), 1000);
        world.settle();
        world.submit(2, kind(0, 1), 1000);
        assert_eq!(gaps(&crash(&mut world, outcome, 3)), [1, 2], "{outcome:?}");
    }
}

#[test]
fn who_waits_for_a_crash_loop_ends_typed_by_the_deadline_and_others_are_served() {
    let mut world = pair();
    world.submit(0, kind(0, 1), 10);
    world.submit(1, kind(0, 1), 1000);
    let tried = crash(&mut world, Outcome::Dies, 4);
    assert_eq!((world.result(0), world.now.since(tried[0])), (None, secs(7)));
    // The next try would be eight seconds later; the GPU is another's until then.
    world.settle();
    world.submit(2, kind(1, 1), 1000);
    world.settle();
    assert_eq!(world.result(2), Some(Ok(())));
    world.pass(secs(3));
    let fault = world.ended[&action(0)].clone().unwrap_err();
    assert_eq!((fault.kind, &*fault.reason), (FaultKind::Infrastructure, "EngineDied"));
    assert!(fault.message.starts_with("reward service `one` on GPU 0 "), "{}", fault.message);
    assert_eq!(world.result(1), None, "its own deadline is later");
    world.pass(secs(5));
    world.settle();
    assert_eq!(world.result(1), Some(Ok(())));
}
