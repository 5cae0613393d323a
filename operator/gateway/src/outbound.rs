//! HTTP calls to engines and reward services: every one with a time limit, a bound on
//! the reply, and no redirect followed, so that a secret goes only where it was meant to.

use std::error::Error as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RANGE, RETRY_AFTER};
use http::{Method, StatusCode};
use reqwest::redirect::Policy;
use rollwright_core::fault::{Fault, FaultKind};

/// Time to connect, of the time limit of the whole call.
const CONNECT: Duration = Duration::from_secs(5);
/// Idle connections of a client to one host.
const IDLE: usize = 4;
/// Characters of a reply shown in a fault.
const SHOWN: usize = 300;
/// The longest `Retry-After` that is believed.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// Whether the proxy variables of the environment count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// For what is beside us: engines.
    Never,
    /// For what somebody else runs.
    Environment,
}

/// A client that follows no redirect.
pub(crate) fn client(proxy: Proxy) -> Result<reqwest::Client, Fault> {
    built(builder(proxy))
}

/// A client of what listens on a unix socket, whatever host its calls name.
pub(crate) fn unix_client(socket: &Path) -> Result<reqwest::Client, Fault> {
    built(builder(Proxy::Never).unix_socket(socket))
}

fn builder(proxy: Proxy) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT)
        .pool_max_idle_per_host(IDLE)
        .user_agent("rollwright-gateway");
    if proxy == Proxy::Never { builder.no_proxy() } else { builder }
}

fn built(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, Fault> {
    builder.build().map_err(|error| {
        let message = format!("cannot set up HTTP calls: {}", chain(&error));
        Fault::new(FaultKind::Infrastructure, "HttpClient", message)
    })
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) url: &'a str,
    /// The whole `Authorization` header, marked as sensitive.
    pub(crate) authorization: Option<&'a HeaderValue>,
    /// JSON.
    pub(crate) body: Option<Vec<u8>>,
    /// For connecting, sending and the whole reply together.
    pub(crate) limit: Duration,
    /// Bytes of the reply taken at most.
    pub(crate) most: usize,
}

/// What came back, whatever its status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    /// In how long the caller may come again.
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
}

impl Reply {
    /// The body as text, cut to what fits in a sentence. A service that sends our
    /// `secret` back does not bring it into a fault.
    pub(crate) fn excerpt(&self, secret: Option<&HeaderValue>) -> String {
        let mut text = String::from_utf8_lossy(&self.body).into_owned();
        let secret = secret.and_then(|header| header.to_str().ok());
        if let Some(secret) = secret.and_then(|header| header.strip_prefix("Bearer ")) {
            text = text.replace(secret, "***");
        }
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match text.char_indices().nth(SHOWN) {
            Some((at, _)) => format!("{}...", &text[..at]),
            None => text,
        }
    }
}

/// Why nothing, or not all, came back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("its reply is longer than {0} bytes")]
    TooLarge(usize),
}

/// Makes one call and leaves the body to be read as it comes; `call.most` does not bound
/// it. Dropping the response closes the connection.
pub(crate) async fn open(
    client: &reqwest::Client,
    call: Call<'_>,
    range_from: Option<u64>,
) -> Result<reqwest::Response, CallError> {
    let limit = call.limit;
    let mut request = request(client, call);
    if let Some(from) = range_from {
        request = request.header(RANGE, format!("bytes={from}-"));
    }
    let sent = tokio::time::timeout(limit, request.send());
    sent.await.map_err(|_| CallError::Timeout(limit))?.map_err(|error| unsent(&error))
}

/// Makes one call. Dropping the future closes the connection.
pub(crate) async fn send(client: &reqwest::Client, call: Call<'_>) -> Result<Reply, CallError> {
    let limit = call.limit;
    let exchange = tokio::time::timeout(limit, exchange(client, call));
    exchange.await.unwrap_or(Err(CallError::Timeout(limit)))
}

fn request(client: &reqwest::Client, call: Call<'_>) -> reqwest::RequestBuilder {
    let mut request = client.request(call.method, call.url);
    if let Some(authorization) = call.authorization {
        request = request.header(AUTHORIZATION, authorization.clone());
    }
    if let Some(body) = call.body {
        request = request.header(CONTENT_TYPE, "application/json").body(body);
    }
    request
}

fn unsent(error: &reqwest::Error) -> CallError {
    if error.is_connect() || error.is_builder() {
        CallError::Unreachable(chain(error))
    } else {
        CallError::Broken(chain(error))
    }
}

async fn exchange(client: &reqwest::Client, call: Call<'_>) -> Result<Reply, CallError> {
    let most = call.most;
    let mut response = request(client, call).send().await.map_err(|error| unsent(&error))?;
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(retry_after);
    let mut body = BytesMut::new();
    while let Some(piece) = response.chunk().await.map_err(|error| broken(&error))? {
        if body.len() + piece.len() > most {
            return Err(CallError::TooLarge(most));
        }
        body.extend_from_slice(&piece);
    }
    Ok(Reply { status, retry_after, body: body.freeze() })
}

/// A body that did not come to its end.
pub(crate) fn broken(error: &reqwest::Error) -> CallError {
    CallError::Broken(chain(error))
}

/// A bearer token as a header that is never shown; `None` when it cannot be one.
pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Seconds or a date, as RFC 9110 (10.2.3) has it; at most an hour.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text)
            .ok()?
            .duration_since(SystemTime::now())
            .unwrap_or_default(),
    };
    Some(wait.min(LONGEST_WAIT))
}

/// An error and its causes in one line. The address is left out: it may hold a secret.
fn chain(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes.dedup();
    if causes.is_empty() {
        return match error.url() {
            Some(url) => error.to_string().replace(url.as_str(), "..."),
            None => error.to_string(),
        };
    }
    causes.join(": ")
}
