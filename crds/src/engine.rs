//! A generation engine and its model: shared by RolloutJob and RewardService.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::Name;
use crate::reward::SecretKey;

/// The model that an engine serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// Hub name or path inside the engine's container.
    #[schemars(length(min = 1, max = 512))]
    pub path: String,
    /// Name that requests use; absent: `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub served_name: Option<String>,
    /// Longest context in tokens; absent: the model's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_tokens: Option<u32>,
    /// PersistentVolumeClaim of the namespace with the model, mounted read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<ModelVolume>,
}

/// A volume with a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelVolume {
    /// Name of the PersistentVolumeClaim; several nodes read it at once.
    pub claim: Name,
    /// Where the engine's container sees it.
    #[serde(default = "default_mount_path")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = (
        "self.matches('^/[^:]+$')",
        "mountPath is an absolute path without ':', for example \"/models\""
    ))]
    pub mount_path: String,
}

fn default_mount_path() -> String {
    "/models".to_owned()
}

/// The program that serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "!has(self.quantization) || self.type != 'OpenAI'",
    "quantization is for vLLM and SGLang; tell an OpenAI-compatible server by args"
))]
pub struct Engine {
    /// Which dialect it speaks.
    #[serde(rename = "type")]
    pub kind: EngineType,
    /// Image reference.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = (
        "self.matches('^[^ \\t\\r\\n]+$')",
        "image is an image reference without spaces, for example \"vllm/vllm-openai:v0.18.1\""
    ))]
    pub image: String,
    /// Arguments added to ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<String>,
    /// Environment added to ours.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 256))]
    pub env: BTreeMap<String, String>,
    /// Environment from keys of Secrets of the namespace, read when a worker starts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub secret_env: BTreeMap<String, SecretKey>,
    /// vLLM, SGLang: how weights are quantized when they are loaded, such as `fp8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z0-9._-]+$')",
        "quantization is one word that the engine knows, for example \"fp8\""
    ))]
    pub quantization: Option<String>,
    /// Requests that one worker may have in flight.
    #[serde(default = "default_slots")]
    #[schemars(range(min = 1, max = 65_536))]
    pub slots: u32,
    /// Port that it listens on.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// `OpenAI`: where `{"model_path", "weight_version"}` is posted to load new weights
    /// while no request runs.
    #[serde(default = "default_reload_path")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = (
        "self.matches('^/[^ ]*$')",
        "reloadPath begins with / and has no spaces, for example \"/update_weights_from_disk\""
    ))]
    pub reload_path: String,
}

fn default_reload_path() -> String {
    "/update_weights_from_disk".to_owned()
}

fn default_slots() -> u32 {
    64
}

fn default_port() -> u16 {
    8000
}

/// Which dialect an engine speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EngineType {
    /// vLLM: lower priority first, pause with the cache cleared.
    #[serde(rename = "vLLM")]
    Vllm,
    /// SGLang: higher priority first, pre-emption of its own, `retract`.
    SGLang,
    /// Any server of the OpenAI HTTP interface.
    OpenAI,
}
