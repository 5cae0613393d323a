//! JSON bodies. Field names are those of the protocol; bytes are `text` where they
//! are UTF-8, else `data_base64`; lengths of time are seconds, or text like `"90s"`.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pb::action_event::Event;
use rollwright_core::fault::Fault;
use rollwright_proto::v1 as pb;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};

use crate::fault;

/// `OpenTrajectoryRequest`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenTrajectory {
    trajectory_id: String,
    #[serde(default)]
    job: String,
    template: String,
    #[serde(default)]
    env: BTreeMap<String, String>,
    deadline: Option<Span>,
}

impl From<OpenTrajectory> for pb::OpenTrajectoryRequest {
    fn from(open: OpenTrajectory) -> Self {
        let OpenTrajectory { trajectory_id, job, template, env, deadline } = open;
        let deadline = deadline.map(|span| span.0);
        Self { trajectory_id, job, template, env: env.into_iter().collect(), deadline }
    }
}

/// `ExecuteRequest`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Execute {
    action_id: String,
    trajectory_id: String,
    #[serde(default)]
    profile: String,
    command: Command,
    #[serde(default)]
    cpu_units: Vec<f64>,
    #[serde(default)]
    quota: BTreeMap<String, u32>,
    timeout: Option<Span>,
    queue_deadline: Option<Span>,
    #[serde(default)]
    output_limit: u64,
    expected_duration: Option<Span>,
    serial_fraction: Option<f64>,
    malleable: Option<bool>,
    remaining: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    shell: Option<String>,
    argv: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    cwd: String,
    #[serde(default)]
    stdin: Data,
}

/// Bytes: `{"text": ...}` or `{"data_base64": ...}`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    text: Option<String>,
    data_base64: Option<Base64>,
}

struct Base64(Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD
            .decode(text)
            .map(Self)
            .map_err(|error| de::Error::custom(format!("not base64: {error}")))
    }
}

impl Execute {
    pub(super) fn into_request(self) -> Result<pb::ExecuteRequest, Fault> {
        use pb::command::Program;
        let program = match (self.command.shell, self.command.argv) {
            (Some(shell), None) => Program::Shell(shell),
            (None, Some(args)) => Program::Argv(pb::Argv { args }),
            _ => {
                let message = "`command`: give exactly one of shell and argv";
                return Err(fault::user("InvalidBody", message));
            }
        };
        let stdin = match (self.command.stdin.text, self.command.stdin.data_base64) {
            (Some(text), None) => Bytes::from(text),
            (None, Some(data)) => Bytes::from(data.0),
            (None, None) => Bytes::new(),
            (Some(_), Some(_)) => {
                let message = "`command.stdin`: give one of text and data_base64";
                return Err(fault::user("InvalidBody", message));
            }
        };
        let command = pb::Command {
            program: Some(program),
            env: self.command.env.into_iter().collect(),
            cwd: self.command.cwd,
            stdin,
        };
        Ok(pb::ExecuteRequest {
            action_id: self.action_id,
            trajectory_id: self.trajectory_id,
            profile: self.profile,
            command: Some(command),
            cpu_units: self.cpu_units,
            quota: self.quota.into_iter().collect(),
            timeout: self.timeout.map(|span| span.0),
            queue_deadline: self.queue_deadline.map(|span| span.0),
            output_limit: self.output_limit,
            expected_duration: self.expected_duration.map(|span| span.0),
            serial_fraction: self.serial_fraction,
            malleable: self.malleable,
            remaining: self.remaining,
        })
    }
}

/// `AcquireRequest`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Acquire {
    permit_id: String,
    #[serde(default)]
    job: String,
    quota: String,
    #[serde(default)]
    amount: u32,
    deadline: Option<Span>,
    ttl: Option<Span>,
}

impl From<Acquire> for pb::AcquireRequest {
    fn from(acquire: Acquire) -> Self {
        let Acquire { permit_id, job, quota, amount, deadline, ttl } = acquire;
        let (deadline, ttl) = (deadline.map(|span| span.0), ttl.map(|span| span.0));
        Self { permit_id, job, quota, amount, deadline, ttl }
    }
}

/// A length of time: a number of seconds, or `"1.5s"` as in protobuf's JSON.
#[derive(Clone, Copy)]
pub(super) struct Span(pub(super) prost_types::Duration);

impl Span {
    fn from_seconds(seconds: f64) -> Option<Self> {
        let duration = std::time::Duration::try_from_secs_f64(seconds).ok()?;
        duration.try_into().ok().map(Self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of seconds, or text like \"90s\"")
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
                Span::from_seconds(seconds)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Float(seconds), &self))
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
                self.visit_f64(seconds as f64)
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Span, E> {
                self.visit_f64(seconds as f64)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                let seconds = text.strip_suffix('s').and_then(|number| number.parse().ok());
                seconds
                    .and_then(Span::from_seconds)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// `{"fault": ...}`.
pub(super) fn refusal(refused: &Fault) -> Value {
    json!({ "fault": fault_body(&fault::to_proto(refused)) })
}

pub(super) fn fault_body(fault: &pb::Fault) -> Value {
    let kind = fault::kind_from_proto(fault.kind).as_str();
    let mut body = json!({ "kind": kind, "reason": fault.reason, "message": fault.message });
    if let Some(after) = fault.retry_after {
        body["retry_after_s"] = json!(after.seconds as f64 + f64::from(after.nanos) / 1e9);
    }
    body
}

fn gpu_pool(pool: &pb::GpuPoolStats) -> Value {
    let service = |of: &pb::RewardServiceStats| {
        json!({
            "service": of.service,
            "waiting": of.waiting,
            "running": of.running,
            "residents": of.residents,
            "restores": of.restores,
            "evictions": of.evictions,
            "calls": of.calls,
            "hits": of.hits,
            "failures": of.failures,
            "trouble": of.trouble,
        })
    };
    let engine = |of: &pb::EngineStats| {
        json!({
            "engine": of.engine,
            "service": of.service,
            "node": of.node,
            "first_gpu": of.first_gpu,
            "degree": of.degree,
            "residency": of.residency,
            "running": of.running,
        })
    };
    json!({
        "pool": pool.pool,
        "nodes": pool.nodes,
        "gpus": pool.gpus,
        "lost_gpus": pool.lost_gpus,
        "free_chunks": pool.free_chunks,
        "fragmentation": pool.fragmentation,
        "fake": pool.fake,
        "services": pool.services.iter().map(service).collect::<Vec<_>>(),
        "engines": pool.engines.iter().map(engine).collect::<Vec<_>>(),
    })
}

/// An event as one JSON object: `{"action_id": ..., "<event>": {...}}`.
pub(super) fn event(event: &pb::ActionEvent) -> Value {
    let mut body = Map::new();
    body.insert("action_id".to_owned(), json!(event.action_id));
    if let Some(happened) = &event.event {
        let (name, value) = named(happened);
        body.insert(name.to_owned(), value);
    }
    Value::Object(body)
}

fn named(event: &Event) -> (&'static str, Value) {
    match event {
        Event::Queued(_) => ("queued", json!({})),
        Event::Started(started) => (
            "started",
            json!({
                "node": started.node,
                "cpu_units": started.cpu_units,
                "cores": started.cores,
                "queue_s": started.queue_s,
            }),
        ),
        Event::Output(piece) => ("output", output(piece)),
        Event::Finished(end) => ("finished", finished(end)),
        Event::Failed(fault) => ("failed", fault_body(fault)),
        Event::Cancelled(_) => ("cancelled", json!({})),
    }
}

fn output(output: &pb::Output) -> Value {
    use pb::output::Stream;
    let stream = match output.stream() {
        Stream::Stderr => "stderr",
        Stream::Stdout | Stream::Unspecified => "stdout",
    };
    let mut body = match std::str::from_utf8(&output.data) {
        Ok(text) => json!({ "stream": stream, "text": text }),
        Err(_) => json!({ "stream": stream, "data_base64": STANDARD.encode(&output.data) }),
    };
    if output.dropped_before > 0 {
        body["dropped_before"] = json!(output.dropped_before);
    }
    body
}

fn finished(finished: &pb::Finished) -> Value {
    let usage = finished.usage.unwrap_or_default();
    let mut body = json!({
        "out_of_memory": finished.out_of_memory,
        "cpu_units": finished.cpu_units,
        "usage": {
            "queue_s": usage.queue_s,
            "exec_s": usage.exec_s,
            "overhead_s": usage.overhead_s,
            "cpu_s": usage.cpu_s,
            "memory_peak_bytes": usage.memory_peak_bytes,
            "output_bytes": usage.output_bytes,
            "output_dropped_bytes": usage.output_dropped_bytes,
        },
    });
    if let Some(code) = finished.exit_code {
        body["exit_code"] = json!(code);
    }
    if let Some(signal) = finished.signal {
        body["signal"] = json!(signal);
    }
    body
}

/// A whole action: its state, and what has happened so far.
pub(super) fn action(id: &str, running: bool, events: &[pb::ActionEvent]) -> Value {
    let mut state = if running { "running" } else { "queued" };
    let mut body = Map::new();
    let mut pieces = Vec::new();
    for happened in events.iter().filter_map(|event| event.event.as_ref()) {
        let (name, value) = named(happened);
        match happened {
            Event::Output(_) => pieces.push(value),
            Event::Queued(_) => {}
            Event::Started(_) => drop(body.insert(name.to_owned(), value)),
            Event::Finished(_) | Event::Failed(_) | Event::Cancelled(_) => {
                state = name;
                body.insert(name.to_owned(), value);
            }
        }
    }
    body.insert("action_id".to_owned(), json!(id));
    body.insert("state".to_owned(), json!(state));
    body.insert("output".to_owned(), Value::Array(pieces));
    Value::Object(body)
}

/// `OpenTrajectoryResponse`.
pub(super) fn opened(id: &str, opened: &pb::OpenTrajectoryResponse) -> Value {
    let times = opened.times.unwrap_or_default();
    json!({
        "trajectory_id": id,
        "state": "ready",
        "node": opened.node,
        "warm": opened.warm,
        "times": {
            "queue_s": times.queue_s,
            "image_s": times.image_s,
            "start_s": times.start_s,
            "setup_s": times.setup_s,
        },
    })
}

/// `StatsResponse`.
pub(super) fn stats(stats: &pb::StatsResponse) -> Value {
    let node = |node: &pb::NodeStats| {
        json!({
            "node": node.node,
            "connected": node.connected,
            "cores": node.cores,
            "exclusive_cores": node.exclusive_cores,
            "shared_cores": node.shared_cores,
            "memory_bytes": node.memory_bytes,
            "memory_reserved_bytes": node.memory_reserved_bytes,
            "sandboxes": node.sandboxes,
        })
    };
    let quota = |quota: &pb::QuotaStats| json!({ "name": quota.name, "running": quota.running, "waiting": quota.waiting });
    json!({
        "gpu_pools": stats.gpu_pools.iter().map(gpu_pool).collect::<Vec<_>>(),
        "waiting": stats.waiting,
        "running": stats.running,
        "trajectories": stats.trajectories,
        "accepted_total": stats.accepted_total,
        "finished_total": stats.finished_total,
        "nodes": stats.nodes.iter().map(node).collect::<Vec<_>>(),
        "quotas": stats.quotas.iter().map(quota).collect::<Vec<_>>(),
    })
}
