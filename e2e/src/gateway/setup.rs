//! What a gateway of a test is started with, and its manifests.

use std::path::{Path, PathBuf};

use rollwright_engine_sim::EngineSim;
use serde_json::{Value, json};

use super::JOB;

/// What a gateway is started with.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Its engines as `--engine` takes them; they are called `engine-0` and so on.
    pub engines: Vec<String>,
    /// `spec.engine.type`; vLLM where not given.
    pub engine: Option<&'static str>,
    /// Fields of `spec.rollout`, over a group of one and a batch of one.
    pub rollout: Value,
    /// A serverless reward service that scores everything.
    pub reward: Option<String>,
    /// Teachers: name, `spec.gpu.engine.type`, and the address that it always runs at.
    pub teachers: Vec<(&'static str, &'static str, String)>,
    /// The socket of an action queue.
    pub queue: Option<PathBuf>,
    /// Reward services of that queue: the directory of its manifests, and their names.
    pub queued: Option<(PathBuf, Vec<String>)>,
}

impl Setup {
    /// Before these engines.
    pub fn before(engines: &[EngineSim]) -> Self {
        Self { engines: engines.iter().map(EngineSim::url).collect(), ..Self::default() }
    }

    /// With other fields of `spec.rollout`.
    #[must_use]
    pub fn rollout(self, rollout: Value) -> Self {
        Self { rollout, ..self }
    }

    /// The job's manifest.
    pub fn job(&self) -> Value {
        let mut rollout = json!({"groupSize": 1, "batchGroups": 1});
        if let (Some(all), Some(own)) = (rollout.as_object_mut(), self.rollout.as_object()) {
            all.extend(own.clone());
        }
        let mut spec = json!({
            "model": {"path": "engine-sim"},
            "engine": {"type": self.engine.unwrap_or("vLLM"), "image": "engine-sim"},
            "allocation": {"fixed": {"groups": [{"pool": "gpus", "degree": 1, "workers": 1}]}},
            "rollout": rollout,
        });
        let judge = self.reward.is_some().then_some("judge");
        let queued = self.queued.iter().flat_map(|(_, names)| names).map(String::as_str);
        let names = judge.into_iter().chain(self.teachers.iter().map(|(name, ..)| *name));
        let names = names.chain(queued);
        let services: Vec<Value> = names.map(|name| json!({"name": name})).collect();
        if !services.is_empty() {
            spec["rewardServices"] = services.into();
        }
        if self.queue.is_some() {
            let name = if self.queued.is_some() { "rewards" } else { "test" };
            spec["actionQueue"] = json!({"name": name});
        }
        json!({"apiVersion": "rollwright.dev/v1alpha1", "kind": "RolloutJob",
            "metadata": {"name": JOB}, "spec": spec})
    }

    pub(super) fn write(&self, dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir)?;
        // JSON is YAML.
        std::fs::write(dir.join("job.yaml"), self.job().to_string())?;
        std::fs::write(dir.join("pool.yaml"), POOL)?;
        if let Some(url) = &self.reward {
            let reward = json!({"apiVersion": "rollwright.dev/v1alpha1", "kind": "RewardService",
                "metadata": {"name": "judge"}, "spec": {"serverless": {"url": url}}});
            std::fs::write(dir.join("reward.yaml"), reward.to_string())?;
        }
        if !self.teachers.is_empty() {
            let queue = json!({"apiVersion": "rollwright.dev/v1alpha1", "kind": "ActionQueue",
                "metadata": {"name": "teachers"}, "spec": {"pools": ["gpus"]}});
            std::fs::write(dir.join("teachers.yaml"), queue.to_string())?;
        }
        for (name, engine, _) in &self.teachers {
            let teacher = json!({"apiVersion": "rollwright.dev/v1alpha1", "kind": "RewardService",
                "metadata": {"name": name}, "spec": {"gpu": {"queue": "teachers", "pool": "gpus",
                "ask": "LogProbs", "model": {"path": "engine-sim"}, "degrees": [1],
                "engine": {"type": engine, "image": "engine-sim"},
                "footprints": [{"degree": 1, "device": "16Gi"}]}}});
            std::fs::write(dir.join(format!("{name}.yaml")), teacher.to_string())?;
        }
        if let Some((manifests, _)) = &self.queued {
            std::fs::copy(manifests.join("all.yaml"), dir.join("queue.yaml"))?;
        } else if self.queue.is_some() {
            let queue = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/queue.yaml");
            std::fs::copy(queue, dir.join("queue.yaml"))?;
        }
        Ok(())
    }
}

const POOL: &str = "\
apiVersion: rollwright.dev/v1alpha1
kind: ResourcePool
metadata:
  name: gpus
spec:
  gpu:
    class: h20
    profile: {tflops: 148, hbm: 96Gi, hbmTbps: 4}
    gpusPerNode: 8
    hosts: [Generation, Reward]
";
