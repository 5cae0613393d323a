//! The routes, by dialect.

mod answer;
mod generate;
mod handover;
mod metrics;
mod openai;
mod pooling;
mod refusal;
mod sglang;
mod sim;
mod stream;
mod tokenize;
mod vllm;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

use crate::config::Dialect;
use crate::connection::Connections;
use crate::engine::Engine;
use crate::fast;
use crate::fault::{self, Faults};
use crate::ledger::CallRecord;

/// The longest body that is read: a context of token ids with room to spare.
const BODY_LIMIT: usize = 64 << 20;

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Arc<Engine>,
    pub(crate) faults: Faults,
    pub(crate) connections: Connections,
    next_id: AtomicU64,
}

type Shared = State<Arc<App>>;

impl App {
    pub(crate) fn new(engine: Arc<Engine>, connections: Connections) -> Arc<Self> {
        Arc::new(Self {
            engine,
            faults: Faults::default(),
            connections,
            next_id: AtomicU64::new(0),
        })
    }

    /// The id of an answer, from the client's where there is one.
    fn id(&self, prefix: &str, rid: Option<&str>) -> String {
        match rid {
            Some(rid) => format!("{prefix}{rid}"),
            None => format!("{prefix}sim-{:08x}", self.next_id.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// All routes of the dialect, and `/sim`.
pub(crate) fn router(app: Arc<App>) -> Router {
    let config = &app.engine.config;
    let (native, admin) = match config.dialect {
        Dialect::Vllm => {
            let plain = vllm::routes().merge(tokenize::routes()).merge(pooling::routes());
            (pooling::guarded_routes(), plain)
        }
        Dialect::Sglang => {
            let native = Router::new()
                .route("/generate", post(generate::generate))
                .route("/classify", post(pooling::classify));
            (native, sglang::routes())
        }
        Dialect::OpenAi => (Router::new(), sglang::reload_route()),
    };
    // In fast mode no layer stands before the generation routes.
    let (slow, fast) = if let Some(fast) = config.fast {
        (Router::new(), fast::routes(config, fast))
    } else {
        let openai = Router::new()
            .route("/v1/chat/completions", post(openai::chat))
            .route("/v1/completions", post(openai::completions));
        (openai.merge(native), Router::new())
    };
    let guarded = slow
        .route("/v1/models", get(models))
        .layer(from_fn_with_state(Arc::clone(&app), authorize));
    let plain = Router::new()
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/metrics", get(metrics::metrics));
    Router::new()
        .merge(guarded)
        .merge(admin.merge(plain))
        .layer(from_fn_with_state(Arc::clone(&app), fault::inject))
        .layer(from_fn_with_state(Arc::clone(&app), record))
        .merge(sim::routes())
        .merge(fast)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(app)
}

/// `--api-key` guards the generation routes and no others.
async fn authorize(State(app): Shared, request: Request, next: Next) -> Response {
    if let Some(key) = &app.engine.config.api_key {
        let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        if given.and_then(|value| value.strip_prefix("Bearer ")) != Some(key) {
            return (StatusCode::UNAUTHORIZED, Json(json!({"error": "Unauthorized"})))
                .into_response();
        }
    }
    next.run(request).await
}

/// Keeps the calls that ask the model nothing, in order.
async fn record(State(app): Shared, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let generates = path.ends_with("/completions") || path == "/generate";
    if generates || pooling::is_asked(path) || path == "/health" || path == "/metrics" {
        return next.run(request).await;
    }
    let (method, uri) = (request.method().to_string(), request.uri().to_string());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    app.engine.lock().ledger.call(CallRecord { method, uri, status });
    response
}

async fn models(State(app): Shared) -> Response {
    let config = &app.engine.config;
    Json(json!({"object": "list", "data": [{
        "id": config.model, "object": "model", "created": 0, "owned_by": "engine-sim",
        "root": config.model, "parent": null, "max_model_len": config.capacity.longest(),
    }]}))
    .into_response()
}

/// The trajectory of a request, by the headers that routers use.
fn header<'a>(headers: &'a HeaderMap, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| headers.get(*name)?.to_str().ok())
}

const TRAJECTORY_HEADERS: [&str; 4] =
    ["x-rollwright-trajectory", "x-smg-routing-key", "x-session-id", "x-dynamo-session-id"];
