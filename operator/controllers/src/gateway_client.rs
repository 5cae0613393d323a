//! What the controllers say to gateways, and hear from them: `/rollout/v1/workers` and
//! `/rollout/v1/status`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::call;
use crate::error::Categorised;
use crate::token::TokenError;

/// Longest wait for one answer.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest answer: 10,000 workers are about 1 MiB.
const LARGEST: usize = 4 << 20;

/// A worker that the gateway is to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WishedWorker {
    /// Its name.
    pub name: String,
    /// Where its engine listens.
    pub url: String,
    /// Class of its GPUs.
    pub class: String,
    /// `mixed`, `prefill` or `decode`.
    pub role: &'static str,
    /// Requests that it may have in flight.
    pub slots: u32,
    /// It ends what it has, and gets nothing more.
    pub drain: bool,
    /// SGLang, `prefill`: where decode workers fetch from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_port: Option<u16>,
}

#[derive(Serialize)]
struct WishedSet<'a> {
    workers: &'a [WishedWorker],
}

/// How a worker is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WorkerState {
    /// Its name.
    pub name: String,
    /// `joining`, `serving`, `draining`, `drained`, `unhealthy` and others.
    pub state: String,
    /// Requests that it has in flight.
    pub in_flight: u32,
    /// Policy version that it holds.
    pub version: Option<i64>,
}

#[derive(Deserialize)]
struct States {
    workers: Vec<WorkerState>,
}

/// How a job is.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct JobState {
    /// Current policy version.
    pub version: i64,
    /// Scored trajectories that wait for the trainer.
    pub buffer: Buffer,
    /// Share of generated tokens that reach the trainer.
    #[serde(default)]
    pub kept_fraction: Option<f64>,
    /// Generated tokens per second.
    #[serde(default)]
    pub tokens_per_second: Option<f64>,
    /// Longest over mean trajectory time of a batch, less 1.
    #[serde(default)]
    pub straggler_tax: Option<f64>,
}

/// The buffer of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Buffer {
    /// Its trajectories.
    pub trajectories: u32,
}

/// Why a gateway gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// We have no token to show.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// It cannot be reached.
    #[error("{address} cannot be reached: {fault}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// Why not.
        fault: String,
    },
    /// It did not answer in time.
    #[error("{address} did not answer within {} s", LONGEST.as_secs())]
    TimedOut {
        /// Where it is.
        address: String,
    },
    /// It said no.
    #[error("{address} answered {status}: {said}")]
    Refused {
        /// Where it is.
        address: String,
        /// The HTTP status.
        status: StatusCode,
        /// The beginning of what it said.
        said: String,
    },
    /// It said something that is no answer.
    #[error("{address} gave an answer that is none: {fault}")]
    Malformed {
        /// Where it is.
        address: String,
        /// What is wrong with it.
        fault: String,
    },
}

impl Categorised for GatewayError {
    fn category(&self) -> &'static str {
        match self {
            Self::Token(error) => error.category(),
            Self::Unreachable { .. } => "GatewayUnreachable",
            Self::TimedOut { .. } => "GatewayTimedOut",
            Self::Refused { .. } => "GatewayRefused",
            Self::Malformed { .. } => "GatewayMalformed",
        }
    }
}

/// One gateway: its address and what we show it. Connections are shared.
#[derive(Clone)]
pub struct GatewayClient {
    /// `HOST:PORT`.
    pub address: String,
    /// Our token for this gateway alone.
    pub token: Arc<str>,
}

type Http = Client<HttpConnector, Full<Bytes>>;

static HTTP: LazyLock<Http> = LazyLock::new(|| {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(Duration::from_secs(2)));
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(Duration::from_mins(1))
        .pool_max_idle_per_host(1)
        .build(connector)
});

impl GatewayClient {
    /// Says which workers there are; returns how they are.
    pub async fn set_workers(
        &self,
        workers: &[WishedWorker],
    ) -> Result<Vec<WorkerState>, GatewayError> {
        let body =
            serde_json::to_vec(&WishedSet { workers }).map_err(|fault| self.malformed(&fault))?;
        let states: States = self.ask(Method::PUT, "/rollout/v1/workers", body).await?;
        Ok(states.workers)
    }

    /// How the job is.
    pub async fn status(&self) -> Result<JobState, GatewayError> {
        self.ask(Method::GET, "/rollout/v1/status", Vec::new()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, GatewayError> {
        let mut bearer = HeaderValue::try_from(format!("Bearer {}", self.token))
            .map_err(|fault| self.malformed(&fault))?;
        bearer.set_sensitive(true);
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header(AUTHORIZATION, bearer)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .map_err(|fault| self.malformed(&fault))?;
        let answer = tokio::time::timeout(LONGEST, self.answer(request));
        match call::outside(answer).await {
            Ok(answer) => serde_json::from_slice(&answer?).map_err(|fault| self.malformed(&fault)),
            Err(_) => Err(GatewayError::TimedOut { address: self.address.clone() }),
        }
    }

    async fn answer(&self, request: Request<Full<Bytes>>) -> Result<Bytes, GatewayError> {
        let unreachable = |fault: &dyn std::error::Error| {
            let cause = fault.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            GatewayError::Unreachable {
                address: self.address.clone(),
                fault: format!("{fault}{cause}"),
            }
        };
        let answer = HTTP.request(request).await.map_err(|fault| unreachable(&fault))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LARGEST).collect().await;
        let body = body.map_err(|fault| unreachable(&*fault))?.to_bytes();
        if head.status.is_success() {
            return Ok(body);
        }
        let said = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        Err(GatewayError::Refused { address: self.address.clone(), status: head.status, said })
    }

    fn malformed(&self, fault: &dyn std::error::Error) -> GatewayError {
        GatewayError::Malformed { address: self.address.clone(), fault: fault.to_string() }
    }
}

#[cfg(test)]
mod tests;
