//! SGLang's routes beside generation, as `sglang/srt/entrypoints/http_server.py` has them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::refusal::{answer, refuse_plain};
use super::vllm::label;
use super::{App, Shared};
use crate::engine::{Refusal, SleepRequest};

pub(super) fn routes() -> Router<Arc<App>> {
    reload_route()
        .route("/health_generate", get(|| async { StatusCode::OK }))
        .route("/get_model_info", get(model_info))
        .route("/model_info", get(model_info))
        .route("/get_weight_version", get(weight_version))
        .route("/update_weight_version", post(update_weight_version))
        .route("/pause_generation", post(pause))
        .route("/continue_generation", post(resume))
        .route("/flush_cache", post(flush_cache).get(flush_cache))
        .route("/abort_request", post(abort_request))
        .route("/release_memory_occupation", post(release))
        .route("/resume_memory_occupation", post(occupy))
        .route("/init_weights_update_group", post(init_group))
        .route("/update_weights_from_distributed", post(from_distributed))
        .route("/update_weights_from_tensor", post(from_tensor))
        .route("/destroy_weights_update_group", post(destroy_group))
        .route("/v1/loads", get(loads))
}

/// The one admin route of the plain OpenAI dialect.
pub(super) fn reload_route() -> Router<Arc<App>> {
    Router::new().route("/update_weights_from_disk", post(from_disk))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Update {
    model_path: Option<String>,
    weight_version: Option<Value>,
    flush_cache: Option<bool>,
    abort_all_requests: Option<bool>,
}

fn success(result: Result<String, Refusal>) -> Response {
    match result {
        Ok(message) => Json(json!({"success": true, "message": message, "num_paused_requests": 0}))
            .into_response(),
        Err(refusal) => {
            let body =
                json!({"success": false, "message": refusal.message, "num_paused_requests": 0});
            answer(&refusal, body)
        }
    }
}

async fn from_disk(State(app): Shared, Json(update): Json<Update>) -> Response {
    let Some(path) = &update.model_path else {
        return success(Err(Refusal::bad("model_path: the new weights' path is needed")));
    };
    if update.abort_all_requests == Some(true) {
        app.engine.abort_all();
    }
    let label = label(update.weight_version.as_ref());
    let loaded = app.engine.load_from(path, label, update.flush_cache.unwrap_or(true)).await;
    success(loaded.map(|loaded| {
        format!("Succeeded to update model weights. Weight version updated to {}.", loaded.label)
    }))
}

async fn bucket(app: &App, update: Update, group: bool) -> Response {
    if update.abort_all_requests == Some(true) {
        app.engine.abort_all();
    }
    let label = label(update.weight_version.as_ref());
    let result = app.engine.bucket(label, update.flush_cache.unwrap_or(true), group).await;
    success(result.map(|()| "Succeeded to update parameter online.".into()))
}

async fn from_distributed(State(app): Shared, Json(update): Json<Update>) -> Response {
    bucket(&app, update, true).await
}

async fn from_tensor(State(app): Shared, Json(update): Json<Update>) -> Response {
    bucket(&app, update, false).await
}

async fn init_group(State(app): Shared) -> Response {
    success(
        app.engine.transfer_init().map(|()| "Succeeded to initialize custom process group.".into()),
    )
}

async fn destroy_group(State(app): Shared) -> Response {
    success(
        app.engine.transfer_destroy().map(|()| "Succeeded to destroy custom process group.".into()),
    )
}

async fn model_info(State(app): Shared) -> Json<Value> {
    let config = &app.engine.config;
    Json(json!({
        "model_path": config.model, "tokenizer_path": config.model, "is_generation": true,
        "preferred_sampling_params": null, "weight_version": app.engine.weight_label(),
    }))
}

async fn weight_version(State(app): Shared) -> Json<Value> {
    Json(json!({"weight_version": app.engine.weight_label()}))
}

async fn update_weight_version(State(app): Shared, Json(body): Json<Value>) -> Response {
    let Some(label) = label(body.get("new_version")) else {
        return success(Err(Refusal::bad("new_version: a string is needed")));
    };
    app.engine.name_weights(label.clone());
    let message = format!("Weight version updated to {label}");
    Json(json!({"success": true, "message": message, "new_version": label})).into_response()
}

#[derive(Debug, Default, Deserialize)]
struct PauseBody {
    mode: Option<String>,
}

async fn pause(State(app): Shared, body: Option<Json<PauseBody>>) -> Response {
    let mode = body.and_then(|Json(body)| body.mode);
    match mode.as_deref().unwrap_or("abort") {
        "abort" => app.engine.pause_abort(false),
        "retract" => app.engine.pause_retract(),
        "in_place" => app.engine.pause_in_place(),
        other => {
            let message = format!("mode must be abort, retract or in_place, not {other:?}");
            return refuse_plain(&Refusal::bad(message));
        }
    }
    Json(json!({"message": "Generation paused successfully.", "status": "ok"})).into_response()
}

async fn resume(State(app): Shared) -> Response {
    match app.engine.resume() {
        Ok(()) => {
            let message = "Generation continued successfully.";
            Json(json!({"message": message, "status": "ok"})).into_response()
        }
        Err(refusal) => refuse_plain(&refusal),
    }
}

async fn flush_cache(State(app): Shared) -> Response {
    match app.engine.flush() {
        Ok(()) => (StatusCode::OK, "Cache flushed.\n").into_response(),
        Err(refusal) => (StatusCode::BAD_REQUEST, refusal.message).into_response(),
    }
}

#[derive(Debug, Default, Deserialize)]
struct AbortBody {
    #[serde(default)]
    rid: Option<String>,
    #[serde(default)]
    abort_all: bool,
}

/// SGLang aborts all ids that begin with `rid`.
async fn abort_request(State(app): Shared, Json(body): Json<AbortBody>) -> Response {
    match body.rid.filter(|rid| !rid.is_empty()) {
        _ if body.abort_all => app.engine.abort_all(),
        Some(rid) => app.engine.abort_ids(&[rid], true),
        None => return refuse_plain(&Refusal::bad("rid or abort_all is needed")),
    };
    StatusCode::OK.into_response()
}

#[derive(Debug, Default, Deserialize)]
struct TagsBody {
    #[serde(default)]
    tags: Option<Vec<String>>,
}

fn tags(body: Option<Json<TagsBody>>) -> SleepRequest {
    let tags = body.and_then(|Json(body)| body.tags);
    let has = |tag: &str| tags.as_ref().is_none_or(|tags| tags.iter().any(|have| have == tag));
    SleepRequest { weights: has("weights"), kv: has("kv_cache"), ..SleepRequest::default() }
}

async fn release(State(app): Shared, body: Option<Json<TagsBody>>) -> Response {
    tokio::time::sleep(app.engine.config.latency.sleep).await;
    match app.engine.release(tags(body)) {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => refuse_plain(&refusal),
    }
}

async fn occupy(State(app): Shared, body: Option<Json<TagsBody>>) -> Response {
    tokio::time::sleep(app.engine.config.latency.sleep).await;
    app.engine.wake_up(tags(body));
    StatusCode::OK.into_response()
}

async fn loads(State(app): Shared) -> Json<Value> {
    let load = app.engine.load();
    let capacity = &app.engine.config.capacity;
    let usage = if capacity.kv_tokens == 0 {
        0.0
    } else {
        load.used_tokens as f64 / capacity.kv_tokens as f64
    };
    let total = load.running + load.waiting;
    Json(json!({
        "timestamp": super::answer::unix_seconds(), "version": "0-engine-sim", "dp_rank_count": 1,
        "loads": [{
            "dp_rank": 0, "num_running_reqs": load.running, "num_waiting_reqs": load.waiting,
            "num_total_reqs": total, "num_used_tokens": load.used_tokens,
            "max_total_num_tokens": capacity.kv_tokens, "token_usage": usage,
            "max_running_requests": capacity.slots,
        }],
        "aggregate": {
            "total_running_reqs": load.running, "total_waiting_reqs": load.waiting,
            "total_reqs": total, "avg_token_usage": usage,
        },
    }))
}
