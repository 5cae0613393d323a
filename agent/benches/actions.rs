//! What an action costs on this machine, and what a busy loop left behind in an idle
//! sandbox costs an exclusive action of another. Prints a table; needs root.
//!
//!     cargo bench -p rollwright-agent --bench actions

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use rollwright_agent::cgroup::SandboxCgroup;
use rollwright_agent::session::{Connected, Session, SessionEvent};
use rollwright_init::protocol::{Program, Start};
use support::helper::helper;
use support::{Container, LIMIT, grant};

/// Rounds of each way of the busy-loop comparison, and actions that are timed.
const ROUNDS: usize = 15;
const ACTIONS: usize = 200;
/// Time between two actions.
const GAP: Duration = Duration::from_millis(50);
/// The core that the exclusive action has.
const CORE: u32 = 1;

fn main() {
    let Some(container) = Container::new() else { return };
    action_costs(&container);
    idle_loop(&container, "cpu.idle");
}

/// Times in microseconds, sorted.
struct Times(Vec<f64>);

impl Times {
    fn print(mut self, name: &str) {
        self.0.sort_by(f64::total_cmp);
        let at = |q: f64| self.0[((self.0.len() - 1) as f64 * q) as usize];
        println!("{name:<44} p50 {:>8.0} us   p99 {:>8.0} us", at(0.5), at(0.99));
    }
}

fn timed<T>(times: &mut Times, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    times.0.push(begun.elapsed().as_secs_f64() * 1e6);
    result
}

#[tokio::main(flavor = "current_thread")]
async fn action_costs(container: &Container) {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("init.sock");
    let mut process = Command::new(helper()).arg("--socket").arg(&socket).spawn().expect("helper");
    let Connected { session, mut events, .. } = loop {
        match Session::connect(&socket).await {
            Ok(connected) => break connected,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    let sandbox = container.adopt();
    let [mut create, mut whole, mut own, mut usage, mut park] =
        std::array::from_fn(|_| Times(Vec::new()));
    for number in 0..ACTIONS {
        if let Some((slot, fds)) = sandbox.prepare().expect("prepare") {
            session.prepare(&slot, &fds).await.expect("prepare");
        }
        // Actions come seldom: what the kernel keeps warm between two has cooled down.
        tokio::time::sleep(GAP).await;
        let begun = Instant::now();
        let action =
            timed(&mut create, || sandbox.create_action(&grant(&[0, CORE], 1.0)).expect("create"));
        let start = Start {
            key: number.to_string(),
            attempt: 1,
            tag: action.name().as_bytes().to_vec(),
            program: Program::Argv(vec!["/bin/true".into()]),
            env: Vec::new(),
            cwd: "/".into(),
            uid: 1000,
            gid: 1000,
            output_limit: 65536,
            stdin: false,
        };
        let fds = action.procs_fds().expect("procs");
        session.start_in(action.name(), start, None, &fds).await.expect("start");
        let ended = loop {
            if let SessionEvent::Ended(ended) = events.next().await.expect("event") {
                break ended;
            }
        };
        timed(&mut usage, || action.usage().expect("usage"));
        let total = begun.elapsed().as_secs_f64() * 1e6;
        whole.0.push(total);
        own.0.push(total - ended.exec_ns as f64 / 1e3);
        timed(&mut park, || action.park().expect("park"));
        session.ack(&ended.key).await.expect("ack");
    }
    println!("{ACTIONS} actions that run /bin/true, one after the other");
    create.print("  fill in the cgroup made ahead");
    usage.print("  read what was used");
    whole.print("  request to result");
    own.print("  ... less the program's own time");
    park.print("  afterwards: park and remove the cgroup");
    let _ = process.kill();
    let _ = process.wait();
}

/// Fixed work by an exclusive action of one sandbox, with and without a busy loop
/// left behind in another, in turns.
fn idle_loop(container: &Container, how: &str) {
    let Some(other) = Container::new() else { return };
    let (mine, theirs) = (container.adopt(), other.adopt());
    let [mut alone, mut beside] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        alone.push(work(container, &mine));
        let action = theirs.create_action(&grant(&[CORE], 1.0)).expect("create");
        let mut left = other.run(&action, "while :; do :; done");
        assert_eq!(action.park().expect("park").parked, 1);
        beside.push(work(container, &mine));
        theirs.kill_parked(LIMIT).expect("kill");
        let _ = left.wait();
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (alone, beside) = (median(&mut alone), median(&mut beside));
    println!("exclusive action beside a busy loop in an idle sandbox ({how}), {ROUNDS} turns");
    println!(
        "  alone {:.1} ms   beside {:.1} ms   ratio {:.4}",
        alone * 1e3,
        beside * 1e3,
        beside / alone
    );
}

/// Seconds that the work takes.
fn work(container: &Container, sandbox: &SandboxCgroup) -> f64 {
    let action = sandbox.create_action(&grant(&[CORE], 1.0)).expect("create");
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let begun = Instant::now();
    let status = container.run(&action, script).wait().expect("work");
    let took = begun.elapsed().as_secs_f64();
    assert!(status.success());
    action.park().expect("park");
    took
}
