//! `/metrics`: on a loopback address, or for the holders of a token.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing::get};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

use crate::keys;
use crate::reload::Reloading;

/// Connections at once. The oldest makes way: a scraper dials again, and who holds many open does
/// not keep the kubelet's probes out.
pub const MOST_CONNECTIONS: usize = 64;
/// Longest wait for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// After a failed accept (no file descriptors left, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where metrics and health are served.
#[derive(Debug, Clone)]
pub struct MetricsListen {
    /// Address and port.
    pub addr: SocketAddr,
    /// File with a bearer token, or `sha256:` and the 64 hexadecimal digits of its SHA-256; read
    /// again when it changes. Needed unless the address is a loopback one.
    pub token_file: Option<PathBuf>,
}

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Metrics for everybody.
    #[error("metrics on {0} could be read by everybody: give a token file, or a loopback address")]
    NoToken(SocketAddr),
    /// The token cannot be read.
    #[error("cannot read {path}: {source}")]
    Token {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What was read is none.
    #[error(
        "{0} holds no token: write one, or `sha256:` and the 64 hexadecimal digits of its SHA-256"
    )]
    NotToken(PathBuf),
    /// The address cannot be had.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// The SHA-256 of the token that readers send.
type Token = Reloading<[u8; 32]>;

/// A bound listener, and what its readers must know.
#[derive(Debug)]
pub struct MetricsListener {
    listener: TcpListener,
    token: Option<Token>,
}

impl MetricsListen {
    /// Reads the token and binds.
    pub async fn bind(&self) -> Result<MetricsListener, MetricsError> {
        let token = self.token_file.as_ref().map(|path| {
            let file = path.clone();
            let read = move || read(&file);
            Reloading::open("metrics token", vec![path.clone()], read, SystemTime::now())
        });
        let (token, addr) = (token.transpose()?, self.addr);
        if !addr.ip().is_loopback() && token.is_none() {
            return Err(MetricsError::NoToken(addr));
        }
        let bound = TcpListener::bind(addr).await;
        let listener = bound.map_err(|source| MetricsError::Bind { addr, source })?;
        Ok(MetricsListener { listener, token })
    }
}

fn read(path: &Path) -> Result<[u8; 32], MetricsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| MetricsError::Token { path: path.into(), source })?;
    let written = Some(text.trim()).filter(|text| !text.is_empty());
    written.and_then(keys::hash).ok_or_else(|| MetricsError::NotToken(path.into()))
}

impl MetricsListener {
    /// The address, with the port that was taken.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves `/metrics` as `render` makes it (the Prometheus text format, or why there is none),
    /// and `probes` for everybody, until `stop`.
    pub async fn serve<E: ToString + 'static>(
        self,
        render: impl Fn() -> Result<Vec<u8>, E> + Clone + Send + Sync + 'static,
        probes: Router,
        stop: impl Future<Output = ()>,
    ) {
        let answer = async move || match render() {
            Ok(text) => {
                ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        };
        let routes = Router::new()
            .route("/metrics", get(answer))
            .layer(middleware::from_fn_with_state(Arc::new(self.token), guard))
            .merge(probes);
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD);
        // Dropping it ends them.
        let mut connections = JoinSet::new();
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => return,
                accepted = self.listener.accept() => accepted,
            };
            while connections.try_join_next().is_some() {}
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a reader of metrics cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            open.retain(|connection| !connection.is_finished());
            if open.len() >= MOST_CONNECTIONS
                && let Some(oldest) = open.pop_front()
            {
                oldest.abort();
            }
            let service = TowerToHyperService::new(routes.clone());
            let connection = http.serve_connection(TokioIo::new(stream), service);
            open.push_back(connections.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a reader of metrics is gone");
                }
            }));
        }
    }
}

async fn guard(State(token): State<Arc<Option<Token>>>, request: Request, next: Next) -> Response {
    if let Some(token) = token.as_ref() {
        let header = request.headers().get(header::AUTHORIZATION);
        let given = header.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let wanted = token.get(SystemTime::now());
        let is = |given| bool::from(Sha256::digest(given).as_slice().ct_eq(&wanted[..]));
        if !given.is_some_and(is) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
    }
    next.run(request).await
}
