//! `/rollout/v1` over the core.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::rollout::Event;
use rollwright_core::trajectory::{self, Purpose};
use rollwright_core::version::{BatchId, Version};
use rollwright_core::weights;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::{Driver, view};
use crate::api::rollouts::{Batch, BucketBody, ByteRange, Opened, PutBucket, Rollouts};
use crate::api::types::{
    AbortTrajectory, BeginWeights, Begun, Bucket, CommitWeights, Committed, CompleteTrajectory,
    Group, OpenGroup, RecordedTokens, StatusReport, Step, StepTaken, TakeBatch, Tokens, Trajectory,
    TrajectoryState, Transfer, WeightsReport, WorkerSet, WorkerStates,
};
use crate::events::{Filter, Subscription};
use crate::fault::{cancelled, infrastructure, user};

/// The task of groups that name none.
const DEFAULT_TASK: &str = "default";

/// The routes' view of a [`Driver`]. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Api(pub(crate) Arc<Driver>);

impl Api {
    fn group_now(&self, group: &GroupId) -> Result<Group, Fault> {
        let found = self.0.view(|core| core.trajectories().group(group.as_str()).map(view::group));
        found.ok_or_else(|| view::unknown_group(group.as_str()))
    }

    fn trajectory_state(&self, trajectory: &TrajectoryId) -> Result<TrajectoryState, Fault> {
        let state = self.0.view(|core| {
            core.trajectories().trajectory(trajectory.as_str()).map(trajectory::Trajectory::state)
        });
        let state = state.ok_or_else(|| view::unknown_trajectory(trajectory.as_str()))?;
        Ok(TrajectoryState { state: view::state(state) })
    }

    /// Tries again after every change until there is something, or the time is over.
    async fn until<T, F>(&self, wait: Duration, mut attempt: impl FnMut() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Attempt<T>>,
    {
        let deadline = Instant::now() + wait;
        let mut changes = self.0.changed_tx.subscribe();
        loop {
            match attempt().await {
                Attempt::Done(done) => return done,
                Attempt::NotYet(now) => tokio::select! {
                    waited = timeout_at(deadline, changes.changed()) => match waited {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) | Err(_) => return now,
                    },
                    () = self.0.stopping.cancelled() => return now,
                },
            }
        }
    }

    async fn try_open(
        &self,
        open: &trajectory::OpenGroup,
        payload: Option<&Bytes>,
    ) -> Result<Opened, Fault> {
        let driver = &self.0;
        let group = &open.group;
        let known = driver.view(|core| core.trajectories().group(group.as_str()).is_some());
        let mut ours = false;
        if let (false, Some(payload)) = (known, payload) {
            driver.state().payloads.entry(group.clone()).or_insert_with(|| {
                ours = true;
                payload.clone()
            });
        }
        if let Err(fault) = driver.event(Event::OpenGroup(open.clone())) {
            if ours {
                driver.state().payloads.remove(group);
            }
            return Err(fault);
        }
        driver.settled().await?;
        if let Some(fault) = driver.state().failed.remove(group) {
            return Err(fault);
        }
        Ok(Opened { group: self.group_now(group)?, created: !known })
    }

    fn meant(&self, open: &OpenGroup) -> Result<trajectory::OpenGroup, Fault> {
        let group = match &open.id {
            Some(group) => group.clone(),
            None => new_group()?,
        };
        let task = match &open.task {
            Some(task) => task.clone(),
            None => {
                Task::new(DEFAULT_TASK).map_err(|error| user("InvalidId", error.to_string()))?
            }
        };
        let purpose = match (open.evaluation, open.version) {
            (false, None) => Purpose::Training,
            (false, Some(_)) => {
                let message =
                    "only an evaluation pins a version: set evaluation, or leave version out";
                return Err(user("VersionWithoutEvaluation", message));
            }
            (true, Some(version)) => Purpose::Evaluation { pinned: Version(version) },
            (true, None) => self.0.view(|core| {
                let known = core.trajectories().group(group.as_str());
                match known.map(|known| known.settings().purpose) {
                    // The same call again, perhaps after a commit.
                    Some(purpose @ Purpose::Evaluation { .. }) => purpose,
                    _ => Purpose::Evaluation { pinned: core.weights().current() },
                }
            }),
        };
        Ok(trajectory::OpenGroup {
            group,
            task,
            needed: open.rollouts.unwrap_or(self.0.config.group_size),
            purpose,
            recorded: open.tokens == Tokens::Required,
        })
    }
}

/// A group id that nobody has chosen before.
fn new_group() -> Result<GroupId, Fault> {
    let group = GroupId::new(&format!("g-{:016x}", rand::random::<u64>()));
    group.map_err(|error| infrastructure("InvalidId", error.to_string()))
}

/// What an attempt brought.
enum Attempt<T> {
    Done(Result<T, Fault>),
    /// The answer if nothing changes any more.
    NotYet(Result<T, Fault>),
}

fn bucket(stored: crate::weights::Bucket) -> Bucket {
    Bucket { name: stored.name, bytes: stored.bytes, sha256: stored.sha256 }
}

fn bytes(json: Option<Box<RawValue>>) -> Option<Bytes> {
    json.map(|json| Bytes::from(Box::<str>::from(json).into_string()))
}

#[async_trait]
impl Rollouts for Api {
    async fn open_group(&self, open: OpenGroup, wait: Duration) -> Result<Opened, Fault> {
        let meant = self.meant(&open)?;
        let payload = bytes(open.payload);
        let (meant, payload) = (&meant, &payload);
        self.until(wait, || async move {
            match self.try_open(meant, payload.as_ref()).await {
                Err(fault) if fault.reason == "BufferFull" => Attempt::NotYet(Err(fault)),
                done => Attempt::Done(done),
            }
        })
        .await
    }

    async fn group(&self, group: &GroupId, wait: Duration) -> Result<Group, Fault> {
        let shown = self.until(wait, || async move {
            match self.group_now(group) {
                Ok(now) if now.state == crate::api::types::GroupState::Open => {
                    Attempt::NotYet(Ok(now))
                }
                done => Attempt::Done(done),
            }
        });
        let shown = shown.await;
        // The ids of replacements are on disk before they are told.
        self.0.settled().await?;
        shown
    }

    async fn abort_group(&self, group: &GroupId) -> Result<Group, Fault> {
        self.group_now(group)?;
        self.0.event(Event::AbortGroup(group.clone()))?;
        self.0.settled().await?;
        self.group_now(group)
    }

    async fn trajectory(&self, trajectory: &TrajectoryId) -> Result<Trajectory, Fault> {
        self.0.view(|core| view::trajectory(core, trajectory.as_str()))
    }

    async fn step(&self, trajectory: &TrajectoryId, _step: Step) -> Result<StepTaken, Fault> {
        self.0.event(Event::Step(trajectory.clone()))?;
        let state = self.trajectory_state(trajectory)?.state;
        let version = self.0.view(|core| core.weights().current().0);
        Ok(StepTaken { state, version })
    }

    async fn complete(
        &self,
        trajectory: &TrajectoryId,
        complete: CompleteTrajectory,
    ) -> Result<TrajectoryState, Fault> {
        let reward = complete.reward;
        if let Some(metadata) = bytes(complete.metadata) {
            let running = self.0.view(|core| {
                let known = core.trajectories().trajectory(trajectory.as_str());
                known.is_some_and(|known| known.state() == trajectory::State::Running)
            });
            if running {
                self.0.state().metadata.insert(trajectory.clone(), metadata);
            }
        }
        let kept = self.0.state().waiting.for_kept(trajectory.clone());
        self.0.event(Event::Complete { trajectory: trajectory.clone(), reward })?;
        let on_its_way = self.0.view(|core| {
            let known = core.trajectories().trajectory(trajectory.as_str());
            known
                .is_some_and(|known| known.state() == trajectory::State::Scored && !known.is_kept())
        });
        if on_its_way {
            tokio::select! {
                // What is answered as scored is on disk.
                _ = kept => {}
                () = self.0.stopping.cancelled() => {
                    return Err(infrastructure("Stopping", "the gateway is stopping"));
                }
            }
        }
        self.trajectory_state(trajectory)
    }

    async fn abort(
        &self,
        trajectory: &TrajectoryId,
        abort: AbortTrajectory,
    ) -> Result<TrajectoryState, Fault> {
        let reason = abort.reason.unwrap_or_else(|| "its driver has aborted it".to_owned());
        let fault = if abort.infrastructure {
            infrastructure("EnvironmentFailed", reason)
        } else {
            cancelled("Aborted", reason)
        };
        self.trajectory_state(trajectory)?;
        self.0.event(Event::AbortTrajectory { trajectory: trajectory.clone(), fault })?;
        self.0.settled().await?;
        self.trajectory_state(trajectory)
    }

    async fn tokens(
        &self,
        trajectory: &TrajectoryId,
        tokens: RecordedTokens,
    ) -> Result<TrajectoryState, Fault> {
        self.0.event(Event::TokensGiven {
            trajectory: trajectory.clone(),
            prompt: tokens.prompt_ids,
            ids: tokens.response_ids,
            logprobs: tokens.logprobs,
            version: Version(tokens.version),
        })?;
        self.trajectory_state(trajectory)
    }

    async fn take_batch(&self, take: TakeBatch) -> Result<Option<Batch>, Fault> {
        let groups = take.groups.map(|groups| groups as usize);
        self.0.take(groups, take.wait()).await
    }

    async fn ack_batch(&self, batch: BatchId) -> Result<(), Fault> {
        self.0.event(Event::Ack(batch))?;
        self.0.settled().await
    }

    async fn weights_begin(&self, begin: BeginWeights) -> Result<Begun, Fault> {
        let version = Version(begin.version);
        let transfer = match begin.transfer {
            Transfer::Disk => weights::Transfer::Disk,
            Transfer::Store => weights::Transfer::Store,
            Transfer::External => weights::Transfer::External,
        };
        if transfer == weights::Transfer::Store {
            // The pull, which the core orders at once, waits for its buckets.
            let (current, under_way) =
                self.0.view(|core| (core.weights().current(), core.weights().begun()));
            // What is begun already has its buckets, and the core refuses another.
            if version > current && under_way.is_none() {
                self.0.buckets.begin(version).await?;
            }
        }
        let answer = self.0.state().waiting.for_begin(version);
        let deadline = begin.deadline_seconds;
        self.0.event(Event::Weights(weights::Event::Begin { version, transfer, deadline }))?;
        answer.await.map_err(|_| infrastructure("Stopping", "the gateway is stopping"))??;
        let left = self.0.view(|core| core.weights().begun().and_then(|(_, until)| until));
        let left = left.map_or(Duration::ZERO, |until| until.since(self.0.dispatch.now()));
        Ok(Begun {
            version: version.0,
            workers: self.0.fleet().urls(),
            deadline_seconds: left.as_secs_f64(),
        })
    }

    async fn weights_commit(&self, commit: CommitWeights) -> Result<Committed, Fault> {
        let version = Version(commit.version);
        let path = commit.path.map(Into::into);
        let done = self.0.state().waiting.for_commit(version);
        if self.0.buckets.is_open(version) {
            self.0.buckets.seal(version)?;
        }
        self.0.event(Event::Weights(weights::Event::Commit { version, path }))?;
        let committed =
            done.await.map_err(|_| infrastructure("Stopping", "the gateway is stopping"))??;
        self.0.settled().await?;
        let push = self.0.buckets.push_time(version).unwrap_or_default();
        Ok(Committed {
            version: version.0,
            workers: committed.workers.into(),
            push_seconds: push.as_secs_f64(),
            pull_seconds: committed.pull.as_secs_f64(),
            exposed_seconds: committed.exposed.as_secs_f64(),
        })
    }

    async fn weights_abort(&self, version: Version) -> Result<(), Fault> {
        self.0.event(Event::Weights(weights::Event::Abort { version }))?;
        self.0.settled().await
    }

    async fn put_bucket(&self, put: PutBucket) -> Result<Bucket, Fault> {
        self.0.buckets.fits(&put.name, put.length)?;
        let stored = self.0.buckets.put(put.version, &put.name, put.sha256, put.body).await?;
        Ok(bucket(stored))
    }

    async fn list_buckets(&self, version: Version) -> Result<Vec<Bucket>, Fault> {
        let listing = self.0.buckets.list(version)?;
        Ok(listing.buckets.into_iter().map(bucket).collect())
    }

    async fn get_bucket(
        &self,
        version: Version,
        name: &str,
        range: ByteRange,
    ) -> Result<BucketBody, Fault> {
        let total = self.0.buckets.length(version, name)?;
        let range = range.resolve(total)?;
        let body = self.0.buckets.stream(version, name, range.clone()).await?;
        Ok(BucketBody { range, total, body })
    }

    async fn weights(&self) -> Result<WeightsReport, Fault> {
        Ok(self.0.view(view::weights))
    }

    async fn set_workers(&self, wished: WorkerSet) -> Result<WorkerStates, Fault> {
        self.0.set_workers(wished).await
    }

    async fn workers(&self) -> Result<WorkerStates, Fault> {
        Ok(self.0.worker_states())
    }

    async fn status(&self) -> Result<StatusReport, Fault> {
        let now = self.0.dispatch.now();
        let urls = self.0.fleet().urls();
        Ok(self.0.view(|core| self.0.report(core, &urls, now)))
    }

    fn subscribe(&self, filter: Filter, after: Option<u64>) -> Result<Subscription, Fault> {
        self.0.hub.subscribe(filter, after)
    }
}
