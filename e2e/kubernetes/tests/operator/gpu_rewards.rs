//! Reward models that take turns on GPUs. The GPUs are a FAKE and the engines are engine-sim, a
//! SIMULATOR, in containers of the node's Docker; everything between them is real.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{Http, Namespace, RELEASE, until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::observability::Prometheus;
use crate::support::{alone, apply, condition, installed, nothing_stays};

/// As many as GPUs and two more.
const SERVICES: u32 = 10;

/// A service whose engine takes more than half of each of its GPUs: two are never awake on one.
fn service(number: u32) -> String {
    let degrees = if number < 2 { "[1, 2]" } else { "[1]" };
    let second = if number < 2 { ", {degree: 2, device: 41Gi, residue: 1Gi}" } else { "" };
    format!(
        "---\n\
         apiVersion: rollwright.dev/v1alpha1\n\
         kind: RewardService\n\
         metadata: {{name: teacher-{number}}}\n\
         spec:\n\
         \x20 gpu:\n\
         \x20   queue: tools\n\
         \x20   pool: NAMESPACE-judges\n\
         \x20   model: {{path: engine-sim, servedName: teacher-{number}}}\n\
         \x20   engine: {{type: vLLM, image: 'rollwright/engine-sim:e2e'}}\n\
         \x20   ask: LogProbs\n\
         \x20   degrees: {degrees}\n\
         \x20   footprints: [{{degree: 1, device: 41Gi, residue: 1Gi, host: 16Mi}}{second}]\n"
    )
}

async fn get(namespace: &Namespace, object: &str) -> anyhow::Result<Value> {
    let text = namespace.kubectl().run(&["get", object, "--output=json"]).await?;
    Ok(serde_json::from_str(&text)?)
}

/// Every service is called twice, all at once.
async fn call_all(namespace: &Namespace, queue: &Arc<Http>) -> anyhow::Result<()> {
    let mut calls = JoinSet::new();
    for number in (0..SERVICES).chain(0..SERVICES) {
        let (queue, job) = (Arc::clone(queue), format!("{}.mopd", namespace.name()));
        calls.spawn(async move {
            let name = format!("teacher-{number}");
            let body = json!({"model": name, "prompt": "6 x 7 = 42", "max_tokens": 1});
            let answer = queue.reward(&job, &format!("{name}/v1/completions"), &body).await?;
            ensure!(answer["model"] == *name, "{name}: {answer}");
            Ok(())
        });
    }
    while let Some(call) = calls.join_next().await {
        call.context("a call")??;
    }
    Ok(())
}

#[test]
fn ten_models_take_turns_on_eight_gpus() -> anyhow::Result<()> {
    alone("gpu-rewards", async |namespace| {
        installed(namespace).await?;
        let services: String = (0..SERVICES).map(service).collect();
        let documents = include_str!("../../manifests/gpu-rewards.yaml");
        apply(namespace, &format!("{documents}{services}")).await?;
        condition(namespace, "actionqueue/tools", "Ready").await?;
        let pool = format!("resourcepool/{}-judges", namespace.name());
        condition(namespace, &pool, "Ready").await?;
        for number in 0..SERVICES {
            condition(namespace, &format!("rewardservice/teacher-{number}"), "Ready").await?;
        }
        // Kubernetes gives the GPUs to nobody else.
        let of_pool = ListParams::default().labels("app.kubernetes.io/component=reservation");
        let held = Api::<Pod>::namespaced(namespace.client(), RELEASE).list(&of_pool).await?;
        let held = serde_json::to_value(held.items)?;
        ensure!(held.to_string().contains("\"nvidia.com/gpu\":\"8\""), "{held}");

        let queue = Arc::new(Http::queue(namespace, "tools").await?);
        let prometheus = Prometheus::start(namespace).await?;
        call_all(namespace, &queue).await?;
        until("each service says what it did", async || {
            let (mut restores, mut resident) = (0, 0);
            for number in 0..SERVICES {
                let object = get(namespace, &format!("rewardservice/teacher-{number}")).await?;
                let status = &object["status"];
                let own = status["restores"].as_u64().unwrap_or(0);
                if own == 0 || status["waiting"] != 0 || status["running"] != 0 {
                    return Ok(Err(status.to_string()));
                }
                restores += own;
                resident += status["resident"].as_u64().unwrap_or(0);
            }
            let object = get(namespace, &pool).await?;
            let status = &object["status"];
            let residents = status["residents"].as_array().map_or(0, Vec::len) as u64;
            let gpus = status["inUse"]["gpus"].as_u64().unwrap_or(0);
            let free: u64 = status["freeChunks"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|chunks| {
                    chunks["gpus"].as_u64().unwrap_or(0) * chunks["count"].as_u64().unwrap_or(0)
                })
                .sum();
            let shown = resident == residents && residents > 0 && gpus + free == 8;
            let all = restores >= u64::from(SERVICES) && gpus >= residents;
            Ok(if shown && all { Ok(()) } else { Err(format!("{restores} restores, {status}")) })
        })
        .await?;
        // What the last ones put to sleep comes back.
        call_all(namespace, &queue).await?;
        measured(namespace).await?;
        prometheus.shows_everything(["--only", "rollwright_gpu_"]).await?;
        nothing_stays(namespace).await
    })
}

/// What Prometheus is told of restores, evictions, and calls that found their engine resident.
async fn measured(namespace: &Namespace) -> anyhow::Result<()> {
    let queue = Http::queue_metrics(namespace, "tools").await?;
    until("the queue measures what it did", async || {
        let text = queue.text("/metrics").await?;
        let all = |name: &str, with: &str| {
            let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(with));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum::<u64>()
        };
        let restores = all("rollwright_gpu_restores_total{", "");
        let evictions = all("rollwright_gpu_evictions_total{", "");
        let calls = all("rollwright_gpu_calls_total{", "");
        let hits = all("rollwright_gpu_calls_total{", "resident=\"yes\"");
        let residents = all("rollwright_gpu_residents{", "");
        // Each order was carried out, and how long it took is known.
        let known = all("rollwright_gpu_restore_seconds_count{", "") == restores
            && all("rollwright_gpu_evict_seconds_count{", "") == evictions;
        let served = calls == u64::from(4 * SERVICES) && (1..calls).contains(&hits);
        // Two more than there is room for, and at least those two come back: woken where they
        // sleep, or launched anew where there is room sooner.
        let moved = restores >= u64::from(SERVICES + 2) && evictions >= 2;
        let holds = known && served && moved && (1..=8).contains(&residents);
        Ok(if holds { Ok(()) } else { Err(text.clone()) })
    })
    .await
}
