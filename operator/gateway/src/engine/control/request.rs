//! One control call: bounded, and an error that hides in a 200 is still an error.

use std::path::Path;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use rollwright_core::fault::{Fault, FaultKind};
use serde_json::Value;

use crate::outbound::{self, Call, CallError, Proxy, Reply};

/// Bytes of a reply taken at most: metrics are the longest.
const MOST: usize = 4 << 20;

/// The engine's address and how to reach it.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    client: reqwest::Client,
    base: String,
    shown: String,
    authorization: Option<HeaderValue>,
}

fn infrastructure(reason: &'static str, message: String) -> Fault {
    Fault::new(FaultKind::Infrastructure, reason, message)
}

impl Requests {
    pub(super) fn new(url: &str, authorization: Option<HeaderValue>) -> Result<Self, Fault> {
        if let Some(socket) = url.strip_prefix("unix:").filter(|socket| socket.starts_with('/')) {
            let client = outbound::unix_client(Path::new(socket))?;
            let shown = url.to_owned();
            // The name is never looked up.
            return Ok(Self { client, base: "http://engine".to_owned(), shown, authorization });
        }
        let parsed = reqwest::Url::parse(url).ok();
        if !parsed.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
            let message = format!(
                "`{url}` is no engine's address: write for example \"http://10.0.0.7:8000\" or \"unix:/run/engine.sock\""
            );
            return Err(Fault::new(FaultKind::User, "InvalidEngineUrl", message));
        }
        let base = url.trim_end_matches('/').to_owned();
        let client = outbound::client(Proxy::Never)?;
        Ok(Self { client, shown: base.clone(), base, authorization })
    }

    /// The engine's address, for messages.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) async fn get(&self, path: &str, limit: Duration) -> Result<Reply, Fault> {
        self.call(Method::GET, path, None, limit).await
    }

    pub(super) async fn post(
        &self,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Reply, Fault> {
        self.call(Method::POST, path, body, limit).await
    }

    /// As `call`, but `None` where the engine has no such endpoint.
    pub(super) async fn optional(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Option<Reply>, Fault> {
        match self.call(method, path, body, limit).await {
            Err(fault) if fault.reason == NO_ENDPOINT => Ok(None),
            called => called.map(Some),
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Reply, Fault> {
        let (base, engine) = (&self.base, &self.shown);
        let shown = path.split('?').next().unwrap_or(path);
        let call = Call {
            method,
            url: &format!("{base}{path}"),
            authorization: self.authorization.as_ref(),
            body: body.map(|body| body.to_string().into_bytes()),
            limit,
            most: MOST,
        };
        let reply = outbound::send(&self.client, call).await.map_err(|error| {
            let message = format!("{shown} of the engine at {engine} failed: {error}");
            let reason = match error {
                CallError::Unreachable(_) => "EngineUnreachable",
                CallError::Timeout(_) => "EngineTimeout",
                CallError::Broken(_) => "EngineDisconnected",
                CallError::TooLarge(_) => "EngineReplyTooLarge",
            };
            infrastructure(reason, message)
        })?;
        self.check(&reply, shown)?;
        Ok(reply)
    }

    fn check(&self, reply: &Reply, path: &str) -> Result<(), Fault> {
        let (status, engine) = (reply.status, &self.shown);
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            let message = format!(
                "the engine at {engine} has no {path}: use a version that has it (vLLM: start it with VLLM_SERVER_DEV_MODE=1), and check engine.type"
            );
            return Err(infrastructure(NO_ENDPOINT, message));
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            let message = format!("the engine at {engine} refused {path}: give its API key");
            return Err(infrastructure("EngineUnauthorized", message));
        }
        if !status.is_success() {
            let said = self.excerpt(reply);
            let message = format!("{path} of the engine at {engine} answered {status}: {said}");
            return Err(infrastructure("EngineRefused", message));
        }
        if said_error(&reply.body) {
            let said = self.excerpt(reply);
            let message = format!("{path} of the engine at {engine} answered an error: {said}");
            return Err(infrastructure("EngineRefused", message));
        }
        Ok(())
    }

    pub(super) fn excerpt(&self, reply: &Reply) -> String {
        reply.excerpt(self.authorization.as_ref())
    }
}

/// Reason of the fault of a call that the engine does not offer.
const NO_ENDPOINT: &str = "EngineHasNoEndpoint";

/// Engines answer some failures with a 200: `success: false` (SGLang, vLLM's
/// `/reset_prefix_cache`), an `error`, or an OpenAI error object.
fn said_error(body: &[u8]) -> bool {
    if !body.trim_ascii_start().starts_with(b"{") {
        return false;
    }
    let Ok(Value::Object(said)) = serde_json::from_slice(body) else { return true };
    let is = |key: &str, text: &str| said.get(key).and_then(Value::as_str) == Some(text);
    said.get("success").is_some_and(|success| *success == Value::Bool(false))
        || said.get("error").is_some_and(|error| !error.is_null() && *error != false)
        || is("object", "error")
        || is("status", "error")
}
