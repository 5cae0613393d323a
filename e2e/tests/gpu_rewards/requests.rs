//! Every kind of request that a reward service takes, through queue, agent and engine.

use anyhow::{Context as _, ensure};
use rollwright_e2e::rewards::{Calls, Node, Rewards, Service, own, post};
use rollwright_engine_sim::{Config, Dialect, EngineSim, logprobs_of};
use rollwright_proto::v1::CallRequest;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::LIMIT;

const IDS: [u32; 3] = [104, 105, 106];
const VERSION: u64 = 2;

/// Path, body (`null`: a `GET`), and where the answer says what was asked for.
type Kind = (&'static str, Value, &'static str);

fn vllms() -> Vec<Kind> {
    let messages = json!([{"role": "user", "content": "Rate this from 0 to 9: 6 x 7 = 42"}]);
    let pair = json!({"text_1": "6 x 7?", "text_2": ["42", "41"]});
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 8, "logprobs": true}),
            "/choices/0/message/content",
        ),
        ("/v1/completions", json!({"prompt": "6 x 7 = ", "max_tokens": 4}), "/choices/0/text"),
        (
            "/v1/completions",
            json!({"prompt": IDS, "max_tokens": 1, "prompt_logprobs": 0}),
            "/choices/0/prompt_logprobs/2/106/logprob",
        ),
        ("/score", pair.clone(), "/data/1/score"),
        ("/v1/score", pair, "/data/0/score"),
        ("/v1/rerank", json!({"query": "?", "documents": ["a", "b"]}), "/results/1/index"),
        ("/pooling", json!({"input": IDS, "use_activation": false}), "/data/0/data/2/0"),
        ("/pooling", json!({"input": ["a", "b"], "task": "classify"}), "/data/1/data/0"),
        // Paths that are nothing to the queue, and what the engine itself refuses.
        ("/tokenize", json!({"prompt": "hi"}), "/tokens/1"),
        ("/v1/models", Value::Null, "/data/0/id"),
        ("/pooling", json!({"input": "a", "task": "embed"}), "/error/message"),
        ("/no/such/path", json!({}), ""),
    ]
}

fn sglangs() -> Vec<Kind> {
    let all = json!({"max_new_tokens": 1, "temperature": 0});
    vec![
        // As a gateway asks for `ask: Pooling`.
        ("/classify", json!({"model": "sglang", "input_ids": IDS}), "/embedding/0"),
        ("/classify", json!({"input_ids": [IDS, [104]]}), "/1/embedding/0"),
        ("/classify", json!({"text": "6 x 7 = 42"}), "/embedding/0"),
        ("/classify", json!({"text": ["a", "b"]}), "/1/embedding/0"),
        ("/classify", json!({"text": "a", "input_ids": IDS}), "/error/message"),
        (
            "/generate",
            json!({"input_ids": IDS, "sampling_params": all, "return_logprob": true,
                "logprob_start_len": 0}),
            "/meta_info/input_token_logprobs/2/0",
        ),
        ("/v1/models", Value::Null, "/data/0/id"),
        // Not a path of SGLang's.
        ("/pooling", json!({"input": IDS}), ""),
    ]
}

fn owns() -> Vec<Kind> {
    let subject = |mask: [u8; 3]| {
        json!({"trajectory": "g/0", "group": "g", "task": "math", "turns": 2, "prompt_tokens": 1,
            "generated_tokens": 2, "start_version": 0, "oldest_version": 0,
            "token_ids": IDS, "loss_mask": mask})
    };
    vec![
        ("/reward", subject([0, 1, 1]), "/reward"),
        ("/reward", subject([0, 0, 1]), "/reward"),
        // What it refuses itself.
        ("/reward", subject([0, 0, 0]), "/error"),
        ("/reward", json!({"turns": 1}), "/error"),
        ("/v1/completions", json!({"prompt": "a"}), ""),
    ]
}

/// What an engine said, without what is of one answer alone.
fn read(body: &[u8]) -> Value {
    let mut said: Value = serde_json::from_slice(body).unwrap_or_default();
    let mut answers: Vec<&mut Value> = match &mut said {
        Value::Array(each) => each.iter_mut().collect(),
        one => vec![one],
    };
    for answer in &mut answers {
        for part in ["", "/meta_info"] {
            if let Some(Value::Object(part)) = answer.pointer_mut(part) {
                part.retain(|name, _| !matches!(name.as_str(), "id" | "created" | "e2e_latency"));
            }
        }
    }
    said
}

/// What an engine says by itself.
async fn alone(engine: &str, path: &str, body: &Value) -> anyhow::Result<(u32, Value)> {
    let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build()?;
    let url = format!("{engine}{path}");
    let request = if body.is_null() { http.get(url) } else { http.post(url).json(body) };
    let answer = request.send().await?;
    Ok((answer.status().as_u16().into(), read(&answer.bytes().await?)))
}

/// How services are asked: through the queue.
struct Asker {
    calls: Calls,
    http: reqwest::Client,
}

impl Asker {
    async fn of(rewards: &Rewards) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().unix_socket(rewards.socket()).timeout(LIMIT);
        Ok(Self { calls: rewards.calls().await?, http: http.build()? })
    }

    /// A service answers a request as `engine`, its like, does by itself.
    async fn as_alone(
        &self,
        id: &str,
        service: &str,
        engine: &str,
        (path, body, told): &Kind,
    ) -> anyhow::Result<()> {
        let wanted = alone(engine, path, body).await?;
        ensure!(wanted.1.pointer(told).is_some(), "{path}: {wanted:?} without {told}");
        let call = post(id, service, path, body);
        let call = match body {
            Value::Null => CallRequest { method: "GET".into(), body: Vec::new().into(), ..call },
            _ => call,
        };
        let answer = self.calls.call(call.clone()).await;
        let answer = answer.with_context(|| format!("{service}{path}"))?;
        ensure!((answer.status, read(&answer.body)) == wanted, "{path}: {answer:?}, {wanted:?}");
        // The same call in plain HTTP is given the same answer, and asks nobody.
        let url = format!("http://queue/v1/rewards/{service}{path}");
        let plain = if body.is_null() { self.http.get(url) } else { self.http.post(url) };
        let plain = plain.header("x-rollwright-action", id).body(call.body).send().await?;
        ensure!(u32::from(plain.status().as_u16()) == answer.status, "{path}: {plain:?}");
        ensure!(plain.bytes().await? == answer.body, "{path}");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_request_is_answered_as_by_the_engine_alone() -> anyhow::Result<()> {
    // They take turns on one GPU, so that each kind of request meets an engine that comes back.
    let services =
        ["one", "two"].map(|name| Service { version: VERSION, ..Service::new(name, &[1]) });
    let mut rewards = Rewards::start("kinds", Node::of(1), &services).await?;
    rewards.linked().await?;
    let asker = Asker::of(&rewards).await?;
    let mut engines = Vec::new();
    for Service { name, .. } in &services {
        let config =
            Config { model: name.clone(), version: VERSION, mean_tokens: 0, ..Config::default() };
        engines.push((name, EngineSim::start(config).await?));
    }
    let kinds = vllms();
    for (n, (path, body, told)) in kinds.iter().enumerate() {
        for (service, engine) in &engines {
            let mut body = body.clone();
            if let Some(body) = body.as_object_mut() {
                body.insert("model".into(), json!(service));
            }
            let id = format!("{service}-{n}");
            asker.as_alone(&id, service, &engine.url(), &(*path, body, *told)).await?;
        }
    }
    // Given ids have the log-probabilities of the engine's weights, to the last bit.
    let body = json!({"model": "one", "prompt": IDS, "max_tokens": 1, "prompt_logprobs": 0});
    let url = "http://queue/v1/rewards/one/v1/completions";
    let said: Value = asker.http.post(url).json(&body).send().await?.json().await?;
    for (at, (id, wanted)) in IDS.iter().zip(logprobs_of(&IDS, VERSION)).enumerate() {
        let said = &said["choices"][0]["prompt_logprobs"][at][id.to_string()]["logprob"];
        let bits = |number: Option<f64>| number.map(|number| (number as f32).to_bits());
        ensure!(bits(said.as_f64()) == bits(wanted), "token {at}: {said} for {wanted:?}");
    }
    let (one, two) = (asker.calls.service("one").await?, asker.calls.service("two").await?);
    let each = kinds.len() as u64;
    ensure!((one.calls, two.calls) == (each + 1, each), "{one:?}, {two:?}");
    ensure!((one.restores, two.restores) == (each + 1, each), "they took turns: {one:?}, {two:?}");
    rewards.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_and_a_program_of_ones_own_answer_as_by_themselves() -> anyhow::Result<()> {
    let sglang = Service { version: VERSION, ..Service::new("sglang", &[1]).sglang() };
    let services = [sglang, Service::new("own", &[1]).own()];
    let mut rewards = Rewards::start("others", Node::of(1), &services).await?;
    rewards.linked().await?;
    let asker = Asker::of(&rewards).await?;
    let sglang = EngineSim::start(Config {
        dialect: Dialect::Sglang,
        model: "sglang".to_owned(),
        version: VERSION,
        mean_tokens: 0,
        ..Config::default()
    });
    let sglang = sglang.await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let own = format!("http://{}", listener.local_addr()?);
    let program = tokio::spawn(own::serve(listener));
    // In turns as far as there are requests of both, so that each engine leaves and comes back.
    let both = [("sglang", sglang.url(), sglangs()), ("own", own, owns())];
    for n in 0..both.iter().map(|(.., kinds)| kinds.len()).max().unwrap_or(0) {
        for (service, engine, kinds) in &both {
            if let Some(kind) = kinds.get(n) {
                asker.as_alone(&format!("{service}-{n}"), service, engine, kind).await?;
            }
        }
    }
    program.abort();
    let turns = both.iter().map(|(.., kinds)| kinds.len() as u64).min().unwrap_or(0);
    for (service, _, kinds) in &both {
        let of = asker.calls.service(service).await?;
        ensure!((of.calls, of.failures) == (kinds.len() as u64, 0), "{of:?}");
        ensure!(of.restores >= turns, "they took turns: {of:?}");
    }
    rewards.stop().await
}
