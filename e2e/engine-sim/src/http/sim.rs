//! `/sim`: what only a simulator has. No engine has these routes.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::refusal::refuse_plain;
use super::{App, Shared};
use crate::connection::Connection;
use crate::engine::Refusal;
use crate::fault::Fault;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sim/state", get(state))
        .route("/sim/requests", get(requests))
        .route("/sim/calls", get(calls))
        .route("/sim/violations", get(violations))
        .route("/sim/faults", post(add_fault).get(faults).delete(clear_faults))
        .route("/sim/restart", post(restart))
}

async fn state(State(app): Shared) -> Json<Value> {
    let load = app.engine.load();
    Json(json!({
        "simulator": "engine-sim", "version": app.engine.version(),
        "weight_version": app.engine.weight_label(), "paused": app.engine.paused(),
        "asleep": app.engine.asleep(), "running": load.running, "waiting": load.waiting,
        "used_tokens": load.used_tokens,
    }))
}

async fn requests(State(app): Shared) -> Json<Value> {
    Json(json!({"requests": app.engine.lock().ledger.requests()}))
}

async fn calls(State(app): Shared) -> Json<Value> {
    Json(json!({"calls": app.engine.lock().ledger.calls()}))
}

async fn violations(State(app): Shared) -> Json<Value> {
    let state = app.engine.lock();
    Json(json!({"violations": state.ledger.violations(), "counts": state.ledger.counts()}))
}

async fn add_fault(State(app): Shared, fault: Result<Json<Fault>, JsonRejection>) -> Response {
    let added =
        fault.map_err(|error| error.body_text()).and_then(|Json(fault)| app.faults.add(fault));
    match added {
        Ok(()) => (StatusCode::CREATED, Json(json!({"faults": app.faults.list()}))).into_response(),
        Err(message) => refuse_plain(&Refusal::bad(message)),
    }
}

async fn faults(State(app): Shared) -> Json<Value> {
    Json(json!({"faults": app.faults.list()}))
}

async fn clear_faults(State(app): Shared) -> Json<Value> {
    app.faults.clear();
    Json(json!({"faults": []}))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Restart {
    version: Option<u64>,
}

/// All other connections are reset; nothing that ran is answered.
async fn restart(
    State(app): Shared,
    ConnectInfo(connection): ConnectInfo<Connection>,
    body: Option<Json<Restart>>,
) -> Json<Value> {
    let version = body.and_then(|Json(body)| body.version).unwrap_or(app.engine.config.version);
    app.engine.restart(version);
    app.connections.reset_all(Some(&connection));
    Json(json!({"version": version}))
}
