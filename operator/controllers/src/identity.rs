//! Keys and issuer of the API server's service account tokens: queues and gateways verify
//! tokens with them offline.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::Calls;
use crate::error::CallError;
use crate::token::Tokens;

/// How often the keys are read again.
const REFRESH: Duration = Duration::from_hours(1);
/// How often our youngest token is looked at for a key that is not known.
const LOOK: Duration = Duration::from_mins(1);
/// Waits after failures, the last for all further ones.
const RETRY: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_mins(1),
];

/// Who signs service account tokens, and with which keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// `iss` of the tokens.
    pub url: String,
    /// The key set, as JSON (RFC 7517).
    pub jwks: String,
}

impl Issuer {
    /// The keys as a ConfigMap that a receiver of tokens mounts: apart from what is built of its
    /// spec, so that new keys come to one whose spec cannot be built now.
    pub fn config_map(&self, metadata: ObjectMeta) -> ConfigMap {
        let data = [("jwks.json", &self.jwks), ("issuer", &self.url)];
        ConfigMap {
            metadata,
            data: Some(data.map(|(key, text)| (key.to_owned(), text.clone())).into()),
            ..ConfigMap::default()
        }
    }
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
}

/// apiserver --keys and issuer--> `issuer_tx`; ends when nobody listens any more. `changed` is
/// called after each change.
pub(crate) async fn follow(
    client: Client,
    calls: Calls,
    tokens: Arc<Tokens>,
    issuer_tx: watch::Sender<Option<Arc<Issuer>>>,
    changed: impl Fn() + Send + Sync,
) {
    let mut failures = 0;
    let mut read_at: Option<Instant> = None;
    loop {
        let fresh = read_at.is_some_and(|at| at.elapsed() < REFRESH);
        let wait = if fresh && !signs_with_unknown_key(&tokens, &issuer_tx) {
            LOOK
        } else {
            match fetch(&client, &calls).await {
                Ok(issuer) => {
                    (failures, read_at) = (0, Some(Instant::now()));
                    let news = issuer_tx.send_if_modified(|known| {
                        let news = known.as_deref() != Some(&issuer);
                        if news {
                            *known = Some(Arc::new(issuer));
                        }
                        news
                    });
                    if news {
                        changed();
                    }
                    LOOK
                }
                Err(error) => {
                    let wait = RETRY[failures.min(RETRY.len() - 1)];
                    failures += 1;
                    tracing::warn!(%error, again_in_s = wait.as_secs(), "no keys of the API server");
                    wait
                }
            }
        };
        tokio::select! {
            () = issuer_tx.closed() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn fetch(client: &Client, calls: &Calls) -> Result<Issuer, CallError> {
    let get = |path: &'static str| async move {
        let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        client.request_text(request).await
    };
    let jwks = calls.call("get", || "keys".to_owned(), get("/openid/v1/jwks")).await?;
    let discovery = async {
        let text = get("/.well-known/openid-configuration").await?;
        serde_json::from_str::<Discovery>(&text).map_err(kube::Error::SerdeError)
    };
    let discovery = calls.call("get", || "issuer".to_owned(), discovery).await?;
    Ok(Issuer { url: discovery.issuer, jwks: jwks.trim().to_owned() })
}

/// Whether the API server signs with a key that is not among the known ones: the youngest of our
/// tokens tells its key's name.
fn signs_with_unknown_key(tokens: &Tokens, issuer_tx: &watch::Sender<Option<Arc<Issuer>>>) -> bool {
    let Some(id) = tokens.youngest().and_then(|token| key_id(&token)) else { return false };
    issuer_tx.borrow().as_ref().is_some_and(|issuer| !names_key(&issuer.jwks, &id))
}

/// `kid` in the header of a JSON Web Token.
fn key_id(token: &str) -> Option<String> {
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next()?).ok()?;
    let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
    header.get("kid")?.as_str().map(str::to_owned)
}

fn names_key(jwks: &str, id: &str) -> bool {
    let Ok(jwks) = serde_json::from_str::<serde_json::Value>(jwks) else { return false };
    let keys = jwks.get("keys").and_then(serde_json::Value::as_array);
    keys.into_iter().flatten().any(|key| key.get("kid").is_some_and(|kid| kid == id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_not_in_the_set_is_noticed() {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","kid":"two"}"#);
        let id = key_id(&format!("{header}.payload.signature")).unwrap();
        assert!(!names_key(r#"{"keys":[{"kid":"one"}]}"#, &id));
        assert!(names_key(r#"{"keys":[{"kid":"one"},{"kid":"two"}]}"#, &id));
        assert_eq!(key_id("no token"), None);
    }
}
