//! A **test server** in the place of a program of one's own, which `ask: Reward` asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::rejection::JsonRejection;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What it reads of a trajectory.
#[derive(Debug, Deserialize)]
pub struct Subject {
    token_ids: Vec<u32>,
    loss_mask: Vec<u8>,
    turns: u32,
}

impl Subject {
    /// The mean of the generated tokens' ids, and a thousandth for each turn. `None`: nothing was
    /// generated.
    pub fn reward(&self) -> Option<f64> {
        let ids = self.token_ids.iter().zip(&self.loss_mask);
        let generated: Vec<f64> =
            ids.filter(|(_, mask)| **mask == 1).map(|(id, _)| f64::from(*id)).collect();
        let mean = generated.iter().sum::<f64>() / generated.len() as f64;
        (!generated.is_empty()).then(|| mean + f64::from(self.turns) / 1000.0)
    }
}

/// Serves without end: `POST /reward`, and what an agent needs to move it, by vLLM's routes.
pub async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let asleep = Arc::new(AtomicBool::new(false));
    let told = |to: bool| {
        async move |State(asleep): State<Arc<AtomicBool>>| {
            asleep.store(to, Ordering::SeqCst);
        }
    };
    let says = async |State(asleep): State<Arc<AtomicBool>>| {
        Json(json!({"is_sleeping": asleep.load(Ordering::SeqCst)}))
    };
    let router = Router::new()
        .route("/reward", post(reward))
        .route_layer(from_fn_with_state(Arc::clone(&asleep), awake))
        .route("/health", get(async || StatusCode::OK))
        .route("/sleep", post(told(true)))
        .route("/wake_up", post(told(false)))
        .route("/is_sleeping", get(says))
        .with_state(asleep);
    axum::serve(listener, router).await
}

/// It has no weights while it sleeps.
async fn awake(State(asleep): State<Arc<AtomicBool>>, request: Request, next: Next) -> Response {
    if asleep.load(Ordering::SeqCst) {
        return said(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": "it sleeps"}));
    }
    next.run(request).await
}

async fn reward(subject: Result<Json<Subject>, JsonRejection>) -> Response {
    match subject {
        Err(why) => said(why.status(), &json!({"error": why.body_text()})),
        Ok(Json(subject)) => match subject.reward() {
            Some(reward) => said(StatusCode::OK, &json!({"reward": reward})),
            None => said(StatusCode::BAD_REQUEST, &json!({"error": "nothing was generated"})),
        },
    }
}

fn said(status: StatusCode, body: &Value) -> Response {
    (status, Json(body)).into_response()
}
