//! SGLang's native `/generate`. A stream is cumulative: each event holds all so far.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{ids, whole_text};
use super::handover::{self, Bootstrap};
use super::openai::{OneOrMany, check_ids};
use super::refusal::refuse_plain;
use super::stream::{event, event_stream, failed};
use super::{App, Shared, TRAJECTORY_HEADERS, header};
use crate::engine::{Finish, Generated, Generation, Handover, Refusal, Request};
use crate::policy::logprobs_of;
use crate::text::TextStream;
use crate::tokenizer::{Token, Tokenizer};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Body {
    text: Option<String>,
    input_ids: Option<Vec<Token>>,
    sampling_params: Option<SamplingParams>,
    stream: Option<bool>,
    rid: Option<String>,
    return_logprob: Option<bool>,
    logprob_start_len: Option<i64>,
    priority: Option<i64>,
    #[serde(flatten)]
    bootstrap: Bootstrap,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SamplingParams {
    max_new_tokens: Option<usize>,
    min_new_tokens: Option<usize>,
    stop: Option<OneOrMany>,
    stop_token_ids: Option<Vec<Token>>,
    ignore_eos: Option<bool>,
    no_stop_trim: Option<bool>,
    sampling_seed: Option<i64>,
}

/// How the answer is to look.
#[derive(Debug, Clone)]
struct Shape {
    id: String,
    prompt: usize,
    logprobs: bool,
    /// The prompt's tokens that log-probs are wanted of, and those.
    scored: Vec<(Token, Option<f64>)>,
    stops: Vec<String>,
    no_trim: bool,
}

pub(super) async fn generate(
    State(app): Shared,
    headers: HeaderMap,
    body: Result<Json<Body>, JsonRejection>,
) -> Response {
    let begun = body
        .map_err(|error| Refusal::bad(error.body_text()))
        .and_then(|Json(body)| begin(&app, &headers, body));
    let (shape, generation, streamed) = match begun {
        Ok(begun) => begun,
        Err(refusal) => return refuse_plain(&refusal),
    };
    if !streamed {
        let (tokens, finish, cached) = generation.all().await;
        if finish == Finish::Failed {
            return refuse_plain(&Refusal::handover());
        }
        let label = app.engine.weight_label();
        return Json(output(&shape, &tokens, Some(finish), cached, &label)).into_response();
    }
    let state = Some((generation, Vec::new(), shape));
    let events = stream::unfold(state, move |state| {
        let app = app.clone();
        async move {
            let (mut generation, mut tokens, shape) = state?;
            let (new, finish) = generation.next().await;
            if finish == Some(Finish::Failed) {
                return Some((failed(), None));
            }
            tokens.extend(new);
            let label = app.engine.weight_label();
            let body = output(&shape, &tokens, finish, generation.cached(), &label);
            let mut bytes = event(&body);
            if finish.is_some() {
                bytes = Bytes::from([bytes.as_ref(), b"data: [DONE]\n\n"].concat());
            }
            Some((bytes, finish.is_none().then_some((generation, tokens, shape))))
        }
    });
    event_stream(events)
}

fn begin(app: &App, headers: &HeaderMap, body: Body) -> Result<(Shape, Generation, bool), Refusal> {
    let config = &app.engine.config;
    let prompt = match (body.input_ids, body.text) {
        (Some(ids), None) => ids,
        (None, Some(text)) => Tokenizer.encode(&text),
        _ => return Err(Refusal::bad("Either text or input_ids must be provided, not both.")),
    };
    check_ids(&prompt)?;
    let params = body.sampling_params.unwrap_or_default();
    let stops = params.stop.map(OneOrMany::list).unwrap_or_default();
    let priority = body.priority.unwrap_or(0);
    // SGLang says those of the prompt from here on; by default of none.
    let from = usize::try_from(body.logprob_start_len.unwrap_or(-1)).unwrap_or(prompt.len());
    let logprobs = logprobs_of(&prompt, app.engine.version());
    let shape = Shape {
        id: app.id("", body.rid.as_deref()),
        prompt: prompt.len(),
        scored: prompt.iter().copied().zip(logprobs).skip(from).collect(),
        logprobs: body.return_logprob == Some(true),
        stops: stops.clone(),
        no_trim: params.no_stop_trim == Some(true),
    };
    let room = config.capacity.longest().saturating_sub(prompt.len());
    let handover = handover::of_sglang(app, body.bootstrap)?;
    let gives = matches!(handover, Handover::Give { .. });
    let most = if gives { 1 } else { params.max_new_tokens.unwrap_or(128) };
    let request = Request {
        id: shape.id.clone(),
        rid: body.rid,
        path: "/generate",
        trajectory: header(headers, &TRAJECTORY_HEADERS).map(Into::into),
        task: header(headers, &["x-rollwright-task"]).map(Into::into),
        prompt,
        max_tokens: most.clamp(1, room.max(1)),
        min_tokens: params.min_new_tokens.unwrap_or(0),
        ignore_end: params.ignore_eos == Some(true),
        stop: stops,
        stop_tokens: params.stop_token_ids.unwrap_or_default(),
        seed: params.sampling_seed.unwrap_or(0).cast_unsigned(),
        priority,
        // Higher is earlier in SGLang.
        rank: -priority,
        handover,
    };
    Ok((shape, app.engine.submit(request)?, body.stream == Some(true)))
}

fn output(
    shape: &Shape,
    tokens: &[Generated],
    finish: Option<Finish>,
    cached: usize,
    label: &str,
) -> Value {
    let text = TextStream::new(shape.stops.clone(), shape.no_trim, false);
    let finish_reason = finish.map(|finish| match finish {
        Finish::End(token) => json!({"type": "stop", "matched": token}),
        Finish::StopString(index) => json!({"type": "stop", "matched": shape.stops.get(index)}),
        Finish::Length => json!({"type": "length", "length": tokens.len()}),
        Finish::Abort | Finish::Failed => {
            json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null})
        }
    });
    let mut meta = json!({
        "id": shape.id, "finish_reason": finish_reason, "prompt_tokens": shape.prompt,
        "completion_tokens": tokens.len(), "cached_tokens": cached, "weight_version": label,
    });
    if shape.logprobs {
        let logprobs: Vec<Value> = tokens
            .iter()
            .map(|generated| json!([generated.logprob, generated.token, null]))
            .collect();
        let scored = shape.scored.iter().map(|(token, logprob)| json!([logprob, token, null]));
        meta["input_token_logprobs"] = scored.collect::<Vec<_>>().into();
        meta["output_token_logprobs"] = logprobs.into();
    }
    json!({"text": whole_text(text, tokens, finish), "output_ids": ids(tokens), "meta_info": meta})
}
