//! Rules of RewardService.

use super::{Check, Violation};
use crate::engine::{Engine, EngineType, Model};
use crate::reward::{Ask, GpuReward, Probe, RewardServiceSpec, SandboxReward, ServerlessReward};

impl RewardServiceSpec {
    /// What is wrong beyond the types.
    pub fn validate(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut spec = Check::new("spec", &mut found);
        let backends = [self.gpu.is_some(), self.serverless.is_some(), self.sandbox.is_some()];
        spec.require(
            backends.into_iter().filter(|set| *set).count() == 1,
            "set exactly one of gpu, serverless and sandbox",
        );
        if let Some(gpu) = &self.gpu {
            gpu.check(&mut spec.field("gpu"));
        }
        if let Some(serverless) = &self.serverless {
            serverless.check(&mut spec.field("serverless"));
        }
        if let Some(sandbox) = &self.sandbox {
            sandbox.check(&mut spec.field("sandbox"));
        }
        found
    }
}

impl GpuReward {
    fn check(&self, check: &mut Check<'_>) {
        self.model.check(&mut check.field("model"));
        self.engine.check(&mut check.field("engine"));
        check.require(
            self.model.volume.is_none(),
            "model.volume is not mounted for reward services yet: name a directory of the node that its policy opens to engines, a path in their image, or a hub name",
        );
        check.require(
            self.engine.secret_env.is_empty(),
            "engine.secretEnv does not reach reward services yet: use a model that needs no secret, for example one in the engine's image",
        );
        check.require(
            self.engine.kind == EngineType::OpenAI || self.ask != Ask::Reward,
            "vLLM and SGLang have no /reward for ask: Reward: write ask: Pooling for a reward model, or ask: LogProbs for a teacher",
        );
        check.degrees(&self.degrees);
        check.within("batch", self.batch, 1..=1024);
        check.within("pinned", self.pinned, 0..=1024);
        let footprints = self.footprints.iter().map(|footprint| footprint.degree);
        check.require(
            footprints.clone().count() == self.degrees.len()
                && self.degrees.iter().all(|degree| footprints.clone().any(|of| of == *degree)),
            "footprints has exactly one entry for each of degrees",
        );
        for (index, footprint) in self.footprints.iter().enumerate() {
            check.item("footprints", index).require(
                footprint.residue.is_none_or(|residue| residue < footprint.device),
                "device must be more than residue: an engine that is awake holds what it keeps asleep, and its weights",
            );
        }
        if let Some(probe) = &self.probe {
            probe.check(&mut check.field("probe"));
        }
    }
}

impl Probe {
    fn check(&self, check: &mut Check<'_>) {
        check.count("path", self.path.chars().count(), 0..=512);
        check.field("path").require(
            self.path.starts_with('/') && !self.path.contains(' '),
            "path begins with / and has no spaces, for example \"/v1/score\"",
        );
        check.count("body", self.body.chars().count(), 0..=65_536);
        check.field("body").require(
            serde_json::from_str::<serde_json::Map<_, _>>(&self.body).is_ok(),
            "body is a JSON object as text, for example '{\"input\": \"1\"}'",
        );
    }
}

impl ServerlessReward {
    fn check(&self, check: &mut Check<'_>) {
        check.url(&self.url, "https://judge.example.com/score");
        check.within("concurrency", self.concurrency, 1..=100_000);
        check.within("retries", self.retries, 0..=20);
        if let Some(secret) = &self.auth_secret {
            check.field("authSecret").count("key", secret.key.chars().count(), 1..=253);
        }
    }
}

impl SandboxReward {
    fn check(&self, check: &mut Check<'_>) {
        self.command.check(&mut check.field("command"));
        check.require(
            self.copy.is_empty() || self.pristine,
            "copy has a meaning only with pristine: true; else the trajectory's own sandbox is scored",
        );
        check.count("copy", self.copy.len(), 0..=64);
        check.unique("copy", "", &self.copy);
        for (index, path) in self.copy.iter().enumerate() {
            check.item("copy", index).require(
                path.starts_with('/') && path.chars().count() <= 4096,
                "each of copy is an absolute path, for example \"/workspace/answer.py\"",
            );
        }
    }
}

impl Model {
    pub(super) fn check(&self, check: &mut Check<'_>) {
        check.count("path", self.path.chars().count(), 1..=512);
        if let Some(name) = &self.served_name {
            check.count("servedName", name.chars().count(), 1..=256);
        }
        check.maybe_within("maxTokens", self.max_tokens, 1..=100_000_000);
        if let Some(volume) = &self.volume {
            let path = &volume.mount_path;
            let mut at = check.field("volume");
            at.count("mountPath", path.chars().count(), 0..=512);
            at.field("mountPath").require(
                path.len() > 1 && path.starts_with('/') && !path.contains(':'),
                "mountPath is an absolute path without ':', for example \"/models\"",
            );
        }
    }
}

impl Engine {
    pub(super) fn check(&self, check: &mut Check<'_>) {
        check.image(&self.image, "vllm/vllm-openai:v0.18.1");
        check.count("args", self.args.len(), 0..=256);
        check.count("env", self.env.len(), 0..=256);
        check.count("secretEnv", self.secret_env.len(), 0..=64);
        check.within("slots", self.slots, 1..=65_536);
        if let Some(method) = &self.quantization {
            let word = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            check.count("quantization", method.chars().count(), 0..=64);
            check.field("quantization").require(
                !method.is_empty() && method.bytes().all(word),
                "quantization is one word that the engine knows, for example \"fp8\"",
            );
            check.require(
                self.kind != EngineType::OpenAI,
                "quantization is for vLLM and SGLang; tell an OpenAI-compatible server by args",
            );
        }
        check.within("port", u32::from(self.port), 1..=65535);
        check.field("reloadPath").require(
            self.reload_path.starts_with('/') && !self.reload_path.contains(' '),
            "reloadPath begins with / and has no spaces, for example \"/update_weights_from_disk\"",
        );
    }
}
