//! A namespace for one test.

use anyhow::Context as _;
use k8s_openapi::api::core::v1;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::cluster::Cluster;
use crate::kubectl::Kubectl;

/// A test's own namespace, with a name that no earlier run used.
pub struct Namespace {
    cluster: &'static Cluster,
    client: Client,
    name: String,
}

impl Namespace {
    pub(crate) async fn create(cluster: &'static Cluster, test: &str) -> anyhow::Result<Self> {
        let client = cluster.client().await?;
        let name = format!("{test}-{}", std::process::id());
        let object = v1::Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            ..v1::Namespace::default()
        };
        Api::<v1::Namespace>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("namespace {name}"))?;
        Ok(Self { cluster, client, name })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster that it is on.
    pub fn cluster(&self) -> &'static Cluster {
        self.cluster
    }

    /// A client with all rights in all namespaces.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Objects of one kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// `kubectl` whose default is this namespace.
    pub fn kubectl(&self) -> Kubectl {
        self.cluster.kubectl().namespace(&self.name)
    }

    /// Deletes it; the cluster removes what is in it meanwhile.
    pub(crate) async fn delete(&self) -> anyhow::Result<()> {
        Api::<v1::Namespace>::all(self.client.clone())
            .delete(&self.name, &DeleteParams::default())
            .await?;
        Ok(())
    }
}
