//! Calls of reward services.

use std::sync::Arc;

use rollwright_core::fault::Fault;
use rollwright_core::ids::TrajectoryId;
use rollwright_core::reward::{Answer, CallId, ServiceIndex};
use rollwright_core::rollout::Event;
use rollwright_core::trajectory::State;
use serde_json::value::RawValue;

use super::Driver;
use crate::fault::{cancelled, infrastructure};
use crate::reward::{Said, Subject, Tokens};

/// Tells the core that a call has ended, also when its task is aborted.
struct Ending {
    driver: Arc<Driver>,
    call: CallId,
    outcome: Option<Result<Answer, Fault>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.driver.state().calls.remove(&self.call);
        if self.outcome.is_none() && self.driver.stopping.is_cancelled() {
            // Not its failure: the next process scores it anew, or replaces it.
            return;
        }
        let gone = || Err(cancelled("RewardCancelled", "nobody waits for this reward any more"));
        let outcome = self.outcome.take().unwrap_or_else(gone);
        self.driver.metrics.scored(&outcome);
        self.driver.tell(Event::RewardEnded { call: self.call, outcome });
        self.driver.changed();
    }
}

impl Driver {
    pub(super) fn call_reward(
        self: &Arc<Self>,
        call: CallId,
        trajectory: TrajectoryId,
        service: ServiceIndex,
        attempt: u32,
    ) {
        let mut ending = Ending { driver: Arc::clone(self), call, outcome: None };
        let Some(scorer) = self.scorers.get(service.0).cloned() else {
            let message = format!("there is no reward service number {}", service.0);
            ending.outcome = Some(Err(infrastructure("NoRewardService", message)));
            return;
        };
        // Registered before it can end: the task waits for the lock that is held here.
        let mut state = self.state();
        let task = tokio::spawn(async move {
            let driver = Arc::clone(&ending.driver);
            let said = match driver.subject(&trajectory).await {
                Ok(subject) => scorer.score(&subject, attempt).await,
                Err(fault) => Err(fault),
            };
            ending.outcome = Some(said.map(|said| driver.heard(&trajectory, service, said)));
            drop(ending);
        });
        state.calls.insert(call, task.abort_handle());
    }

    /// Keeps what a teacher said for the record; the core needs a reward alone.
    fn heard(&self, trajectory: &TrajectoryId, service: ServiceIndex, said: Said) -> Answer {
        let logprobs = match said {
            Said::Reward(reward) => return Answer::Reward(reward),
            Said::LogProbs(logprobs) => logprobs,
        };
        if let Some(reward) = self.config.rewards.get(service.0) {
            let mut state = self.state();
            let taught = state.taught.entry(trajectory.clone()).or_default();
            taught.insert(reward.name.clone(), logprobs);
        }
        // One that was aborted meanwhile has been dropped already, and is not dropped again.
        let scoring = self.view(|core| {
            let known = core.trajectories().trajectory(trajectory.as_str());
            known.is_some_and(|known| known.state() == State::Scoring)
        });
        if !scoring {
            self.state().taught.remove(trajectory);
        }
        Answer::LogProbs
    }

    pub(super) fn cancel_reward(&self, call: CallId) {
        if let Some(task) = self.state().calls.get(&call) {
            task.abort();
        }
    }

    /// What a service is told of a trajectory.
    async fn subject(&self, trajectory: &TrajectoryId) -> Result<Subject, Fault> {
        let metadata = self.state().metadata.get(trajectory).cloned();
        let metadata: Option<Box<RawValue>> = raw(metadata.as_deref())?;
        let found = self.view(|core| {
            let known = core.trajectories().trajectory(trajectory.as_str())?;
            let group = core.trajectories().group(known.group().as_str())?;
            let log = known.log();
            Some(Subject {
                trajectory: trajectory.clone(),
                group: known.group().clone(),
                task: group.task().clone(),
                payload: None,
                metadata,
                messages: None,
                tokens: core.log(trajectory).map(|log| Tokens {
                    token_ids: log.context().to_vec(),
                    loss_mask: log.loss_mask().collect(),
                }),
                turns: log.turns,
                prompt_tokens: log.prompt_tokens,
                generated_tokens: log.generated_tokens,
                start_version: known.start_version(),
                oldest_version: known.oldest_version(),
            })
        });
        let mut subject = found.ok_or_else(|| {
            cancelled("TrajectoryGone", format!("trajectory `{trajectory}` is not known any more"))
        })?;
        let payload = self.store.payload(&subject.group).await.map_err(Fault::from)?;
        subject.payload = raw(payload.as_deref())?;
        Ok(subject)
    }
}

fn raw(json: Option<&[u8]>) -> Result<Option<Box<RawValue>>, Fault> {
    let read = json.map(serde_json::from_slice).transpose();
    read.map_err(|error| infrastructure("DamagedJson", format!("stored JSON is damaged: {error}")))
}
