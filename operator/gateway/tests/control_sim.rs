//! Weight updates of engine-sims, which are simulators and hold their callers to the
//! order of calls that a real engine needs.
#![allow(clippy::unwrap_used)] // in what tests share

use std::time::Duration;

use rollwright_core::version::Version;
use rollwright_engine_sim::{Config, Dialect as Simulated, EngineSim};
use rollwright_gateway::engine::control::{Control, Dialect, Limits, PauseMode, Source};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

fn dialect(simulated: Simulated) -> Dialect {
    match simulated {
        Simulated::Vllm => Dialect::Vllm,
        Simulated::Sglang => Dialect::SGLang,
        Simulated::OpenAi => Dialect::Reload { path: "/update_weights_from_disk".to_owned() },
    }
}

async fn generate(url: &str) -> Value {
    let body = json!({"model": "engine-sim", "prompt": "one and the same prompt", "max_tokens": 8});
    let reply = reqwest::Client::new().post(format!("{url}/v1/completions")).json(&body).send();
    let reply = tokio::time::timeout(LIMIT, reply).await.unwrap().unwrap();
    assert!(reply.status().is_success(), "{}", reply.status());
    reply.json().await.unwrap()
}

#[tokio::test]
async fn updates_break_no_rule_and_leave_no_old_kv() {
    let weights = tempfile::TempDir::new().unwrap();
    let path = weights.path().display().to_string();
    for simulated in [Simulated::Vllm, Simulated::Sglang, Simulated::OpenAi] {
        let sim = EngineSim::start(Config { dialect: simulated, ..Config::default() });
        let sim = sim.await.unwrap();
        let control = Control::new(&sim.url(), dialect(simulated), None, Limits::default());
        let control = control.unwrap();
        control.health().await.unwrap();
        for (version, mode) in [(1, PauseMode::Abort), (2, PauseMode::Wait)] {
            generate(&sim.url()).await;
            let version = Version(version);
            control.pause(mode).await.unwrap();
            control.update(&Source::Disk { path: path.clone() }, version).await.unwrap();
            control.flush_cache().await.unwrap();
            control.verify(version).await.unwrap();
            control.resume().await.unwrap();
            assert_eq!(sim.version(), version.0, "{simulated:?}");
            // The prefix cache of the same prompt would show here.
            generate(&sim.url()).await;
            let said = control.version().await.unwrap();
            assert!(said.is_none_or(|said| said == version), "{simulated:?}: {said:?}");
        }
        assert_eq!(sim.violations(), [], "{simulated:?}");
        sim.stop().await;
    }
}
