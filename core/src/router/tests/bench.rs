//! Cost of an event: `cargo test --release -p rollwright-core router -- --ignored --nocapture`.

use super::world::{done, spec, task, trajectory, worker};
use crate::router::{Ask, Command, Config, Event, Router};
use crate::time::Time;
use crate::version::{RequestId, Version};

const WORKERS: usize = 64;
const SLOTS: u32 = 64;
const WAITING: u64 = 10_000;
const TURNS: u64 = 1_000_000;

fn ask(t: u64) -> Ask {
    Ask {
        trajectory: Some(trajectory(t as usize)),
        task: task((t % 3) as usize),
        priority: 0,
        at_least: Some(Version(1)),
        pinned: None,
    }
}

/// Prints nanoseconds; asserts only that the work was done.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn event_with_all_slots_busy_and_ten_thousand_waiting() {
    for waiting in [WAITING, 0] {
        let mut router = Router::new(Config::default());
        for n in 0..WORKERS {
            let spec = crate::router::WorkerSpec { version: Some(Version(1)), ..spec(0, SLOTS) };
            let joined = Event::Joined { worker: worker(n), spec, held: false };
            router.on_event(joined, Time::ZERO).unwrap();
        }
        let slots = (WORKERS as u64) * u64::from(SLOTS);
        // Without a line, three of four slots are busy.
        let live = if waiting > 0 { slots + waiting } else { slots * 3 / 4 };
        let asks: Vec<Ask> = (0..live).map(ask).collect();
        let mut running = std::collections::VecDeque::new();
        let mut next = 0;
        let mut arrive = |router: &mut Router, running: &mut std::collections::VecDeque<_>, now| {
            let ask = asks[(next % live) as usize].clone();
            let commands =
                router.on_event(Event::Arrived { request: RequestId(next), ask }, now).unwrap();
            next += 1;
            take(&commands, running);
        };
        for _ in 0..live {
            arrive(&mut router, &mut running, Time::ZERO);
        }
        let begin = std::time::Instant::now();
        for turn in 0..TURNS {
            let now = Time::from_nanos(turn * 1000);
            let request = running.pop_front().unwrap();
            let ended = Event::Ended { request, outcome: done() };
            let commands = router.on_event(ended, now).unwrap();
            take(&commands, &mut running);
            arrive(&mut router, &mut running, now);
        }
        let nanos = begin.elapsed().as_nanos() / u128::from(2 * TURNS);
        assert_eq!(router.pending() as u64, waiting);
        println!(
            "{WORKERS} workers, {} running, {waiting} waiting: {nanos} ns an event",
            router.running()
        );
    }
}

fn take(commands: &[Command], running: &mut std::collections::VecDeque<RequestId>) {
    for command in commands {
        if let Command::Send { request, .. } = command {
            running.push_back(*request);
        }
    }
}
