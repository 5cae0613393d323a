//! Against a fake API server, which makes tokens while it is told to.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::*;
use crate::metrics::Metrics;

struct FakeApiServer {
    tokens: Tokens,
    made: Arc<AtomicU32>,
    away: Arc<AtomicBool>,
}

impl FakeApiServer {
    /// One that makes tokens of `life` seconds at most.
    async fn start(life: i64) -> Self {
        let (made, away) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, gone) = (Arc::clone(&made), Arc::clone(&away));
        let answer = async move |Path((namespace, account)): Path<(String, String)>,
                                 Json(mut request): Json<Value>| {
            assert_eq!((namespace.as_str(), account.as_str()), ("release", SERVICE_ACCOUNT));
            if gone.load(Ordering::SeqCst) {
                return (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({})));
            }
            let audiences = request["spec"]["audiences"].as_array().unwrap();
            assert_eq!(audiences.len(), 1, "good at one receiver");
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            let token = format!("{number} for {}", audiences[0].as_str().unwrap());
            let asked = request["spec"]["expirationSeconds"].as_i64().unwrap();
            request["spec"]["expirationSeconds"] = json!(asked.min(life));
            let ends = "2026-01-01T00:00:00Z";
            request["status"] = json!({"token": token, "expirationTimestamp": ends});
            (StatusCode::CREATED, Json(request))
        };
        let path = "/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token";
        let router = Router::new().route(path, post(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let calls = Calls::new(Arc::new(Metrics::new().unwrap()));
        Self { tokens: Tokens::new(client, calls, "release"), made, away }
    }

    async fn get(&self, audience: &str, now: Instant) -> String {
        self.tokens.get_at(audience, now).await.unwrap().to_string()
    }
}

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_token_is_for_one_audience_and_renewed_before_it_ends() {
    let (server, begun) = (FakeApiServer::start(i64::MAX).await, Instant::now());
    assert_eq!(server.get("a", begun).await, "1 for a");
    assert_eq!(server.get("b", begun).await, "2 for b");
    assert_eq!(server.get("a", begun + 44 * MINUTE).await, "1 for a");
    assert_eq!(server.get("a", begun + 45 * MINUTE).await, "3 for a");
    assert_eq!(server.get("b", begun + 44 * MINUTE).await, "2 for b");
    assert_eq!(server.made.load(Ordering::SeqCst), 3);
    assert_eq!(server.tokens.youngest().as_deref(), Some("3 for a"));
}

#[tokio::test]
async fn an_old_token_does_while_the_api_server_gives_none_and_a_spent_one_never() {
    let (server, begun) = (FakeApiServer::start(i64::MAX).await, Instant::now());
    server.get("a", begun).await;
    server.away.store(true, Ordering::SeqCst);
    assert_eq!(server.get("a", begun + 57 * MINUTE).await, "1 for a");
    let none = server.tokens.get_at("a", begun + 58 * MINUTE).await.unwrap_err();
    assert_eq!(none.category(), "NoToken");
    assert!(server.tokens.get_at("b", begun).await.is_err());
    server.away.store(false, Ordering::SeqCst);
    assert_eq!(server.get("a", begun + 58 * MINUTE).await, "2 for a");
}

#[tokio::test]
async fn a_shorter_life_than_was_asked_for_counts() {
    let (server, begun) = (FakeApiServer::start(600).await, Instant::now());
    server.get("a", begun).await;
    assert_eq!(server.get("a", begun + 7 * MINUTE).await, "1 for a");
    assert_eq!(server.get("a", begun + 8 * MINUTE).await, "2 for a");
}

#[test]
fn there_are_never_too_many() {
    let (mut held, begun) = (HashMap::new(), Instant::now());
    let of = |at| Held { token: "t".into(), at, life: LIFE };
    keep(&mut held, "spent", of(begun));
    keep(&mut held, "first", of(begun + LIFE));
    held.extend((2..MOST).map(|number| (number.to_string(), of(begun + LIFE + MINUTE))));
    for (fresh, gone) in [("a", "spent"), ("b", "first")] {
        keep(&mut held, fresh, of(begun + LIFE + MINUTE));
        assert!(held.contains_key(fresh) && !held.contains_key(gone) && held.len() <= MOST);
    }
}
