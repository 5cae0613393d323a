//! SGLang's control endpoints.

use std::time::Duration;

use http::Method;
use rollwright_core::fault::Fault;
use rollwright_core::version::Version;
use serde_json::{Value, json};

use super::request::Requests;
use super::{Limits, PauseMode, Source, TransferStep, parse_version};

/// `/get_model_info`, which newer releases call `/model_info`.
pub(super) async fn version(
    requests: &Requests,
    limit: Duration,
) -> Result<Option<Version>, Fault> {
    let reply = match requests.optional(Method::GET, "/get_model_info", None, limit).await? {
        Some(reply) => reply,
        None => requests.get("/model_info", limit).await?,
    };
    let info: Option<Value> = serde_json::from_slice(&reply.body).ok();
    Ok(info.and_then(|info| parse_version(info.get("weight_version")?)))
}

/// Never `in_place`: its requests would go on with old KV.
pub(super) async fn pause(
    requests: &Requests,
    mode: PauseMode,
    limits: &Limits,
) -> Result<(), Fault> {
    let mode = match mode {
        PauseMode::Abort => "abort",
        PauseMode::Wait => "retract",
    };
    let body = json!({ "mode": mode });
    requests.post("/pause_generation", Some(&body), limits.pause).await.map(drop)
}

pub(super) async fn update(
    requests: &Requests,
    source: &Source,
    version: Version,
    limits: &Limits,
) -> Result<(), Fault> {
    let version = version.to_string();
    match source {
        Source::Disk { path } => {
            let body = json!({
                "model_path": path,
                "weight_version": version,
                "abort_all_requests": false,
                "flush_cache": true,
                "keep_pause": true,
            });
            requests.post("/update_weights_from_disk", Some(&body), limits.update).await?;
        }
        Source::External => {
            let body = json!({ "new_version": version, "abort_all_requests": false });
            let path = "/update_weight_version";
            requests.optional(Method::POST, path, Some(&body), limits.step).await?;
        }
    }
    Ok(())
}

pub(super) async fn resume(requests: &Requests, limit: Duration) -> Result<(), Fault> {
    requests.post("/continue_generation", Some(&json!({})), limit).await.map(drop)
}

pub(super) async fn abort(requests: &Requests, rid: &str, limit: Duration) -> Result<bool, Fault> {
    let body = json!({ "rid": rid });
    requests.post("/abort_request", Some(&body), limit).await?;
    Ok(true)
}

pub(super) async fn transfer(
    requests: &Requests,
    step: TransferStep,
    body: &Value,
    limit: Duration,
) -> Result<(), Fault> {
    let path = match step {
        TransferStep::Init => "/init_weights_update_group",
        // An update needs no beginning of its own.
        TransferStep::Start => return Ok(()),
        TransferStep::Update => "/update_weights_from_distributed",
        TransferStep::Finish => "/destroy_weights_update_group",
    };
    requests.post(path, Some(body), limit).await.map(drop)
}
