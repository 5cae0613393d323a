//! vLLM's development routes, as `vllm/entrypoints/serve` has them.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::refusal::answer;
use super::{App, Shared};
use crate::engine::{Refusal, SleepRequest};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/version", get(|| async { Json(json!({"version": "0-engine-sim"})) }))
        .route("/load", get(load))
        .route("/pause", post(pause))
        .route("/resume", post(resume))
        .route("/is_paused", get(is_paused))
        .route("/abort_requests", post(abort_requests))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/collective_rpc", post(collective_rpc))
        .route("/init_weight_transfer_engine", post(init_transfer))
        .route("/start_weight_update", post(start_update))
        .route("/update_weights", post(update_weights))
        .route("/finish_weight_update", post(finish_update))
        .route("/update_weight_version", post(update_weight_version))
        .route("/weight_info", get(weight_info))
        .route("/get_world_size", get(|| async { Json(json!({"world_size": 1})) }))
        .route("/sleep", post(sleep))
        .route("/wake_up", post(wake_up))
        .route("/is_sleeping", get(is_sleeping))
}

/// `{"error": ...}` of these routes.
fn respond(result: Result<Value, Refusal>) -> Response {
    match result {
        Ok(body) => Json(body).into_response(),
        Err(refusal) => answer(&refusal, json!({"error": refusal.message})),
    }
}

async fn load(State(app): Shared) -> Json<Value> {
    let load = app.engine.load();
    Json(json!({"server_load": load.running + load.waiting}))
}

#[derive(Debug, Deserialize)]
struct PauseQuery {
    #[serde(default = "abort_mode")]
    mode: String,
    #[serde(default = "yes")]
    clear_cache: bool,
    #[serde(default)]
    wait_for_inflight_requests: bool,
}

fn abort_mode() -> String {
    "abort".into()
}

fn yes() -> bool {
    true
}

async fn pause(State(app): Shared, Query(query): Query<PauseQuery>) -> Response {
    let (engine, clear) = (&app.engine, query.clear_cache);
    let mode = if query.wait_for_inflight_requests { "wait" } else { query.mode.as_str() };
    match mode {
        "abort" => engine.pause_abort(clear),
        "wait" => engine.pause_wait(clear).await,
        "keep" => engine.pause_keep(clear && !engine.config.keep_ignores_clear_cache),
        other => {
            let message = format!("mode must be abort, wait or keep, not {other:?}");
            return respond(Err(Refusal::bad(message)));
        }
    }
    respond(Ok(json!({"status": "paused"})))
}

async fn resume(State(app): Shared) -> Response {
    respond(app.engine.resume().map(|()| json!({"status": "resumed"})))
}

async fn is_paused(State(app): Shared) -> Json<Value> {
    Json(json!({"is_paused": app.engine.paused()}))
}

#[derive(Debug, Default, Deserialize)]
struct AbortBody {
    #[serde(default)]
    request_ids: Vec<String>,
}

async fn abort_requests(State(app): Shared, body: Option<Json<AbortBody>>) -> Response {
    let ids = body.map(|Json(body)| body.request_ids).unwrap_or_default();
    let aborted =
        if ids.is_empty() { app.engine.abort_all() } else { app.engine.abort_ids(&ids, false) };
    respond(Ok(json!({"status": "aborted", "aborted": aborted})))
}

async fn reset_prefix_cache(State(app): Shared) -> Response {
    match app.engine.flush() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => respond(Err(refusal)),
    }
}

#[derive(Debug, Deserialize)]
struct Rpc {
    method: String,
    #[serde(default)]
    kwargs: Value,
}

/// Only `reload_weights` does something.
async fn collective_rpc(State(app): Shared, Json(rpc): Json<Rpc>) -> Response {
    if rpc.method != "reload_weights" {
        let message = format!("engine-sim knows reload_weights only, not {:?}", rpc.method);
        return respond(Err(Refusal::bad(message)));
    }
    let path = rpc.kwargs.get("weights_path").and_then(Value::as_str);
    let result = match path {
        Some(path) => app.engine.load_from(path, None, false).await.map(|_| ()),
        None => app.engine.reload(),
    };
    respond(result.map(|()| json!({"results": [null]})))
}

async fn init_transfer(State(app): Shared, Json(body): Json<Value>) -> Response {
    let given = body.get("init_info").is_some();
    let result = needed(given, "init_info").and_then(|()| app.engine.transfer_init());
    respond(result.map(|()| json!({"message": "Weight transfer initialized"})))
}

async fn start_update(State(app): Shared) -> Response {
    respond(app.engine.transfer_start().map(|()| json!({"message": "Weight update started"})))
}

async fn update_weights(State(app): Shared, Json(body): Json<Value>) -> Response {
    if let Err(refusal) = needed(body.get("update_info").is_some(), "update_info") {
        return respond(Err(refusal));
    }
    let result = app.engine.transfer_update().await;
    respond(result.map(|()| json!({"message": "Weights updated"})))
}

fn needed(given: bool, field: &str) -> Result<(), Refusal> {
    if given { Ok(()) } else { Err(Refusal::bad(format!("Missing '{field}' in request body"))) }
}

async fn finish_update(State(app): Shared, body: Option<Json<Value>>) -> Response {
    let label = body.and_then(|Json(body)| label(body.get("weight_version")));
    let result = app.engine.transfer_finish(label);
    respond(result.map(|()| json!({"message": "Weight update finished"})))
}

/// vLLM's field is `new_version`; `weight_version` is taken too.
async fn update_weight_version(State(app): Shared, Json(body): Json<Value>) -> Response {
    let Some(label) = label(body.get("new_version").or_else(|| body.get("weight_version"))) else {
        return respond(needed(false, "new_version").map(|()| Value::Null));
    };
    app.engine.name_weights(label.clone());
    respond(Ok(json!({"success": true, "new_version": label})))
}

/// A version as a string or a number.
pub(super) fn label(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

async fn weight_info(State(app): Shared) -> Json<Value> {
    Json(json!({"weight_version": app.engine.weight_label()}))
}

async fn sleep(State(app): Shared, Query(query): Query<Vec<(String, String)>>) -> Response {
    let value = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, v)| v.as_str());
    let level = value("level").unwrap_or("1");
    let mut request = match level {
        "0" => SleepRequest { scheduling: true, ..SleepRequest::default() },
        "1" | "2" => SleepRequest { weights: true, kv: true, scheduling: false },
        other => {
            return respond(Err(Refusal::bad(format!("level must be 0, 1 or 2, not {other:?}"))));
        }
    };
    if query.iter().any(|(key, _)| key == "tags") {
        let tags = tags(&query);
        request.weights &= tags.weights;
        request.kv &= tags.kv;
    }
    if value("mode") == Some("wait") {
        app.engine.drain().await;
    }
    tokio::time::sleep(app.engine.config.latency.sleep).await;
    app.engine.sleep(request, level == "2");
    StatusCode::OK.into_response()
}

fn tags(query: &[(String, String)]) -> SleepRequest {
    let has = |tag: &str| query.iter().any(|(key, value)| key == "tags" && value == tag);
    SleepRequest { weights: has("weights"), kv: has("kv_cache"), scheduling: has("scheduling") }
}

async fn wake_up(State(app): Shared, Query(query): Query<Vec<(String, String)>>) -> Response {
    tokio::time::sleep(app.engine.config.latency.sleep).await;
    let all = SleepRequest { weights: true, kv: true, scheduling: true };
    let named = query.iter().any(|(key, _)| key == "tags");
    app.engine.wake_up(if named { tags(&query) } else { all });
    StatusCode::OK.into_response()
}

async fn is_sleeping(State(app): Shared) -> Json<Value> {
    Json(json!({"is_sleeping": app.engine.asleep()}))
}
