//! Against a server that says what it is told to: a fake gateway.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, put};

use super::*;

/// Serves on a loopback port; returns `HOST:PORT`.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn worker() -> WishedWorker {
    WishedWorker {
        name: "j-worker-a".into(),
        url: "http://10.0.0.7:8000".into(),
        class: "h800".into(),
        role: "mixed",
        slots: 64,
        drain: true,
        bootstrap_port: None,
    }
}

#[tokio::test]
async fn the_set_is_said_with_the_token_of_the_moment() {
    let heard: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let ear = Arc::clone(&heard);
    let router = Router::new().route(
        "/rollout/v1/workers",
        put(async move |headers: HeaderMap, body: String| {
            let bearer = headers["authorization"].to_str().unwrap().to_owned();
            ear.lock().unwrap().push((bearer, body));
            r#"{"workers":[{"name":"j-worker-a","state":"draining","in_flight":3,"version":7,
                "more":1}]}"#
        }),
    );
    let address = serve(router).await;
    let client = GatewayClient { address, token: "one".into() };
    let states = client.set_workers(&[worker()]).await.unwrap();
    assert_eq!((states[0].state.as_str(), states[0].in_flight), ("draining", 3));
    GatewayClient { token: "two".into(), ..client }.set_workers(&[]).await.unwrap();
    let heard = heard.lock().unwrap().clone();
    assert_eq!(
        heard[0],
        (
            "Bearer one".to_owned(),
            r#"{"workers":[{"name":"j-worker-a","url":"http://10.0.0.7:8000","class":"h800","role":"mixed","slots":64,"drain":true}]}"#.to_owned()
        )
    );
    assert_eq!(heard[1].0, "Bearer two");
}

#[tokio::test]
async fn refusals_and_nonsense_are_told_apart() {
    let router = Router::new()
        .route(
            "/rollout/v1/workers",
            put(async |_: Bytes| (StatusCode::UNAUTHORIZED, "who are you?")),
        )
        .route("/rollout/v1/status", get(async || "{}"));
    let address = serve(router).await;
    let client = GatewayClient { address, token: "t".into() };
    let refused = client.set_workers(&[]).await.unwrap_err();
    assert!(refused.to_string().contains("who are you?"), "{refused}");
    assert_eq!(refused.category(), "GatewayRefused");
    assert_eq!(client.status().await.unwrap_err().category(), "GatewayMalformed");
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let endless = || {
        let chunk = Bytes::from(vec![b' '; 1 << 20]);
        axum::body::Body::from_stream(futures::stream::repeat_with(move || {
            Ok::<_, std::convert::Infallible>(chunk.clone())
        }))
    };
    let address =
        serve(Router::new().route("/rollout/v1/status", get(async move || endless()))).await;
    let client = GatewayClient { address, token: "t".into() };
    assert_eq!(client.status().await.unwrap_err().category(), "GatewayUnreachable");
}

#[tokio::test]
async fn nobody_there_is_said() {
    let client = GatewayClient { address: "127.0.0.1:1".into(), token: "t".into() };
    assert_eq!(client.status().await.unwrap_err().category(), "GatewayUnreachable");
}
