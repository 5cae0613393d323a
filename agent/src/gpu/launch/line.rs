//! The command lines of engines. Pure.

use std::path::Path;

use rollwright_core::gpu::Chunk;

use crate::gpu::spec::{EngineKind, EngineSpec, EvictBy};

/// Where an engine listens, and what it is told beside its spec.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) chunk: Chunk,
    /// The socket on which it waits for its weights.
    pub(super) arena: &'a Path,
}

/// A program with its arguments and environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// Program and arguments of a known engine; empty is the image's own.
    pub(super) command: Vec<String>,
    /// What the spec adds: of a program of one's own, the whole line.
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
}

/// The command line of an engine. What the spec itself says comes last, so that it wins.
pub(super) fn command_line(spec: &EngineSpec, place: Place<'_>) -> CommandLine {
    let mut env = vec![
        ("ROLLWRIGHT_MODEL".to_owned(), spec.model.clone()),
        ("ROLLWRIGHT_SERVED_NAME".to_owned(), spec.served_name.clone()),
        ("ROLLWRIGHT_HOST".to_owned(), place.host.to_owned()),
        ("ROLLWRIGHT_PORT".to_owned(), place.port.to_string()),
    ];
    if spec.evict == EvictBy::HostPinned {
        env.push(("ROLLWRIGHT_ARENA".into(), place.arena.display().to_string()));
    }
    let (port, degree) = (place.port.to_string(), spec.degree.to_string());
    let words: Vec<&str> = match spec.engine {
        EngineKind::Vllm => {
            // The routes of sleep are development routes.
            env.push(("VLLM_SERVER_DEV_MODE".into(), "1".into()));
            let sleep = (spec.evict == EvictBy::EngineSleep).then_some("--enable-sleep-mode");
            let line = ["vllm", "serve", &spec.model, "--host", place.host, "--port", &port];
            let more =
                ["--served-model-name", &spec.served_name, "--tensor-parallel-size", &degree];
            line.into_iter().chain(more).chain(sleep).collect()
        }
        EngineKind::Sglang => {
            let sleep = (spec.evict == EvictBy::EngineSleep).then_some("--enable-memory-saver");
            let line = ["python3", "-m", "sglang.launch_server", "--model-path", &spec.model];
            let more = ["--host", place.host, "--port", &port];
            let last = ["--served-model-name", &spec.served_name, "--tp-size", &degree];
            line.into_iter().chain(more).chain(last).chain(sleep).collect()
        }
        EngineKind::Other => Vec::new(),
    };
    let command = words.into_iter().map(str::to_owned).collect();
    let args = spec.args.iter().map(|arg| filled(arg, spec, place)).collect();
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    CommandLine { command, args, env }
}

impl CommandLine {
    /// Program and arguments as one line.
    pub(super) fn whole(&self) -> Vec<&str> {
        self.command.iter().chain(&self.args).map(String::as_str).collect()
    }
}

/// An argument with `{host}`, `{port}`, `{model}`, `{name}`, `{degree}` and `{gpus}` filled in:
/// how a program of one's own learns them.
fn filled(arg: &str, spec: &EngineSpec, place: Place<'_>) -> String {
    if !arg.contains('{') {
        return arg.to_owned();
    }
    arg.replace("{host}", place.host)
        .replace("{port}", &place.port.to_string())
        .replace("{model}", &spec.model)
        .replace("{name}", &spec.served_name)
        .replace("{degree}", &spec.degree.to_string())
        .replace("{gpus}", &gpus(place.chunk))
}

/// GPUs as `CUDA_VISIBLE_DEVICES` names them.
pub(super) fn gpus(chunk: Chunk) -> String {
    let gpus: Vec<String> = chunk.gpus().map(|gpu| gpu.to_string()).collect();
    gpus.join(",")
}

#[cfg(test)]
mod tests {
    use rollwright_core::gpu::Degree;

    use super::*;

    fn line(engine: EngineKind, args: &[&str]) -> String {
        let spec = EngineSpec {
            engine,
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            model: "/models/j".into(),
            served_name: "judge".into(),
            degree: 2,
            ..EngineSpec::bare()
        };
        let chunk = Chunk::new(0, 2, Degree::new(2).unwrap()).unwrap();
        let place = Place { host: "127.0.0.1", port: 7, chunk, arena: Path::new("/a") };
        command_line(&spec, place).whole().join(" ")
    }

    #[test]
    fn each_engine_is_told_its_model_place_and_degree() {
        assert_eq!(
            line(EngineKind::Vllm, &["--runner", "pooling"]),
            "vllm serve /models/j --host 127.0.0.1 --port 7 --served-model-name judge \
             --tensor-parallel-size 2 --enable-sleep-mode --runner pooling"
        );
        assert_eq!(
            line(EngineKind::Sglang, &["--is-embedding"]),
            "python3 -m sglang.launch_server --model-path /models/j --host 127.0.0.1 --port 7 \
             --served-model-name judge --tp-size 2 --enable-memory-saver --is-embedding"
        );
        let own = ["serve", "--at={host}:{port}", "{model}", "{name}", "-d{degree}", "{gpus}"];
        assert_eq!(line(EngineKind::Other, &own), "serve --at=127.0.0.1:7 /models/j judge -d2 2,3");
    }
}
