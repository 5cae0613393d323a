//! Owner references: what belongs to a custom resource goes with it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use crate::labels::{self, Component};

/// The reference to the one controlling owner.
pub fn reference<K: Resource<DynamicType = ()>>(owner: &K) -> Vec<OwnerReference> {
    owner.controller_owner_ref(&()).into_iter().collect()
}

/// Metadata of an object that belongs to `owner`.
pub fn metadata<K: Resource<DynamicType = ()>>(
    owner: &K,
    component: Component,
    namespace: &str,
    name: String,
) -> ObjectMeta {
    let instance = owner.meta().name.as_deref().unwrap_or_default();
    ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels::of(component, instance)),
        owner_references: Some(reference(owner)),
        ..ObjectMeta::default()
    }
}

/// Whether the object with that uid is the one controlling owner: labels are anybody's to set, and
/// a name may be another's by now.
pub fn is_controlled_by(meta: &ObjectMeta, uid: Option<&str>) -> bool {
    let owners = meta.owner_references.iter().flatten();
    let mut controlling = owners.filter(|owner| owner.controller == Some(true));
    controlling.any(|owner| Some(owner.uid.as_str()) == uid)
}

/// Namespace and name of the owner of this kind, if an object has one.
pub fn of_kind<'a>(meta: &'a ObjectMeta, kind: &str) -> Option<&'a str> {
    let owners = meta.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.kind == kind).map(|owner| owner.name.as_str())
}
