//! Requests that an engine is told to abort by their name.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderValue};

use super::Shard;
use super::exchange::{Outgoing, Payload, exchange};
use super::upload::Kept;
use crate::engine::endpoint::Endpoint;

/// Tells `SGLang` to abort a request, when dropped before its end: it does not always notice
/// that a connection was closed.
pub(super) struct AbortByName {
    shard: Arc<Shard>,
    endpoint: Arc<Endpoint>,
    rid: Option<String>,
}

impl AbortByName {
    /// Of the request `rid` at an engine.
    pub(super) fn new(shard: &Arc<Shard>, endpoint: &Arc<Endpoint>, rid: String) -> Self {
        Self { shard: Arc::clone(shard), endpoint: Arc::clone(endpoint), rid: Some(rid) }
    }

    /// The request has ended.
    pub(super) fn defuse(mut self) {
        self.rid = None;
    }
}

impl Drop for AbortByName {
    fn drop(&mut self) {
        let Some(rid) = self.rid.take() else { return };
        let (shard, endpoint) = (Arc::clone(&self.shard), Arc::clone(&self.endpoint));
        // Outside of a runtime the process is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut headers = http::HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let outgoing =
                Outgoing { method: Method::POST, target: "/abort_request".to_owned(), headers };
            let body = Bytes::from(serde_json::json!({ "rid": rid }).to_string());
            let mut payload = Payload::Kept(Kept::from(body));
            // A dead engine has aborted it in its own way.
            let _ = exchange(&shard, &endpoint, None, &outgoing, &mut payload).await;
        });
    }
}
