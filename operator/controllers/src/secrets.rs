//! Secrets, read by name: to list or watch them an account would need those of everybody.
//!
//! What was read is believed for a while, and what we wrote ourselves is known at once. Others'
//! changes are seen when an entry has aged.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use sha2::{Digest as _, Sha256};

use crate::apply::hex;
use crate::context::Context;
use crate::error::{CallError, named};

/// How long a Secret is believed to be as it was read.
const BELIEVED: Duration = Duration::from_mins(2);
/// How long one is believed to be absent.
const BELIEVED_ABSENT: Duration = Duration::from_secs(5);
/// What nobody asked for in this time is forgotten.
const IDLE: Duration = Duration::from_hours(1);
/// Most entries.
const MOST: usize = 20_000;

/// Namespace and name.
type Key = (String, String);

#[derive(Clone)]
struct Entry {
    secret: Option<Arc<Secret>>,
    /// When the request began that read it, or ours that wrote it ended.
    at: Instant,
    asked: Instant,
}

impl Entry {
    /// `most` bounds how long one that is there is believed.
    fn is_believed(&self, now: Instant, most: Duration) -> bool {
        let long = if self.secret.is_some() { most } else { BELIEVED_ABSENT };
        now.saturating_duration_since(self.at) < long
    }
}

/// The Secrets that somebody asked for.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    entries: HashMap<Key, Entry>,
    swept: Option<Instant>,
}

/// Their content is nobody's business.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl Secrets {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As it was last seen, however long ago.
    pub fn peek(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.known().entries.get(&key)?.secret.clone()
    }

    /// What is believed of it; none when it has to be read.
    fn believed(&self, key: &Key, now: Instant, most: Duration) -> Option<Entry> {
        let mut known = self.known();
        let entry = known.entries.get_mut(key)?;
        entry.asked = now;
        entry.is_believed(now, most).then(|| entry.clone())
    }

    /// Notes what there is at `at`, unless something younger is known; returns what is known.
    fn put(&self, key: Key, secret: Option<Arc<Secret>>, at: Instant) -> Option<Arc<Secret>> {
        let mut known = self.known();
        if let Some(younger) = known.entries.get(&key).filter(|known| known.at > at) {
            return younger.secret.clone();
        }
        if known.entries.len() >= MOST && !known.entries.contains_key(&key) {
            let oldest = known.entries.iter().min_by_key(|(_, entry)| entry.asked);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.map(|key| known.entries.remove(&key));
        }
        known.entries.insert(key, Entry { secret: secret.clone(), at, asked: at });
        secret
    }

    /// We wrote it.
    pub(crate) fn wrote(&self, secret: Secret) {
        let meta = &secret.metadata;
        let key =
            (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        self.put(key, Some(Arc::new(secret)), Instant::now());
    }

    /// It is to be read before it is believed again.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        self.known().entries.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Forgets what nobody asks for; returns it.
    fn sweep(&self, now: Instant) -> Vec<Key> {
        let mut known = self.known();
        let swept = *known.swept.get_or_insert(now);
        if now.saturating_duration_since(swept) < IDLE / 6 {
            return Vec::new();
        }
        known.swept = Some(now);
        let idle = |entry: &mut Entry| now.saturating_duration_since(entry.asked) >= IDLE;
        known.entries.extract_if(|_, entry| idle(entry)).map(|(key, _)| key).collect()
    }
}

impl Context {
    /// A Secret as it was a short while ago, or is.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, CallError> {
        self.secret_of_age(namespace, name, BELIEVED).await
    }

    /// A Secret as it was at most so long ago, or is.
    pub async fn secret_of_age(
        &self,
        namespace: &str,
        name: &str,
        most: Duration,
    ) -> Result<Option<Arc<Secret>>, CallError> {
        let key = (namespace.to_owned(), name.to_owned());
        match self.stores.secrets.believed(&key, Instant::now(), most) {
            Some(believed) => Ok(believed.secret),
            None => self.fresh_secret(namespace, name).await,
        }
    }

    /// A Secret as it is.
    pub async fn fresh_secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, CallError> {
        let secrets = &self.stores.secrets;
        let begun = Instant::now();
        let api = Api::<Secret>::namespaced(self.client.clone(), namespace);
        let what = || named("Secret", Some(namespace), name);
        let read = self.calls.call("get", what, api.get_opt(name)).await;
        for (namespace, name) in secrets.sweep(begun) {
            self.memory.forget_named("Secret", &namespace, &name);
        }
        match read {
            Ok(read) => {
                let mut read = read;
                read.iter_mut().for_each(crate::trim::any);
                let key = (namespace.to_owned(), name.to_owned());
                Ok(secrets.put(key, read.map(Arc::new), begun))
            }
            Err(error) => {
                if error.is_refusal() {
                    secrets.forget(namespace, name);
                }
                Err(error)
            }
        }
    }

    /// The token of `/metrics`, if the release has one: its hash, as queues and gateways take it.
    /// They run where others may read their Secrets, and the token is good everywhere.
    pub async fn metrics_token(&self) -> Result<Option<Vec<u8>>, CallError> {
        let secret = self.secret(&self.settings.namespace, &self.settings.metrics_secret).await?;
        Ok(secret.and_then(|secret| hash_of_token(&secret)))
    }
}

/// `sha256:` and the hash of the token in a Secret; none where there is no token.
fn hash_of_token(secret: &Secret) -> Option<Vec<u8>> {
    let token = secret.data.as_ref()?.get("token")?.0.trim_ascii();
    let hash = || format!("sha256:{}", hex(&Sha256::digest(token))).into_bytes();
    (!token.is_empty()).then(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("n".to_owned(), name.to_owned())
    }

    fn secret(version: &str) -> Arc<Secret> {
        let mut secret = Secret::default();
        secret.metadata.namespace = Some("n".to_owned());
        secret.metadata.name = Some("s".to_owned());
        secret.metadata.resource_version = Some(version.to_owned());
        Arc::new(secret)
    }

    /// As the receivers read it: <https://www.di-mgt.com.au/sha_testvectors.html>, of `abc`.
    #[test]
    fn the_metrics_token_leaves_the_release_as_its_hash() {
        let of = |token: &str| {
            let data = [("token".to_owned(), k8s_openapi::ByteString(token.into()))];
            hash_of_token(&Secret { data: Some(data.into()), ..Secret::default() })
        };
        let hash = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(of("abc\n").as_deref(), Some(hash.as_bytes()));
        assert_eq!(of("\n"), None);
        assert_eq!(hash_of_token(&Secret::default()), None);
    }

    #[test]
    fn what_was_read_is_believed_for_a_while() {
        let (secrets, begun) = (Secrets::default(), Instant::now());
        let believed =
            |name: &str, now| secrets.believed(&key(name), now, BELIEVED).map(|entry| entry.secret);
        assert_eq!(believed("s", begun), None, "it was never read");
        secrets.put(key("s"), Some(secret("1")), begun);
        secrets.put(key("absent"), None, begun);
        assert_eq!(believed("s", begun), Some(Some(secret("1"))));
        assert_eq!(believed("absent", begun), Some(None));
        assert_eq!(believed("absent", begun + BELIEVED_ABSENT), None);
        assert_eq!(believed("s", begun + BELIEVED), None);
        let soon = Duration::from_secs(30);
        assert!(secrets.believed(&key("s"), begun + soon, soon).is_none(), "who asks for less");
        assert_eq!(secrets.peek("n", "s"), Some(secret("1")), "it is known all the same");
        secrets.forget("n", "s");
        assert_eq!(secrets.peek("n", "s"), None);
    }

    #[test]
    fn a_read_that_began_before_our_write_does_not_undo_it() {
        let (secrets, begun) = (Secrets::default(), Instant::now());
        let written = begun + Duration::from_secs(1);
        secrets.put(key("s"), Some(secret("2")), written);
        assert_eq!(secrets.put(key("s"), None, begun), Some(secret("2")));
        let believed = secrets.believed(&key("s"), written, BELIEVED).unwrap();
        assert_eq!(believed.secret, Some(secret("2")));
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten_and_there_are_never_too_many() {
        let (secrets, begun) = (Secrets::default(), Instant::now());
        secrets.put(key("idle"), Some(secret("1")), begun);
        secrets.put(key("asked"), Some(secret("1")), begun);
        assert_eq!(secrets.sweep(begun), []);
        secrets.believed(&key("asked"), begun + IDLE / 2, BELIEVED);
        assert_eq!(secrets.sweep(begun + IDLE), [key("idle")]);
        assert!(secrets.peek("n", "asked").is_some());
        for n in 0..MOST {
            secrets.put(key(&n.to_string()), None, begun + IDLE);
        }
        assert_eq!(secrets.known().entries.len(), MOST);
        assert!(secrets.peek("n", "asked").is_none(), "the one asked for longest ago made way");
    }
}
