//! Engines as processes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollwright_agent::gpu::{EngineSpec, Gpus, Ground, Incident, Station, end_engines, open};
use rollwright_core::gpu::{EngineId, Trouble};
use rollwright_engine_sim::{Config, EngineSim};

use crate::common::{
    LIMIT, StateDir, cgroups, chunk, engine, footprint, ground, incident, spec, station,
};

const ENGINE: EngineId = EngineId(7);

/// No test: what the tests start as an engine.
#[test]
#[ignore = "the other tests start it"]
fn an_engine() {
    let Some(port) = std::env::var("ROLLWRIGHT_PORT").ok().and_then(|port| port.parse().ok())
    else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let _sim = EngineSim::start(Config { port, ..Config::default() }).await.unwrap();
        std::future::pending::<()>().await;
    });
}

async fn launched(station: &Station) -> Vec<u32> {
    let launch = station.backend.launch(ENGINE, engine(), chunk(0));
    tokio::time::timeout(LIMIT, launch).await.expect("it is ready in time").unwrap();
    station.backend.occupant(ENGINE).await.unwrap().unwrap().pids
}

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_outlives_its_agent_and_is_found_again() {
    let dir = StateDir::new();
    let first = station(dir.path(), "found", None);
    let pids = launched(&first).await;
    assert!(!pids.is_empty() && pids.iter().all(|pid| alive(*pid)));
    let address = first.backend.address(ENGINE).await;
    drop(first);

    let second = station(dir.path(), "found", None);
    let found = second.found().await;
    assert_eq!((found.len(), found[0].engine, found[0].chunk), (1, ENGINE, chunk(0)));
    assert_eq!(found[0].spec, engine());
    found[0].proof.expect("it shows its state").resident(&footprint()).unwrap();
    assert_eq!(second.backend.address(ENGINE).await, address);
    second.backend.evict(ENGINE).await.unwrap();
    drop(second);

    let third = station(dir.path(), "found", None);
    let found = third.found().await;
    found[0].proof.expect("it shows its state").evicted(&footprint()).unwrap();
    third.backend.wake(ENGINE).await.unwrap();
    third.found().await[0].proof.unwrap().resident(&footprint()).unwrap();
    third.backend.stop(ENGINE).await.unwrap();
    assert!(pids.iter().all(|pid| !alive(*pid)), "it is gone with all that it started");
    assert_eq!(third.device.held(ENGINE, None).await, Ok(0));
    drop(third);
    assert_eq!(station(dir.path(), "found", None).found().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_a_node_that_offers_no_gpus_any_more_are_ended() {
    let dir = StateDir::new();
    let station = station(dir.path(), "unused", None);
    let pids = launched(&station).await;
    drop(station);
    assert!(pids.iter().all(|pid| alive(*pid)));
    let unused = Ground { gpus: Gpus::Unused, ..ground(dir.path(), "unused", None) };
    assert!(open(unused.clone()).unwrap().is_none());
    end_engines(unused).await.unwrap();
    assert!(pids.iter().all(|pid| !alive(*pid)), "nobody else would end it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_starts_ends_with_it() {
    let dir = StateDir::new();
    let station = station(dir.path(), "children", None);
    let engine = engine();
    let line = format!("sleep 1000 & exec {}", engine.args.join(" "));
    let spec = EngineSpec {
        args: ["/bin/sh", "-c", &line].map(str::to_owned).to_vec(),
        ..(*engine).clone()
    };
    station.backend.launch(ENGINE, Arc::new(spec), chunk(1)).await.unwrap();
    let pids = station.backend.occupant(ENGINE).await.unwrap().unwrap().pids;
    assert_eq!(pids.len(), 2, "the engine and its child");
    station.backend.stop(ENGINE).await.unwrap();
    assert!(pids.iter().all(|pid| !alive(*pid)));
}

/// With a cgroup, by which it is held, and without, by what it carries in its environment.
#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_an_engines_session_ends_with_it() {
    for (owner, held) in [("leaves", cgroups()), ("leavesnone", false)] {
        let dir = StateDir::new();
        let mut ground = ground(dir.path(), owner, None);
        if !held {
            ground.cgroup_root = dir.path().join("none");
        }
        let station = open(ground).unwrap().unwrap();
        let engine = engine();
        let left = dir.path().join("left");
        let line = format!(
            "setsid /bin/sh -c 'echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000' & exec {1}",
            left.display(),
            engine.args.join(" ")
        );
        let spec = EngineSpec {
            args: ["/bin/sh", "-c", &line].map(str::to_owned).to_vec(),
            ..(*engine).clone()
        };
        station.backend.launch(ENGINE, Arc::new(spec), chunk(1)).await.unwrap();
        let pid = tokio::time::timeout(LIMIT, async {
            loop {
                if let Ok(text) = std::fs::read_to_string(&left) {
                    return text.trim().parse::<u32>().unwrap();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let pid = pid.await.expect("it starts");
        assert!(alive(pid));
        let pids = station.backend.occupant(ENGINE).await.unwrap().unwrap().pids;
        assert_eq!(pids.contains(&pid), held, "its memory counts where it is held: {pids:?}");
        station.backend.stop(ENGINE).await.unwrap();
        assert!(!alive(pid), "held: {held}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_takes_too_much_memory_says_so_and_no_cgroup_is_left() {
    if !cgroups() {
        return;
    }
    let dir = StateDir::new();
    let ground = Ground { host: 64 << 20, ..ground(dir.path(), "outgrown", None) };
    let station = open(ground).unwrap().unwrap();
    // It reads a line without an end into memory.
    let greedy = spec(&["/bin/sh", "-c", "echo loading; tail /dev/zero"]);
    let launched = station.backend.launch(ENGINE, Arc::new(greedy), chunk(0));
    let launched = tokio::time::timeout(LIMIT, launched).await.expect("it ends in time");
    let Err(Trouble::HostOutgrown(why)) = launched else { panic!("{launched:?}") };
    assert!(why.contains("declare more") && why.contains("loading"), "{why}");
    station.backend.stop(ENGINE).await.unwrap();
    // One that is content runs, and its cgroup goes with it.
    let pids = self::launched(&station).await;
    assert!(pids.iter().all(|pid| alive(*pid)));
    station.backend.stop(ENGINE).await.unwrap();
    let left = |root: &Path| {
        let entries = std::fs::read_dir(root).unwrap().flatten();
        entries
            .filter(|entry| entry.path().join("rollwright_engines_outgrown.slice").exists())
            .count()
    };
    assert_eq!(left(Path::new("/sys/fs/cgroup")), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_cannot_start_says_why() {
    let dir = StateDir::new();
    let station = station(dir.path(), "words", None);
    let broken = spec(&["/bin/sh", "-c", "echo cannot load the model >&2; exit 3"]);
    let died = station.backend.launch(ENGINE, Arc::new(broken), chunk(0)).await;
    let Err(Trouble::Died(why)) = died else { panic!("{died:?}") };
    assert!(why.contains("cannot load the model"), "{why}");
    station.backend.stop(ENGINE).await.unwrap();
    let absent = spec(&["/no/such/program"]);
    let refused = station.backend.launch(ENGINE, Arc::new(absent), chunk(0)).await;
    assert!(matches!(&refused, Err(Trouble::Refused(_, why)) if why.contains("/no/such/program")));
    let mut led = spec(&["/bin/sh", "-c", "exit 3"]);
    led.env.insert("PATH".into(), "/tmp".into());
    let refused = station.backend.launch(ENGINE, Arc::new(led), chunk(0)).await;
    assert!(matches!(&refused, Err(Trouble::Refused(_, why)) if why.contains("`PATH`")));
    let frozen = EngineSpec {
        evict: rollwright_agent::gpu::spec::EvictBy::CudaCheckpoint,
        ..(*engine()).clone()
    };
    let refused = station.backend.launch(ENGINE, Arc::new(frozen), chunk(0)).await;
    assert!(matches!(&refused, Err(Trouble::Refused(_, why)) if why.contains("checkpoint")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_is_reported() {
    let dir = StateDir::new();
    let mut station = station(dir.path(), "dies", None);
    let pids = launched(&station).await;
    for pid in pids {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let incident = incident(&mut station).await;
    assert!(matches!(&incident, Incident::Broke(ENGINE, Trouble::Died(_))), "{incident:?}");
    station.backend.stop(ENGINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_order_failures_of_the_fake() {
    let dir = StateDir::new();
    let orders = dir.path().join("orders");
    std::fs::create_dir(&orders).unwrap();
    let mut station = station(dir.path(), "orders", None);
    launched(&station).await;
    std::fs::write(orders.join("SleepLies"), "").unwrap();
    station.backend.evict(ENGINE).await.unwrap();
    assert_eq!(station.backend.is_asleep(ENGINE).await, Ok(false), "it lied");
    station.backend.evict(ENGINE).await.unwrap();
    assert_eq!(station.backend.is_asleep(ENGINE).await, Ok(true), "once");
    std::fs::write(orders.join("lost-0"), "").unwrap();
    assert_eq!(incident(&mut station).await, Incident::Gpu { gpu: 0, lost: true });
    assert_eq!(incident(&mut station).await, Incident::Broke(ENGINE, Trouble::GpuLost));
    let at = station.backend.occupant(ENGINE).await.unwrap();
    assert_eq!(station.device.held(ENGINE, at.as_ref()).await, Err(Trouble::GpuLost));
    std::fs::remove_file(orders.join("lost-0")).unwrap();
    assert_eq!(incident(&mut station).await, Incident::Gpu { gpu: 0, lost: false });
    station.backend.stop(ENGINE).await.unwrap();
}
