//! The routes of `/rollout/v1` against a double: every answer fits the `OpenAPI` document.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests too

mod api_common;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api_common::{Api, RECORD};
use axum::body::Body;
use axum::http::{Method, StatusCode};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use rollwright_core::fault::{Fault, FaultKind};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// Every route, a good request to it, and the status that it answers.
const CALLS: [(&str, &str, &str, u16); 23] = [
    ("POST", "/rollout/v1/groups?wait=1.5", r#"{"task":"math","rollouts":2,"payload":[1]}"#, 201),
    ("POST", "/rollout/v1/groups", r#"{"id":"known"}"#, 200),
    ("GET", "/rollout/v1/groups/g1?wait=2", "", 200),
    ("DELETE", "/rollout/v1/groups/g1", "", 200),
    ("GET", "/rollout/v1/trajectories/g1%2F0", "", 200),
    ("POST", "/rollout/v1/trajectories/g1%2F0/steps", r#"{"name":"bash","seconds":1.5}"#, 200),
    ("POST", "/rollout/v1/trajectories/g1%2F0/complete", r#"{"metadata":{"a":1}}"#, 202),
    ("POST", "/rollout/v1/trajectories/g1%2F0/abort", "", 200),
    (
        "POST",
        "/rollout/v1/trajectories/g1%2F0/tokens",
        r#"{"prompt_ids":[1],"response_ids":[2],"logprobs":[-0.5],"version":7}"#,
        200,
    ),
    ("POST", "/rollout/v1/batches/take", r#"{"groups":2,"wait":0}"#, 200),
    ("POST", "/rollout/v1/batches/3/ack", "", 200),
    ("POST", "/rollout/v1/weights/begin", r#"{"version":8,"transfer":"store"}"#, 200),
    ("PUT", "/rollout/v1/weights/8/buckets/b0", "0123456789", 201),
    ("GET", "/rollout/v1/weights/8/buckets", "", 200),
    ("GET", "/rollout/v1/weights/8/buckets/b0", "", 200),
    ("POST", "/rollout/v1/weights/commit", r#"{"version":8,"path":"/weights/8"}"#, 200),
    ("POST", "/rollout/v1/weights/abort", r#"{"version":8}"#, 200),
    ("GET", "/rollout/v1/weights", "", 200),
    ("GET", "/rollout/v1/status", "", 200),
    (
        "PUT",
        "/rollout/v1/workers",
        r#"{"workers":[{"name":"w0","url":"http://10.0.0.7:8000","class":"h800","slots":64}]}"#,
        200,
    ),
    ("GET", "/rollout/v1/workers", "", 200),
    ("POST", "/rollout/v1/groups", r#"{"evaluation":true,"version":3,"tokens":"none"}"#, 201),
    ("POST", "/rollout/v1/batches/take", "", 200),
];

#[tokio::test]
async fn every_route_is_documented_and_answers_as_documented() {
    let api = Api::new();
    for (method, path, body, status) in CALLS {
        let answer = api.call(method.parse().unwrap(), path, &[], body).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {:?}", answer.bytes);
    }
    let documented: BTreeSet<String> = api.document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
        })
        .collect();
    let wanted: BTreeSet<String> = [
        "post /rollout/v1/groups",
        "get /rollout/v1/groups/{id}",
        "delete /rollout/v1/groups/{id}",
        "get /rollout/v1/trajectories/{id}",
        "post /rollout/v1/trajectories/{id}/steps",
        "post /rollout/v1/trajectories/{id}/complete",
        "post /rollout/v1/trajectories/{id}/abort",
        "post /rollout/v1/trajectories/{id}/tokens",
        "get /rollout/v1/events",
        "post /rollout/v1/batches/take",
        "post /rollout/v1/batches/{id}/ack",
        "post /rollout/v1/weights/begin",
        "put /rollout/v1/weights/{version}/buckets/{name}",
        "get /rollout/v1/weights/{version}/buckets",
        "get /rollout/v1/weights/{version}/buckets/{name}",
        "post /rollout/v1/weights/commit",
        "post /rollout/v1/weights/abort",
        "get /rollout/v1/weights",
        "get /rollout/v1/status",
        "put /rollout/v1/workers",
        "get /rollout/v1/workers",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(documented, wanted);
}

#[tokio::test]
async fn the_document_is_served_and_its_examples_are_true() {
    let api = Api::new();
    let request = axum::http::Request::get("/rollout/v1/openapi.json").body(Body::empty()).unwrap();
    let response = api.router().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let served: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(served, api.document);
    assert_eq!(served["openapi"], "3.1.0");
    assert_eq!(served["components"]["securitySchemes"]["key"]["scheme"], "bearer");
    let mut examples = 0;
    for (name, schema) in served["components"]["schemas"].as_object().unwrap() {
        assert!(schema["description"].is_string(), "schema {name} has no description");
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let of =
                |schema: &Value| schema["description"].is_string() || schema["$ref"].is_string();
            let either = property["oneOf"].as_array();
            let described = of(property) || either.is_some_and(|either| either.iter().any(of));
            assert!(described, "{name}.{field} has no description");
        }
        if let Some(example) = schema.get("example") {
            let checked = api.validate(&format!("/components/schemas/{name}"), example);
            assert_eq!(checked, Ok(()), "the example of {name} is wrong");
            examples += 1;
        }
    }
    assert!(examples >= 15, "{examples}");
    for (path, item) in served["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path} has no summary");
            for status in ["400", "401", "404", "409", "429", "503", "504"] {
                let refusal = &operation["responses"][status]["content"]["application/json"];
                assert_eq!(refusal["schema"]["$ref"], "#/components/schemas/Refusal", "{path}");
            }
        }
    }
}

#[tokio::test]
async fn requests_arrive_as_they_were_meant() {
    let api = Api::new();
    let given = || api.double.given();
    api.post("/rollout/v1/groups?wait=0.25", r#"{"id":"a/b","payload":{"x": [1, 2]}}"#).await;
    assert!(given().contains("id: Some(a/b)"), "{}", given());
    // Payloads are kept as they were written.
    assert!(given().contains(r#"RawValue({"x": [1, 2]})"#), "{}", given());
    assert!(given().ends_with("250ms)"), "{}", given());
    api.post("/rollout/v1/groups", r#"{"payload":null}"#).await;
    assert!(given().contains("payload: None"), "{}", given());
    api.get("/rollout/v1/groups/a%2Fb").await;
    assert_eq!(given(), "(a/b, 0ns)");
    api.post("/rollout/v1/batches/take", "").await;
    assert!(given().ends_with("60s)"), "{}", given());
    let digest = "ab".repeat(32);
    let headers = [("x-rollwright-sha256", digest.as_str())];
    let put = |body| api.call(Method::PUT, "/rollout/v1/weights/8/buckets/b-1", &headers, body);
    let stored = put(Body::from("abc")).await.json();
    assert_eq!((stored["bytes"].as_u64(), stored["name"].as_str()), (Some(3), Some("b-1")));
    assert!(given().contains("[171, 171, ") && given().ends_with("Some(3))"), "{}", given());
}

#[tokio::test]
async fn ranges_of_a_bucket() {
    let api = Api::new();
    let path = "/rollout/v1/weights/8/buckets/b0";
    for (range, status, body, sent) in [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=7-", 206, "789", "bytes 7-9/10"),
        ("bytes=-2", 206, "89", "bytes 8-9/10"),
        ("bytes=8-100", 206, "89", "bytes 8-9/10"),
        ("bytes=0-1,4-5", 200, "0123456789", ""),
        ("lines=1-2", 200, "0123456789", ""),
    ] {
        let answer = api.call(Method::GET, path, &[("range", range)], Body::empty()).await;
        assert_eq!((answer.status.as_u16(), &*answer.bytes), (status, body.as_bytes()), "{range}");
        let length = answer.headers["content-length"].to_str().unwrap();
        assert_eq!(length, body.len().to_string());
        let told = answer.headers.get("content-range").map_or("", |sent| sent.to_str().unwrap());
        assert_eq!(told, sent);
    }
    for (range, status) in [("bytes=10-", 416), ("bytes=4-2", 400), ("bytes=a-b", 400)] {
        let answer = api.call(Method::GET, path, &[("range", range)], Body::empty()).await;
        assert_eq!(answer.status.as_u16(), status, "{range}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_said_with_its_place() {
    let api = Api::new();
    let groups = "/rollout/v1/groups";
    let take = "/rollout/v1/batches/take";
    let tokens = "/rollout/v1/trajectories/g1%2F0/tokens";
    let begin = "/rollout/v1/weights/begin";
    for (path, body, wanted) in [
        (groups, r#"{"grup":1}"#, "`grup`: unknown field `grup`, expected one of `id`, `task`"),
        (groups, r#"{"rollouts":"8"}"#, "`rollouts`: invalid type: string"),
        (groups, r#"{"rollouts":0}"#, "`rollouts`: 0 is not a number from 1 to 4096"),
        (groups, r#"{"rollouts":-1}"#, "`rollouts`: invalid value"),
        (groups, r#"{"id":"a b"}"#, "`id`: `a b` is not a valid group id"),
        (groups, r#"{"tokens":"some"}"#, "`tokens`: unknown variant `some`"),
        (groups, r#"{"version":3}"#, "`version`: only an evaluation"),
        (groups, " []", "the body: one JSON object is expected, not a list"),
        (groups, "7", "the body: invalid type"),
        (groups, "{}{}", "one JSON object is expected, and nothing after it"),
        (groups, r#"{"id":"a""#, "the body: EOF"),
        (take, r#"{"wait":601}"#, "`wait`: 601 is not a number of seconds from 0 to 600"),
        (take, r#"{"wait":-1}"#, "`wait`: -1 is not a number of seconds"),
        (take, r#"{"wait":1e999}"#, "number out of range"),
        (tokens, "{}", "missing field `prompt_ids`"),
        (tokens, r#"{"prompt_ids":[1,-2]}"#, "`prompt_ids[1]`: invalid value"),
        (
            tokens,
            r#"{"prompt_ids":[],"response_ids":[1,2],"logprobs":[-1],"version":1}"#,
            "`logprobs` has 1 numbers and `response_ids` 2",
        ),
        (
            tokens,
            r#"{"prompt_ids":[],"response_ids":[1,2],"logprobs":[-1,0.5],"version":1}"#,
            "`logprobs[1]` is not the logarithm",
        ),
        (
            tokens,
            r#"{"prompt_ids":[],"response_ids":[],"logprobs":[],"version":1}"#,
            "`response_ids` is empty",
        ),
        (begin, r#"{"version":8,"transfer":"nccl"}"#, "`transfer`: unknown variant `nccl`"),
        (begin, "", "missing field `version`"),
        ("/rollout/v1/weights/commit", r#"{"version":8,"path":""}"#, "`path`: a path has"),
    ] {
        let answer = api.post(path, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.message().contains(wanted), "{body}: {}", answer.message());
        let error = &answer.json()["error"];
        assert_eq!((&error["type"], &error["param"]), (&json!("user"), &Value::Null));
    }
    for (path, wanted) in [
        ("/rollout/v1/groups/a%20b", "`a b` is not a valid group id"),
        ("/rollout/v1/groups/%FF", "Invalid UTF-8"),
        ("/rollout/v1/groups/g1?wait=x", "invalid float literal"),
        ("/rollout/v1/groups/g1?wait=NaN", "NaN is not a number of seconds"),
        ("/rollout/v1/groups/g1?wat=1", "unknown field `wat`"),
        ("/rollout/v1/weights/x/buckets", "`x` in the path is not the number of a version"),
        ("/rollout/v1/weights/8/buckets/..%2Fetc", "is not a bucket's name"),
        ("/rollout/v1/weights/8/buckets/.hidden", "is not a bucket's name"),
        ("/rollout/v1/events?group=a%20b", "`a b` is not a valid group id"),
    ] {
        let answer = api.get(path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(answer.message().contains(wanted), "{path}: {}", answer.message());
    }
    assert_eq!(api.double.given(), "", "a wrong request came through");
}

#[tokio::test]
async fn hostile_bodies_are_refused_and_bounded() {
    let api = Api::new();
    let paths: Vec<&str> = CALLS
        .iter()
        .filter(|(method, path, ..)| *method == "POST" && !path.ends_with("/ack"))
        .map(|(_, path, ..)| *path)
        .collect();
    let mebibyte = Bytes::from(vec![b' '; 1 << 20]);
    let large = Bytes::from(vec![b' '; 100 << 20]);
    for path in paths {
        // 100 MiB with a length, and 100 MiB that only come: no more than the limit is read.
        let whole = Body::new(http_body_util::Full::new(large.clone()));
        let read = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (counter, piece) = (read.clone(), mebibyte.clone());
        let pieces = Body::from_stream(stream::iter(0..100).map(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>(piece.clone())
        }));
        for body in [whole, pieces] {
            let answer = api.post(path, body).await;
            assert_eq!((answer.status.as_u16(), &*answer.code()), (413, "BodyTooLarge"), "{path}");
        }
        assert!(read.load(Ordering::SeqCst) <= 34, "{path} read {read:?} MiB");
        let cut = stream::iter([Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("gone"))]);
        let deep = "[".repeat(500_000) + &"]".repeat(500_000);
        for body in [
            Body::from(&b"{\"id\":\"\xff\xfe\"}"[..]),
            Body::from(&b"\0\0\0"[..]),
            Body::from_stream(cut),
            Body::from(deep.clone()),
            Body::from("{\"a\":".repeat(100_000)),
        ] {
            let answer = api.post(path, body).await;
            assert_eq!((answer.status.as_u16(), &*answer.code()), (400, "InvalidBody"), "{path}");
            assert!(answer.bytes.len() < 2000, "{path} echoes {} bytes", answer.bytes.len());
        }
    }
    // Within a payload, where any JSON is welcome.
    for (payload, wanted) in [
        ("[".repeat(129) + &"]".repeat(129), "`payload`: it is nested deeper than 128"),
        ("[".repeat(500_000) + &"]".repeat(500_000), "`payload`: it is nested deeper than 128"),
        (format!("\"{}\"", "x".repeat(1 << 20)), "`payload`: 1048578 bytes of JSON are too many"),
    ] {
        let answer = api.post("/rollout/v1/groups", format!("{{\"payload\":{payload}}}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(answer.message().starts_with(wanted), "{}", answer.message());
    }
    let metadata = format!("{{\"metadata\":\"{}\"}}", "x".repeat(64 << 10));
    let answer = api.post("/rollout/v1/trajectories/a/complete", metadata).await;
    assert!(answer.message().starts_with("`metadata`: 65538 bytes"), "{}", answer.message());
    assert_eq!(api.double.given(), "", "a hostile body came through");
    let fits = format!("{{\"payload\":\"{}\"}}", "x".repeat((1 << 20) - 2));
    assert_eq!(api.post("/rollout/v1/groups", fits).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_in_the_same_shape() {
    let api = Api::new();
    let answer = api.get("/rollout/v1/nothing").await;
    assert_eq!((answer.status.as_u16(), &*answer.code()), (404, "NoSuchRoute"));
    let answer = api.get("/rollout/v1/trajectories/g1/0/abort").await;
    assert!(answer.message().contains("%2F"), "{}", answer.message());
    let answer = api.call(Method::PATCH, "/rollout/v1/groups/g1", &[], Body::empty()).await;
    assert_eq!((answer.status.as_u16(), &*answer.code()), (405, "MethodNotAllowed"));
}

#[tokio::test]
async fn faults_keep_their_family_and_say_when_to_come_back() {
    let api = Api::new();
    for (kind, reason, after, status) in [
        (FaultKind::User, "GroupNotFound", None, 404),
        (FaultKind::Cancelled, "Aborted", None, 409),
        (FaultKind::Infrastructure, "BufferFull", Some(2500), 429),
        (FaultKind::Infrastructure, "StoreFull", Some(10_000), 503),
        (FaultKind::Timeout, "QueueTimeout", None, 504),
    ] {
        let after = after.map(Duration::from_millis);
        let fault = Fault { retry_after: after, ..Fault::new(kind, reason, "a \"sentence\"") };
        *api.double.fault.lock().unwrap() = Some(fault);
        for (method, path, body, _) in CALLS {
            let answer = api.call(method.parse().unwrap(), path, &[], body).await;
            assert_eq!(answer.status.as_u16(), status, "{path}");
            let error = &answer.json()["error"];
            assert_eq!(error["type"], kind.as_str());
            assert_eq!(error["code"], reason);
            assert_eq!(error["message"], "a \"sentence\"");
            let told = answer.headers.get("retry-after").map(|value| value.to_str().unwrap());
            let seconds = after.map(|after| after.as_secs_f64().ceil().to_string());
            assert_eq!(told, seconds.as_deref());
        }
    }
}

#[tokio::test]
async fn a_batch_is_streamed_and_whole() {
    let api = Api::new();
    let batch = api.post("/rollout/v1/batches/take", "").await.json();
    assert_eq!((&batch["id"], &batch["version"]), (&json!(3), &json!(7)));
    assert_eq!(batch["waited_seconds"], 1.5);
    let record: Value = serde_json::from_slice(RECORD).unwrap();
    assert_eq!(
        batch["groups"],
        json!([
            {"id": "g1", "task": "math", "payload": {"a": [1]}, "trajectories": [record, record]},
            {"id": "g2", "task": "math", "payload": null, "trajectories": [record]},
        ])
    );
    // None in time.
    *api.double.records.lock().unwrap() = (0, 0);
    let answer = api.post("/rollout/v1/batches/take", "").await;
    assert_eq!((answer.status.as_u16(), answer.bytes.len()), (204, 0));

    // Records are read as they are sent.
    *api.double.records.lock().unwrap() = (100_000, 100_000);
    api.double.read.store(0, Ordering::SeqCst);
    let request =
        axum::http::Request::post("/rollout/v1/batches/take").body(Body::empty()).unwrap();
    let mut body = api.router().oneshot(request).await.unwrap().into_body();
    let mut sent = 0;
    while sent < 10 * RECORD.len() {
        sent += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
    }
    assert!(api.double.read.load(Ordering::SeqCst) <= 11);
    drop(body);

    // A record that cannot be read breaks the body off: it never looks whole.
    *api.double.records.lock().unwrap() = (3, 1);
    let request =
        axum::http::Request::post("/rollout/v1/batches/take").body(Body::empty()).unwrap();
    let body = api.router().oneshot(request).await.unwrap().into_body();
    let error = body.collect().await.err().unwrap().to_string();
    assert!(error.contains("BatchIncomplete"), "{error}");
}
