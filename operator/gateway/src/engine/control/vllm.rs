//! vLLM's development endpoints.

use std::time::Duration;

use http::Method;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::Version;
use serde_json::{Value, json};

use super::request::Requests;
use super::{Limits, PauseMode, Source, TransferStep, parse_version};

/// `GET /weight_info`, which older releases lack.
pub(super) async fn version(
    requests: &Requests,
    limit: Duration,
) -> Result<Option<Version>, Fault> {
    let reply = requests.optional(Method::GET, "/weight_info", None, limit).await?;
    let info: Option<Value> = reply.and_then(|reply| serde_json::from_slice(&reply.body).ok());
    Ok(info.and_then(|info| parse_version(info.get("weight_version")?)))
}

/// Never `keep`: it ignores `clear_cache`, and old KV would survive.
pub(super) async fn pause(
    requests: &Requests,
    mode: PauseMode,
    limits: &Limits,
) -> Result<(), Fault> {
    let mode = match mode {
        PauseMode::Abort => "abort",
        PauseMode::Wait => "wait",
    };
    let path = format!("/pause?mode={mode}&clear_cache=true");
    requests.post(&path, None, limits.pause).await?;
    expect_paused(requests, true, limits.probe).await
}

/// Weights by the workers' own loader. The version is told apart from them; releases
/// that have no place for it keep `None`.
pub(super) async fn update(
    requests: &Requests,
    source: &Source,
    version: Version,
    limits: &Limits,
) -> Result<(), Fault> {
    if let Source::Disk { path } = source {
        let body = json!({ "method": "reload_weights", "kwargs": { "weights_path": path } });
        requests.post("/collective_rpc", Some(&body), limits.update).await?;
    }
    // vLLM reads `new_version`; engines after its description read `weight_version`.
    let version = version.to_string();
    let body = json!({ "new_version": version, "weight_version": version });
    let told = requests.optional(Method::POST, "/update_weight_version", Some(&body), limits.step);
    if told.await?.is_none() {
        tracing::debug!(engine = requests.shown(), "it cannot be told its weights' version");
    }
    Ok(())
}

pub(super) async fn resume(requests: &Requests, limit: Duration) -> Result<(), Fault> {
    requests.post("/resume", None, limit).await?;
    expect_paused(requests, false, limit).await
}

pub(super) async fn abort(requests: &Requests, rid: &str, limit: Duration) -> Result<bool, Fault> {
    // An empty list would abort everything.
    let body = json!({ "request_ids": [rid] });
    let told = requests.optional(Method::POST, "/abort_requests", Some(&body), limit).await?;
    Ok(told.is_some())
}

pub(super) async fn transfer(
    requests: &Requests,
    step: TransferStep,
    body: &Value,
    limit: Duration,
) -> Result<(), Fault> {
    let path = match step {
        TransferStep::Init => "/init_weight_transfer_engine",
        TransferStep::Start => "/start_weight_update",
        TransferStep::Update => "/update_weights",
        TransferStep::Finish => "/finish_weight_update",
    };
    requests.post(path, Some(body), limit).await.map(drop)
}

/// A 200 proves only that the call returned, so the engine is asked.
async fn expect_paused(requests: &Requests, paused: bool, limit: Duration) -> Result<(), Fault> {
    let reply = requests.get("/is_paused", limit).await?;
    let said: Option<Value> = serde_json::from_slice(&reply.body).ok();
    let said = said.and_then(|said| said.get("is_paused")?.as_bool());
    if said == Some(paused) {
        return Ok(());
    }
    let told = if paused { "/pause" } else { "/resume" };
    let message = format!(
        "the engine at {} answered {told}, but /is_paused says {}",
        requests.shown(),
        requests.excerpt(&reply)
    );
    Err(Fault::new(FaultKind::Infrastructure, "EngineRefused", message))
}
