//! What is told of a call of a reward service to those who look at its id.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rollwright_core::fault::FaultKind;
use rollwright_proto::v1 as pb;
use serde_json::{Map, Value, json};

use super::dto::fault_body;
use crate::fault::kind_from_proto;
use crate::gpu::{CallStage, CallState};

/// Its state, where it runs, and once it has ended its answer or its fault. The names are those
/// of actions, but that `finished` is the engine's answer.
pub(super) fn call(id: &str, call: &CallState) -> Value {
    let mut body = Map::new();
    let state = match &call.stage {
        CallStage::Waiting => "queued",
        CallStage::Running { node, degree, queue_s, restore_s } => {
            let started = json!({
                "node": node, "degree": degree, "queue_s": queue_s, "restore_s": restore_s,
            });
            body.insert("started".to_owned(), started);
            "running"
        }
        CallStage::Ended(Ok(response)) => {
            body.insert("finished".to_owned(), answer(response));
            "finished"
        }
        CallStage::Ended(Err(fault)) => {
            let (state, value) = match kind_from_proto(fault.kind) {
                FaultKind::Cancelled => ("cancelled", json!({})),
                _ => ("failed", fault_body(fault)),
            };
            body.insert(state.to_owned(), value);
            state
        }
    };
    body.insert("action_id".to_owned(), json!(id));
    body.insert("state".to_owned(), json!(state));
    body.insert("service".to_owned(), json!(call.service));
    Value::Object(body)
}

fn answer(response: &pb::CallResponse) -> Value {
    let header = |of: &pb::CallHeader| json!({ "name": of.name, "value": of.value });
    let mut body = json!({
        "status": response.status,
        "headers": response.headers.iter().map(header).collect::<Vec<_>>(),
        "node": response.node,
        "degree": response.degree,
        "queue_s": response.queue_s,
        "restore_s": response.restore_s,
        "exec_s": response.exec_s,
    });
    match std::str::from_utf8(&response.body) {
        Ok(text) => body["text"] = json!(text),
        Err(_) => body["data_base64"] = json!(STANDARD.encode(&response.body)),
    }
    body
}
