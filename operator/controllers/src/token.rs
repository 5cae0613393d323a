//! The controllers' own tokens for queues and gateways: one a receiver, for it alone, which the
//! API server makes.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::call::Calls;
use crate::error::{CallError, Categorised, named};
use crate::settings::SERVICE_ACCOUNT;

/// How long a token is to be good; the API server may give less.
const LIFE: Duration = Duration::from_hours(1);
/// This long before its end a token is shown no more: clocks differ, and requests take time.
const SPARE: Duration = Duration::from_mins(2);
/// Most tokens held. The one asked for longest ago makes way.
const MOST: usize = 20_000;

/// There is no token to show.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The API server gave none.
    #[error("no token of our own: {0}")]
    Call(#[from] CallError),
    /// It answered without one.
    #[error("no token of our own for `{0}`: the API server answered without one")]
    None(String),
}

impl Categorised for TokenError {
    fn category(&self) -> &'static str {
        "NoToken"
    }
}

/// A token, when it was asked for, and how long it is good from then on.
#[derive(Clone)]
struct Held {
    token: Arc<str>,
    at: Instant,
    life: Duration,
}

impl Held {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    /// It may be shown.
    fn is_good(&self, now: Instant) -> bool {
        self.age(now) + SPARE < self.life
    }

    /// It need not be renewed yet.
    fn is_fresh(&self, now: Instant) -> bool {
        self.age(now) < self.life / 4 * 3
    }
}

/// Our tokens by audience, made when somebody asks.
pub struct Tokens {
    accounts: Api<ServiceAccount>,
    account: String,
    calls: Calls,
    held: Mutex<HashMap<String, Held>>,
}

/// Their content is nobody's business.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("account", &self.account).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Of the controllers' account in the release namespace.
    pub(crate) fn new(client: Client, calls: Calls, namespace: &str) -> Self {
        Self {
            accounts: Api::namespaced(client, namespace),
            account: named("ServiceAccount", Some(namespace), SERVICE_ACCOUNT),
            calls,
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token for an audience, good for some minutes at least.
    ///
    /// # Errors
    /// Where there is none and the API server gives none.
    pub async fn get(&self, audience: &str) -> Result<Arc<str>, TokenError> {
        self.get_at(audience, Instant::now()).await
    }

    async fn get_at(&self, audience: &str, now: Instant) -> Result<Arc<str>, TokenError> {
        let held = self.held().get(audience).filter(|held| held.is_good(now)).cloned();
        if let Some(held) = held.as_ref().filter(|held| held.is_fresh(now)) {
            return Ok(Arc::clone(&held.token));
        }
        match (self.ask(audience, now).await, held) {
            (Ok(fresh), _) => {
                let token = Arc::clone(&fresh.token);
                keep(&mut self.held(), audience, fresh);
                Ok(token)
            }
            (Err(error), Some(held)) => {
                tracing::warn!(audience, %error, "a token is not renewed yet");
                Ok(held.token)
            }
            (Err(error), None) => Err(error),
        }
    }

    async fn ask(&self, audience: &str, now: Instant) -> Result<Held, TokenError> {
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![audience.to_owned()],
                expiration_seconds: Some(LIFE.as_secs().cast_signed()),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let made = self.accounts.create_token_request(SERVICE_ACCOUNT, &params, &request);
        let made = self.calls.call("create", || format!("token of {}", self.account), made).await?;
        let given = made.spec.expiration_seconds.and_then(|given| u64::try_from(given).ok());
        let token = made.status.map(|status| status.token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| TokenError::None(audience.to_owned()))?.into();
        Ok(Held { token, at: now, life: given.map_or(LIFE, Duration::from_secs).min(LIFE) })
    }

    /// The youngest of them: it is signed with the key that the API server signs with now.
    pub(crate) fn youngest(&self) -> Option<Arc<str>> {
        let held = self.held();
        held.values().max_by_key(|held| held.at).map(|held| Arc::clone(&held.token))
    }
}

/// Takes a token up; what is spent goes, and the oldest where there are too many.
fn keep(held: &mut HashMap<String, Held>, audience: &str, fresh: Held) {
    if held.len() >= MOST && !held.contains_key(audience) {
        held.retain(|_, held| held.is_good(fresh.at));
        let oldest = held.iter().min_by_key(|(_, held)| held.at).map(|(audience, _)| audience);
        if let Some(oldest) = oldest.filter(|_| held.len() >= MOST).cloned() {
            held.remove(&oldest);
        }
    }
    held.insert(audience.to_owned(), fresh);
}

#[cfg(test)]
mod tests;
