//! `/rollout/v1/workers` against a double: who may call it, and what it takes.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests too

mod api_common;

use api_common::Api;
use axum::http::{Method, StatusCode};
use rollwright_auth::Caller;

#[tokio::test]
async fn workers_are_the_operators_and_checked() {
    let mut api = Api::new();
    let put = async |api: &Api, body: &str| {
        api.call(Method::PUT, "/rollout/v1/workers", &[], body.to_owned()).await
    };
    let worker = |more: &str| {
        format!(r#"{{"name":"w","url":"http://10.0.0.7:8000","class":"h20","slots":4{more}}}"#)
    };
    let set = |workers: &str| format!(r#"{{"workers":[{workers}]}}"#);
    let whole = set(&worker(r#","role":"prefill","drain":true,"bootstrap_port":8998"#));
    assert_eq!(put(&api, &whole).await.status, StatusCode::OK);
    assert!(api.double.given().contains("role: Prefill, slots: 4, drain: true"));
    assert!(api.double.given().contains("bootstrap_port: Some(8998)"));
    assert_eq!(put(&api, &set("")).await.status, StatusCode::OK);
    api.double.given.lock().unwrap().clear();
    let many: Vec<String> = (0..10_001)
        .map(|n| format!(r#"{{"name":"w{n}","url":"http://h","class":"c","slots":1}}"#))
        .collect();
    for (body, wanted) in [
        (String::new(), "missing field `workers`"),
        (set(&worker(r#","role":"both""#)), "`workers[0].role`: unknown variant `both`"),
        (set(&worker(r#","bootstrap_port":0"#)), "`workers[0].bootstrap_port`: invalid value"),
        (set(&worker(r#","rolle":1"#)), "`workers[0].rolle`: unknown field"),
        (set(&worker("").replace('4', "0")), "`workers[0].slots`: 0 is not a number from 1 to"),
        (set(&worker("").replace("h20", "h 20")), "`workers[0].class`: `h 20` is not a valid"),
        (set(&worker("").replace("\"w\"", "\"\"")), "`workers[0].name`:"),
        (set(&[worker(""), worker("")].join(",")), "`workers`: worker `w` is named twice"),
        (set(&many.join(",")), "`workers`: 10001 workers are too many: at most 10000"),
    ] {
        let answer = put(&api, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.message());
        assert!(answer.message().contains(wanted), "{wanted}: {}", answer.message());
    }
    for caller in [
        Caller::of_job(rollwright_core::ids::JobId::new("job").unwrap()),
        Caller::of_namespace(rollwright_auth::Namespace::new("team").unwrap()),
    ] {
        api.caller = caller;
        for answer in [put(&api, &whole).await, api.get("/rollout/v1/workers").await] {
            assert_eq!((answer.status.as_u16(), &*answer.code()), (403, "Forbidden"));
        }
    }
    assert_eq!(api.double.given(), "", "a wrong set came through");
}
