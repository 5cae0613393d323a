//! A model on GPUs: behind the action queue, which brings it to a chunk of GPUs for the call
//! and takes it away afterwards, or at an address where it always runs.

use std::sync::Arc;

use http::StatusCode;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_crds::reward::GpuReward;
use rollwright_proto::v1 as pb;

use super::Said;
use super::dialect::{Dialect, Request};
use super::judge::{self, Judge};
use super::name::{Asked, name};
use super::subject::Subject;
use crate::actions::{Actions, Guard, Release};
use crate::outbound::{Proxy, Reply};

/// Bytes of an answer taken at most: log-probabilities of a long context.
const MOST: usize = 32 << 20;

/// Asks the model of a `RewardService` about trajectories. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GpuScorer(Arc<Model>);

#[derive(Debug)]
struct Model {
    dialect: Dialect,
    reach: Reach,
}

#[derive(Debug)]
enum Reach {
    Queue(Actions),
    Address(Judge),
}

impl GpuScorer {
    /// The service that the queue behind `actions` schedules, which `service.queue` names.
    pub fn queued(actions: Actions, name: &str, service: &GpuReward) -> Self {
        Self::new(name, service, Reach::Queue(actions))
    }

    /// A service that always runs at `url`, to which the paths of its engine are added.
    pub fn at(url: &str, name: &str, service: &GpuReward) -> Result<Self, Fault> {
        let url = url.trim_end_matches('/');
        let judge = Judge::new(url, service.timeout.into(), MOST, Proxy::Never)?;
        Ok(Self::new(name, service, Reach::Address(judge)))
    }

    fn new(name: &str, service: &GpuReward, reach: Reach) -> Self {
        let model = service.model.served_name.as_ref().unwrap_or(&service.model.path).clone();
        let (ask, engine) = (service.ask, service.engine.kind);
        let dialect = Dialect { ask, engine, model, service: name.to_owned() };
        Self(Arc::new(Model { dialect, reach }))
    }

    /// What the model says of the trajectory, or a fault of infrastructure.
    pub async fn score(&self, subject: &Subject, attempt: u32) -> Result<Said, Fault> {
        let Model { dialect, reach } = &*self.0;
        let Request { path, body } = dialect.request(subject)?;
        let reply = match reach {
            Reach::Queue(actions) => {
                let asked = Asked { service: &dialect.service, path, body: &body };
                let id = name(&subject.trajectory, Some(asked), attempt);
                queued(actions, id, &dialect.service, path, body).await?
            }
            Reach::Address(judge) => judge.post(path, body, None).await?,
        };
        dialect.read(&reply.body, subject)
    }
}

/// A call through the queue that its engine answered with success.
async fn queued(
    actions: &Actions,
    id: String,
    service: &str,
    path: &str,
    body: Vec<u8>,
) -> Result<Reply, Fault> {
    let json = pb::CallHeader { name: "content-type".into(), value: "application/json".into() };
    let call = pb::CallRequest {
        action_id: id.clone(),
        service: service.to_owned(),
        path: path.to_owned(),
        headers: vec![json],
        body: body.into(),
        ..pb::CallRequest::default()
    };
    // Whoever stops waiting ends the call.
    let guard = Guard::new(actions, Release::Action(id));
    let answer = actions.call(call).await;
    guard.keep();
    let answer = answer?;
    let status = u16::try_from(answer.status).ok();
    let status = status.and_then(|status| StatusCode::from_u16(status).ok()).ok_or_else(|| {
        let message = format!("reward service {service} answered status {}", answer.status);
        Fault::new(FaultKind::Infrastructure, "RewardFailed", message)
    })?;
    // What the engine says of coming again is not heeded: the same attempt would be given this
    // stored answer for as long as it is kept.
    let reply = Reply { status, retry_after: None, body: answer.body };
    judge::succeeded(reply, service, None)
}
