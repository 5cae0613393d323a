//! Writes `status` when it says something new.

use std::fmt::Debug;
use std::slice;

use kube::api::{Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt as _};
use rollwright_crds::conditions::Condition;
use rollwright_crds::job::RolloutJobStatus;
use rollwright_crds::pool::ResourcePoolStatus;
use rollwright_crds::queue::ActionQueueStatus;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::apply::Site;
use crate::conditions::{self, Wish};
use crate::context::Context;
use crate::error::{CallError, named};

/// What a status may be written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Whatever is there.
    Anything,
    /// The object as it was read: that somebody has written it since is an error with status
    /// 409.
    AsRead,
}

/// A status with conditions.
pub trait Conditioned: Default + Clone + PartialEq + Serialize {
    /// They.
    fn conditions(&mut self) -> &mut Vec<Condition>;
}

macro_rules! conditioned {
    ($($status:ty),*) => {$(
        impl Conditioned for $status {
            fn conditions(&mut self) -> &mut Vec<Condition> {
                &mut self.conditions
            }
        }
    )*};
}

conditioned!(ActionQueueStatus, ResourcePoolStatus, RolloutJobStatus);

impl Context {
    /// Says that a request to the API server was refused while an object was seen to, where it
    /// was; of the rest the pass did not get to know, so it stays as it was.
    pub async fn tell_refused<K>(
        &self,
        site: Site,
        api: &Api<K>,
        object: &K,
        error: &CallError,
        over: Over,
    ) where
        K: Resource<DynamicType = ()> + HasStatus + Clone + Debug + DeserializeOwned,
        K::Status: Conditioned,
    {
        let Some(wish) = Wish::rejected(error) else { return };
        let mut status = object.status().cloned().unwrap_or_default();
        let old = std::mem::take(status.conditions());
        let turned = conditions::changed(&old, slice::from_ref(&wish)).next().is_some();
        let generation = object.meta().generation;
        *status.conditions() = conditions::replace(&old, wish.clone(), generation, self.now());
        match self.publish(site, api, object, &status, over).await {
            Ok(true) if turned => self.events.condition(object, "MakeObjects", &wish, true).await,
            Ok(_) => {}
            Err(error) => {
                let (kind, namespace) = (K::kind(&()), object.namespace());
                let name = object.name_any();
                tracing::warn!(%kind, namespace, name, %error, "cannot say what was refused");
            }
        }
    }

    /// Writes the status of a custom resource through the API of its kind and namespace, unless
    /// it has it already; true when written.
    /// Conditions come from [`crate::conditions::merge`], which keeps their times, so an equal
    /// state is an equal status.
    pub async fn publish<K>(
        &self,
        site: Site,
        api: &Api<K>,
        object: &K,
        status: &K::Status,
        over: Over,
    ) -> Result<bool, CallError>
    where
        K: Resource<DynamicType = ()> + HasStatus + Clone + Debug + DeserializeOwned,
        K::Status: Serialize + PartialEq,
    {
        if object.status() == Some(status) {
            return Ok(false);
        }
        let name = object.name_any();
        let mut patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": name},
            "status": status,
        });
        // `null` is a version, and a wrong one.
        if over == Over::AsRead
            && let Some(version) = object.resource_version()
        {
            patch["metadata"]["resourceVersion"] = version.into();
        }
        let params = PatchParams::apply(site.0).force();
        let what = || named(&K::kind(&()), object.namespace().as_deref(), &name);
        let patch = Patch::Apply(&patch);
        let request = api.patch_status(&name, &params, &patch);
        self.calls.call("patch-status", what, request).await?;
        Ok(true)
    }
}
