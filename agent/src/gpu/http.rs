//! Small calls to an engine on this node: no TLS, no redirect, a bounded reply.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Bytes of a reply taken at most.
const MOST: usize = 64 << 10;
/// Characters of a refusal shown.
const SHOWN: usize = 200;

/// A client of engines.
#[derive(Debug, Clone)]
pub(super) struct Http(Client<HttpConnector, Full<Bytes>>);

impl Default for Http {
    fn default() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }
}

impl Http {
    /// The reply of a `GET`, as JSON where it is.
    pub(super) async fn get(&self, url: &str) -> Result<Value, String> {
        self.send(axum::http::Method::GET, url, None).await
    }

    /// The reply of a `POST`, as JSON where it is.
    pub(super) async fn post(&self, url: &str, body: Option<Value>) -> Result<Value, String> {
        self.send(axum::http::Method::POST, url, body).await
    }

    async fn send(
        &self,
        method: axum::http::Method,
        url: &str,
        body: Option<Value>,
    ) -> Result<Value, String> {
        let request = axum::http::Request::builder().method(method).uri(url);
        let request = match body {
            Some(body) => request
                .header("content-type", "application/json")
                .body(Full::new(Bytes::from(body.to_string()))),
            None => request.body(Full::default()),
        };
        let request = request.map_err(|error| format!("{url} is no address: {error}"))?;
        let reply = self.0.request(request).await;
        let reply = reply.map_err(|error| format!("{url} did not answer: {error}"))?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), MOST).collect().await;
        let body = body.map_err(|error| format!("{url} broke off its answer: {error}"))?.to_bytes();
        if status.is_success() {
            return Ok(serde_json::from_slice(&body).unwrap_or(Value::Null));
        }
        let text: String = String::from_utf8_lossy(&body).chars().take(SHOWN).collect();
        Err(format!("{url} answered {}: {text}", status.as_u16()))
    }
}
