//! Prefill and decode on engines of their own: a gateway before engine-sims, which are
//! simulators and hold a decode engine to the KV that it was given.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests too

mod proxy_common;

use std::time::Duration;

use futures::StreamExt as _;
use proxy_common::{Job, LIMIT, until};
use rollwright_core::router::Role;
use rollwright_engine_sim::{
    Config, Dialect, Disaggregation, EngineSim, Fault, FaultKind, Latency, Outcome, Part,
};
use rollwright_gateway::GatewayConfig;
use serde_json::{Value, json};

/// A pair, or more of either kind: (prefill, decode).
struct Split {
    dialect: Dialect,
    prefill: Vec<EngineSim>,
    decode: Vec<EngineSim>,
}

fn config(dialect: Dialect) -> Config {
    let latency = Latency { step: Duration::from_millis(2), ..Latency::default() };
    Config { dialect, latency, mean_tokens: 0, ..Config::default() }
}

fn instance(dialect: Dialect, part: Part) -> Config {
    Config { disaggregation: Some(Disaggregation::of(part)), ..config(dialect) }
}

impl Split {
    async fn start(dialect: Dialect, prefills: usize, decodes: usize) -> Self {
        let prefill = vec![instance(dialect, Part::Prefill); prefills];
        Self::of(dialect, prefill, vec![instance(dialect, Part::Decode); decodes]).await
    }

    async fn of(dialect: Dialect, prefills: Vec<Config>, decodes: Vec<Config>) -> Self {
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for config in prefills {
            prefill.push(EngineSim::start(config).await.unwrap());
        }
        for config in decodes {
            decode.push(EngineSim::start(config).await.unwrap());
        }
        Self { dialect, prefill, decode }
    }

    /// The gateway before them.
    async fn job(&self) -> Job {
        self.job_with(|_| ()).await
    }

    async fn job_with(&self, change: impl FnOnce(&mut GatewayConfig)) -> Job {
        let urls = self.prefill.iter().chain(&self.decode).map(EngineSim::url).collect();
        let ports: Vec<_> = self.prefill.iter().map(|of| of.side_port().unwrap()).collect();
        let engine = if self.dialect == Dialect::Vllm { "vLLM" } else { "SGLang" };
        Job::before(urls, engine, |config| {
            for (index, worker) in config.workers.iter_mut().enumerate() {
                let port = ports.get(index);
                worker.spec.role = if port.is_some() { Role::Prefill } else { Role::Decode };
                worker.bootstrap_port = port.and_then(|port| (*port).try_into().ok());
            }
            change(config);
        })
        .await
    }

    fn path(&self) -> &'static str {
        if self.dialect == Dialect::Vllm { "/v1/chat/completions" } else { "/generate" }
    }

    fn body(&self, tokens: usize) -> Value {
        match self.dialect {
            Dialect::Vllm => json!({"model": "engine-sim", "max_tokens": tokens,
                "messages": [{"role": "user", "content": "tell me something"}]}),
            _ => json!({"input_ids": [116, 101, 108, 108],
                "sampling_params": {"max_new_tokens": tokens}}),
        }
    }

    /// Text and nothing of an engine's own, as one engine that does both makes it.
    async fn alone(&self, tokens: usize) -> String {
        let engine = EngineSim::start(config(self.dialect)).await.unwrap();
        let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
        let reply = client.post(format!("{}{}", engine.url(), self.path()));
        text(&reply.json(&self.body(tokens)).send().await.unwrap().json().await.unwrap())
    }

    /// Every reply came from KV that was handed over, and nothing was broken.
    fn assert_split(&self, replies: usize) {
        let done = |engine: &EngineSim| {
            let made = engine.requests().into_iter();
            made.filter(|made| made.outcome == Outcome::Length).collect::<Vec<_>>()
        };
        let decoded: Vec<_> = self.decode.iter().flat_map(done).collect();
        assert_eq!(decoded.len(), replies, "{decoded:?}");
        for made in &decoded {
            assert_eq!(made.transferred_tokens, made.prompt_tokens - 1, "{made:?}");
        }
        let prefilled: Vec<_> = self.prefill.iter().flat_map(done).collect();
        assert!(prefilled.len() >= replies, "{prefilled:?}");
        assert!(prefilled.iter().all(|made| made.tokens == 1), "{prefilled:?}");
        for engine in self.prefill.iter().chain(&self.decode) {
            assert_eq!(engine.violations(), [], "a rule was broken");
        }
    }

    /// Nothing runs or waits anywhere.
    async fn until_idle(&self, job: &Job) {
        until("all slots are free", || async {
            let status = job.get("/rollout/v1/status").await.1;
            let workers = status["workers"].as_array().unwrap();
            workers.iter().all(|worker| worker["running"] == 0)
                && self.prefill.iter().chain(&self.decode).all(|of| of.load() == (0, 0))
        })
        .await;
    }
}

/// The text of a whole reply of either dialect.
fn text(reply: &Value) -> String {
    let chat = reply["choices"][0]["message"]["content"].as_str();
    chat.or(reply["text"].as_str()).unwrap_or_else(|| panic!("{reply}")).to_owned()
}

/// The text of a stream so far.
fn streamed(events: &str) -> String {
    let data = events.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let mut shown = String::new();
    for event in data.filter_map(|event| serde_json::from_str::<Value>(event).ok()) {
        assert!(event.get("error").is_none(), "{event}");
        match event["text"].as_str() {
            // SGLang repeats everything in each.
            Some(all) => all.clone_into(&mut shown),
            None => shown += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default(),
        }
    }
    shown
}

struct Stream {
    reply: reqwest::Response,
    events: String,
}

impl Stream {
    async fn begin(split: &Split, job: &Job, trajectory: Option<&str>, tokens: usize) -> Self {
        let mut body = split.body(tokens);
        body["stream"] = json!(true);
        let mut request = job.request(split.path(), &body);
        if let Some(trajectory) = trajectory {
            request = request.header("X-Rollwright-Trajectory", trajectory);
        }
        let reply = request.send().await.unwrap();
        assert_eq!(reply.status(), 200);
        Self { reply, events: String::new() }
    }

    async fn until_length(&mut self, length: usize) {
        while streamed(&self.events).len() < length {
            let piece = self.reply.chunk().await.unwrap().unwrap_or_else(|| panic!("it ended"));
            self.events += std::str::from_utf8(&piece).unwrap();
        }
    }

    async fn end(mut self) -> String {
        let mut rest = self.reply.bytes_stream();
        while let Some(piece) = rest.next().await {
            self.events += std::str::from_utf8(&piece.unwrap()).unwrap();
        }
        assert!(self.events.ends_with("data: [DONE]\n\n"), "{}", self.events);
        streamed(&self.events)
    }
}

const DIALECTS: [Dialect; 2] = [Dialect::Vllm, Dialect::Sglang];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_are_those_of_one_engine() {
    for dialect in DIALECTS {
        let split = Split::start(dialect, 1, 2).await;
        let (job, wanted) = (split.job().await, split.alone(40).await);
        let trajectory = job.trajectory().await;
        let (status, reply) = job.post(split.path(), &split.body(40)).await;
        assert_eq!((status, text(&reply)), (200, wanted.clone()), "{dialect:?}");
        let recorded = format!("/t/{trajectory}{}", split.path());
        let (status, reply) = job.post(&recorded, &split.body(40)).await;
        assert_eq!((status, text(&reply)), (200, wanted.clone()), "{dialect:?}, recorded");
        let trajectory = job.trajectory().await;
        for trajectory in [None, Some(trajectory.as_str())] {
            let stream = Stream::begin(&split, &job, trajectory, 40).await;
            assert_eq!(stream.end().await, wanted, "{dialect:?}, streamed, {trajectory:?}");
        }
        split.until_idle(&job).await;
        split.assert_split(4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_that_fails_is_done_elsewhere() {
    for dialect in DIALECTS {
        let split = Split::start(dialect, 2, 1).await;
        let (job, wanted) = (split.job().await, split.alone(20).await);
        // The first one that is asked.
        for kind in [FaultKind::ServerError, FaultKind::Reset, FaultKind::TooManyRequests] {
            for prefill in &split.prefill {
                prefill.inject(Fault::new(kind)).unwrap();
            }
            let (status, reply) = job.post(split.path(), &split.body(20)).await;
            assert_eq!((status, text(&reply)), (200, wanted.clone()), "{dialect:?} {kind:?}");
            let trajectory = job.trajectory().await;
            let stream = Stream::begin(&split, &job, Some(&trajectory), 20).await;
            assert_eq!(stream.end().await, wanted, "{dialect:?} {kind:?}");
            let abort = format!("/rollout/v1/trajectories/{trajectory}/abort");
            assert_eq!(job.post(&abort, &json!({})).await.0, 200, "room for the next");
            split.until_idle(&job).await;
        }
        // One is gone for good.
        split.prefill[0].kill();
        for _ in 0..4 {
            let (status, reply) = job.post(split.path(), &split.body(20)).await;
            assert_eq!((status, text(&reply)), (200, wanted.clone()), "{dialect:?}, killed");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decode_engine_that_dies_in_mid_stream_is_gone_on_from() {
    for dialect in DIALECTS {
        let split = Split::start(dialect, 1, 2).await;
        let (job, wanted) = (split.job().await, split.alone(500).await);
        let trajectory = job.trajectory().await;
        let mut stream = Stream::begin(&split, &job, Some(&trajectory), 500).await;
        stream.until_length(20).await;
        let busy = split.decode.iter().find(|engine| engine.load().0 == 1).unwrap();
        busy.kill();
        assert_eq!(stream.end().await, wanted, "{dialect:?}");
        assert_eq!(split.prefill[0].requests().len(), 2, "the second part has a prefill too");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_known_to_both() {
    for dialect in DIALECTS {
        let split = Split::start(dialect, 1, 1).await;
        let job = split.job().await;
        // While it decodes.
        let mut stream = Stream::begin(&split, &job, None, 20_000).await;
        stream.until_length(5).await;
        drop(stream);
        split.until_idle(&job).await;
        assert_eq!(split.decode[0].requests()[0].outcome, Outcome::Closed, "{dialect:?}");
        // While the prefill does not answer.
        split.prefill[0].inject(Fault::new(FaultKind::Never)).unwrap();
        let call = tokio::spawn(job.request(split.path(), &split.body(5)).send());
        until("it is on its way", || async {
            let status = job.get("/rollout/v1/status").await.1;
            status["workers"].as_array().unwrap().iter().all(|worker| worker["running"] == 1)
        })
        .await;
        call.abort();
        split.until_idle(&job).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_engines_do_the_other_part_where_nobody_else_can() {
    let split = Split::start(Dialect::Vllm, 1, 1).await;
    let (job, wanted) = (split.job().await, split.alone(10).await);
    let lacks = || async { job.get("/rollout/v1/status").await.1["lacks"].clone() };
    assert_eq!(lacks().await, Value::Null);
    split.prefill[0].kill();
    let (status, reply) = job.post(split.path(), &split.body(10)).await;
    assert_eq!((status, text(&reply)), (200, wanted.clone()), "decoding alone");
    until("it is said", || async { lacks().await == "prefill" }).await;

    let split = Split::start(Dialect::Vllm, 1, 1).await;
    let job = split.job().await;
    split.decode[0].kill();
    let (status, reply) = job.post(split.path(), &split.body(10)).await;
    assert_eq!((status, text(&reply)), (200, wanted), "prefilling alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_split_is_decoded_whole_and_a_wrong_request_is_refused_as_ever() {
    let split = Split::start(Dialect::Vllm, 1, 1).await;
    let job = split.job().await;
    let mut body = split.body(5);
    body["n"] = json!(2);
    let (status, reply) = job.post(split.path(), &body).await;
    assert_eq!((status, reply["choices"].as_array().unwrap().len()), (200, 2), "{reply}");
    assert_eq!(split.prefill[0].requests(), []);
    for dialect in DIALECTS {
        let split = Split::start(dialect, 1, 1).await;
        let job = split.job().await;
        let wrong = match dialect {
            Dialect::Vllm => json!({"model": "engine-sim", "messages": []}),
            _ => json!({"input_ids": [900_000]}),
        };
        let (status, refusal) = job.post(split.path(), &wrong).await;
        assert_eq!(status, 400, "{refusal}");
        split.until_idle(&job).await;
        let (status, _) = job.post(split.path(), &split.body(5)).await;
        assert_eq!(status, 200, "{dialect:?}: the pair is well");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_reaches_both_and_no_old_kv_survives_it() {
    for dialect in DIALECTS {
        let split = Split::start(dialect, 1, 1).await;
        let job = split.job().await;
        let weights = tempfile::tempdir().unwrap();
        std::fs::write(weights.path().join("version.json"), r#"{"version":1}"#).unwrap();
        let trajectory = job.trajectory().await;
        let mut stream = Stream::begin(&split, &job, Some(&trajectory), 400).await;
        stream.until_length(20).await;
        let begin = job.post("/rollout/v1/weights/begin", &json!({"version": 1})).await;
        assert_eq!(begin.0, 200, "{}", begin.1);
        let commit = json!({"version": 1, "path": weights.path()});
        let (status, committed) = job.post("/rollout/v1/weights/commit", &commit).await;
        assert_eq!((status, &committed["workers"]), (200, &json!(2)), "{committed}");
        assert_eq!(stream.end().await.len(), 400);
        assert_eq!((split.prefill[0].version(), split.decode[0].version()), (1, 1));
        let (status, _) = job.post(split.path(), &split.body(5)).await;
        assert_eq!(status, 200);
        for engine in split.prefill.iter().chain(&split.decode) {
            assert_eq!(engine.violations(), [], "{dialect:?}");
        }
    }
}

/// What runs at each worker, in the order of the prefill and then the decode engines.
async fn running(job: &Job) -> Vec<u64> {
    let status = job.get("/rollout/v1/status").await.1;
    // They stand in the order in which they joined.
    let mut workers = status["workers"].as_array().unwrap().clone();
    workers.sort_by_key(|worker| worker["id"].to_string());
    workers.iter().map(|worker| worker["running"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_split_takes_no_prefill_slot() {
    let split = Split::start(Dialect::Vllm, 1, 1).await;
    let job = split.job().await;
    split.decode[0].inject(Fault::new(FaultKind::Never)).unwrap();
    let mut body = split.body(5);
    body["n"] = json!(2);
    let call = tokio::spawn(job.request(split.path(), &body).send());
    until("it is decoded alone", async || running(&job).await == [0, 1]).await;
    call.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_engine_is_busy_until_its_kv_was_fetched() {
    let prefill = instance(Dialect::Vllm, Part::Prefill);
    let step = Duration::from_hours(1);
    let decode = Config {
        latency: Latency { step, ..Latency::default() },
        ..instance(Dialect::Vllm, Part::Decode)
    };
    let split = Split::of(Dialect::Vllm, vec![prefill], vec![decode]).await;
    let job = split.job().await;
    let call = tokio::spawn(job.request(split.path(), &split.body(5)).send());
    until("it is to be decoded", async || split.decode[0].load() != (0, 0)).await;
    assert_eq!(split.prefill[0].requests()[0].outcome, Outcome::Length, "prefilled");
    assert_eq!(running(&job).await, [1, 1], "its KV may still be there");
    call.abort();
    split.until_idle(&job).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_whose_first_word_is_an_error_has_made_nothing() {
    for dialect in DIALECTS {
        // The first decode engine gives up before any KV can come.
        let mut hasty = instance(dialect, Part::Decode);
        hasty.disaggregation.as_mut().unwrap().timeout = Duration::ZERO;
        let decodes = vec![hasty, instance(dialect, Part::Decode)];
        let split = Split::of(dialect, vec![instance(dialect, Part::Prefill)], decodes).await;
        let (job, wanted) = (split.job().await, split.alone(20).await);
        for _ in 0..2 {
            let stream = Stream::begin(&split, &job, None, 20).await;
            assert_eq!(stream.end().await, wanted, "{dialect:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_engine_that_hangs_is_blamed_and_not_the_one_that_waits_for_it() {
    for stream in [false, true] {
        let split = Split::start(Dialect::Sglang, 2, 1).await;
        let wanted = split.alone(5).await;
        let limit = Duration::from_secs(1);
        let job = split.job_with(|config| config.limits.first_byte_timeout = limit).await;
        split.prefill[0].inject(Fault { times: 0, ..Fault::new(FaultKind::Never) }).unwrap();
        for _ in 0..2 {
            if stream {
                let trajectory = job.trajectory().await;
                let stream = Stream::begin(&split, &job, Some(&trajectory), 5).await;
                assert_eq!(stream.end().await, wanted);
                let abort = format!("/rollout/v1/trajectories/{trajectory}/abort");
                assert_eq!(job.post(&abort, &json!({})).await.0, 200, "room for the next");
            } else {
                let (status, reply) = job.post(split.path(), &split.body(5)).await;
                assert_eq!((status, text(&reply)), (200, wanted.clone()));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_slow_to_ask_holds_back_no_update() {
    let split = Split::start(Dialect::Vllm, 1, 1).await;
    let job = split.job_with(|config| config.limits.body_timeout = LIMIT * 10).await;
    let weights = tempfile::tempdir().unwrap();
    std::fs::write(weights.path().join("version.json"), r#"{"version":1}"#).unwrap();
    // A body of no known length, of which the end does not come.
    let piece = futures::stream::iter([Ok::<_, std::io::Error>(r#"{"model":"#)]);
    let body = reqwest::Body::wrap_stream(piece.chain(futures::stream::pending()));
    let request = job.request(split.path(), &json!({})).body(body);
    let call = tokio::spawn(request.header("X-Rollwright-Trajectory", "free").send());
    until("it is placed", async || running(&job).await == [1, 1]).await;
    let begin = job.post("/rollout/v1/weights/begin", &json!({"version": 1})).await;
    assert_eq!(begin.0, 200, "{}", begin.1);
    let commit = json!({"version": 1, "path": weights.path()});
    let (status, committed) = job.post("/rollout/v1/weights/commit", &commit).await;
    assert_eq!((status, &committed["workers"]), (200, &json!(2)), "{committed}");
    call.abort();
}
