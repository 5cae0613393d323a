//! Answers in one piece, and the parts that streams share with them.

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures::future::join_all;
use serde_json::{Map, Value, json};

use super::App;
use super::openai::{Api, Shape};
use super::refusal::refuse;
use crate::config::Dialect;
use crate::engine::{Finish, Generated, Generation, Refusal};
use crate::text::{TextStream, ToolCall, token_name};
use crate::tokenizer::{Token, Tokenizer};

pub(super) async fn respond(app: &App, shape: &Shape, generations: Vec<Generation>) -> Response {
    let ended = join_all(generations.into_iter().map(Generation::all)).await;
    if ended.iter().any(|(_, finish, _)| *finish == Finish::Failed) {
        return refuse(shape.dialect, &Refusal::handover());
    }
    let cached = ended.first().map_or(0, |(_, _, cached)| *cached);
    let generated = ended.iter().map(|(tokens, _, _)| tokens.len()).sum();
    let mut choices: Vec<Value> = ended
        .iter()
        .enumerate()
        .map(|(index, (tokens, finish, _))| choice(shape, index, tokens, *finish))
        .collect();
    if let Some(known) = &shape.prompt_logprobs {
        let known = prompt_logprobs(&shape.prompt, known);
        for choice in &mut choices {
            choice["prompt_logprobs"] = known.clone();
        }
    }
    let mut body =
        envelope(shape, if shape.api == Api::Chat { "chat.completion" } else { "text_completion" });
    body.insert("choices".into(), choices.into());
    body.insert("usage".into(), usage(shape, generated, cached));
    if shape.token_ids && shape.api == Api::Chat {
        body.insert("prompt_token_ids".into(), json!(shape.prompt));
    }
    if shape.dialect == Dialect::Vllm {
        body.insert("kv_transfer_params".into(), app.engine.kept_params(&shape.id));
    }
    if shape.dialect == Dialect::Sglang {
        let metadata = json!({"weight_version": app.engine.weight_label()});
        body.insert("metadata".into(), metadata);
    }
    Json(Value::Object(body)).into_response()
}

/// What every answer and every chunk begins with.
pub(super) fn envelope(shape: &Shape, object: &str) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("id".into(), shape.id.clone().into());
    body.insert("object".into(), object.into());
    body.insert("created".into(), unix_seconds().into());
    body.insert("model".into(), shape.model.clone().into());
    body
}

fn choice(shape: &Shape, index: usize, tokens: &[Generated], finish: Finish) -> Value {
    let mut text = shape.text.clone();
    let content = text.push(tokens, Some(finish));
    let calls = text.tool_calls();
    let mut choice = Map::new();
    choice.insert("index".into(), index.into());
    if shape.api == Api::Chat {
        let content =
            if calls.is_empty() || !content.is_empty() { json!(content) } else { json!(null) };
        let mut message = json!({"role": "assistant", "content": content});
        if !calls.is_empty() {
            message["tool_calls"] = tool_calls(shape, index, &calls, false);
        }
        choice.insert("message".into(), message);
    } else {
        choice.insert("text".into(), content.into());
    }
    choice.insert("logprobs".into(), logprobs(shape, tokens));
    let reason = if calls.is_empty() { finish_reason(finish) } else { "tool_calls" };
    choice.insert("finish_reason".into(), reason.into());
    stop_reason(shape, finish, &mut choice);
    if shape.token_ids {
        choice.insert("token_ids".into(), ids(tokens).into());
        if shape.api == Api::Completions {
            choice.insert("prompt_token_ids".into(), json!(shape.prompt));
        }
    }
    Value::Object(choice)
}

pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End(_) | Finish::StopString(_) => "stop",
        Finish::Length => "length",
        Finish::Abort => "abort",
        Finish::Failed => "error",
    }
}

/// What stopped it: vLLM leaves out the end token, SGLang names it.
pub(super) fn stop_reason(shape: &Shape, finish: Finish, choice: &mut Map<String, Value>) {
    let stop = match finish {
        Finish::StopString(index) => json!(shape.text.stop(index)),
        Finish::End(token) if shape.dialect == Dialect::Sglang || token <= 255 => json!(token),
        _ => Value::Null,
    };
    let name = if shape.dialect == Dialect::Sglang { "matched_stop" } else { "stop_reason" };
    choice.insert(name.into(), stop);
}

pub(super) fn ids(tokens: &[Generated]) -> Vec<Token> {
    tokens.iter().map(|generated| generated.token).collect()
}

pub(super) fn logprobs(shape: &Shape, tokens: &[Generated]) -> Value {
    let Some(alternatives) = shape.logprobs else { return Value::Null };
    let name = |token| token_name(token, shape.names_as_ids);
    if shape.api == Api::Chat {
        let content: Vec<Value> = tokens
            .iter()
            .map(|generated| {
                let one = json!({
                    "token": name(generated.token), "logprob": generated.logprob,
                    "bytes": Tokenizer.decode(&[generated.token]).as_bytes(),
                });
                let mut entry = one.clone();
                let top = if alternatives > 0 { vec![one] } else { Vec::new() };
                entry["top_logprobs"] = top.into();
                entry
            })
            .collect();
        return json!({"content": content});
    }
    let names: Vec<String> = tokens.iter().map(|generated| name(generated.token)).collect();
    let top: Vec<Value> = names
        .iter()
        .zip(tokens)
        .map(|(name, generated)| json!({name.as_str(): generated.logprob}))
        .collect();
    let values: Vec<f64> = tokens.iter().map(|generated| generated.logprob).collect();
    let offsets: Vec<usize> = (0..tokens.len()).collect();
    json!({"tokens": names, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets})
}

/// A map for each token of the prompt, from ids to what is known: here of itself alone.
fn prompt_logprobs(prompt: &[Token], known: &[Option<f64>]) -> Value {
    let each = known.iter().zip(prompt).map(|(logprob, &token)| {
        let logprob = (*logprob)?;
        let decoded = token_name(token, false);
        Some(json!({token.to_string(): {"logprob": logprob, "rank": 1, "decoded_token": decoded}}))
    });
    json!(each.collect::<Vec<_>>())
}

pub(super) fn tool_calls(shape: &Shape, choice: usize, calls: &[ToolCall], delta: bool) -> Value {
    calls
        .iter()
        .enumerate()
        .map(|(index, call)| {
            let mut value = json!({
                "id": format!("call-{}-{choice}-{index}", shape.id), "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            });
            if delta {
                value["index"] = index.into();
            }
            value
        })
        .collect()
}

pub(super) fn usage(shape: &Shape, generated: usize, cached: usize) -> Value {
    json!({
        "prompt_tokens": shape.prompt.len(), "completion_tokens": generated,
        "total_tokens": shape.prompt.len() + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

/// The text of a whole reply.
pub(super) fn whole_text(
    mut text: TextStream,
    tokens: &[Generated],
    finish: Option<Finish>,
) -> String {
    text.push(tokens, finish)
}

pub(super) fn unix_seconds() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}
