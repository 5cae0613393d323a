//! vLLM's `/tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::openai::check_ids;
use super::refusal::refuse;
use super::{App, Shared};
use crate::engine::Refusal;
use crate::template;
use crate::tokenizer::{Token, Tokenizer};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/tokenize", post(tokenize)).route("/detokenize", post(detokenize))
}

#[derive(Debug, Deserialize)]
struct TokenizeBody {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    return_token_strs: Option<bool>,
}

async fn tokenize(State(app): Shared, Json(body): Json<TokenizeBody>) -> Response {
    let tokens = match (&body.prompt, &body.messages) {
        (Some(prompt), None) => Ok(Tokenizer.encode(prompt)),
        (None, Some(messages)) => messages
            .iter()
            .map(template::message)
            .collect::<Result<Vec<_>, _>>()
            .map(|messages| template::render(&messages, body.add_generation_prompt != Some(false)))
            .map_err(Refusal::bad),
        _ => Err(Refusal::bad("either prompt or messages is needed")),
    };
    let config = &app.engine.config;
    match tokens {
        Err(refusal) => refuse(config.dialect, &refusal),
        Ok(tokens) => {
            let names = (body.return_token_strs == Some(true)).then(|| {
                tokens.iter().map(|&token| Tokenizer.decode(&[token])).collect::<Vec<_>>()
            });
            Json(json!({
                "count": tokens.len(), "max_model_len": config.capacity.longest(),
                "tokens": tokens, "token_strs": names,
            }))
            .into_response()
        }
    }
}

#[derive(Debug, Deserialize)]
struct DetokenizeBody {
    tokens: Vec<Token>,
}

async fn detokenize(State(app): Shared, Json(body): Json<DetokenizeBody>) -> Response {
    match check_ids(&body.tokens) {
        Ok(()) => Json(json!({"prompt": Tokenizer.decode(&body.tokens)})).into_response(),
        Err(refusal) => refuse(app.engine.config.dialect, &refusal),
    }
}
