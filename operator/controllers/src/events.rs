//! Events on custom resources: an action in verb-object form (`BindPool`), and its reason.

use kube::Resource;
use kube::client::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::call::Calls;
use crate::conditions::Wish;
use crate::error::named;

/// Publishes Events. One that cannot be published is logged: it stops nothing.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
    calls: Calls,
}

impl Events {
    pub(crate) fn new(client: Client, identity: String, calls: Calls) -> Self {
        let reporter =
            Reporter { controller: "rollwright-controllers".to_owned(), instance: Some(identity) };
        Self { recorder: Recorder::new(client, reporter), calls }
    }

    /// Something could not be done: `action` in verb-object form, `reason` in the past tense.
    pub async fn warning<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        action: &'static str,
        reason: &str,
        note: String,
    ) {
        self.publish(object, EventType::Warning, action, reason, note).await;
    }

    /// A condition became what it was not before: a warning with the condition's reason when
    /// that is `bad`, else what was done.
    pub async fn condition<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        action: &'static str,
        wish: &Wish,
        bad: bool,
    ) {
        let (sort, reason) =
            if bad { (EventType::Warning, wish.reason()) } else { (EventType::Normal, action) };
        self.publish(object, sort, action, reason, wish.message().to_owned()).await;
    }

    async fn publish<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        type_: EventType,
        action: &'static str,
        reason: &str,
        note: String,
    ) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note).filter(|note| !note.is_empty()),
            action: action.to_owned(),
            secondary: None,
        };
        let reference = object.object_ref(&());
        let what = || {
            let meta = object.meta();
            named("Event of", meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default())
        };
        let publish = self.recorder.publish(&event, &reference);
        if let Err(error) = self.calls.call("create", what, publish).await
            && !error.is_terminating()
        {
            tracing::warn!(%error, action, reason, "an Event is lost");
        }
    }
}
