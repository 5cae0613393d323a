//! A fake API server for tests: it takes whatever is applied, keeps none of it, and refuses what
//! it is told to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::call::Calls;
use crate::context::Context;
use crate::events::Events;
use crate::identity::Issuer;
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::startup::Watches;
use crate::token::Tokens;

/// What was asked of it: method, path and body.
type Request = (Method, String, Value);

#[derive(Default)]
struct Told {
    heard: Vec<Request>,
    /// The end of paths, or of those of their collections, whose patches are refused, with the
    /// status.
    refused: Option<(&'static str, u16)>,
    /// Specs by name, for answers about status.
    specs: BTreeMap<String, Value>,
}

/// The server, and a context that speaks to it.
pub(crate) struct FakeApi {
    told: Arc<Mutex<Told>>,
    pub(crate) watches: Watches,
    pub(crate) context: Arc<Context>,
}

impl FakeApi {
    /// With empty caches.
    pub(crate) async fn start(settings: Settings, issuer: Option<Issuer>) -> Self {
        let told = Arc::<Mutex<Told>>::default();
        let ear = Arc::clone(&told);
        let router = Router::new().fallback(async move |method: Method, uri: Uri, body: Bytes| {
            answer(&mut ear.lock().unwrap(), &method, uri.path(), &body)
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let calls = Calls::new(Arc::clone(&metrics));
        let (watches, stores) = Watches::open();
        let tokens = Tokens::new(client.clone(), calls.clone(), &settings.namespace);
        let context = Arc::new(Context {
            events: Events::new(client.clone(), "test".to_owned(), calls.clone()),
            client,
            settings,
            stores,
            calls,
            memory: Arc::default(),
            backoffs: Arc::default(),
            jobs: Arc::default(),
            agents_changed: Arc::default(),
            observed: Arc::default(),
            metrics,
            issuer_rx: watch::channel(issuer.map(Arc::new)).1,
            tokens: Arc::new(tokens),
            read_kubelet: false,
        });
        Self { told, watches, context }
    }

    /// It holds this custom resource.
    pub(crate) fn hold<K: Resource<DynamicType = ()> + Serialize>(&self, object: &K) {
        let spec = serde_json::to_value(object).unwrap()["spec"].take();
        let name = object.meta().name.clone().unwrap();
        self.told.lock().unwrap().specs.insert(name, spec);
    }

    /// From now on it refuses patches of paths that end so, with this status.
    pub(crate) fn refuse(&self, path: &'static str, status: u16) {
        self.told.lock().unwrap().refused = Some((path, status));
    }

    /// How often a path that ends so was to be deleted.
    pub(crate) fn deleted(&self, path: &str) -> usize {
        let told = self.told.lock().unwrap();
        let deletes = told.heard.iter().filter(|(method, ..)| *method == Method::DELETE);
        deletes.filter(|(_, of, _)| of.ends_with(path)).count()
    }

    /// The bodies of all patches of a path that ends so.
    pub(crate) fn patched(&self, path: &str) -> Vec<Value> {
        let told = self.told.lock().unwrap();
        let patches = told
            .heard
            .iter()
            .filter(|(method, of, _)| *method == Method::PATCH && of.ends_with(path));
        patches.map(|(_, _, body)| body.clone()).collect()
    }
}

fn answer(told: &mut Told, method: &Method, path: &str, body: &Bytes) -> Response {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    told.heard.push((method.clone(), path.to_owned(), body.clone()));
    let collection = path.rsplit_once('/').map_or("", |(collection, _)| collection);
    let is = |end: &str| path.ends_with(end) || collection.ends_with(end);
    let refused = told.refused.filter(|(end, _)| *method == Method::PATCH && is(end));
    // As the real one does: `null` is another thing than nothing.
    let null = body.pointer("/metadata/resourceVersion").is_some_and(Value::is_null);
    let refused = refused.map(|(_, status)| status).or(null.then_some(422));
    let (status, answer) = match refused {
        Some(status) => (status, failure(status)),
        None if *method == Method::GET && path.ends_with("/pods") => (200, no_pods()),
        None if *method == Method::GET => (404, failure(404)),
        None => {
            let mut made = body;
            made["metadata"]["resourceVersion"] = json!(told.heard.len().to_string());
            made["metadata"]["generation"] = json!(1);
            let name = made["metadata"]["name"].as_str().unwrap_or_default();
            if let Some(spec) = told.specs.get(name).filter(|_| path.ends_with("/status")) {
                made["spec"] = spec.clone();
            }
            (200, made)
        }
    };
    let mut response = Response::new(Body::from(answer.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

fn no_pods() -> Value {
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
        "metadata": {}, "items": []})
}

fn failure(status: u16) -> Value {
    let reason = if status == 404 { "NotFound" } else { "Told" };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the fake API server refuses", "reason": reason, "code": status})
}
