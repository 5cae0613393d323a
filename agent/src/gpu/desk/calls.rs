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
                too_large("is larger than 4 MiB, the most that one may be")
            } else {
                gone("broke off its answer", &error)
            }
        })?;
        let headers = headers(&parts.headers)?;
        Ok(pb::CallReply { status: parts.status.as_u16().into(), headers, body: body.to_bytes() })
    }
}

/// The caller's fault: the same question would have the same answer. So nobody asks it again.
fn too_large(how: &str) -> Fault {
    let message = format!(
        "the engine's answer {how}: ask for less in one call, such as the log-probabilities of fewer tokens"
    );
    fault::user("AnswerTooLarge", message)
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
        return Err(too_large(&format!(
            "has {bytes} bytes of headers, where {MAX_HEADERS} may be"
        )));
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

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::HeaderValue;
    use axum::routing::get;
    use rollwright_core::fault::FaultKind;

    use super::*;

    async fn asked(path: &str) -> Result<pb::CallReply, Fault> {
        let headers = || {
            let long = HeaderValue::from_str(&"x".repeat(MAX_HEADERS)).unwrap();
            ([("x-long", long)], "")
        };
        let engine = Router::new()
            .route("/most", get(|| async { vec![b'x'; MAX_BODY] }))
            .route("/more", get(|| async { vec![b'x'; MAX_BODY + 1] }))
            .route("/headers", get(move || async move { headers() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, engine).await });
        let (calls, action) = (Calls::default(), ActionId::new("a").unwrap());
        let asked = pb::StartCall { method: "GET".into(), path: path.into(), ..Default::default() };
        calls.put(action.clone(), asked, Duration::from_mins(5));
        calls.call(&action, &address).await?;
        Ok(calls.all().remove(&action).and_then(|call| call.reply).unwrap())
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_the_callers_fault() {
        assert_eq!(asked("/most").await.unwrap().body.len(), MAX_BODY);
        for (path, most) in [("/more", "4 MiB"), ("/headers", "32768")] {
            let fault = asked(path).await.unwrap_err();
            assert_eq!((fault.kind, &*fault.reason), (FaultKind::User, "AnswerTooLarge"));
            let told = &fault.message;
            assert!(told.contains(most) && told.contains("ask for less"), "{told}");
        }
    }
}
