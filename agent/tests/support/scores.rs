//! A question to the reference reward server.

use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rollwright_agent::gpu::Station;
use rollwright_core::gpu::EngineId;

/// What an engine answers; the status of one that does not.
pub(crate) async fn scores(station: &Station, engine: EngineId) -> Result<String, u16> {
    let url = format!("{}/score", station.backend.address(engine).await.unwrap());
    let body = r#"{"text_1": "which is better?", "text_2": ["this one", "that one"]}"#;
    let request = axum::http::Request::post(url).body(Full::from(body)).unwrap();
    let client: Client<_, Full<axum::body::Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let reply = client.request(request).await.unwrap();
    let status = reply.status();
    let body = reply.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    if status.is_success() { Ok(text) } else { Err(status.as_u16()) }
}
