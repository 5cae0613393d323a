//! `/metrics`, `/healthz` and `/readyz`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// What the routes read.
#[derive(Clone)]
struct Served {
    metrics: Arc<Metrics>,
    token: Option<PathBuf>,
}

/// Why there is no metrics endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address would show metrics to everybody.
    #[error("metrics on {0} need --metrics-token-file; only a loopback address does without")]
    NoToken(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr} for metrics: {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Serves until `stop`.
pub(crate) async fn serve(
    addr: SocketAddr,
    token: Option<PathBuf>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()>, ServeError> {
    if token.is_none() && !addr.ip().is_loopback() {
        return Err(ServeError::NoToken(addr));
    }
    let listener =
        TcpListener::bind(addr).await.map_err(|source| ServeError::Listen { addr, source })?;
    let router = Router::new()
        .route("/metrics", get(scrape))
        // A standby replica is healthy and ready: it takes over when the other ends.
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ok\n" }))
        .with_state(Served { metrics, token });
    Ok(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = served.await {
            tracing::error!(%error, "the metrics endpoint ended");
        }
    })
}

async fn scrape(State(served): State<Served>, headers: HeaderMap) -> Response {
    if let Some(path) = &served.token
        && !is_bearer(path, &headers).await
    {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "send the token of /metrics\n")
            .into_response();
    }
    match served.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Whether the request carries the token that the file holds now. An empty file lets nobody in.
async fn is_bearer(path: &Path, headers: &HeaderMap) -> bool {
    let Ok(token) = tokio::fs::read(path).await else { return false };
    let token = token.trim_ascii();
    let sent = headers.get(header::AUTHORIZATION).map(axum::http::HeaderValue::as_bytes);
    let Some(sent) = sent.and_then(|value| value.strip_prefix(b"Bearer ")) else { return false };
    !token.is_empty() && bool::from(Sha256::digest(token).ct_eq(&Sha256::digest(sent)))
}
