//! Sockets: an engine-sim's life, and connections that can be reset at will.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::policy::{ContextHash, Policy};
use crate::template;
use crate::tokenizer::{MESSAGE_END, Tokenizer};

/// Why an engine-sim did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is taken or not allowed.
    #[error("cannot listen on 127.0.0.1:{port}: {source}; port 0 takes any free one")]
    Listen {
        /// The port asked for.
        port: u16,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// A running simulator; dropping it kills it.
#[derive(Debug)]
pub struct EngineSim {
    addr: SocketAddr,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl EngineSim {
    /// Starts one on the loopback.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let port = config.port;
        let listen = |source| StartError::Listen { port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(listen)?;
        let addr = listener.local_addr().map_err(listen)?;
        let stop = CancellationToken::new();
        let app = Router::new()
            .route("/health", get(|| async { StatusCode::OK }))
            .route("/v1/chat/completions", post(chat))
            .with_state(Arc::new(config));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let serve = axum::serve(listener, app)
                .with_graceful_shutdown(async move { stopped.cancelled().await });
            if let Err(error) = serve.await {
                eprintln!("engine-sim: {error}");
            }
        });
        Ok(Self { addr, stop, task: Some(task) })
    }

    /// `http://127.0.0.1:PORT`, without a slash at its end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Ends it in good order: what runs is answered first.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            // The error is the server's panic or its kill; both are an end.
            let _ = task.await;
        }
    }

    /// Ends it as SIGKILL would: every connection is reset, nothing is answered.
    pub fn kill(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Drop for EngineSim {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn chat(State(config): State<Arc<Config>>, Json(body): Json<Value>) -> Response {
    let messages: Result<Vec<_>, _> =
        body["messages"].as_array().into_iter().flatten().map(template::message).collect();
    let messages = match messages {
        Ok(messages) => messages,
        Err(message) => {
            return (StatusCode::BAD_REQUEST, Json(json!({"error": {"message": message}})))
                .into_response();
        }
    };
    let prompt = template::render(&messages, true);
    let policy = Policy { seed: config.seed, mean_tokens: config.mean_tokens };
    let limit = body["max_tokens"].as_u64().unwrap_or(256);
    let mut hash = ContextHash::of(&prompt);
    let mut tokens = Vec::new();
    while (tokens.len() as u64) < limit && tokens.last() != Some(&MESSAGE_END) {
        let sample = policy.next(hash, body["seed"].as_u64().unwrap_or(0), config.version);
        hash.push(sample.token);
        tokens.push(sample.token);
    }
    let finish = if tokens.last() == Some(&MESSAGE_END) { "stop" } else { "length" };
    Json(json!({
        "id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": config.model,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": Tokenizer.decode_generated(&tokens)},
            "finish_reason": finish, "token_ids": tokens,
        }],
        "prompt_token_ids": prompt,
        "usage": {"prompt_tokens": prompt.len(), "completion_tokens": tokens.len(),
                  "total_tokens": prompt.len() + tokens.len()},
    }))
    .into_response()
}
