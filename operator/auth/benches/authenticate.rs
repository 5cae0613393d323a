//! What it costs to know a caller: `cargo bench -p rollwright-auth`.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::{Instant, SystemTime};

use rollwright_auth::AuthConfig;
use rollwright_auth::simulated_issuer::{SigningKey, SimulatedIssuer};
use serde_json::json;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let jwks = dir.path().join("jwks.json");
    let issuer = SimulatedIssuer::new("https://kubernetes.default.svc.cluster.local");
    let key = SigningKey::rsa(include_bytes!("../tests/rsa-2048.pk8"));
    std::fs::write(&jwks, json!({"keys": [key.jwk("rsa")]}).to_string()).unwrap();
    let config = AuthConfig { tokens: Some(issuer.trusted(jwks, &[])), ..AuthConfig::default() };
    let who = config.open(SystemTime::now()).unwrap();
    let tokens = |count: usize| -> Vec<String> {
        let token = |number| {
            let claims = issuer.claims("team", &format!("trainer-{number}"));
            format!("Bearer {}", key.sign(&json!({"alg": "RS256", "kid": "rsa"}), &claims))
        };
        (0..count).map(token).collect()
    };
    let first = tokens(500);
    let begun = Instant::now();
    for token in &first {
        who.authenticate(Some(black_box(token)), SystemTime::now()).unwrap();
    }
    println!("first time: {:?} a token of {} bytes", begun.elapsed() / 500, first[0].len());
    let begun = Instant::now();
    for _ in 0..1000 {
        for token in &first {
            black_box(who.authenticate(Some(black_box(token)), SystemTime::now())).unwrap();
        }
    }
    println!("then: {:?} a request", begun.elapsed() / 500_000);
}
