//! A station and what runs on it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollwright_agent::docker::Engine;
use rollwright_agent::docker::labels::Owner;
use rollwright_agent::gpu::fake::FakeConfig;
use rollwright_agent::gpu::spec::{EngineKind, EvictBy, Needs, Probe};
use rollwright_agent::gpu::{EngineSpec, Gpus, Ground, Incident, Station, open};
use rollwright_agent::policy::EnginePolicy;
use rollwright_core::gpu::{Chunk, Degree, Footprint, Limits};

/// Generous: a slow machine is no failure.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

pub(crate) const NEEDS: Needs = Needs { device: 6 << 20, residue: 1 << 20, host: 1 };

pub(crate) fn footprint() -> Footprint {
    let Needs { device, residue, host } = NEEDS;
    Footprint { device, residue, host, expected: Limits::default() }
}

/// A state directory. Engines that a failed test leaves there are ended with it.
pub(crate) struct StateDir(tempfile::TempDir);

impl StateDir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        let entries = std::fs::read_dir(self.path().join("engines")).into_iter().flatten();
        let records = entries.flatten().filter_map(|entry| std::fs::read(entry.path()).ok());
        let records = records.filter_map(|bytes| serde_json::from_slice(&bytes).ok());
        for record in records.collect::<Vec<serde_json::Value>>() {
            let pid = record["runs"]["Process"]["pid"].as_i64().unwrap_or_default();
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _gone = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// A node with two fake GPUs.
pub(crate) fn ground(dir: &Path, owner: &str, docker: Option<Engine>) -> Ground {
    let fake = FakeConfig {
        gpus: 2,
        memory: 10 << 20,
        host: 100,
        bandwidth: 1 << 40,
        load: 1 << 40,
        orders: Some(dir.join("orders")),
    };
    Ground {
        gpus: Gpus::Fake(fake),
        host: 0,
        state_dir: dir.to_owned(),
        policy: EnginePolicy {
            programs: vec!["*".into()],
            models: vec![format!("{}/*", dir.display())],
            ..EnginePolicy::default()
        },
        docker,
        docker_config: None,
        cgroup_root: CGROUPS.into(),
        owner: Owner { node: "node".into(), id: owner.into() },
    }
}

const CGROUPS: &str = "/sys/fs/cgroup";

/// Whether this test may make cgroups; says so where it may not.
pub(crate) fn cgroups() -> bool {
    let root = Path::new(CGROUPS);
    let memory = root.join("memory");
    let probe = if memory.is_dir() { &memory } else { root };
    let probe = probe.join(format!("rollwright-test-{}", std::process::id()));
    let made = std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe));
    if let Err(error) = &made {
        writeln!(std::io::stdout(), "skipped: no cgroups can be made here: {error}").unwrap();
    }
    made.is_ok()
}

/// Its station.
pub(crate) fn station(dir: &Path, owner: &str, docker: Option<Engine>) -> Station {
    let station = open(ground(dir, owner, docker)).unwrap().expect("fake GPUs");
    assert!(station.inventory.fake);
    station
}

pub(crate) fn chunk(start: u32) -> Chunk {
    Chunk::new(0, start, Degree::new(1).unwrap()).unwrap()
}

pub(crate) fn spec(args: &[&str]) -> EngineSpec {
    EngineSpec {
        service: "ns/judge".into(),
        engine: EngineKind::Other,
        image: None,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: BTreeMap::new(),
        model: "model".into(),
        served_name: "engine-sim".into(),
        degree: 1,
        evict: EvictBy::EngineSleep,
        probe: None,
        footprint: NEEDS,
    }
}

/// This test program as an engine-sim: see `processes::an_engine`.
pub(crate) fn engine() -> Arc<EngineSpec> {
    let us = std::env::current_exe().unwrap();
    let us = us.to_str().unwrap();
    let mut spec = spec(&[us, "--exact", "processes::an_engine", "--ignored", "--nocapture"]);
    let body = serde_json::json!({"model": "engine-sim", "prompt": "1", "max_tokens": 1});
    spec.probe = Some(Probe { path: "/v1/completions".into(), body });
    Arc::new(spec)
}

/// The next thing that happens without an order.
pub(crate) async fn incident(station: &mut Station) -> Incident {
    let incident = tokio::time::timeout(LIMIT, station.incidents.recv()).await;
    incident.expect("something happens").expect("the station is open")
}
