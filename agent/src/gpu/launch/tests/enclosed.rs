//! The processes of an engine, with a cgroup (a tree of files) and without.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::sync::Arc;

use rollwright_core::gpu::{Chunk, Degree, EngineId};
use tokio::sync::mpsc;

use crate::gpu::launch::record::{Leader, Record, Runs};
use crate::gpu::launch::{Fence, Launcher as _, Processes, Records};
use crate::gpu::spec::EngineSpec;
use crate::policy::EnginePolicy;

const ENGINE: EngineId = EngineId(5);

/// Engine 5, which runs as the leader of a session.
fn running(records: &Records) -> std::process::Child {
    let spec = EngineSpec::bare();
    // It leads no group yet, so `setsid` becomes the program.
    let mut command = std::process::Command::new("setsid");
    // It holds no pipe of the test's open where that fails.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.args(["sleep", "1000"]).spawn().unwrap();
    let leads = || std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
    while leads().trim() != "sleep" {
        std::thread::yield_now();
    }
    let chunk = Chunk::new(0, 0, Degree::new(1).unwrap()).unwrap();
    let program = records.program(ENGINE, Arc::new(spec), chunk, String::new());
    let leader = Leader::of(child.id()).unwrap();
    records.write(&Record::new(&program, Runs::Process(leader))).unwrap();
    child
}

#[tokio::test]
async fn those_of_a_cgroup_are_known_without_a_look_at_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let cgroup = dir.path().join("rollwright_engines_a.slice/e-5");
    std::fs::create_dir_all(&cgroup).unwrap();
    std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu memory").unwrap();
    let records = Records::open(dir.path()).unwrap();
    let mut child = running(&records);
    let (pid, own) = (child.id(), std::process::id());
    let processes = |fence: Option<Fence>| {
        let (policy, owner) = (EnginePolicy::default(), format!("enclosed-{own}"));
        let (incidents, _) = mpsc::channel(1);
        let fence = fence.map(Arc::new);
        Processes::new(records.clone(), policy, owner, false, fence, incidents)
    };
    assert_eq!(processes(None).pids(ENGINE).await, Ok(vec![pid]), "those of its session");
    let fenced = processes(Some(Fence::new(dir.path(), "a", 0).unwrap()));
    assert_eq!(fenced.pids(ENGINE).await, Ok(vec![pid]), "it has no cgroup");
    // What the cgroup holds is what it has: nobody else is looked at.
    std::fs::write(cgroup.join("cgroup.procs"), format!("{own}\n")).unwrap();
    assert_eq!(fenced.pids(ENGINE).await, Ok(vec![own]));
    // Its end is that of its session all the same.
    std::fs::write(cgroup.join("cgroup.procs"), "").unwrap();
    assert_eq!(fenced.pids(ENGINE).await, Ok(Vec::new()));
    fenced.end(ENGINE).await.unwrap();
    assert!(child.wait().unwrap().signal().is_some());
}
