//! `HostPinned` with the reference reward server: the agent's copies and its protocol for
//! real, the GPU's memory a fake of files in memory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rollwright_agent::gpu::EngineSpec;
use rollwright_agent::gpu::spec::{EvictBy, Needs, Probe};
use rollwright_core::gpu::{EngineId, Footprint, Limits};

use crate::common::{LIMIT, StateDir, chunk, spec, station};
use crate::scores::scores;

/// Weights of a little more than two megabytes, on GPUs of ten.
const BYTES: &str = "2300000";

fn server() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/reward-server").canonicalize().unwrap()
}

/// A Python that can run the server; `None`, and why, where none can be had.
fn python() -> Option<String> {
    let output = Command::new(server().join("python.sh")).output().unwrap();
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    writeln!(std::io::stdout(), "skipped: no Python for the reward server: {why}").unwrap();
    None
}

fn model(python: &str, dir: &Path, seed: &str) -> PathBuf {
    let made = Command::new(python)
        .arg(server().join("make_model.py"))
        .arg(dir)
        .args(["--bytes", BYTES, "--seed", seed])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    dir.to_owned()
}

fn engine(python: &str, model: &Path, evict: EvictBy) -> Arc<EngineSpec> {
    let program = server().join("serve.py");
    let (program, model) = (program.to_str().unwrap(), model.to_str().unwrap());
    let args = [python, program, "{model}", "--port", "{port}", "--name", "{name}"];
    let body = serde_json::json!({"input": "1"});
    Arc::new(EngineSpec {
        model: model.to_owned(),
        evict,
        probe: Some(Probe { path: "/reward".into(), body }),
        footprint: Needs { device: 4 << 20, residue: 0, host: 1 },
        ..spec(&[&args[..], &["--device", "cpu"]].concat())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn services_share_a_gpu_and_answer_bit_for_bit_as_if_alone() {
    let Some(python) = python() else { return };
    let dir = StateDir::new();
    let station = station(dir.path(), "pinned", None);
    let footprint = Footprint { device: 4 << 20, residue: 0, host: 1, expected: Limits::default() };
    let models = ["1", "2", "3"].map(|seed| model(&python, &dir.path().join(seed), seed));
    let launch = async |engine: u64, model: &Path, evict| {
        let spec = self::engine(&python, model, evict);
        let launched = station.backend.launch(EngineId(engine), spec, chunk(0));
        tokio::time::timeout(LIMIT, launched).await.expect("ready in time").unwrap();
    };
    // What each answers by itself, from weights of its own.
    let mut alone = Vec::new();
    for model in &models {
        launch(9, model, EvictBy::EngineSleep).await;
        alone.push(scores(&station, EngineId(9)).await.unwrap());
        station.backend.stop(EngineId(9)).await.unwrap();
    }
    assert_ne!(alone[0], alone[1]);
    for (engine, model) in (0..).zip(&models) {
        launch(engine, model, EvictBy::HostPinned).await;
        let at = station.backend.occupant(EngineId(engine)).await.unwrap().unwrap();
        assert!(at.lent >= 2_300_000, "{at:?}");
        assert_eq!(scores(&station, EngineId(engine)).await.as_ref(), Ok(&alone[engine as usize]));
        station.backend.evict(EngineId(engine)).await.unwrap();
        assert_eq!(station.backend.occupant(EngineId(engine)).await.unwrap().unwrap().lent, 0);
        assert_eq!(scores(&station, EngineId(engine)).await, Err(503), "it sleeps");
    }
    // They take each other's blocks; two are there at a time.
    for round in 0..3 {
        for engine in [0, 1, 2_u64].map(|n| (n + round) % 3) {
            let other = (engine + 1) % 3;
            for engine in [engine, other] {
                station.backend.wake(EngineId(engine)).await.unwrap();
                assert_eq!(station.backend.is_asleep(EngineId(engine)).await, Ok(false));
            }
            for engine in [engine, other] {
                let answer = scores(&station, EngineId(engine)).await;
                assert_eq!(answer.as_ref(), Ok(&alone[engine as usize]), "round {round}");
                station.backend.evict(EngineId(engine)).await.unwrap();
            }
        }
    }
    // Another agent has other memory: it finds them, and cannot take them over.
    drop(station);
    let next = crate::common::station(dir.path(), "pinned", None);
    let found = next.found().await;
    assert_eq!(found.len(), 3);
    for found in found {
        assert!(found.proof.is_none_or(|proof| proof.resident(&footprint).is_err()));
        next.backend.stop(found.engine).await.unwrap();
    }
}
