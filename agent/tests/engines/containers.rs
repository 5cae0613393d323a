//! Engines as containers on the real Docker engine, without GPUs.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollwright_agent::docker::Engine;
use rollwright_agent::gpu::spec::Needs;
use rollwright_agent::gpu::{EngineSpec, Ground, Incident, open};
use rollwright_core::gpu::{EngineId, Trouble};

use crate::common::{LIMIT, NEEDS, StateDir, cgroups, chunk, ground, incident, spec, station};
use crate::docker::{busybox, docker};

const IMAGE: &str = "rollwright-test/engine:busybox";
const ENGINE: EngineId = EngineId(3);
/// Answers as an engine that is awake does.
const SERVE: &str = "echo ok >/w/health; echo '{\"is_sleeping\": false}' >/w/is_sleeping; \
                     exec httpd -f -p 8000 -h /w";

/// The engine with an image that serves files; `None`, and why, where there is none.
async fn engine() -> Option<Engine> {
    match Engine::connect(Path::new("/var/run/docker.sock")).await {
        Ok(engine) => {
            image();
            Some(engine)
        }
        Err(fault) => {
            let mut out = std::io::stdout();
            writeln!(out, "skipped: {fault}").unwrap();
            None
        }
    }
}

fn image() {
    let directories = [("w", 0o777), ("tmp", 0o1777), ("proc", 0o755), ("etc", 0o755)];
    busybox(IMAGE, "PATH=/bin", &["sh", "echo", "httpd"], &directories);
}

fn contained(line: &str) -> Arc<EngineSpec> {
    Arc::new(EngineSpec { image: Some(IMAGE.into()), ..spec(&["/bin/sh", "-c", line]) })
}

/// Ids of this owner's containers; `None` where Docker does not say.
fn containers(owner: &str) -> Option<String> {
    docker(&["ps", "-aq", "--filter", &format!("label=rollwright.dev/agent-id={owner}")])
}

/// Ends what a test made.
struct Clean(&'static str);

impl Drop for Clean {
    fn drop(&mut self) {
        for id in containers(self.0).unwrap_or_default().split_whitespace() {
            docker(&["rm", "-f", id]);
        }
        docker(&["network", "rm", &format!("rwgpu-{}", &self.0[..8])]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_found_again_and_ends() {
    let Some(docker) = engine().await else { return };
    let owner = "enginefound";
    let _clean = Clean(owner);
    let dir = StateDir::new();
    let first = station(dir.path(), owner, Some(docker.clone()));
    let launch = first.backend.launch(ENGINE, contained(SERVE), chunk(1));
    tokio::time::timeout(LIMIT, launch).await.expect("ready in time").unwrap();
    assert_eq!(first.backend.is_asleep(ENGINE).await, Ok(false));
    let pids = first.backend.occupant(ENGINE).await.unwrap().unwrap().pids;
    let name = std::fs::read_to_string(format!("/proc/{}/comm", pids[0])).unwrap();
    assert_eq!(name.trim(), "httpd", "processes as this machine numbers them");
    drop(first);

    let second = station(dir.path(), owner, Some(docker));
    let found = second.found().await;
    assert_eq!((found.len(), found[0].engine, found[0].chunk), (1, ENGINE, chunk(1)));
    // Of its server: what serves a connection comes and goes.
    assert_eq!(second.backend.occupant(ENGINE).await.unwrap().unwrap().pids[0], pids[0]);
    second.backend.stop(ENGINE).await.unwrap();
    assert_eq!(containers(owner).as_deref(), Some(""));
    assert_eq!(second.found().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_dies_is_reported_with_its_last_words() {
    let Some(docker) = engine().await else { return };
    let owner = "enginedies0";
    let _clean = Clean(owner);
    let dir = StateDir::new();
    let mut station = station(dir.path(), owner, Some(docker));
    let died = station.backend.launch(ENGINE, contained("echo no such model; exit 3"), chunk(0));
    let died = died.await;
    assert!(matches!(&died, Err(Trouble::Died(why)) if why.contains("no such model")), "{died:?}");
    station.backend.stop(ENGINE).await.unwrap();
    station.backend.launch(ENGINE, contained(SERVE), chunk(0)).await.unwrap();
    let pid = station.backend.occupant(ENGINE).await.unwrap().unwrap().pids[0];
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let incident = incident(&mut station).await;
    assert!(matches!(&incident, Incident::Broke(ENGINE, Trouble::Died(_))), "{incident:?}");
    station.backend.stop(ENGINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_takes_too_much_memory_says_so() {
    let Some(docker) = engine().await else { return };
    if !cgroups() {
        return;
    }
    let owner = "engineoutgrown";
    let _clean = Clean(owner);
    let dir = StateDir::new();
    let ground = Ground { host: 64 << 20, ..ground(dir.path(), owner, Some(docker)) };
    let mut station = open(ground).unwrap().unwrap();
    station.backend.launch(ENGINE, contained(SERVE), chunk(0)).await.unwrap();
    let (greedy, other) = ("/bin/busybox tail /dev/zero", EngineId(4));
    // Nothing that it has declared: what all may have together ends it.
    let footprint = Needs { host: 0, ..NEEDS };
    let greedy = EngineSpec { footprint, ..(*contained(greedy)).clone() };
    let died = station.backend.launch(other, Arc::new(greedy), chunk(1)).await;
    let Err(Trouble::HostOutgrown(why)) = died else { panic!("{died:?}") };
    assert!(why.contains("declare more"), "{why}");
    assert_eq!(station.backend.is_asleep(ENGINE).await, Ok(false), "the smaller one lives");
    let reported = tokio::time::timeout(Duration::ZERO, station.incidents.recv()).await;
    assert!(!matches!(reported, Ok(Some(Incident::Broke(ENGINE, _)))), "{reported:?}");
    for engine in [ENGINE, other] {
        station.backend.stop(engine).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_reads_the_model_that_a_link_leads_to() {
    let Some(docker) = engine().await else { return };
    let owner = "enginemodel";
    let _clean = Clean(owner);
    let dir = StateDir::new();
    std::fs::create_dir(dir.path().join("judge")).unwrap();
    std::fs::write(dir.path().join("judge/weights"), "12345\n").unwrap();
    std::os::unix::fs::symlink("judge", dir.path().join("latest")).unwrap();
    let station = station(dir.path(), owner, Some(docker));
    let line = format!("read weights <$ROLLWRIGHT_MODEL/weights || exit 1; {SERVE}");
    let model = dir.path().join("latest").to_str().unwrap().to_owned();
    let spec = EngineSpec { model, ..(*contained(&line)).clone() };
    station.backend.launch(ENGINE, Arc::new(spec), chunk(0)).await.unwrap();
    station.backend.stop(ENGINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_without_a_record_go() {
    let Some(docker) = engine().await else { return };
    let owner = "enginesweep";
    let _clean = Clean(owner);
    let dir = StateDir::new();
    let first = station(dir.path(), owner, Some(docker.clone()));
    first.backend.launch(ENGINE, contained(SERVE), chunk(0)).await.unwrap();
    assert!(containers(owner).is_some_and(|ids| !ids.is_empty()));
    drop(first);
    let other = StateDir::new();
    let second = station(other.path(), owner, Some(docker));
    assert_eq!(second.found().await, []);
    assert_eq!(containers(owner).as_deref(), Some(""));
}
