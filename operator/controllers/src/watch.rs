//! Keeps the caches and tells the controllers what changed.

use std::fmt::Debug;
use std::sync::Arc;

use futures::{Stream, StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use rollwright_crds::{ActionQueue, ResourcePool, RewardService, RolloutJob};
use serde::de::DeserializeOwned;

use crate::malformed::Malformed;
use crate::metrics::Metrics;

/// What a watch saw.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The object.
    pub what: What<'a>,
    /// It is no more.
    pub gone: bool,
}

/// Which object a watch saw.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// A ResourcePool: its spec, its metadata, or whose it is.
    Pool(&'a ResourcePool),
    /// One of which nothing but figures and conditions changed in its status.
    PoolFigures(&'a ResourcePool),
    /// A RolloutJob.
    Job(&'a RolloutJob),
    /// An ActionQueue.
    Queue(&'a ActionQueue),
    /// A RewardService.
    Reward(&'a RewardService),
    /// A node.
    Node(&'a Node),
    /// A pod, of ours or not.
    Pod(&'a Pod),
    /// Another object that we made: its kind and metadata.
    Owned(&'static str, &'a ObjectMeta),
    /// Something that every object may depend on: a watch began anew, the token of `/metrics`
    /// or the keys of the API server changed.
    Everything,
}

/// Who is told of changes: watches --change--> each controller.
pub type Listener = Box<dyn Fn(&Change<'_>) + Send + Sync>;

/// All listeners.
#[derive(Clone, Default)]
pub struct Listeners(Arc<Vec<Listener>>);

impl Listeners {
    /// These.
    pub fn new(listeners: Vec<Listener>) -> Self {
        Self(Arc::new(listeners))
    }

    /// Tells all of them.
    pub fn tell(&self, what: What<'_>, gone: bool) {
        for listener in self.0.iter() {
            listener(&Change { what, gone });
        }
    }
}

/// A kind that is watched: what is kept of it and how its changes are told.
pub(crate) struct Watch<K: Resource<DynamicType = ()> + Clone + 'static> {
    pub(crate) writer: Writer<K>,
    /// Cuts an object down to what somebody reads.
    pub(crate) trim: fn(&mut K),
    /// Whether two versions of it say the same to all who read it.
    pub(crate) same: fn(&K, &K) -> bool,
    /// How listeners are told of it, given what was known before.
    pub(crate) what: for<'a> fn(Option<&K>, &'a K) -> What<'a>,
}

/// Equal but for the resource version: a node's heartbeat is no news.
pub(crate) fn equal<K>(before: &K, after: &K) -> bool
where
    K: Resource<DynamicType = ()> + Clone + PartialEq,
{
    let mut before = before.clone();
    before.meta_mut().resource_version.clone_from(&after.meta().resource_version);
    before == *after
}

/// Whether the metadata says the same, but for the resource version.
pub(crate) fn same_meta<K: Resource<DynamicType = ()>>(before: &K, after: &K) -> bool {
    let mut meta = before.meta().clone();
    meta.resource_version.clone_from(&after.meta().resource_version);
    meta == *after.meta()
}

/// Metadata alone shows a change of content by its resource version.
pub(crate) fn same_version<K: Resource<DynamicType = ()>>(before: &K, after: &K) -> bool {
    before.meta().resource_version == after.meta().resource_version
}

impl<K> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    /// Follows objects of Kubernetes' own kinds; ends never.
    pub(crate) async fn run(self, api: Api<K>, config: watcher::Config, listeners: Listeners)
    where
        K: DeserializeOwned,
    {
        let stream = watcher::watcher(api, config).default_backoff();
        self.follow(stream.map(|event| event.map(Some)), listeners).await;
    }

    /// Follows custom resources: one that does not parse is logged and left as it was last
    /// known, and the others live on. Ends never.
    pub(crate) async fn run_guarded(
        self,
        client: Client,
        malformed: Malformed,
        metrics: Arc<Metrics>,
        listeners: Listeners,
    ) where
        K: DeserializeOwned,
    {
        let known = self.writer.as_reader();
        let api = Api::<DeserializeGuard<K>>::all(client);
        let stream = watcher::watcher(api, watcher::Config::default()).default_backoff();
        let stream =
            stream.map(|event| event.map(|event| sound(event, &known, &malformed, &metrics)));
        self.follow(stream, listeners).await;
    }

    async fn follow(
        mut self,
        stream: impl Stream<Item = Result<Option<Event<K>>, watcher::Error>>,
        listeners: Listeners,
    ) {
        let known = self.writer.as_reader();
        pin_mut!(stream);
        while let Some(event) = stream.next().await {
            let event = match event {
                Ok(Some(event)) => event.modify(self.trim),
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), %error, "a watch failed and begins anew");
                    continue;
                }
            };
            let before = match &event {
                Event::Apply(object) => known.get(&ObjectRef::from_obj(object)),
                _ => None,
            };
            let news = match &event {
                Event::Apply(object) => {
                    before.as_ref().is_none_or(|before| !(self.same)(before, object))
                }
                Event::Delete(_) | Event::InitDone => true,
                Event::Init | Event::InitApply(_) => false,
            };
            self.writer.apply_watcher_event(&event);
            match &event {
                _ if !news => {}
                Event::Apply(object) => {
                    listeners.tell((self.what)(before.as_deref(), object), false);
                }
                Event::Delete(object) => listeners.tell((self.what)(None, object), true),
                _ => listeners.tell(What::Everything, false),
            }
        }
    }
}

/// The event with its object; one that does not parse is replaced by what is known of it.
fn sound<K>(
    event: Event<DeserializeGuard<K>>,
    known: &Store<K>,
    malformed: &Malformed,
    metrics: &Metrics,
) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let gone = matches!(event, Event::Delete(_));
    let (guard, wrap): (_, fn(K) -> Event<K>) = match event {
        Event::Init => {
            malformed.begin(&K::kind(&()));
            return Some(Event::Init);
        }
        Event::InitDone => {
            malformed.complete(&K::kind(&()));
            return Some(Event::InitDone);
        }
        Event::Apply(guard) => (guard, Event::Apply),
        Event::InitApply(guard) => (guard, Event::InitApply),
        Event::Delete(guard) => (guard, Event::Delete),
    };
    let kind = K::kind(&());
    let (namespace, name) = {
        let meta = guard.meta();
        (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    };
    let invalid = match guard.0 {
        Ok(object) => {
            malformed.note(&kind, &namespace, &name, false);
            return Some(wrap(object));
        }
        Err(invalid) => invalid,
    };
    if malformed.note(&kind, &namespace, &name, !gone) && !gone {
        metrics.malformed(&kind);
        tracing::warn!(
            %kind, namespace, name, error = invalid.error,
            "an object does not parse; it is left as it was last known"
        );
    }
    let known = known.get(&ObjectRef::new(&name).within(&namespace));
    known.map(|object| wrap(K::clone(&object)))
}

#[cfg(test)]
mod tests;
