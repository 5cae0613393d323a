//! A test double behind the real routes, and calls that check every answer against the
//! `OpenAPI` document.
#![allow(clippy::unwrap_used, clippy::panic)] // only tests use it
#![allow(dead_code)] // each test binary uses a part

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use rollwright_auth::Caller;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::version::{BatchId, Version};
use rollwright_gateway::api::rollouts::{
    Batch, BatchGroup, BucketBody, ByteRange, Opened, PutBucket, Rollouts,
};
use rollwright_gateway::api::types::*;
use rollwright_gateway::api::{document, routes};
use rollwright_gateway::events::{EventHub, Filter, HubLimits, Subscription};
use serde_json::Value;
use tokio::sync::watch;
use tower::ServiceExt as _;

/// A double: every method gives a fixed answer, or the fault that a test asks for.
pub(crate) struct Double {
    pub(crate) hub: Arc<EventHub>,
    pub(crate) fault: Mutex<Option<Fault>>,
    /// What the last call was given.
    pub(crate) given: Mutex<String>,
    /// How many calls wait; a `take_batch` waits for ever when this is watched.
    pub(crate) waiting: watch::Sender<usize>,
    pub(crate) hang: std::sync::atomic::AtomicBool,
    /// Records that a batch was asked for so far.
    pub(crate) read: Arc<AtomicUsize>,
    /// Records of a batch, and how many can be read.
    pub(crate) records: Mutex<(usize, usize)>,
}

/// Counts a call that waits, until it is dropped.
struct Waits<'a>(&'a watch::Sender<usize>);

impl<'a> Waits<'a> {
    fn new(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|count| *count += 1);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

pub(crate) const RECORD: &[u8] = br#"{"id":"g1/0","reward":0.5,"metadata":null,"turns":1,"start_version":7,"oldest_version":7,"token_ids":[1,5,7,2],"logprobs":[null,null,-0.1,-1.5],"loss_mask":[0,0,1,1],"versions":[{"start":2,"end":4,"version":7}],"finish":"stop"}"#;

impl Double {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            hub: EventHub::new(1, HubLimits { ring: 4, subscribers: 2, queue: 16 }),
            fault: Mutex::default(),
            given: Mutex::default(),
            waiting: watch::Sender::new(0),
            hang: false.into(),
            read: Arc::default(),
            records: Mutex::new((3, 3)),
        })
    }

    fn note(&self, given: impl std::fmt::Debug) -> Result<(), Fault> {
        *self.given.lock().unwrap() = format!("{given:?}");
        self.fault.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    pub(crate) fn given(&self) -> String {
        self.given.lock().unwrap().clone()
    }
}

fn a_group(id: &str) -> Group {
    let trajectory = |number: u32, state, reward, fault| GroupTrajectory {
        id: format!("{id}/{number}"),
        state,
        reward,
        fault,
    };
    let fault = Fault::new(FaultKind::Infrastructure, "EngineBroke", "engine `w0` broke off");
    Group {
        id: id.to_owned(),
        task: "math".to_owned(),
        state: GroupState::Open,
        needed: 2,
        start: 3,
        trajectories: vec![
            trajectory(0, State::Running, None, None),
            trajectory(1, State::Scored, Some(1.0), None),
            trajectory(2, State::Aborted, None, Some(FaultBody::from(&fault))),
        ],
        version: 7,
        evaluation: false,
    }
}

#[async_trait]
impl Rollouts for Double {
    async fn open_group(&self, open: OpenGroup, wait: Duration) -> Result<Opened, Fault> {
        let created = open.id.as_ref().is_none_or(|id| id.as_str() != "known");
        self.note((&open, wait))?;
        let id = open.id.map_or_else(|| "g1".to_owned(), |id| id.to_string());
        Ok(Opened { group: a_group(&id), created })
    }

    async fn group(&self, group: &GroupId, wait: Duration) -> Result<Group, Fault> {
        self.note((group, wait))?;
        Ok(a_group(group.as_str()))
    }

    async fn abort_group(&self, group: &GroupId) -> Result<Group, Fault> {
        self.note(group)?;
        Ok(Group { state: GroupState::Aborted, ..a_group(group.as_str()) })
    }

    async fn trajectory(&self, trajectory: &TrajectoryId) -> Result<Trajectory, Fault> {
        self.note(trajectory)?;
        Ok(Trajectory {
            id: trajectory.to_string(),
            group: "g1".to_owned(),
            task: "math".to_owned(),
            state: State::Scored,
            turns: 3,
            prompt_tokens: 800,
            generated_tokens: 240,
            start_version: 7,
            oldest_version: 6,
            reward: Some(0.5),
            fault: None,
        })
    }

    async fn step(&self, trajectory: &TrajectoryId, step: Step) -> Result<StepTaken, Fault> {
        self.note((trajectory, step))?;
        Ok(StepTaken { state: State::Running, version: 7 })
    }

    async fn complete(
        &self,
        trajectory: &TrajectoryId,
        complete: CompleteTrajectory,
    ) -> Result<TrajectoryState, Fault> {
        self.note((trajectory, complete))?;
        Ok(TrajectoryState { state: State::Scoring })
    }

    async fn abort(
        &self,
        trajectory: &TrajectoryId,
        abort: AbortTrajectory,
    ) -> Result<TrajectoryState, Fault> {
        self.note((trajectory, abort))?;
        Ok(TrajectoryState { state: State::Aborted })
    }

    async fn tokens(
        &self,
        trajectory: &TrajectoryId,
        tokens: RecordedTokens,
    ) -> Result<TrajectoryState, Fault> {
        self.note((trajectory, tokens))?;
        Ok(TrajectoryState { state: State::Running })
    }

    async fn take_batch(&self, take: TakeBatch) -> Result<Option<Batch>, Fault> {
        self.note((&take, take.wait()))?;
        if self.hang.load(Ordering::SeqCst) {
            let _waits = Waits::new(&self.waiting);
            return std::future::pending().await;
        }
        let (records, readable) = *self.records.lock().unwrap();
        if records == 0 {
            return Ok(None);
        }
        let read = Arc::clone(&self.read);
        let stored = stream::iter(0..readable).map(move |_| {
            read.fetch_add(1, Ordering::SeqCst);
            Ok(Bytes::from_static(RECORD))
        });
        let group = |id: &str, payload, trajectories| BatchGroup {
            id: GroupId::new(id).unwrap(),
            task: Task::new("math").unwrap(),
            payload,
            trajectories,
        };
        Ok(Some(Batch {
            id: BatchId(3),
            version: Version(7),
            groups: vec![
                group("g1", Some(Bytes::from_static(br#"{"a": [1]}"#)), records - 1),
                group("g2", None, 1),
            ],
            waited: Duration::from_millis(1500),
            records: stored.boxed(),
        }))
    }

    async fn ack_batch(&self, batch: BatchId) -> Result<(), Fault> {
        self.note(batch)
    }

    async fn weights_begin(&self, begin: BeginWeights) -> Result<Begun, Fault> {
        self.note(&begin)?;
        let worker = WorkerUrl { id: "w0".to_owned(), url: "http://127.0.0.1:1".to_owned() };
        Ok(Begun { version: begin.version, workers: vec![worker], deadline_seconds: 600.0 })
    }

    async fn weights_commit(&self, commit: CommitWeights) -> Result<Committed, Fault> {
        self.note(&commit)?;
        Ok(Committed {
            version: commit.version,
            workers: 1,
            push_seconds: 1.0,
            pull_seconds: 0.5,
            exposed_seconds: 0.25,
        })
    }

    async fn weights_abort(&self, version: Version) -> Result<(), Fault> {
        self.note(version)
    }

    async fn put_bucket(&self, put: PutBucket) -> Result<Bucket, Fault> {
        self.note((put.version, &put.name, put.sha256, put.length))?;
        let bytes = put.body.fold(0, async |sum, piece| sum + piece.unwrap().len() as u64).await;
        Ok(Bucket { name: put.name, bytes, sha256: "0".repeat(64) })
    }

    async fn list_buckets(&self, version: Version) -> Result<Vec<Bucket>, Fault> {
        self.note(version)?;
        Ok(vec![Bucket { name: "b0".to_owned(), bytes: 10, sha256: "0".repeat(64) }])
    }

    async fn get_bucket(
        &self,
        version: Version,
        name: &str,
        range: ByteRange,
    ) -> Result<BucketBody, Fault> {
        self.note((version, name, range))?;
        let bytes = Bytes::from_static(b"0123456789");
        let range = range.resolve(bytes.len() as u64)?;
        let part = bytes.slice(range.start as usize..range.end as usize);
        Ok(BucketBody { range, total: 10, body: stream::iter([Ok(part)]).boxed() })
    }

    async fn weights(&self) -> Result<WeightsReport, Fault> {
        self.note("weights")?;
        let worker =
            WeightsWorker { id: "w0".to_owned(), version: None, state: "updating".to_owned() };
        Ok(WeightsReport { version: 7, begun: Some(8), workers: vec![worker] })
    }

    async fn set_workers(&self, wished: WorkerSet) -> Result<WorkerStates, Fault> {
        self.note(&wished)?;
        self.workers().await
    }

    async fn workers(&self) -> Result<WorkerStates, Fault> {
        self.fault.lock().unwrap().clone().map_or(Ok(()), Err)?;
        let status = |name: &str, state: &str, version| WorkerStatus {
            name: name.to_owned(),
            state: state.to_owned(),
            in_flight: 3,
            version,
        };
        let workers = vec![status("w0", "serving", Some(7)), status("w1", "joining", None)];
        Ok(WorkerStates { workers })
    }

    async fn status(&self) -> Result<StatusReport, Fault> {
        self.note("status")?;
        Ok(StatusReport {
            job: "job".to_owned(),
            version: 7,
            workers: vec![WorkerReport {
                id: "w0".to_owned(),
                url: "http://127.0.0.1:1".to_owned(),
                class: "h20".to_owned(),
                role: "mixed".to_owned(),
                state: "ready".to_owned(),
                version: Some(7),
                slots: 8,
                running: 1,
                pending: 0,
            }],
            lacks: None,
            pending: 0,
            trajectories: TrajectoryCounts { running: 1, scoring: 2 },
            groups_open: 1,
            buffer: BufferReport { groups: 1, trajectories: 2, bound: 64 },
            batches: BatchCounts { taken: 3, acknowledged: 2, trainer_wait_seconds: 1.5 },
            kept_fraction: Some(0.75),
            train_to_generation_ratio: None,
            suggestion: String::new(),
        })
    }

    fn subscribe(&self, filter: Filter, after: Option<u64>) -> Result<Subscription, Fault> {
        self.note((&filter, after))?;
        self.hub.subscribe(filter, after)
    }
}

/// An answer that fits the document.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap()
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap().to_owned()
    }

    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }
}

/// The routes, and the document that they are held against.
pub(crate) struct Api {
    pub(crate) double: Arc<Double>,
    pub(crate) document: Value,
    /// Who calls.
    pub(crate) caller: Caller,
}

impl Api {
    pub(crate) fn new() -> Self {
        let document = serde_json::to_value(document()).unwrap();
        Self { double: Double::new(), document, caller: Caller::operator() }
    }

    pub(crate) fn router(&self) -> axum::Router {
        routes(Arc::clone(&self.double) as Arc<dyn Rollouts>)
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.call(Method::POST, path, &[], body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], Body::empty()).await
    }

    /// Calls the real routes, and checks the answer against the document.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method.clone()).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.extension(self.caller.clone()).body(body.into()).unwrap();
        let response = self.router().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let answer = Answer { status: parts.status, headers: parts.headers, bytes };
        self.check(&method, path, &answer);
        answer
    }

    fn check(&self, method: &Method, path: &str, answer: &Answer) {
        let path = path.split('?').next().unwrap();
        let Some(template) = self.template(path) else {
            assert!(matches!(answer.status.as_u16(), 404), "{path} is not documented");
            return;
        };
        let operation = &self.document["paths"][&template][method.as_str().to_lowercase()];
        if operation.is_null() {
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
            return;
        }
        let status = answer.status.as_str();
        let documented = &operation["responses"][status];
        assert!(documented.is_object(), "{method} {template}: {status} is not documented");
        let content = &documented["content"];
        if content.is_null() {
            assert!(answer.bytes.is_empty(), "{method} {template}: {status} has a body");
            return;
        }
        let kind = answer.headers[header::CONTENT_TYPE].to_str().unwrap();
        assert!(content[kind].is_object(), "{method} {template}: {kind} is not documented");
        if kind == "application/json" {
            let escape = |part: &str| part.replace('~', "~0").replace('/', "~1");
            let pointer = format!(
                "/paths/{}/{}/responses/{status}/content/{}/schema",
                escape(&template),
                method.as_str().to_lowercase(),
                escape(kind),
            );
            let value = answer.json();
            if let Err(wrong) = self.validate(&pointer, &value) {
                panic!("{method} {path} answered {value}, which its schema refuses: {wrong}");
            }
        }
    }

    /// Whether the schema at this place of the document takes the value.
    pub(crate) fn validate(&self, pointer: &str, value: &Value) -> Result<(), String> {
        assert!(self.document.pointer(pointer).is_some(), "{pointer} is not in the document");
        let mut compiler = boon::Compiler::new();
        compiler.add_resource("http://test/openapi.json", self.document.clone()).unwrap();
        let mut schemas = boon::Schemas::new();
        let place =
            format!("http://test/openapi.json#{}", pointer.replace('{', "%7B").replace('}', "%7D"));
        let schema = compiler.compile(&place, &mut schemas).unwrap_or_else(|e| panic!("{e:#}"));
        schemas.validate(value, schema).map_err(|error| format!("{error:#}"))
    }

    /// The documented path that a request's path is one of.
    fn template(&self, path: &str) -> Option<String> {
        let fits = |template: &&String| {
            let (wanted, got): (Vec<_>, Vec<_>) =
                (template.split('/').collect(), path.split('/').collect());
            wanted.len() == got.len()
                && wanted.iter().zip(got).all(|(want, got)| want.starts_with('{') || *want == got)
        };
        self.document["paths"].as_object().unwrap().keys().find(fits).cloned()
    }
}
