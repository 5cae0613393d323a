//! Containers over a **fake** of Docker, which answers late or not at all.

mod enclosed;

use std::sync::{Arc, Mutex};

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use rollwright_core::gpu::{Chunk, Degree, EngineId, Trouble};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

use super::{Containers, Launcher, Records};
use crate::docker::Engine;
use crate::docker::labels::Owner;
use crate::gpu::spec::EngineSpec;
use crate::images::Images;
use crate::images::gc::Ledger;
use crate::policy::EnginePolicy;

const ENGINE: EngineId = EngineId(4);

/// What a fake of Docker does.
struct Docker {
    /// What a look at a container answers.
    inspect: StatusCode,
    /// One for each container that may be created.
    creates: Semaphore,
    /// Requests that matter, as they come and are answered.
    log: Mutex<Vec<&'static str>>,
    seen: mpsc::UnboundedSender<()>,
}

impl Docker {
    fn note(&self, what: &'static str) {
        self.log.lock().unwrap().push(what);
    }
}

async fn answer(State(docker): State<Arc<Docker>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let no = |status: StatusCode| (status, axum::Json(json!({"message": "no"}))).into_response();
    let yes = |body: serde_json::Value| axum::Json(body).into_response();
    if path.ends_with("/version") {
        yes(json!({"ApiVersion": "1.41", "Version": "fake"}))
    } else if path.contains("/images/") {
        yes(json!({"Id": "sha256:0"}))
    } else if path.ends_with("/networks") {
        yes(json!([]))
    } else if path.ends_with("/networks/create") {
        yes(json!({"Id": "network", "Warning": ""}))
    } else if path.ends_with("/containers/create") {
        docker.seen.send(()).unwrap();
        docker.creates.acquire().await.unwrap().forget();
        docker.note("created");
        yes(json!({"Id": "container", "Warnings": []}))
    } else if path.ends_with("/start") {
        docker.note("started");
        StatusCode::NO_CONTENT.into_response()
    } else if request.method() == Method::DELETE {
        docker.note("removed");
        StatusCode::NO_CONTENT.into_response()
    } else if path.ends_with("/json") {
        no(docker.inspect)
    } else {
        no(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

struct Fake {
    docker: Arc<Docker>,
    seen: mpsc::UnboundedReceiver<()>,
    containers: Arc<Containers>,
    _dir: tempfile::TempDir,
}

async fn fake(inspect: StatusCode, policy: EnginePolicy) -> Fake {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("docker.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let (sent, seen) = mpsc::unbounded_channel();
    let (creates, log) = (Semaphore::new(0), Mutex::default());
    let docker = Arc::new(Docker { inspect, creates, log, seen: sent });
    let routes = axum::Router::new().fallback(answer).with_state(Arc::clone(&docker));
    tokio::spawn(axum::serve(listener, routes).into_future());
    let engine = Engine::connect(&socket).await.unwrap();
    let images = Images::new(engine.clone(), Ledger::open(None), None);
    let owner = Owner { node: "node".into(), id: "fakedocker".into() };
    let records = Records::open(dir.path()).unwrap();
    let (incidents, _) = mpsc::channel(1);
    let containers =
        Containers::new(engine, images, owner, records, policy, false, None, incidents);
    Fake { docker, seen, containers: Arc::new(containers), _dir: dir }
}

fn chunk() -> Chunk {
    Chunk::new(0, 0, Degree::new(1).unwrap()).unwrap()
}

fn spec(env: &[(&str, &str)]) -> Arc<EngineSpec> {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Arc::new(EngineSpec { image: Some("engine:1".into()), env, ..EngineSpec::bare() })
}

#[tokio::test]
async fn a_docker_that_does_not_say_which_processes_run_is_not_one_where_none_does() {
    let fake = fake(StatusCode::INTERNAL_SERVER_ERROR, EnginePolicy::default()).await;
    let pids = fake.containers.pids(ENGINE).await;
    assert!(matches!(pids, Err(Trouble::Unknown(_))), "{pids:?}");
    let absent = self::fake(StatusCode::NOT_FOUND, EnginePolicy::default()).await;
    assert_eq!(absent.containers.pids(ENGINE).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_container_that_is_being_made_is_ended_once_it_is_there() {
    let mut fake = fake(StatusCode::NOT_FOUND, EnginePolicy::default()).await;
    let containers = Arc::clone(&fake.containers);
    let start = tokio::spawn(async move { containers.start(ENGINE, spec(&[]), chunk()).await });
    fake.seen.recv().await.unwrap();
    fake.docker.log.lock().unwrap().clear();
    start.abort();
    assert!(start.await.unwrap_err().is_cancelled());
    let containers = Arc::clone(&fake.containers);
    let end = tokio::spawn(async move { containers.end(ENGINE).await });
    // It would not wait for anything.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    fake.docker.creates.add_permits(1);
    end.await.unwrap().unwrap();
    assert_eq!(*fake.docker.log.lock().unwrap(), ["created", "started", "removed"]);
}

#[tokio::test]
async fn an_engine_cannot_name_its_gpus() {
    let fake = fake(StatusCode::NOT_FOUND, EnginePolicy::default()).await;
    let spec = spec(&[("NVIDIA_VISIBLE_DEVICES", "all")]);
    let refused = fake.containers.start(ENGINE, spec, chunk()).await.unwrap_err();
    assert!(refused.to_string().contains("NVIDIA_VISIBLE_DEVICES"), "{refused}");
}

#[tokio::test]
async fn a_policy_that_was_changed_has_a_network_of_its_own() {
    let closed = fake(StatusCode::NOT_FOUND, EnginePolicy::default()).await;
    let policy = EnginePolicy { network: true, ..EnginePolicy::default() };
    let open = fake(StatusCode::NOT_FOUND, policy).await;
    assert_ne!(closed.containers.network(), open.containers.network());
}
