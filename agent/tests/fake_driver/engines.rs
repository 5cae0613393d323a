//! Stations over the driver, and reference reward servers on them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rollwright_agent::docker::labels::Owner;
use rollwright_agent::gpu::spec::{EngineKind, EvictBy, Needs, Probe};
use rollwright_agent::gpu::{
    Caller, Driver, EngineSpec, Gpus, Ground, Instruction, OpenError, Station, open,
};
use rollwright_agent::policy::EnginePolicy;
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{Chunk, Degree, EngineId, Event, OrderId, Trouble};
use rollwright_core::ids::ActionId;
use tokio::sync::mpsc;

use crate::machine::{LIMIT, python, root, state};

/// The station of the node, with so many bytes of each GPU for weights that the agent keeps.
pub(crate) fn station(arena: u64) -> Result<Option<Station>, OpenError> {
    let state_dir = state();
    let policy = EnginePolicy {
        programs: vec!["*".into()],
        models: vec![format!("{}/*", state_dir.display())],
        ..EnginePolicy::default()
    };
    // Tests run side by side, each with a cgroup of its own.
    let machine = state_dir.parent().and_then(Path::file_name).expect("it is below the machine's");
    let name = machine.to_string_lossy();
    let id = name.chars().rev().filter(char::is_ascii_alphanumeric).collect();
    open(Ground {
        gpus: Gpus::Driver { arena, most: u32::MAX },
        host: 0,
        state_dir,
        policy,
        docker: None,
        docker_config: None,
        cgroup_root: "/sys/fs/cgroup".into(),
        owner: Owner { node: "node".into(), id },
    })
}

pub(crate) fn chunk(gpu: u32) -> Chunk {
    Chunk::new(0, gpu, Degree::new(1).unwrap()).unwrap()
}

/// A model with random weights of a little more than two megabytes.
pub(crate) fn model(seed: &str) -> PathBuf {
    let dir = state().join(format!("model-{seed}"));
    let made = Command::new(python().expect("its test has looked"))
        .arg(root().join("e2e/reward-server/make_model.py"))
        .arg(&dir)
        .args(["--bytes", "2300000", "--seed", seed])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    dir
}

fn spec(model: &Path, evict: EvictBy) -> EngineSpec {
    let program = root().join("e2e/reward-server/serve.py").display().to_string();
    let python = python().expect("its test has looked");
    let args = [&python, &program, "{model}", "--port", "{port}", "--device", "cuda"];
    EngineSpec {
        service: "ns/judge".into(),
        engine: EngineKind::Other,
        image: None,
        args: args.map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        model: model.display().to_string(),
        served_name: "judge".into(),
        degree: 1,
        evict,
        probe: Some(Probe { path: "/reward".into(), body: serde_json::json!({"input": "1"}) }),
        footprint: Needs { device: 300 << 20, residue: 16 << 20, host: 1 },
    }
}

/// Starts an engine; it serves.
pub(crate) async fn launch(
    station: &Station,
    engine: EngineId,
    model: &Path,
    evict: EvictBy,
    gpu: u32,
) {
    let launched = station.backend.launch(engine, Arc::new(spec(model, evict)), chunk(gpu));
    tokio::time::timeout(LIMIT, launched).await.expect("ready in time").unwrap();
}

/// Makes no calls.
struct Silent;

#[async_trait::async_trait]
impl Caller for Silent {
    async fn call(&self, _: &ActionId, _: &str) -> Result<(), Fault> {
        unreachable!("engines are only ended")
    }
}

/// Ends an engine as the queue has it done: what it then has on its GPU.
pub(crate) async fn end(station: &Station, engine: EngineId) -> Result<u64, Trouble> {
    let (backend, device) = (Arc::clone(&station.backend), Arc::clone(&station.device));
    let (commands, orders) = mpsc::channel(1);
    let (reports, mut events) = mpsc::channel(1);
    tokio::spawn(Driver::new(backend, device, Arc::new(Silent)).run(orders, reports));
    let stop = Instruction::Stop { engine, order: OrderId(1), limit: LIMIT };
    commands.send(stop).await.unwrap();
    let Some(Event::Stopped(_, _, held)) = events.recv().await else { panic!("no report") };
    held
}

/// Bytes that an engine has on its GPU, by the driver's account.
pub(crate) async fn held(station: &Station, engine: EngineId) -> u64 {
    let at = station.backend.occupant(engine).await.unwrap();
    station.device.held(engine, at.as_ref()).await.unwrap()
}

/// Posts nothing to an address of an engine.
pub(crate) async fn post(url: String) -> Result<(), String> {
    let request = axum::http::Request::post(url).body(Full::default()).unwrap();
    let client: Client<_, Full<axum::body::Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let reply = client.request(request).await.map_err(|error| error.to_string())?;
    if reply.status().is_success() { Ok(()) } else { Err(reply.status().to_string()) }
}
