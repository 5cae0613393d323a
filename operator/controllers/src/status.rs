//! Writes `status` when it says something new.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::apply::Site;
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

impl Context {
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
