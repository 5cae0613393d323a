//! What a request says of its KV.

use serde::Deserialize;
use serde_json::Value;

use super::App;
use crate::config::{Dialect, Disaggregation, Part};
use crate::engine::{Handover, Refusal, Wanted};

/// vLLM's `kv_transfer_params` of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KvTransfer {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    remote_block_ids: Option<Value>,
    remote_engine_id: Option<String>,
    remote_request_id: Option<String>,
    remote_host: Option<String>,
    remote_port: Option<u16>,
}

/// SGLang's `bootstrap_*` of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Bootstrap {
    #[serde(rename = "bootstrap_host")]
    host: Option<String>,
    #[serde(rename = "bootstrap_port")]
    port: Option<u16>,
    #[serde(rename = "bootstrap_room")]
    room: Option<u64>,
}

/// As vLLM's connectors: what cannot be understood is computed here.
pub(super) fn of_vllm(app: &App, params: Option<KvTransfer>) -> Handover {
    let config = &app.engine.config;
    let Some(params) = params else { return Handover::None };
    if config.disaggregation.is_none() || config.dialect != Dialect::Vllm {
        return Handover::None;
    }
    if params.do_remote_decode {
        return Handover::Keep;
    }
    let blocks = params.remote_block_ids.is_some_and(|blocks| !blocks.is_null());
    match params {
        KvTransfer {
            do_remote_prefill: true,
            remote_engine_id: Some(engine),
            remote_request_id: Some(request),
            remote_host: Some(host),
            remote_port: Some(port),
            ..
        } if blocks => Handover::Take {
            from: format!("{host}:{port}"),
            wanted: Wanted::Kept { engine, request },
        },
        _ => Handover::None,
    }
}

/// As SGLang's scheduler: without a room there is nobody to hand over to.
pub(super) fn of_sglang(app: &App, bootstrap: Bootstrap) -> Result<Handover, Refusal> {
    let config = &app.engine.config;
    let Some(Disaggregation { part, .. }) = config.disaggregation else {
        return Ok(Handover::None);
    };
    if config.dialect != Dialect::Sglang {
        return Ok(Handover::None);
    }
    let Some(room) = bootstrap.room else {
        let message = "Invalid request: Disaggregated request received without bootstrap room id.";
        return Err(Refusal::bad(message));
    };
    if part == Part::Prefill {
        return Ok(Handover::Give { room });
    }
    match (bootstrap.host, bootstrap.port) {
        (Some(host), Some(port)) => {
            Ok(Handover::Take { from: format!("{host}:{port}"), wanted: Wanted::Room(room) })
        }
        _ => Err(Refusal::bad("bootstrap_host and bootstrap_port are needed")),
    }
}

/// The handover of one of several replies: each has a room of its own.
pub(super) fn of_choice(handover: &Handover, choice: u64) -> Handover {
    match handover {
        Handover::Give { room } => Handover::Give { room: room.wrapping_add(choice) },
        Handover::Take { from, wanted: Wanted::Room(room) } => {
            Handover::Take { from: from.clone(), wanted: Wanted::Room(room.wrapping_add(choice)) }
        }
        other => other.clone(),
    }
}
