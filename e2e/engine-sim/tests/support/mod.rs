//! A small HTTP client, and events of a stream one by one.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of this module")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test helper fails by panic")]
#![allow(clippy::needless_pass_by_value, reason = "callers write json!(..) in place")]

use std::time::Duration;

use axum::body::{Body, BodyDataStream, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use futures::StreamExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rollwright_engine_sim::EngineSim;
use serde_json::{Value, json};

pub const LIMIT: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

pub struct Http {
    client: Client<HttpConnector, Body>,
    url: String,
    headers: Vec<(&'static str, String)>,
}

pub fn client(engine: &EngineSim) -> Http {
    let client = Client::builder(TokioExecutor::new()).build_http();
    Http { client, url: engine.url(), headers: Vec::new() }
}

impl Http {
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, HeaderMap, Body), String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = match body {
            Some(body) => request
                .header("content-type", "application/json")
                .body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        let response = tokio::time::timeout(LIMIT, self.client.request(request.unwrap()))
            .await
            .expect("no answer in time")
            .map_err(|error| format!("{error:?}"))?;
        let (parts, body) = response.into_parts();
        Ok((parts.status, parts.headers, Body::new(body)))
    }

    async fn json(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let (status, _, body) = self.send(method, path, body).await.unwrap();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (status.as_u16(), serde_json::from_slice(&bytes).unwrap_or(Value::String(text)))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.json(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.json(Method::POST, path, Some(&body)).await
    }

    /// A POST without a body.
    pub async fn call(&self, path: &str) -> (u16, Value) {
        self.json(Method::POST, path, None).await
    }

    /// A POST that must succeed.
    pub async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    pub async fn stream(&self, path: &str, body: Value) -> Events {
        let (status, headers, body) =
            self.send(Method::POST, path, Some(&body)).await.expect("a stream");
        assert_eq!(status, 200);
        let kind = headers["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Events { body: body.into_data_stream(), buffer: String::new() }
    }
}

/// The events of a stream, framed as the standard says: `data: ...` and an empty line.
pub struct Events {
    body: BodyDataStream,
    buffer: String,
}

/// What came next.
#[derive(Debug, PartialEq)]
pub enum Event {
    Data(Value),
    Done,
    /// The body ended.
    End,
    /// The connection broke.
    Broken,
}

impl Events {
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let data = event.strip_prefix("data: ").expect("an event is one data line");
                let event = match data {
                    "[DONE]" => Event::Done,
                    json => Event::Data(serde_json::from_str(json).expect("JSON in an event")),
                };
                self.buffer = rest.into();
                return event;
            }
            match tokio::time::timeout(LIMIT, self.body.next()).await.expect("no event in time") {
                Some(Ok(bytes)) => self.buffer.push_str(std::str::from_utf8(&bytes).unwrap()),
                Some(Err(_)) => return Event::Broken,
                None => {
                    assert_eq!(self.buffer, "", "half an event at the end");
                    return Event::End;
                }
            }
        }
    }

    /// The next chunk.
    pub async fn data(&mut self) -> Value {
        match self.next().await {
            Event::Data(data) => data,
            other => panic!("{other:?} instead of a chunk"),
        }
    }

    /// All chunks to the end mark.
    pub async fn all(&mut self) -> Vec<Value> {
        let mut chunks = Vec::new();
        loop {
            match self.next().await {
                Event::Data(data) => chunks.push(data),
                Event::Done => break,
                other => panic!("{other:?} before the end mark, after {chunks:?}"),
            }
        }
        assert_eq!(self.next().await, Event::End);
        chunks
    }
}

/// A chat request of one user message.
pub fn chat(text: &str, more: Value) -> Value {
    with(json!({"model": "engine-sim", "messages": [{"role": "user", "content": text}]}), more)
}

/// One object with the fields of both.
pub fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().unwrap() as u32).collect()
}
