//! JSON over HTTP, as an agent or a trainer speaks it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::namespace::Namespace;
use crate::release::RELEASE;
use crate::wait::until;

/// A service of ours, called with a bearer token.
#[derive(Clone, Debug)]
pub struct Http {
    client: Client,
    base: String,
    token: String,
}

impl Http {
    /// The gateway of a job, with the key that the controllers made for it.
    pub async fn gateway(namespace: &Namespace, job: &str) -> anyhow::Result<Self> {
        let secret = namespace.api::<Secret>().get(&format!("{job}-api-key")).await?;
        let key = secret.data.unwrap_or_default().remove("api-key").context("no key")?;
        Self::service(namespace, &format!("{job}-gateway"), 9470, String::from_utf8(key.0)?).await
    }

    /// The gateway of a job, with a token of the namespace's default account.
    pub async fn gateway_by_account(namespace: &Namespace, job: &str) -> anyhow::Result<Self> {
        let token = account_token(namespace).await?;
        Self::service(namespace, &format!("{job}-gateway"), 9470, token).await
    }

    /// An action queue, with a token of the namespace's default account.
    pub async fn queue(namespace: &Namespace, queue: &str) -> anyhow::Result<Self> {
        let token = account_token(namespace).await?;
        Self::service(namespace, &format!("{queue}-queue"), 9460, token).await
    }

    /// The metrics of an action queue, as Prometheus is let in to them.
    pub async fn queue_metrics(namespace: &Namespace, queue: &str) -> anyhow::Result<Self> {
        // Beside the queue is only its hash.
        let release = Api::<Secret>::namespaced(namespace.client(), RELEASE);
        let secret = release.get("rollwright-metrics").await?;
        let token = secret.data.unwrap_or_default().remove("token").context("no token")?;
        Self::service(namespace, &format!("{queue}-queue"), 9465, String::from_utf8(token.0)?).await
    }

    async fn service(
        namespace: &Namespace,
        name: &str,
        port: u16,
        token: String,
    ) -> anyhow::Result<Self> {
        let service = namespace.api::<Service>().get(name).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).context("no address")?;
        // Without one (`None`) its pods are found by name.
        let address = match address.as_str() {
            "None" => {
                namespace.cluster().resolve(&format!("{name}.{}.svc", namespace.name())).await?
            }
            address => address.to_owned(),
        };
        routed(name, &address, port).await?;
        let client = Client::builder().no_proxy().timeout(Duration::from_mins(3)).build()?;
        Ok(Self { client, base: format!("http://{address}:{port}"), token })
    }

    /// The service's address, as a URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The token that it is called with.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Posts a document and returns the answer; with streams of lines of JSON, the last one.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(self.request(Method::POST, path).json(body), path).await
    }

    /// Puts bytes.
    pub async fn put(&self, path: &str, body: Vec<u8>) -> anyhow::Result<Value> {
        self.call(self.request(Method::PUT, path).body(body), path).await
    }

    /// Calls a reward service on GPUs for a job, named with its namespace.
    pub async fn reward(&self, job: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let path = format!("/v1/rewards/{path}");
        let request = self.request(Method::POST, &path).header("x-rollwright-job", job);
        self.call(request.json(body), &path).await
    }

    /// Gets a document.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(self.request(Method::GET, path), path).await
    }

    /// Gets a text as it is.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        Ok(self.request(Method::GET, path).send().await?.error_for_status()?.text().await?)
    }

    /// Deletes what a path names.
    pub async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.call(self.request(Method::DELETE, path), path).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token)
    }

    async fn call(&self, request: RequestBuilder, path: &str) -> anyhow::Result<Value> {
        let response = request.send().await.context(path.to_owned())?;
        let status = response.status();
        let text = response.text().await?;
        ensure!(status.is_success(), "{path}: {status}: {text}");
        let last = text.trim_end().lines().next_back().unwrap_or("null");
        serde_json::from_str(last).with_context(|| format!("{path}: {text}"))
    }
}

/// Waits until a connection is taken: a pod may be ready before kube-proxy has the address of
/// its service, and until then no route leads there.
async fn routed(name: &str, address: &str, port: u16) -> anyhow::Result<()> {
    until(&format!("{name} takes connections"), async || {
        let connected = TcpStream::connect((address, port)).await;
        Ok(connected.map(drop).map_err(|error| error.to_string()))
    })
    .await
}

async fn account_token(namespace: &Namespace) -> anyhow::Result<String> {
    let create = ["create", "token", "default", "--audience=rollwright", "--duration=2h"];
    Ok(namespace.kubectl().run(&create).await?.trim_end().to_owned())
}
