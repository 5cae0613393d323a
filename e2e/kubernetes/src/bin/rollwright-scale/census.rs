//! Counts objects as a watch shows them.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Objects now.
    pub(crate) all: usize,
    /// Of these, as they are wished.
    pub(crate) good: usize,
    /// Objects at any time.
    pub(crate) ever: usize,
}

/// The objects that a watch shows; it ends with this.
#[derive(Debug)]
pub(crate) struct Census {
    known: Arc<Mutex<Known>>,
    watch: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// By uid: whether it is as wished.
    good: HashMap<String, bool>,
    ever: HashSet<String>,
}

impl Census {
    /// Follows the objects of a selection from now on.
    pub(crate) fn of<K>(api: Api<K>, selector: &str, good: fn(&K) -> bool) -> Self
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let known = Arc::new(Mutex::new(Known::default()));
        let seen = Arc::clone(&known);
        let config = watcher::Config::default().labels(selector);
        let watch = tokio::spawn(async move {
            let mut events = watcher::watcher(api, config).default_backoff().boxed();
            while let Some(event) = events.next().await {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    Ok(event) => seen.note(event, good),
                    Err(error) => eprintln!("a watch begins anew: {error}"),
                }
            }
        });
        Self { known, watch }
    }

    /// How many there are.
    pub(crate) fn counts(&self) -> Counts {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Counts {
            all: known.good.len(),
            good: known.good.values().filter(|good| **good).count(),
            ever: known.ever.len(),
        }
    }
}

impl Drop for Census {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Known {
    fn note<K: Resource>(&mut self, event: Event<K>, good: fn(&K) -> bool) {
        let uid = |object: &K| object.meta().uid.clone().unwrap_or_default();
        match event {
            Event::Init => self.good.clear(),
            Event::InitApply(object) | Event::Apply(object) => {
                self.ever.insert(uid(&object));
                self.good.insert(uid(&object), good(&object));
            }
            Event::InitDone => {}
            Event::Delete(object) => {
                self.good.remove(&uid(&object));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(uid: &str, runs: bool) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.name = runs.then(|| "runs".to_owned());
        pod
    }

    #[test]
    fn what_comes_and_goes_is_counted_once() {
        let good = |pod: &Pod| pod.metadata.name.is_some();
        let mut known = Known::default();
        let events = [
            Event::Init,
            Event::InitApply(pod("a", false)),
            Event::InitDone,
            Event::Apply(pod("a", true)),
            Event::Apply(pod("b", false)),
            Event::Apply(pod("c", true)),
            Event::Delete(pod("c", true)),
        ];
        for event in events {
            known.note(event, good);
        }
        assert_eq!((known.good.len(), known.ever.len()), (2, 3));
        assert_eq!(known.good.values().filter(|good| **good).count(), 1);
        // A watch that begins anew tells all that there is.
        known.note(Event::Init, good);
        known.note(Event::InitApply(pod("a", true)), good);
        assert_eq!((known.good.len(), known.ever.len()), (1, 3));
    }
}
