//! What may be started on this node's GPUs.

use std::path::{Component, Path};

use serde::Deserialize;

use super::glob::glob;

/// The part of the policy that is about engines of reward services.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EnginePolicy {
    /// Images that may run with GPUs, as globs.
    pub images: Vec<String>,
    /// Programs that may run as processes of this node, as globs. They have the agent's own
    /// user and no walls around them: none by default.
    pub programs: Vec<String>,
    /// Directories of models that containers may read, as globs of paths.
    pub models: Vec<String>,
    /// Whether containers of engines reach other machines.
    pub network: bool,
    /// Whether a missing image may be pulled from a registry.
    pub pull: bool,
}

impl Default for EnginePolicy {
    fn default() -> Self {
        let models = vec!["/models/*".into()];
        Self { images: vec!["*".into()], programs: Vec::new(), models, network: false, pull: true }
    }
}

impl EnginePolicy {
    /// Refuses an image, with the reason.
    pub fn check_image(&self, image: &str) -> Result<(), String> {
        let wrong = image.is_empty() || image.starts_with('-');
        if wrong || image.contains(char::is_whitespace) {
            return Err(format!("`{image}` is not an image reference"));
        }
        allowed("image", image, &self.images, "engines.images")
    }

    /// Refuses a program, with the reason.
    pub fn check_program(&self, program: &str) -> Result<(), String> {
        allowed("program", program, &self.programs, "engines.programs")
    }

    /// Refuses a model that a container would read from this node. A name that is no path is
    /// the engine's own affair.
    pub fn check_model(&self, model: &str) -> Result<(), String> {
        let path = Path::new(model);
        if !path.is_absolute() {
            return Ok(());
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(format!("model `{model}`: use a path without `..`"));
        }
        allowed("model", model, &self.models, "engines.models")
    }
}

fn allowed(what: &str, named: &str, list: &[String], field: &str) -> Result<(), String> {
    if list.iter().any(|pattern| glob(pattern, named)) {
        return Ok(());
    }
    let list = if list.is_empty() { "nothing".to_owned() } else { list.join(", ") };
    Err(format!(
        "{what} `{named}` is not allowed on this node ({list} is): use one that is, or add it to \
         `{field}` of the agent's policy"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_is_refused_with_its_field() {
        let images = vec!["vllm/*".into()];
        let policy = EnginePolicy { images, ..EnginePolicy::default() };
        assert_eq!(policy.check_image("vllm/vllm-openai:v1"), Ok(()));
        assert!(policy.check_image("evil").unwrap_err().contains("engines.images"));
        assert!(policy.check_program("vllm").unwrap_err().contains("engines.programs"));
        assert_eq!(policy.check_model("/models/judge"), Ok(()));
        assert_eq!(policy.check_model("Skywork/Judge"), Ok(()));
        assert!(policy.check_model("/etc").unwrap_err().contains("engines.models"));
        assert!(policy.check_model("/models/../etc").unwrap_err().contains(".."));
    }
}
