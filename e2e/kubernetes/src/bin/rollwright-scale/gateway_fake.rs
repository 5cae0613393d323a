//! A FAKE of the jobs' gateways: one process answers at the addresses of all of them, and says
//! that every worker serves. What a gateway costs is measured elsewhere; here the controllers
//! are to have somebody who answers.

use anyhow::Context as _;
use axum::routing::{get, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Where the controllers look for a gateway.
const PORT: u16 = 9470;

/// Answers at every address of this network namespace, from now on.
pub(crate) async fn answer() -> anyhow::Result<JoinHandle<()>> {
    let router = Router::new()
        .route("/rollout/v1/workers", put(workers))
        .route("/rollout/v1/status", get(status));
    let listener =
        TcpListener::bind(("0.0.0.0", PORT)).await.context("the fake of the gateways")?;
    Ok(tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            eprintln!("the fake of the gateways ended: {error}");
        }
    }))
}

/// Workers serve from the moment they are known, and are drained at once.
async fn workers(Json(wished): Json<Value>) -> Json<Value> {
    let wished = wished["workers"].as_array().cloned().unwrap_or_default();
    let state = |worker: &Value| {
        let state = if worker["drain"] == true { "drained" } else { "serving" };
        json!({"name": worker["name"], "state": state, "in_flight": 0, "version": 0})
    };
    Json(json!({"workers": wished.iter().map(state).collect::<Vec<_>>()}))
}

/// Nothing is rolled out.
async fn status() -> Json<Value> {
    Json(json!({"version": 0, "buffer": {"trajectories": 0}}))
}
