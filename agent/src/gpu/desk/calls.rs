//! The HTTP calls that actions are: what is asked, and what was answered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{ENGINE_UNREACHABLE, EngineId};
use rollwright_core::ids::ActionId;
use rollwright_proto::v1 as pb;

use crate::fault::{self, infrastructure};
use crate::gpu::Caller;

/// Largest answer.
const MAX_BODY: usize = 4 << 20;
/// Bytes of all headers of an answer.
const MAX_HEADERS: usize = 32 << 10;

/// Calls that run.
#[derive(Debug)]
pub(super) struct Calls {
    client: Client<HttpConnector, Full<Bytes>>,
    all: Mutex<HashMap<ActionId, Call>>,
}

#[derive(Debug)]
struct Call {
    began: Instant,
    limit: Duration,
    asked: Option<pb::StartCall>,
    reply: Option<pb::CallReply>,
}

impl Default for Calls {
    fn default() -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), all: Mutex::default() }
    }
}

impl Calls {
    fn all(&self) -> MutexGuard<'_, HashMap<ActionId, Call>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be asked of an engine.
    pub(super) fn put(&self, action: ActionId, asked: pb::StartCall, limit: Duration) {
        let call = Call { began: Instant::now(), limit, asked: Some(asked), reply: None };
        self.all().insert(action, call);
    }

    pub(super) fn forget(&self, action: &ActionId) {
        self.all().remove(action);
    }

    /// How a call ended, for the queue.
    pub(super) fn ended(
        &self,
        action: &ActionId,
        engine: EngineId,
        result: Result<(), Fault>,
    ) -> pb::CallEnded {
        use pb::call_ended::End;
        let call = self.all().remove(action);
        let exec_s = call.as_ref().map_or(0.0, |call| call.began.elapsed().as_secs_f64());
        let end = match (result, call.and_then(|call| call.reply)) {
            (Ok(()), Some(reply)) => End::Reply(reply),
            (Ok(()), None) => {
                let message = "the answer of the reward service was lost inside the agent";
                End::Fault(fault::to_proto(&infrastructure("AnswerLost", message)))
            }
            (Err(fault), _) => End::Fault(fault::to_proto(&fault)),
        };
        let action_id = action.as_str().to_owned();
        pb::CallEnded { action_id, engine: engine.0, end: Some(end), exec_s }
    }

    async fn make(&self, asked: pb::StartCall, address: &str) -> Result<pb::CallReply, Fault> {
        if !asked.path.starts_with('/') {
            let message = format!("`{}` is no path of an engine: begin it with /", asked.path);
            return Err(fault::user("InvalidCall", message));
        }
        let url = format!("{}{}", address.trim_end_matches('/'), asked.path);
        let mut request = Request::builder().method(asked.method.as_str()).uri(&url);
        for header in &asked.headers {
            request = request.header(&header.name, &header.value);
        }
        let request = request.body(Full::new(asked.body)).map_err(|error| {
            fault::user("InvalidCall", format!("the call is no HTTP request: {error}"))
        })?;
        let gone = |what: &str, error: &dyn std::fmt::Display| {
            let message = format!("the engine {what}: {error}");
            infrastructure(ENGINE_UNREACHABLE, message)
        };
        let reply = self.client.request(request).await;
        let (parts, body) = reply.map_err(|error| gone("did not answer", &error))?.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let message = "the engine's answer is larger than 4 MiB: ask for less at once";
                infrastructure("AnswerTooLarge", message)
            } else {
                gone("broke off its answer", &error)
            }
        })?;
        let headers = headers(&parts.headers)?;
        Ok(pb::CallReply { status: parts.status.as_u16().into(), headers, body: body.to_bytes() })
    }
}

/// What is text of an answer's headers.
fn headers(of: &HeaderMap) -> Result<Vec<pb::CallHeader>, Fault> {
    let text = of.iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?.to_owned();
        Some(pb::CallHeader { name: name.as_str().to_owned(), value })
    });
    let headers: Vec<pb::CallHeader> = text.collect();
    let bytes = headers.iter().map(|header| header.name.len() + header.value.len()).sum::<usize>();
    if bytes > MAX_HEADERS {
        let message = format!("the engine's answer has {bytes} bytes of headers");
        return Err(infrastructure("AnswerTooLarge", message));
    }
    Ok(headers)
}

#[async_trait]
impl Caller for Calls {
    async fn call(&self, action: &ActionId, address: &str) -> Result<(), Fault> {
        let taken =
            self.all().get_mut(action).and_then(|call| Some((call.asked.take()?, call.limit)));
        let Some((asked, limit)) = taken else {
            return Err(infrastructure("CallLost", "the agent does not know what to ask"));
        };
        let made = tokio::time::timeout(limit, self.make(asked, address)).await;
        let reply = made.map_err(|_| {
            let message = format!("the reward service did not answer within {limit:?}");
            fault::timeout("RewardTimeout", message)
        })??;
        if let Some(call) = self.all().get_mut(action) {
            call.reply = Some(reply);
        }
        Ok(())
    }
}
