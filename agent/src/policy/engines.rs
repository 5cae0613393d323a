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
    /// Directories of this node's models that containers may read, as globs of paths.
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

    /// Whether a container may read a model of this node. A path that it may not, or that is
    /// not there, is one of its image.
    pub fn may_read(&self, model: &str) -> bool {
        let path = Path::new(model);
        let plain =
            path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
        plain && self.models.iter().any(|pattern| glob(pattern, model))
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
        for (model, may) in [("/models/judge", true), ("Org/Judge", false), ("/etc", false)] {
            assert_eq!(policy.may_read(model), may, "{model}");
        }
        assert!(!policy.may_read("/models/../etc"));
    }
}
