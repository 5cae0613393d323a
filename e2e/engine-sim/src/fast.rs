//! The fixed reply of benchmarks: what a proxy costs is measured, not what a model does.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use futures::stream;
use serde::Deserialize;
use serde_json::json;

use crate::config::{Config, Fast};
use axum::body::Body;
use std::convert::Infallible;

/// The reply, rendered once.
#[derive(Debug)]
struct Replies {
    whole: Bytes,
    first: Bytes,
    token: Bytes,
    last: Bytes,
    /// All events, for a stream without intervals.
    stream: Bytes,
    tokens: usize,
    interval: Duration,
}

/// The generation routes that answer at once.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(config: &Config, fast: Fast) -> Router<S> {
    let replies = Arc::new(Replies::new(&config.model, fast));
    let handler = move |body: Bytes| {
        let replies = Arc::clone(&replies);
        async move { reply(replies, &body) }
    };
    Router::new()
        .route("/v1/chat/completions", post(handler.clone()))
        .route("/v1/completions", post(handler.clone()))
        .route("/generate", post(handler))
}

#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    stream: bool,
}

fn reply(replies: Arc<Replies>, body: &[u8]) -> Response {
    let streamed = serde_json::from_slice::<Asked>(body).is_ok_and(|asked| asked.stream);
    if !streamed {
        return ([(CONTENT_TYPE, "application/json")], replies.whole.clone()).into_response();
    }
    let body = if replies.interval.is_zero() {
        Body::from(replies.stream.clone())
    } else {
        Body::from_stream(stream::unfold((replies, 0), |(replies, at)| async move {
            let event = match at {
                0 => replies.first.clone(),
                at if at <= replies.tokens => {
                    tokio::time::sleep(replies.interval).await;
                    replies.token.clone()
                }
                at if at == replies.tokens + 1 => replies.last.clone(),
                _ => return None,
            };
            Some((Ok::<_, Infallible>(event), (replies, at + 1)))
        }))
    };
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
}

impl Replies {
    fn new(model: &str, fast: Fast) -> Self {
        let whole = json!({
            "id": "chatcmpl-fast", "object": "chat.completion", "created": 0, "model": model,
            "choices": [{
                "index": 0, "finish_reason": "stop", "logprobs": null,
                "message": {"role": "assistant", "content": "x".repeat(fast.reply_bytes)},
            }],
            "usage": {"prompt_tokens": 1, "completion_tokens": fast.reply_bytes,
                      "total_tokens": fast.reply_bytes + 1},
        });
        let chunk = |delta: serde_json::Value, finish: Option<&str>| {
            let body = json!({
                "id": "chatcmpl-fast", "object": "chat.completion.chunk", "created": 0, "model": model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            });
            format!("data: {body}\n\n")
        };
        let first = chunk(json!({"role": "assistant", "content": ""}), None);
        let token = chunk(json!({"content": "x"}), None);
        let last = chunk(json!({}), Some("stop")) + "data: [DONE]\n\n";
        let stream = first.clone() + &token.repeat(fast.stream_tokens) + &last;
        Self {
            whole: whole.to_string().into(),
            first: first.into(),
            token: token.into(),
            last: last.into(),
            stream: stream.into(),
            tokens: fast.stream_tokens,
            interval: fast.stream_interval,
        }
    }
}
