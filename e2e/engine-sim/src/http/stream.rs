//! Server-sent events of the OpenAI routes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt, select_all};
use serde_json::{Map, Value, json};

use super::answer::{envelope, finish_reason, ids, logprobs, stop_reason, tool_calls, usage};
use super::openai::{Api, Shape};
use crate::engine::{Finish, Generated, Generation, Refusal};
use crate::text::TextStream;

/// One choice as it is streamed.
struct Choice {
    shape: Arc<Shape>,
    index: usize,
    generation: Generation,
    text: TextStream,
    begun: bool,
}

/// A chunk, and what it adds to the usage.
struct Chunk {
    event: Bytes,
    tokens: usize,
    cached: usize,
}

pub(super) fn respond(shape: Shape, generations: Vec<Generation>) -> Response {
    let shape = Arc::new(shape);
    let choices = generations.into_iter().enumerate().map(|(index, generation)| {
        let text = shape.text.clone();
        let choice = Choice { shape: Arc::clone(&shape), index, generation, text, begun: false };
        Box::pin(chunks(choice))
    });
    let chunks = select_all(choices.collect::<Vec<_>>());
    let state = Some((chunks, 0, 0));
    let events = stream::unfold(state, move |state| {
        let shape = Arc::clone(&shape);
        async move {
            let (mut chunks, tokens, cached) = state?;
            match chunks.next().await {
                Some(chunk) => {
                    let state = (chunks, tokens + chunk.tokens, chunk.cached);
                    Some((chunk.event, Some(state)))
                }
                None => Some((end(&shape, tokens, cached), None)),
            }
        }
    });
    event_stream(events)
}

/// A response of ready events.
pub(super) fn event_stream(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response()
}

/// One event.
pub(super) fn event(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}

/// The usage, if asked for, and the end mark.
fn end(shape: &Shape, tokens: usize, cached: usize) -> Bytes {
    let mut events = String::new();
    if shape.usage_at_end {
        let mut body = envelope(shape, object(shape));
        body.insert("choices".into(), json!([]));
        body.insert("usage".into(), usage(shape, tokens, cached));
        events = format!("data: {}\n\n", Value::Object(body));
    }
    events.push_str("data: [DONE]\n\n");
    events.into()
}

fn object(shape: &Shape) -> &'static str {
    if shape.api == Api::Chat { "chat.completion.chunk" } else { "text_completion" }
}

/// The chunks of a choice: for chat, first one with the role, which vLLM sends as well only
/// when there is a token to follow.
fn chunks(choice: Choice) -> impl Stream<Item = Chunk> {
    stream::unfold(Some((choice, None)), |state| async move {
        let (mut choice, made) = state?;
        let (tokens, finish) = match made {
            Some(made) => made,
            None => choice.generation.next().await,
        };
        if finish == Some(Finish::Failed) {
            return Some((Chunk { event: failed(), tokens: 0, cached: 0 }, None));
        }
        if choice.shape.api == Api::Chat && !choice.begun {
            choice.begun = true;
            let chunk = Chunk { event: role(&choice), tokens: 0, cached: 0 };
            return Some((chunk, Some((choice, Some((tokens, finish))))));
        }
        let event = piece(&mut choice, &tokens, finish);
        choice.begun = true;
        let chunk = Chunk { event, tokens: tokens.len(), cached: choice.generation.cached() };
        Some((chunk, finish.is_none().then_some((choice, None))))
    })
}

/// The end of a stream whose KV could not be handed over.
pub(super) fn failed() -> Bytes {
    let message = Refusal::handover().message;
    event(&json!({"error": {"message": message, "type": "InternalServerError", "code": 500}}))
}

fn role(choice: &Choice) -> Bytes {
    let shape = &choice.shape;
    let mut body = envelope(shape, object(shape));
    body.insert(
        "choices".into(),
        json!([{
            "index": choice.index, "delta": {"role": "assistant", "content": ""},
            "logprobs": null, "finish_reason": null,
        }]),
    );
    if shape.token_ids {
        body.insert("prompt_token_ids".into(), json!(shape.prompt));
    }
    event(&Value::Object(body))
}

fn piece(choice: &mut Choice, tokens: &[Generated], finish: Option<Finish>) -> Bytes {
    let shape = &choice.shape;
    let content = choice.text.push(tokens, finish);
    let calls = if finish.is_some() { choice.text.tool_calls() } else { Vec::new() };
    let mut entry = Map::new();
    entry.insert("index".into(), choice.index.into());
    if shape.api == Api::Chat {
        let mut delta = json!({"content": content});
        if !calls.is_empty() {
            delta["tool_calls"] = tool_calls(shape, choice.index, &calls, true);
        }
        entry.insert("delta".into(), delta);
    } else {
        entry.insert("text".into(), content.into());
    }
    entry.insert("logprobs".into(), logprobs(shape, tokens));
    let reason = finish.map(|f| if calls.is_empty() { finish_reason(f) } else { "tool_calls" });
    entry.insert("finish_reason".into(), json!(reason));
    if let Some(finish) = finish {
        stop_reason(shape, finish, &mut entry);
    }
    if shape.token_ids {
        entry.insert("token_ids".into(), ids(tokens).into());
        if shape.api == Api::Completions && !choice.begun {
            entry.insert("prompt_token_ids".into(), json!(shape.prompt));
        }
    }
    let mut body = envelope(shape, object(shape));
    body.insert("choices".into(), json!([entry]));
    event(&Value::Object(body))
}
