//! Makes and deletes many objects side by side.

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::{Api, Client};
use serde_json::Value;

/// Requests at one moment.
const AT_ONCE: usize = 32;

/// Makes all of them.
pub(crate) async fn create(client: &Client, documents: Vec<Value>) -> anyhow::Result<()> {
    let one = async |document: Value| {
        let object: DynamicObject = serde_json::from_value(document)?;
        let api = api(client, &object)?;
        api.create(&PostParams::default(), &object).await.map(drop).map_err(anyhow::Error::from)
    };
    stream::iter(documents.into_iter().map(Ok)).try_for_each_concurrent(AT_ONCE, one).await
}

/// Deletes all of them, and with them what belongs to them.
pub(crate) async fn delete(client: &Client, documents: Vec<Value>) -> anyhow::Result<()> {
    let one = async |document: Value| {
        let object: DynamicObject = serde_json::from_value(document)?;
        let name = object.metadata.name.clone().context("a name")?;
        api(client, &object)?.delete(&name, &DeleteParams::background()).await?;
        anyhow::Ok(())
    };
    stream::iter(documents).map(one).buffer_unordered(AT_ONCE).try_collect().await
}

/// What speaks of objects like this one.
fn api(client: &Client, object: &DynamicObject) -> anyhow::Result<Api<DynamicObject>> {
    let types: &TypeMeta = object.types.as_ref().context("apiVersion and kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    Ok(match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}
