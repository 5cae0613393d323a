//! `/metrics`, `/healthz` and `/readyz`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use rollwright_auth::{MetricsError, MetricsListen};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Serves until `stop`. `token_file` holds what readers of metrics send; a loopback address does
/// without.
pub(crate) async fn serve(
    addr: SocketAddr,
    token_file: Option<PathBuf>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()>, MetricsError> {
    let listener = MetricsListen { addr, token_file }.bind().await?;
    // A standby replica is healthy and ready: it takes over when the other ends.
    let probes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ok\n" }));
    Ok(listener.serve(move || metrics.render(), probes, stop.cancelled_owned()))
}
