//! `/metrics` and `/healthz`: the only port that the agent listens on.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::docker::Engine;
use crate::metrics::Metrics;

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Token that a scraper must send; needed on any address but loopback.
    pub token: Option<String>,
}

/// Why the port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Everyone could read.
    #[error("{0} is not a loopback address: give --metrics-token-file, or listen on 127.0.0.1")]
    TokenNeeded(SocketAddr),
    /// The port is taken, or the like.
    #[error("cannot listen on {address} for metrics: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What the handlers read.
#[derive(Debug, Clone)]
struct Shared {
    metrics: Arc<Metrics>,
    engine: Engine,
    token: Option<Arc<str>>,
}

/// Listens, then serves until `shutdown`.
pub async fn serve(
    config: HttpConfig,
    metrics: Arc<Metrics>,
    engine: Engine,
    shutdown: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, HttpError> {
    let address = config.address;
    if !address.ip().is_loopback() && config.token.is_none() {
        return Err(HttpError::TokenNeeded(address));
    }
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| HttpError::Listen { address, source })?;
    let shared = Shared { metrics, engine, token: config.token.map(Into::into) };
    let protected = Router::new()
        .route("/metrics", get(metrics_text))
        .route_layer(middleware::from_fn_with_state(shared.clone(), authorise));
    let app = protected.route("/healthz", get(healthz)).with_state(shared);
    Ok(tokio::spawn(async move {
        let serving = axum::serve(listener, app).with_graceful_shutdown(shutdown.cancelled_owned());
        if let Err(error) = serving.await {
            tracing::error!(%error, "the metrics port stopped");
        }
    }))
}

async fn authorise(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let Some(token) = &shared.token else { return next.run(request).await };
    let sent = request.headers().get(header::AUTHORIZATION).map(axum::http::HeaderValue::as_bytes);
    let wanted = format!("Bearer {token}");
    if sent.is_some_and(|sent| same(sent, wanted.as_bytes())) {
        return next.run(request).await;
    }
    (StatusCode::UNAUTHORIZED, "send `Authorization: Bearer <token>`\n").into_response()
}

/// Compares without telling by its time where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}

async fn metrics_text(State(shared): State<Shared>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, shared.metrics.render()).into_response()
}

async fn healthz(State(shared): State<Shared>) -> Response {
    if shared.engine.ping().await {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the Docker engine does not answer\n").into_response()
}
