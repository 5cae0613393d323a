//! The cgroup module on a real cgroup file system, v1 or v2, whichever this machine
//! has. Needs root. `e2e/cgroup-v2` runs this same program in a virtual machine.
//! `ROLLWRIGHT_CGROUP_ROOT` gives another root than `/sys/fs/cgroup`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use rollwright_agent::cgroup::{
    CgroupError, Controller, CoreList, SandboxCgroup, container_cgroup,
};
use support::{Container, LIMIT, grant, until};

#[test]
fn a_container_is_found_and_adopted_any_number_of_times() {
    let Some(container) = Container::new() else { return };
    let find = || container_cgroup(&container.hierarchy, Path::new("/proc"), container.init.id());
    assert_eq!(find().unwrap(), container.path);
    for _ in 0..3 {
        let sandbox = container.adopt();
        assert_eq!(find().unwrap(), container.path);
        assert!(container.is_idle(""), "nothing runs in it");
        assert_eq!(sandbox.actions().unwrap(), Vec::<String>::new());
    }
    assert_eq!(
        container.hierarchy.is_v2(),
        container.file(Controller::Cpu, "init", "cgroup.procs").exists()
    );
}

#[test]
fn an_action_gets_its_cores_and_weight_and_the_sandbox_their_sum() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    let mut one = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
    assert_eq!(container.cores_of(one.name()), grant(&[1], 1.0).cores);
    assert_eq!(container.weight(one.name()), 1000);
    assert_eq!(container.weight(""), 1000);
    assert!(!container.is_idle(""));
    let share = sandbox.create_action(&grant(&[0], 0.25)).unwrap();
    assert_eq!(container.weight(share.name()), 250);
    assert_eq!(container.weight(""), 1250);
    one.resize(&grant(&[0, 1], 2.0)).unwrap();
    assert_eq!(container.cores_of(one.name()), grant(&[0, 1], 2.0).cores);
    assert_eq!(container.weight(one.name()), 2000);
    assert_eq!(container.weight(""), 2250);
    one.park().unwrap();
    assert_eq!(container.weight(""), 250);
    share.park().unwrap();
    assert_eq!(sandbox.actions().unwrap(), Vec::<String>::new());
    // A sandbox in which nothing can be left has no need of the idle class.
    assert!(!container.is_idle(""));
    let again = sandbox.create_action(&grant(&[1], 0.5)).unwrap();
    assert!(!container.is_idle(""));
    assert_eq!(container.weight(""), 500);
    again.park().unwrap();
}

#[test]
fn cores_that_the_sandbox_has_not_are_refused_and_nothing_is_left() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    let error = sandbox.create_action(&grant(&[0, 4000], 1.0)).unwrap_err().to_string();
    assert!(error.contains("cpuset.cpus"), "{error}");
    assert!(matches!(sandbox.create_action(&grant(&[], 1.0)), Err(CgroupError::BadGrant { .. })));
    assert!(matches!(sandbox.create_action(&grant(&[0], 0.0)), Err(CgroupError::BadGrant { .. })));
    assert_eq!(sandbox.actions().unwrap(), Vec::<String>::new());
    sandbox.create_action(&grant(&[0], 1.0)).unwrap().park().unwrap();
}

#[test]
fn a_cgroup_made_ahead_is_the_next_actions() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    sandbox.prepare().unwrap();
    sandbox.prepare().unwrap();
    let ahead = sandbox.actions().unwrap();
    assert_eq!(ahead.len(), 1);
    assert!(container.is_idle(""));
    let action = sandbox.create_action(&grant(&[0], 1.0)).unwrap();
    assert_eq!(ahead, [action.name()]);
    action.park().unwrap();
}

#[test]
fn a_clean_cgroup_is_used_again_and_counts_anew() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    let spin = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done";
    let first = sandbox.create_action(&grant(&[0], 1.0)).unwrap();
    let name = first.name().to_owned();
    assert!(container.run(&first, spin).wait().unwrap().success());
    let used_first = first.usage().unwrap().cpu_s;
    assert!(first.recycle().is_none());
    assert_eq!(sandbox.actions().unwrap(), Vec::<String>::new());
    let second = sandbox.create_action(&grant(&[1], 0.5)).unwrap();
    assert_eq!(second.name(), name);
    assert_eq!(container.cores_of(&name), grant(&[1], 0.5).cores);
    assert_eq!(container.weight(&name), 500);
    assert!(second.usage().unwrap().cpu_s < used_first);
    // The same after a restart.
    let again = container.adopt().open_action(&second.token(), &grant(&[1], 0.5)).unwrap();
    assert!(again.usage().unwrap().cpu_s < used_first);
    // One with something in it is not.
    let mut left = container.run(&second, "sleep 1000");
    assert!(until(|| second.is_populated().unwrap()));
    let second = second.recycle().unwrap();
    second.kill(LIMIT).unwrap();
    left.wait().unwrap();
    second.park().unwrap();
}

#[test]
fn what_an_action_used_is_its_whole_trees() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    let action = sandbox.create_action(&grant(&[0, 1], 2.0)).unwrap();
    let script = "(i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done) & \
                  dd if=/dev/zero of=/dev/null bs=16M count=1 2>/dev/null; wait";
    assert!(container.run(&action, script).wait().unwrap().success());
    let usage = action.usage().unwrap();
    assert!(usage.cpu_s > 0.0, "{usage:?}");
    assert!(usage.memory_peak_sampled || usage.memory_peak_bytes >= 16 << 20, "{usage:?}");
    assert_eq!(usage.oom_kills, 0);
    assert!(!action.is_populated().unwrap());
    action.park().unwrap();
}

#[test]
fn out_of_memory_is_counted_for_the_action_that_died() {
    let Some(container) = Container::new() else { return };
    let names = ["memory.limit_in_bytes", "memory.max"];
    container.set_v1_or_v2(Controller::Memory, names, "33554432");
    let sandbox = container.adopt();
    let action = sandbox.create_action(&grant(&[0], 1.0)).unwrap();
    let other = sandbox.create_action(&grant(&[0], 1.0)).unwrap();
    let status = container
        .run(&action, "exec dd if=/dev/zero of=/dev/null bs=128M count=1 2>/dev/null")
        .wait()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    assert_eq!(action.usage().unwrap().oom_kills, 1);
    assert_eq!(other.usage().unwrap().oom_kills, 0);
    action.park().unwrap();
    other.park().unwrap();
}

#[test]
fn a_kill_reaches_daemons_that_left_their_session() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    let action = sandbox.create_action(&grant(&[0], 1.0)).unwrap();
    let script = "(setsid sh -c '(sleep 1000 &) ; sleep 1000' >/dev/null 2>&1 &) ; exit 3";
    assert_eq!(container.run(&action, script).wait().unwrap().code(), Some(3));
    assert!(until(|| action.is_populated().unwrap()));
    action.kill(LIMIT).unwrap();
    assert!(!action.is_populated().unwrap());
    assert_eq!(action.park().unwrap().parked, 0);
}

#[test]
fn a_fork_bomb_is_killed() {
    let Some(container) = Container::new() else { return };
    container.set_v1_or_v2(Controller::Pids, ["pids.max", "pids.max"], "100");
    let sandbox = container.adopt();
    let action = sandbox.create_action(&grant(&[0, 1], 1.0)).unwrap();
    let mut bomb = container.run(&action, "bomb() { bomb & bomb; }; bomb 2>/dev/null");
    let current = || container.read(Controller::Pids, "", "pids.current");
    assert!(until(|| current().parse::<u32>().unwrap() >= 90), "it never exploded");
    action.kill(LIMIT).unwrap();
    bomb.wait().unwrap();
    assert!(!action.is_populated().unwrap());
    action.park().unwrap();
}

#[test]
fn a_kill_of_nothing_is_no_error() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    let action = sandbox.create_action(&grant(&[0], 1.0)).unwrap();
    action.kill(LIMIT).unwrap();
    action.kill(LIMIT).unwrap();
    action.park().unwrap();
}

#[test]
fn what_is_left_behind_is_parked_idle_and_confined() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    assert_eq!(sandbox.parked_processes().unwrap(), 0);
    let action = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
    container.run(&action, "(sleep 1000 &) ; exit 0").wait().unwrap();
    assert!(until(|| action.is_populated().unwrap()));
    let left = action.park().unwrap();
    assert_eq!((left.parked, left.killed), (1, false));
    assert_eq!(sandbox.parked_processes().unwrap(), 1);
    assert!(container.is_idle("parked"));
    assert!(container.is_idle(""));
    assert_eq!(container.cores_of("parked"), container.all_cores());

    let mut next = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
    assert_eq!(container.cores_of("parked"), next_cores(&[1]));
    next.resize(&grant(&[0], 1.0)).unwrap();
    assert_eq!(container.cores_of("parked"), next_cores(&[0]));
    next.park().unwrap();
    sandbox.set_parked_cores(Some(next_cores(&[0]))).unwrap();
    assert_eq!(container.cores_of("parked"), next_cores(&[0]));
    sandbox.kill_parked(LIMIT).unwrap();
    assert_eq!(sandbox.parked_processes().unwrap(), 0);
}

fn next_cores(cores: &[u32]) -> CoreList {
    cores.iter().copied().collect()
}

#[test]
fn after_a_restart_a_running_action_is_found_again() {
    let Some(container) = Container::new() else { return };
    let sandbox = container.adopt();
    let action = sandbox.create_action(&grant(&[1], 1.0)).unwrap();
    let name = action.name().to_owned();
    let mut child = container.run(&action, "sleep 1000");
    drop((action, sandbox));

    let sandbox = container.adopt();
    assert_eq!(sandbox.actions().unwrap(), [name.as_str()]);
    assert!(!container.is_idle(""), "its action still runs");
    let action = sandbox.open_action(&name, &grant(&[1], 1.0)).unwrap();
    assert!(action.is_populated().unwrap());
    let other = sandbox.create_action(&grant(&[0], 1.0)).unwrap();
    assert_ne!(other.name(), name);
    other.park().unwrap();
    action.kill(LIMIT).unwrap();
    child.wait().unwrap();
    action.park().unwrap();
    let gone = sandbox.open_action(&name, &grant(&[1], 1.0)).unwrap_err();
    assert!(gone.is_gone(), "{gone}");
}

#[test]
fn a_removed_container_is_said_to_be_gone() {
    let Some(container) = Container::new() else { return };
    let error = SandboxCgroup::adopt(&container.hierarchy, Path::new("rollwright-test-no-such"))
        .unwrap_err();
    assert!(error.is_gone(), "{error}");
    assert!(error.to_string().contains("rollwright-test-no-such"), "{error}");
}
