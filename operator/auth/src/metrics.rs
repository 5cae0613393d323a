//! `/metrics`: on a loopback address, or for the holders of a token.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing::get};
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;

/// Where metrics and health are served.
#[derive(Debug, Clone)]
pub struct MetricsListen {
    /// Address and port.
    pub addr: SocketAddr,
    /// File with a bearer token; needed unless the address is a loopback one.
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
    /// The address cannot be had.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// A bound listener, and what its readers must know.
#[derive(Debug)]
pub struct MetricsListener {
    listener: TcpListener,
    token: Option<String>,
}

impl MetricsListen {
    /// Reads the token and binds.
    pub async fn bind(&self) -> Result<MetricsListener, MetricsError> {
        let token = match &self.token_file {
            Some(path) => {
                let read = std::fs::read_to_string(path);
                let text =
                    read.map_err(|source| MetricsError::Token { path: path.clone(), source })?;
                Some(text.trim().to_owned()).filter(|token| !token.is_empty())
            }
            None => None,
        };
        let addr = self.addr;
        if !addr.ip().is_loopback() && token.is_none() {
            return Err(MetricsError::NoToken(addr));
        }
        let bound = TcpListener::bind(addr).await;
        let listener = bound.map_err(|source| MetricsError::Bind { addr, source })?;
        Ok(MetricsListener { listener, token })
    }
}

impl MetricsListener {
    /// The address, with the port that was taken.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// The listener, and routes with `/metrics` as `render` makes it: the Prometheus text
    /// format, or why there is none.
    pub fn routes<E: ToString + 'static>(
        self,
        render: impl Fn() -> Result<Vec<u8>, E> + Clone + Send + Sync + 'static,
    ) -> (TcpListener, Router) {
        let answer = async move || match render() {
            Ok(text) => {
                ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        };
        let routes = Router::new()
            .route("/metrics", get(answer))
            .layer(middleware::from_fn_with_state(Arc::new(self.token), guard));
        (self.listener, routes)
    }
}

async fn guard(State(token): State<Arc<Option<String>>>, request: Request, next: Next) -> Response {
    if let Some(token) = token.as_ref() {
        let header = request.headers().get(header::AUTHORIZATION);
        let given = header.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        if !given.is_some_and(|given| bool::from(given.ct_eq(token.as_bytes()))) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
    }
    next.run(request).await
}
