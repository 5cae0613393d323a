//! The calls that actions are.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rollwright_agent::gpu::Caller;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::ActionId;

use crate::settings::Args;

/// Posts requests, and remembers answers.
#[derive(Debug)]
pub(super) struct Calls {
    client: Client<HttpConnector, Full<Bytes>>,
    bodies: Mutex<BTreeMap<ActionId, String>>,
    answers: Mutex<BTreeMap<ActionId, (Duration, String)>>,
    /// What a call takes at least: the modelled work of the FAKE.
    work: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls {
    pub(super) fn new(args: &Args) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let work = args.modelled_work();
        Self { client, bodies: Mutex::default(), answers: Mutex::default(), work }
    }

    /// What an action will post.
    pub(super) fn prepare(&self, action: ActionId, body: String) {
        lock(&self.bodies).insert(action, body);
    }

    /// How long an action's call took, and its answer.
    pub(super) fn answer(&self, action: &ActionId) -> Option<(Duration, String)> {
        lock(&self.answers).remove(action)
    }

    pub(super) async fn post(&self, address: &str, body: String) -> Result<String, Fault> {
        let failed = |why: String| Fault::new(FaultKind::Infrastructure, "CallFailed", why);
        let request = hyper::Request::post(format!("{address}/score")).body(Full::from(body));
        let request = request.map_err(|error| failed(error.to_string()))?;
        let reply = self.client.request(request).await.map_err(|e| failed(e.to_string()))?;
        let status = reply.status();
        let body = reply.into_body().collect().await.map_err(|e| failed(e.to_string()))?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        if status.is_success() { Ok(text) } else { Err(failed(format!("{status}: {text}"))) }
    }
}

#[async_trait]
impl Caller for Calls {
    async fn call(&self, action: &ActionId, address: &str) -> Result<(), Fault> {
        let body = lock(&self.bodies).remove(action).unwrap_or_default();
        let begun = Instant::now();
        let text = self.post(address, body).await?;
        tokio::time::sleep(self.work.saturating_sub(begun.elapsed())).await;
        lock(&self.answers).insert(action.clone(), (begun.elapsed(), text));
        Ok(())
    }
}
