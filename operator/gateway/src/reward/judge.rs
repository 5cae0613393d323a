//! One call of a reward service over HTTP. Whatever is not an answer with a finite number
//! is a fault of infrastructure.

use std::time::Duration;

use http::{HeaderValue, Method};
use rollwright_core::fault::{Fault, FaultKind};
use serde::Deserialize;
use serde_json::Value;

use super::subject::Subject;
use crate::outbound::{self, Call, CallError, Proxy, Reply};

/// What counts of an answer.
#[derive(Deserialize)]
struct Answer {
    reward: Option<Value>,
    error: Option<Value>,
}

/// The number that an answer gives, if it gives a finite one and tells of no error.
pub(super) fn reward(body: &[u8]) -> Option<f64> {
    let answer: Answer = serde_json::from_slice(body).ok()?;
    let reward = answer.reward.filter(|_| answer.error.is_none())?;
    reward.as_f64().filter(|reward| reward.is_finite())
}

/// A service at an address.
#[derive(Debug, Clone)]
pub(super) struct Judge {
    client: reqwest::Client,
    url: String,
    /// The address without what may be secret in it.
    shown: String,
    limit: Duration,
    most: usize,
}

fn infrastructure(reason: &'static str, message: String) -> Fault {
    Fault::new(FaultKind::Infrastructure, reason, message)
}

impl Judge {
    /// One at `url`; `limit` is for a call as a whole, and an answer has at most `most` bytes.
    pub(super) fn new(
        url: &str,
        limit: Duration,
        most: usize,
        proxy: Proxy,
    ) -> Result<Self, Fault> {
        let parsed = reqwest::Url::parse(url).ok();
        let parsed =
            parsed.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let parsed = parsed.ok_or_else(|| {
            let message = "the reward service's url is no address: write for example \"https://judge.example.com/score\"";
            Fault::new(FaultKind::User, "InvalidRewardUrl", message)
        })?;
        let shown = format!("{}{}", parsed.origin().ascii_serialization(), parsed.path());
        Ok(Self { client: outbound::client(proxy)?, url: url.to_owned(), shown, limit, most })
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// The reward of a trajectory that is sent as it is.
    pub(super) async fn ask(
        &self,
        subject: &Subject,
        authorization: Option<&HeaderValue>,
    ) -> Result<f64, Fault> {
        let shown = &self.shown;
        let body = serde_json::to_vec(subject).map_err(|error| {
            infrastructure(
                "RewardRequest",
                format!("cannot write the request for {shown}: {error}"),
            )
        })?;
        let reply = self.post("", body, authorization).await?;
        reward(&reply.body).ok_or_else(|| {
            let said = reply.excerpt(authorization);
            let message = format!(
                "the reward service {shown} must answer {{\"reward\": NUMBER}} with a finite number, and it said: {said}"
            );
            infrastructure("RewardNotANumber", message)
        })
    }

    /// An answer of success to a body of JSON that is posted to `path` below the address.
    pub(super) async fn post(
        &self,
        path: &str,
        body: Vec<u8>,
        authorization: Option<&HeaderValue>,
    ) -> Result<Reply, Fault> {
        let (shown, url) = (&self.shown, format!("{}{path}", self.url));
        let (method, body, limit, most) = (Method::POST, Some(body), self.limit, self.most);
        let call = Call { method, url: &url, authorization, body, limit, most };
        let reply = outbound::send(&self.client, call).await.map_err(|error| {
            let reason = match error {
                CallError::Unreachable(_) => "RewardUnreachable",
                CallError::Timeout(_) => "RewardTimeout",
                CallError::Broken(_) => "RewardDisconnected",
                CallError::TooLarge(_) => "RewardReplyTooLarge",
            };
            infrastructure(reason, format!("the reward service {shown} gave no answer: {error}"))
        })?;
        succeeded(reply, shown, authorization)
    }
}

/// The answer of a service that did what it was asked.
pub(super) fn succeeded(
    reply: Reply,
    shown: &str,
    secret: Option<&HeaderValue>,
) -> Result<Reply, Fault> {
    let status = reply.status;
    if status.is_success() {
        return Ok(reply);
    }
    let (reason, remedy) = match status.as_u16() {
        300..=399 => ("RewardRedirected", "no redirect is followed: give the final url"),
        401 | 403 => ("RewardUnauthorized", "check authSecret"),
        429 => ("RewardOverloaded", "it is tried later; lower concurrency if this stays"),
        _ => ("RewardFailed", "see its log"),
    };
    let said = reply.excerpt(secret);
    let message =
        format!("the reward service {shown} answered {status}: {remedy}. It said: {said}");
    Err(Fault { retry_after: reply.retry_after, ..infrastructure(reason, message) })
}
