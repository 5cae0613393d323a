//! What may be started on this node's GPUs.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

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
    /// Variables that such processes may be given, as globs. One that steers what a program
    /// runs, such as `PATH` or `LD_PRELOAD`, undoes `programs`.
    pub env: Vec<String>,
    /// Directories of this node's models that engines may read, as globs of paths.
    pub models: Vec<String>,
    /// Whether containers of engines reach other machines.
    pub network: bool,
    /// Whether a missing image may be pulled from a registry.
    pub pull: bool,
}

impl Default for EnginePolicy {
    fn default() -> Self {
        let models = vec!["/models/*".into()];
        let (images, programs) = (vec!["*".into()], Vec::new());
        let env = HARMLESS.map(str::to_owned).to_vec();
        Self { images, programs, env, models, network: false, pull: true }
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

    /// The file that a program is, which must be allowed by its name or its path. A name alone
    /// is looked for where the agent's own `PATH` says. Else: the reason.
    pub fn program(&self, named: &str) -> Result<PathBuf, String> {
        let path = Path::new(named);
        if named.contains('/') && !is_plain(path) {
            return Err(format!(
                "program `{named}`: write an absolute path without `..`, or a name"
            ));
        }
        let dirs = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs = std::env::split_paths(&dirs).filter(|dir| dir.is_absolute());
        // Joined to an absolute path a directory does not matter.
        let found = if path.is_absolute() {
            Some(path.to_owned())
        } else {
            dirs.find_map(|dir| Some(dir.join(path)).filter(|file| file.is_file()))
        };
        let whole = found.as_ref().and_then(|found| found.to_str());
        if !whole.is_some_and(|whole| any(&self.programs, whole)) {
            allowed("program", named, &self.programs, "engines.programs")?;
        }
        found.ok_or_else(|| format!("program `{named}` is in no directory of the agent's PATH"))
    }

    /// Refuses variables that are not allowed: by many another program would run than the one
    /// that is, and nobody knows them all.
    pub fn check_process_env<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), String> {
        let mut names = names.into_iter();
        names.try_for_each(|name| allowed("variable", name, &self.env, "engines.env"))
    }

    /// Refuses a model that a process may not read: a path that is not open to engines. A name
    /// of a hub is none.
    pub fn check_model(&self, model: &str) -> Result<(), String> {
        let path = Path::new(model);
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        let is_name = plain && !model.starts_with('~') && !path.exists();
        if is_name || self.readable(model).is_some() {
            return Ok(());
        }
        Err(format!("{model} is not there, or not in `engines.models` of the agent's policy"))
    }

    /// Refuses variables by which a container would be given other GPUs than its own.
    pub fn check_container_env<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), String> {
        let found = names.into_iter().find(|name| *name == "NVIDIA_VISIBLE_DEVICES");
        refused_variable(found, "the agent says which GPUs an engine has")
    }

    /// Where a model of this node truly is, which engines may read; `None` for one that they
    /// may not, or that is not there. What a symbolic link leads to must be allowed as well.
    pub fn readable(&self, model: &str) -> Option<PathBuf> {
        if !is_plain(Path::new(model)) || !any(&self.models, model) {
            return None;
        }
        let path = Path::new(model).canonicalize().ok()?;
        self.holds(&path).then_some(path)
    }

    /// Whether engines may read a canonical path.
    pub fn holds(&self, path: &Path) -> bool {
        let Some(path) = path.to_str() else { return false };
        self.models.iter().any(|pattern| glob(&canonical(pattern), path))
    }
}

/// Variables that say how an engine works and nothing of what it runs.
const HARMLESS: [&str; 16] = [
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "LANG",
    "LC_*",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
    "TRANSFORMERS_OFFLINE",
    "TZ",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_LOGGING_LEVEL",
];

fn refused_variable(name: Option<&String>, why: &str) -> Result<(), String> {
    match name {
        Some(name) => Err(format!("`{name}` cannot be set in `engine.env` here: {why}")),
        None => Ok(()),
    }
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|part| part != Component::ParentDir)
}

/// A pattern of paths whose directory, as far as no `*` is in it, is where it truly is.
fn canonical(pattern: &str) -> Cow<'_, str> {
    let fixed = pattern.split('*').next().unwrap_or_default();
    // The whole of one without a star, else up to the last slash before it.
    let end = if fixed == pattern { pattern.len() } else { fixed.rfind('/').unwrap_or(0) };
    let (dir, rest) = pattern.split_at(end);
    match Path::new(dir).canonicalize().ok().and_then(|dir| dir.to_str().map(str::to_owned)) {
        Some(dir) => Cow::Owned(dir + rest),
        None => Cow::Borrowed(pattern),
    }
}

fn any(patterns: &[String], named: &str) -> bool {
    patterns.iter().any(|pattern| glob(pattern, named))
}

fn allowed(what: &str, named: &str, list: &[String], field: &str) -> Result<(), String> {
    if any(list, named) {
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
        assert!(policy.program("vllm").unwrap_err().contains("engines.programs"));
    }

    #[test]
    fn a_program_is_a_file_whoever_says_where_to_look() {
        let policy = |programs: &[&str]| {
            let programs = programs.iter().map(|of| (*of).to_owned()).collect();
            EnginePolicy { programs, ..EnginePolicy::default() }
        };
        let found = policy(&["sh"]).program("sh").unwrap();
        assert!(found.is_absolute() && found.is_file(), "{found:?}");
        let path = found.to_str().unwrap();
        assert_eq!(policy(&[path]).program("sh"), Ok(found.clone()), "allowed by its path");
        assert!(policy(&["sh"]).program(path).unwrap_err().contains("engines.programs"));
        let opt = policy(&["/opt/*", "no-such-program"]);
        for (named, why) in [
            ("/opt/../bin/sh", "`..`"),
            ("./sh", "absolute"),
            ("no-such-program", "PATH"),
            ("/bin/sh", "engines.programs"),
        ] {
            let error = opt.program(named).unwrap_err();
            assert!(error.contains(why), "{named}: {error}");
        }
        assert_eq!(opt.program("/opt/serve"), Ok("/opt/serve".into()));
    }

    #[test]
    fn processes_are_given_only_variables_that_are_allowed() {
        let policy = EnginePolicy::default();
        let names = |names: &[&str]| names.iter().map(|of| (*of).to_owned()).collect::<Vec<_>>();
        for name in [
            "PATH",
            "LD_PRELOAD",
            "BASH_ENV",
            "PYTHONPATH",
            "PYTHONUSERBASE",
            "HOME",
            "CC",
            "CUDA_INJECTION64_PATH",
            "OPENSSL_CONF",
            "JAVA_TOOL_OPTIONS",
            "LUA_INIT",
            "NCCL_NET_PLUGIN",
            "VLLM_LOGGING_CONFIG_PATH",
            "WHAT_NOBODY_KNOWS",
            "",
        ] {
            let error = policy.check_process_env(&names(&["HF_TOKEN", name])).unwrap_err();
            assert!(
                error.contains(&format!("`{name}`")) && error.contains("engines.env"),
                "{error}"
            );
            assert_eq!(policy.check_container_env(&names(&[name])), Ok(()));
        }
        assert_eq!(policy.check_process_env(&names(&["HF_TOKEN", "OMP_NUM_THREADS"])), Ok(()));
        let policy = EnginePolicy { env: vec!["JUDGE_*".into()], ..EnginePolicy::default() };
        assert_eq!(policy.check_process_env(&names(&["JUDGE_MODE"])), Ok(()));
        assert!(policy.check_process_env(&names(&["HF_TOKEN"])).is_err(), "only these");
        let error = policy.check_container_env(&names(&["NVIDIA_VISIBLE_DEVICES"])).unwrap_err();
        assert!(error.contains("GPUs"), "{error}");
    }

    #[test]
    fn a_process_is_given_no_path_of_a_model_that_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path).to_str().unwrap().to_owned();
        for made in ["models/judge", "secrets"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        let models = vec![at("models/*")];
        let policy = EnginePolicy { models, ..EnginePolicy::default() };
        for open in [&at("models/judge"), "Org/Judge", "judge", ""] {
            assert_eq!(policy.check_model(open), Ok(()), "{open}");
        }
        // The last is there, in the directory in which the test runs.
        for closed in
            [&at("secrets"), &at("models/absent"), "../judge", "./judge", "~/judge", "src"]
        {
            let error = policy.check_model(closed).unwrap_err();
            assert!(error.contains("engines.models"), "{closed}: {error}");
        }
    }

    #[test]
    fn a_model_is_read_where_it_truly_is() {
        use std::os::unix::fs::symlink;

        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        for made in ["models/judge", "secrets/key"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        symlink(at("secrets"), at("models/out")).unwrap();
        symlink("judge", at("models/latest")).unwrap();
        symlink(at("models"), at("link")).unwrap();
        let models = vec![at("models/*"), at("link/*")];
        let policy = EnginePolicy { models, ..EnginePolicy::default() };
        let judge = Some(root.join("models/judge"));
        for (model, readable) in [
            (at("models/judge"), judge.clone()),
            (at("models/latest"), judge.clone()),
            (at("link/judge"), judge),
            (at("models/out"), None),
            (at("models/out/key"), None),
            (at("models/../secrets"), None),
            (at("models/absent"), None),
            (at("secrets/key"), None),
            ("Org/Judge".into(), None),
        ] {
            assert_eq!(policy.readable(&model), readable, "{model}");
        }
    }
}
