//! One call of a reward service over HTTP. Whatever is not an answer with a finite number
//! is a fault of infrastructure.

use std::time::Duration;

use http::{HeaderValue, Method};
use rollwright_core::fault::{Fault, FaultKind};
use serde::Deserialize;
use serde_json::Value;

use super::subject::Subject;
use crate::outbound::{self, Call, CallError, Proxy, Reply};

/// Bytes of an answer taken at most; only its `reward` counts.
const MOST: usize = 256 << 10;

/// What counts of an answer.
#[derive(Deserialize)]
struct Answer {
    reward: Option<Value>,
    error: Option<Value>,
}

/// A service at an address.
#[derive(Debug, Clone)]
pub(super) struct Judge {
    client: reqwest::Client,
    url: String,
    /// The address without what may be secret in it.
    shown: String,
    limit: Duration,
}

fn infrastructure(reason: &'static str, message: String) -> Fault {
    Fault::new(FaultKind::Infrastructure, reason, message)
}

impl Judge {
    pub(super) fn new(url: &str, limit: Duration, proxy: Proxy) -> Result<Self, Fault> {
        let parsed = reqwest::Url::parse(url).ok();
        let parsed =
            parsed.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let parsed = parsed.ok_or_else(|| {
            let message = "the reward service's url is no address: write for example \"https://judge.example.com/score\"";
            Fault::new(FaultKind::User, "InvalidRewardUrl", message)
        })?;
        let shown = format!("{}{}", parsed.origin().ascii_serialization(), parsed.path());
        Ok(Self { client: outbound::client(proxy)?, url: url.to_owned(), shown, limit })
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

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
        let (url, limit) = (self.url.as_str(), self.limit);
        let body = Some(body);
        let call = Call { method: Method::POST, url, authorization, body, limit, most: MOST };
        let reply = outbound::send(&self.client, call).await.map_err(|error| {
            let reason = match error {
                CallError::Unreachable(_) => "RewardUnreachable",
                CallError::Timeout(_) => "RewardTimeout",
                CallError::Broken(_) => "RewardDisconnected",
                CallError::TooLarge(_) => "RewardReplyTooLarge",
            };
            infrastructure(reason, format!("the reward service {shown} gave no answer: {error}"))
        })?;
        self.read(&reply, authorization)
    }

    fn read(&self, reply: &Reply, secret: Option<&HeaderValue>) -> Result<f64, Fault> {
        let (shown, status) = (&self.shown, reply.status);
        let said = || reply.excerpt(secret);
        if !status.is_success() {
            let (reason, remedy) = match status.as_u16() {
                300..=399 => ("RewardRedirected", "no redirect is followed: give the final url"),
                401 | 403 => ("RewardUnauthorized", "check authSecret"),
                429 => ("RewardOverloaded", "it is tried later; lower concurrency if this stays"),
                _ => ("RewardFailed", "see its log"),
            };
            let said = said();
            let message =
                format!("the reward service {shown} answered {status}: {remedy}. It said: {said}");
            let fault = infrastructure(reason, message);
            return Err(Fault { retry_after: reply.retry_after, ..fault });
        }
        let answer: Option<Answer> = serde_json::from_slice(&reply.body).ok();
        let reward = answer
            .filter(|answer| answer.error.is_none())
            .and_then(|answer| answer.reward?.as_f64())
            .filter(|reward| reward.is_finite());
        reward.ok_or_else(|| {
            let said = said();
            let message = format!(
                "the reward service {shown} must answer {{\"reward\": NUMBER}} with a finite number, and it said: {said}"
            );
            infrastructure("RewardNotANumber", message)
        })
    }
}
