//! Which objects a controller has to look at.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use futures::stream;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

/// watches --objects to look at--> one controller. A set, so it holds an object once however
/// often it is marked, and never more of them than there are.
pub struct Dirty<K: Resource<DynamicType = ()>> {
    inner: Arc<Inner<K>>,
}

struct Inner<K: Resource<DynamicType = ()>> {
    marked: Mutex<HashSet<ObjectRef<K>>>,
    notify: Notify,
}

impl<K: Resource<DynamicType = ()>> Clone for Dirty<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: Resource<DynamicType = ()>> Default for Dirty<K> {
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner { marked: Mutex::new(HashSet::new()), notify: Notify::new() }),
        }
    }
}

impl<K: Resource<DynamicType = ()>> Dirty<K> {
    /// They have to be looked at.
    pub fn mark(&self, objects: impl IntoIterator<Item = ObjectRef<K>>) {
        self.inner.marked.lock().unwrap_or_else(PoisonError::into_inner).extend(objects);
        self.inner.notify.notify_one();
    }

    /// What is marked, in batches gathered for a time; ends never. For one reader.
    ///
    /// The time counts from the first mark of a batch, so an object that changes all the time
    /// is looked at all the same.
    pub fn stream(
        &self,
        gather: Duration,
    ) -> impl Stream<Item = Result<ObjectRef<K>, Infallible>> + Send + use<K>
    where
        K: 'static,
    {
        let inner = Arc::clone(&self.inner);
        stream::unfold((inner, Vec::new()), move |(inner, mut batch)| async move {
            loop {
                if let Some(object) = batch.pop() {
                    return Some((Ok(object), (inner, batch)));
                }
                // A mark that nobody waited for is kept: no mark is missed.
                inner.notify.notified().await;
                tokio::time::sleep(gather).await;
                let mut marked = inner.marked.lock().unwrap_or_else(PoisonError::into_inner);
                batch.extend(marked.drain());
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn named(name: &str) -> ObjectRef<ConfigMap> {
        ObjectRef::new(name)
    }

    #[tokio::test]
    async fn marks_are_gathered_and_none_is_lost() {
        let dirty = Dirty::<ConfigMap>::default();
        let mut stream = Box::pin(dirty.stream(Duration::from_millis(20)));
        dirty.mark([named("a")]);
        dirty.mark([named("a"), named("b")]);
        let mut batch = vec![stream.next().await, stream.next().await];
        batch.sort_by_key(|of| of.as_ref().map(|of| of.as_ref().map(|of| of.name.clone()).ok()));
        assert_eq!(batch, [Some(Ok(named("a"))), Some(Ok(named("b")))]);
        // Marked while nobody waits.
        dirty.mark([named("c")]);
        assert_eq!(stream.next().await, Some(Ok(named("c"))));
        // An object that is marked all the time is given all the same.
        let marking = async {
            loop {
                dirty.mark([named("d")]);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            never = marking => never,
            next = stream.next() => assert_eq!(next, Some(Ok(named("d")))),
        }
    }
}
