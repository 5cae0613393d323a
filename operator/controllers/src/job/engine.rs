//! Command lines of the engines: pure.
//!
//! The flags are those of vLLM 0.11 and later (`vllm serve --help`; several nodes since 0.12)
//! and of SGLang 0.5 (`docs/advanced_features/server_arguments.md`). The gateway needs three
//! things of an engine: priorities, sleep (to give its memory away), and metrics. The user's own
//! arguments come last, where both engines take the later of two.

use rollwright_crds::engine::{Engine, EngineType, Model};

use rollwright_core::router::Role;

/// Port of the first contact between prefill and decode workers.
pub const HANDSHAKE_PORT: u16 = 5600;
/// Port of SGLang's hand-over from prefill to decode workers.
pub const BOOTSTRAP_PORT: u16 = 8998;
/// Port of the first contact between the nodes of one worker.
pub const RENDEZVOUS_PORT: u16 = 29500;

/// How the process of one node is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The program; none: the image's own.
    pub command: Vec<String>,
    /// Its arguments. `$(NAME)` stands for a variable of the environment.
    pub args: Vec<String>,
    /// Variables that are the same everywhere.
    pub env: Vec<(&'static str, String)>,
}

/// What a process is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// GPUs of the worker.
    pub degree: u32,
    /// What the worker does.
    pub role: Role,
    /// Nodes of the worker.
    pub nodes: usize,
    /// Whether callers are answered on this node: on the first of them.
    pub leads: bool,
}

/// The command line of a process.
pub fn command_line(model: &Model, engine: &Engine, place: Place) -> CommandLine {
    let mut line = match engine.kind {
        EngineType::Vllm => vllm(model, engine, place),
        EngineType::SGLang => sglang(model, engine, place),
        EngineType::OpenAI => CommandLine::default(),
    };
    line.env.push(("ROLLWRIGHT_MODEL", model.path.clone()));
    line.env.push(("ROLLWRIGHT_DEGREE", place.degree.to_string()));
    line.env.push(("ROLLWRIGHT_ROLE", place.role.as_str().to_owned()));
    line.env.push(("ROLLWRIGHT_PORT", engine.port.to_string()));
    line.args.extend(engine.args.iter().cloned());
    line
}

fn vllm(model: &Model, engine: &Engine, place: Place) -> CommandLine {
    let mut line = CommandLine {
        command: vec!["vllm".into(), "serve".into(), model.path.clone()],
        // The routes of sleep and of weight updates are development routes.
        env: vec![("VLLM_SERVER_DEV_MODE", "1".into())],
        ..CommandLine::default()
    };
    let args = &mut line.args;
    flag(args, "--host", "0.0.0.0");
    flag(args, "--port", engine.port.to_string());
    flag(args, "--served-model-name", served(model));
    flag(args, "--tensor-parallel-size", place.degree.to_string());
    flag(args, "--scheduling-policy", "priority");
    args.push("--enable-sleep-mode".into());
    if let Some(tokens) = model.max_tokens {
        flag(args, "--max-model-len", tokens.to_string());
    }
    if let Some(method) = &engine.quantization {
        flag(args, "--quantization", method);
    }
    let kv_role = match place.role {
        Role::Mixed => None,
        Role::Prefill => Some("kv_producer"),
        Role::Decode => Some("kv_consumer"),
    };
    if let Some(role) = kv_role {
        let config = format!(r#"{{"kv_connector":"NixlConnector","kv_role":"{role}"}}"#);
        flag(args, "--kv-transfer-config", config);
        line.env.push(("VLLM_NIXL_SIDE_CHANNEL_HOST", "$(POD_IP)".into()));
        line.env.push(("VLLM_NIXL_SIDE_CHANNEL_PORT", HANDSHAKE_PORT.to_string()));
    }
    if place.nodes > 1 {
        flag(args, "--nnodes", place.nodes.to_string());
        flag(args, "--node-rank", "$(LWS_WORKER_INDEX)");
        flag(args, "--master-addr", "$(LWS_LEADER_ADDRESS)");
        flag(args, "--master-port", RENDEZVOUS_PORT.to_string());
        if !place.leads {
            args.push("--headless".into());
        }
    }
    line
}

fn sglang(model: &Model, engine: &Engine, place: Place) -> CommandLine {
    let mut line = CommandLine {
        command: ["python3", "-m", "sglang.launch_server"].map(str::to_owned).into(),
        ..CommandLine::default()
    };
    let args = &mut line.args;
    flag(args, "--model-path", &model.path);
    flag(args, "--host", "0.0.0.0");
    flag(args, "--port", engine.port.to_string());
    flag(args, "--served-model-name", served(model));
    flag(args, "--tp-size", place.degree.to_string());
    args.push("--enable-priority-scheduling".into());
    args.push("--enable-memory-saver".into());
    args.push("--enable-metrics".into());
    if let Some(tokens) = model.max_tokens {
        flag(args, "--context-length", tokens.to_string());
    }
    if let Some(method) = &engine.quantization {
        flag(args, "--quantization", method);
    }
    match place.role {
        Role::Mixed => {}
        Role::Prefill => {
            flag(args, "--disaggregation-mode", "prefill");
            flag(args, "--disaggregation-bootstrap-port", BOOTSTRAP_PORT.to_string());
        }
        Role::Decode => flag(args, "--disaggregation-mode", "decode"),
    }
    if place.nodes > 1 {
        flag(args, "--nnodes", place.nodes.to_string());
        flag(args, "--node-rank", "$(LWS_WORKER_INDEX)");
        flag(args, "--dist-init-addr", format!("$(LWS_LEADER_ADDRESS):{RENDEZVOUS_PORT}"));
    }
    line
}

fn served(model: &Model) -> &str {
    model.served_name.as_deref().unwrap_or(&model.path)
}

fn flag(args: &mut Vec<String>, name: &str, value: impl Into<String>) {
    args.push(name.to_owned());
    args.push(value.into());
}

#[cfg(test)]
mod tests;
