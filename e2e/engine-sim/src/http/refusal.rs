//! Errors as each dialect writes them.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::config::Dialect;
use crate::engine::Refusal;

/// The answer to a refused request on the OpenAI routes.
pub(super) fn refuse(dialect: Dialect, refusal: &Refusal) -> Response {
    let status = status(refusal);
    let kind = match status.as_u16() {
        404 => "NotFoundError",
        400 => "BadRequestError",
        503 => "ServiceUnavailableError",
        _ => "InternalServerError",
    };
    let (message, code) = (&refusal.message, status.as_u16());
    let body = match dialect {
        Dialect::Vllm | Dialect::OpenAi => {
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
        Dialect::Sglang => {
            json!({"object": "error", "message": message, "type": kind, "param": null, "code": code})
        }
    };
    (status, Json(body)).into_response()
}

/// `{"error": ...}`, as vLLM's development routes and SGLang's native ones answer.
pub(super) fn refuse_plain(refusal: &Refusal) -> Response {
    answer(refusal, json!({"error": {"message": refusal.message}}))
}

/// Any body with the refusal's status.
pub(super) fn answer(refusal: &Refusal, body: Value) -> Response {
    (status(refusal), Json(body)).into_response()
}

fn status(refusal: &Refusal) -> StatusCode {
    StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST)
}
