//! Recorded turns before simulated engines, whose tokens are a pure function of what they
//! have read: a turn that was continued must be the one that was never broken.
#![allow(clippy::unwrap_used)]

mod proxy_common;

use proxy_common::{Job, chat, engines, events, streamed_text, until};
use rollwright_engine_sim::{Config, EngineSim, Fault, FaultKind, Latency, version_of_logprob};
use serde_json::{Value, json};
use std::time::Duration;

fn streaming(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

fn fault(kind: FaultKind, after_tokens: usize) -> Fault {
    serde_json::from_value(json!({"fault": kind, "after_tokens": after_tokens})).unwrap()
}

/// Replies end at `max_tokens` only.
fn endless() -> Config {
    Config { mean_tokens: 0, ..Config::default() }
}

/// What an engine alone replies.
async fn alone(body: &Value) -> Value {
    let engine = EngineSim::start(endless()).await.unwrap();
    let mut body = body.clone();
    body["stream"] = json!(false);
    body["return_token_ids"] = json!(true);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/v1/chat/completions", engine.url());
    let reply = client.post(url).json(&body).send().await.unwrap().json().await.unwrap();
    engine.stop().await;
    reply
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The log holds the prompt and what was generated, each token once.
fn assert_log(kept: &Value, reply: &Value) {
    let prompt = ids(&reply["prompt_token_ids"]);
    let made = ids(&reply["choices"][0]["token_ids"]);
    let all: Vec<u64> = prompt.iter().chain(&made).copied().collect();
    assert_eq!(ids(&kept["token_ids"]), all);
    let mask = ids(&kept["loss_mask"]);
    assert_eq!(mask.iter().sum::<u64>() as usize, made.len());
    let version = kept["versions"][0]["version"].as_u64().unwrap();
    for (index, logprob) in kept["logprobs"].as_array().unwrap().iter().enumerate() {
        let made_by = logprob.as_f64().map(version_of_logprob);
        let expected = (mask[index] == 1).then_some(version);
        assert_eq!(made_by, expected, "token {index}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_are_recorded_and_hidden() {
    let job = Job::start(engines(2, &endless()).await, |_| {}).await;
    let expected = alone(&chat("hello")).await;
    for stream in [false, true] {
        let trajectory = job.trajectory().await;
        let path = format!("/t/{trajectory}/v1/chat/completions");
        let text = if stream {
            let reply = job.request(&path, &streaming(chat("hello"))).send().await.unwrap();
            let body = reply.text().await.unwrap();
            assert!(!body.contains("token_ids"), "{body}");
            assert_eq!(events(&body).last(), Some(&"[DONE]"));
            streamed_text(&body)
        } else {
            let (status, reply) = job.post(&path, &chat("hello")).await;
            assert_eq!(status, 200, "{reply}");
            let choice = &reply["choices"][0];
            assert!(reply.get("prompt_token_ids").is_none(), "{reply}");
            assert!(choice.get("token_ids").is_none() && choice["logprobs"].is_null(), "{reply}");
            choice["message"]["content"].as_str().unwrap().to_owned()
        };
        assert_eq!(text, expected["choices"][0]["message"]["content"].as_str().unwrap());
        assert_log(&job.batch(&trajectory).await, &expected);
    }
    job.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_whose_engine_dies_goes_on_elsewhere() {
    let expected = alone(&chat("hello")).await;
    for after in [0, 1, 7] {
        let job = Job::start(engines(2, &endless()).await, |_| {}).await;
        // Whichever takes it fails; both may, one after the other.
        for engine in &job.engines {
            engine.inject(fault(FaultKind::Reset, after)).unwrap();
        }
        let trajectory = job.trajectory().await;
        let path = format!("/t/{trajectory}/v1/chat/completions");
        let reply = job.request(&path, &streaming(chat("hello"))).send().await.unwrap();
        let body = reply.text().await.unwrap();
        assert_eq!(events(&body).last(), Some(&"[DONE]"), "{body}");
        let text = expected["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(streamed_text(&body), text, "after {after}: {body}");
        let ids: std::collections::BTreeSet<String> = events(&body)
            .iter()
            .filter_map(|data| serde_json::from_str::<Value>(data).ok())
            .map(|event| event["id"].to_string())
            .collect();
        assert_eq!(ids.len(), 1, "one reply has one id: {ids:?}");
        assert_log(&job.batch(&trajectory).await, &expected);
        job.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_an_engine_aborts_goes_on() {
    let expected = alone(&chat("hello")).await;
    for stream in [false, true] {
        let latency = Latency { step: Duration::from_millis(10), ..Latency::default() };
        let job = Job::start(engines(1, &Config { latency, ..endless() }).await, |_| {}).await;
        let trajectory = job.trajectory().await;
        let path = format!("/t/{trajectory}/v1/chat/completions");
        let body = if stream { streaming(chat("hello")) } else { chat("hello") };
        let call = tokio::spawn(job.request(&path, &body).send());
        until("some tokens are made", async || {
            job.engines[0].requests().last().is_some_and(|request| request.tokens > 3)
        })
        .await;
        for control in ["/pause?mode=abort&clear_cache=true", "/resume"] {
            let url = format!("{}{control}", job.engines[0].url());
            assert!(job.client.post(url).send().await.unwrap().status().is_success());
        }
        let text = call.await.unwrap().unwrap().text().await.unwrap();
        let content = if stream {
            streamed_text(&text)
        } else {
            let reply: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(reply["choices"][0]["finish_reason"], "length", "{reply}");
            assert_eq!(reply["usage"]["completion_tokens"], 24);
            reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        };
        assert_eq!(content, expected["choices"][0]["message"]["content"].as_str().unwrap());
        assert!(job.engines[0].requests().len() >= 2, "it was broken");
        assert_log(&job.batch(&trajectory).await, &expected);
        job.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_recorded_is_refused() {
    let job = Job::start(engines(1, &endless()).await, |_| {}).await;
    let trajectory = job.trajectory().await;
    let path = format!("/t/{trajectory}/v1/chat/completions");
    let mut two = chat("hello");
    two["n"] = json!(2);
    let (status, reply) = job.post(&path, &two).await;
    assert_eq!((status, &reply["error"]["code"]), (400, &json!("OneReplyOnly")), "{reply}");
    let broken = job.client.post(format!("{}{path}", job.url)).bearer_auth(proxy_common::KEY);
    let broken = broken.body(&b"{\"model\": \"\xff\"}"[..]).send().await.unwrap();
    assert_eq!(broken.status(), 400);

    let (status, reply) = job.post(&path, &chat("hello")).await;
    assert_eq!(status, 200, "{reply}");
    for body in [chat("something else"), streaming(chat("something else"))] {
        let (status, reply) = job.post(&path, &body).await;
        assert_eq!((status, &reply["error"]["code"]), (409, &json!("Retokenised")), "{reply}");
    }
    job.stop().await;
}
