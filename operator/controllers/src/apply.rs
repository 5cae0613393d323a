//! Server-side apply that writes only what is not there yet.
//!
//! What was applied is remembered by a hash of the object and the revision that the API server
//! gave it. An object whose hash and live revision are both as remembered is left alone; a
//! changed revision means that somebody else changed it, so it is applied again, which the API
//! server answers without a write when nothing of ours differs.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::context::Context;
use crate::error::{CallError, named};
use crate::stores::Stores;

/// How long a cache may show an object as it was before our own write.
const CACHE_LAG: Duration = Duration::from_secs(30);

/// A field manager: one for each place in the code that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site(pub &'static str);

/// A kind that we make, and whose live objects a cache shows.
pub trait Made:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Serialize
    + DeserializeOwned
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
    /// Its revision in the cache, if it is there.
    fn live(stores: &Stores, namespace: &str, name: &str) -> Option<String>;

    /// What changes in its metadata when its content changes.
    fn revision(meta: &ObjectMeta) -> Option<String> {
        meta.resource_version.clone()
    }

    /// Looks again at one that no watch shows, if the last look is old.
    fn look(
        _: &Context,
        _namespace: &str,
        _name: &str,
    ) -> impl Future<Output = Result<(), CallError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Notes what our write left, where no watch shows it; none: nobody knows.
    fn wrote(_: &Stores, _namespace: &str, _name: &str, _left: Option<Self>) {}
}

impl Made for Secret {
    fn live(stores: &Stores, namespace: &str, name: &str) -> Option<String> {
        Self::revision(&stores.secrets.peek(namespace, name)?.metadata)
    }

    async fn look(context: &Context, namespace: &str, name: &str) -> Result<(), CallError> {
        context.secret(namespace, name).await.map(drop)
    }

    fn wrote(stores: &Stores, namespace: &str, name: &str, left: Option<Self>) {
        match left {
            Some(secret) => stores.secrets.wrote(secret),
            None => stores.secrets.forget(namespace, name),
        }
    }
}

/// Kinds whose `generation` counts changes of the spec, so that status is no change.
macro_rules! by_generation {
    ($($kind:ty => $store:ident),*) => {$(
        impl Made for $kind {
            fn live(stores: &Stores, namespace: &str, name: &str) -> Option<String> {
                let live = stores.$store.get(&ObjectRef::new(name).within(namespace))?;
                Self::revision(&live.metadata)
            }

            fn revision(meta: &ObjectMeta) -> Option<String> {
                meta.generation.map(|generation| generation.to_string())
            }
        }
    )*};
}

/// Kinds without a generation: any change counts.
macro_rules! by_version {
    ($($kind:ty => $store:ident),*) => {$(
        impl Made for $kind {
            fn live(stores: &Stores, namespace: &str, name: &str) -> Option<String> {
                let live = stores.$store.get(&ObjectRef::new(name).within(namespace))?;
                Self::revision(&live.metadata)
            }
        }
    )*};
}

by_generation!(StatefulSet => stateful_sets, Deployment => deployments, NetworkPolicy => network_policies);
by_version!(Service => services, ConfigMap => config_maps);

impl Made for Pod {
    fn live(stores: &Stores, namespace: &str, name: &str) -> Option<String> {
        let live = stores.pods.get(&ObjectRef::new(name).within(namespace))?;
        Self::revision(&live.metadata)
    }

    /// A pod is not changed after it was made.
    fn revision(meta: &ObjectMeta) -> Option<String> {
        meta.uid.clone()
    }
}

/// What was applied, of every object that we made.
#[derive(Debug, Default)]
pub struct Memory {
    applied: Mutex<HashMap<Key, Applied>>,
}

/// Kind, namespace, name and field manager.
type Key = (&'static str, String, String, &'static str);

#[derive(Clone, Debug)]
struct Applied {
    hash: [u8; 32],
    /// As the cache showed it before the write.
    before: Option<String>,
    /// The cache has shown the write.
    shown: bool,
    after: Option<String>,
    at: Instant,
}

impl Memory {
    /// An object is gone: it has to be made again.
    pub(crate) fn forget(&self, kind: &str, meta: &ObjectMeta) {
        let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else { return };
        self.forget_named(kind, namespace, name);
    }

    /// The same by its name.
    pub(crate) fn forget_named(&self, kind: &str, namespace: &str, name: &str) {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        applied.retain(|key, _| key.0 != kind || key.1 != namespace || key.2 != name);
    }

    /// Whether `live` is what an apply of this hash left.
    fn stands(&self, key: &Key, hash: &[u8; 32], live: Option<&String>, now: Instant) -> bool {
        let mut all = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(applied) = all.get_mut(key).filter(|applied| applied.hash == *hash) else {
            return false;
        };
        if live.is_some() && live == applied.after.as_ref() {
            applied.shown = true;
            return true;
        }
        let lags = !applied.shown && applied.before.as_ref() == live;
        lags && now.saturating_duration_since(applied.at) < CACHE_LAG
    }

    fn remember(&self, key: Key, applied: Applied) {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner).insert(key, applied);
    }
}

impl Context {
    /// Makes the live object what is built, as far as it is built; true when something was sent.
    pub async fn apply<K: Made>(&self, site: Site, built: &K) -> Result<bool, CallError> {
        let kind = kind_of::<K>();
        let meta = built.meta();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let name = meta.name.clone().unwrap_or_default();
        let hash = hash(built);
        K::look(self, &namespace, &name).await?;
        let live = K::live(&self.stores, &namespace, &name);
        let key = (kind, namespace.clone(), name.clone(), site.0);
        let begun = Instant::now();
        if self.memory.stands(&key, &hash, live.as_ref(), begun) {
            return Ok(false);
        }
        let api = Api::<K>::namespaced(self.client.clone(), &namespace);
        let params = PatchParams::apply(site.0).force();
        let patch = Patch::Apply(built);
        let what = || named(kind, Some(&namespace), &name);
        let written = self.calls.call("apply", what, api.patch(&name, &params, &patch)).await;
        let written = written.inspect_err(|_| K::wrote(&self.stores, &namespace, &name, None))?;
        let after = K::revision(written.meta());
        K::wrote(&self.stores, &namespace, &name, Some(written));
        self.memory.remember(key, Applied { hash, before: live, shown: false, after, at: begun });
        Ok(true)
    }

    /// Deletes an object; one that is gone already is as well.
    pub async fn delete<K: Made>(&self, namespace: &str, name: &str) -> Result<(), CallError> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let what = || named(kind_of::<K>(), Some(namespace), name);
        let params = kube::api::DeleteParams::background();
        let deleted = self.calls.call("delete", what, api.delete(name, &params)).await;
        K::wrote(&self.stores, namespace, name, None);
        match deleted {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A hash of what is built, the same for the same content.
pub fn hash<T: Serialize>(built: &T) -> [u8; 32] {
    // Kubernetes' types always serialise, and in the order of their fields.
    Sha256::digest(serde_json::to_vec(built).unwrap_or_default()).into()
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn kind_of<K: Resource<DynamicType = ()>>() -> &'static str {
    // Kinds of k8s-openapi are constants.
    match K::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(_) => "Object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: [u8; 32] = [1; 32];

    fn key() -> Key {
        ("Service", "n".to_owned(), "s".to_owned(), "site")
    }

    /// A memory of one apply at `at`: revision `1` before, `2` after.
    fn memory(at: Instant) -> Memory {
        let memory = Memory::default();
        let (before, after) = (Some("1".to_owned()), Some("2".to_owned()));
        memory.remember(key(), Applied { hash: HASH, before, shown: false, after, at });
        memory
    }

    #[test]
    fn what_stands_is_not_written_again() {
        let begun = Instant::now();
        let memory = memory(begun);
        let stands = |live: Option<&str>, hash: &[u8; 32], now| {
            memory.stands(&key(), hash, live.map(str::to_owned).as_ref(), now)
        };
        let later = begun + CACHE_LAG;
        assert!(stands(Some("1"), &HASH, begun), "the cache lags");
        assert!(!stands(Some("1"), &HASH, later), "nobody lags for so long: it was put back");
        assert!(stands(Some("2"), &HASH, later));
        assert!(!stands(Some("1"), &HASH, begun), "the cache was past that");
        assert!(!stands(Some("3"), &HASH, begun), "somebody else wrote");
        assert!(!stands(None, &HASH, begun), "it is gone");
        assert!(!stands(Some("2"), &[2; 32], begun), "something else is built");
    }

    #[test]
    fn a_new_object_that_the_cache_does_not_show_yet_stands_until_it_is_deleted() {
        let begun = Instant::now();
        let memory = Memory::default();
        let after = Some("1".to_owned());
        let applied = Applied { hash: HASH, before: None, shown: false, after, at: begun };
        memory.remember(key(), applied);
        assert!(memory.stands(&key(), &HASH, None, begun));
        let meta = ObjectMeta {
            name: Some("s".to_owned()),
            namespace: Some("n".to_owned()),
            ..ObjectMeta::default()
        };
        memory.forget("Service", &meta);
        assert!(!memory.stands(&key(), &HASH, None, begun));
    }
}
