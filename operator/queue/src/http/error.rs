//! Refusals over HTTP.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rollwright_core::fault::Fault;

use super::dto;
use crate::fault::http_status;

/// A fault as the answer to a request.
#[derive(Debug)]
pub(crate) struct ApiError(pub(crate) Fault);

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(http_status(&self.0)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = dto::refusal(&self.0);
        let mut response = (status, Json(body)).into_response();
        if let Some(after) = self.0.retry_after {
            // Whole seconds, and never "at once".
            let seconds = after.as_secs().max(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
