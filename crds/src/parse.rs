//! Strict reading of manifests: whatever is unknown, missing, of a wrong type or
//! against a rule is named with its file, document and path, and with what would be
//! right.

use std::fs;
use std::path::Path;

use kube::core::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_yaml::{Mapping, Value};

use crate::manifest::Manifest;
use crate::rules::{self, Violation};
use crate::{ActionQueue, GROUP, Name, ResourcePool, RewardService, RolloutJob, VERSION};

mod explain;

/// Larger files are refused unread.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most manifests of one file or directory.
const MAX_DOCUMENTS: usize = 10_000;

/// Everything that is wrong with manifests, one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ManifestError {
    /// Never empty; in the order of files and documents.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.line())]
pub struct Problem {
    /// File as given.
    pub file: String,
    /// Number of the document in the file, from 1; 0 where it is about the file.
    pub document: usize,
    /// Field, such as `spec.templates[0].memory`; empty where it is about the whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Problem {
    fn line(&self) -> String {
        let Self { file, document, path, message } = self;
        match (document, path.as_str()) {
            (0, _) => format!("{file}: {message}"),
            (_, "") => format!("{file}, document {document}: {message}"),
            _ => format!("{file}, document {document}: {path}: {message}"),
        }
    }

    fn of_file(file: &str, message: String) -> Self {
        Self { file: file.to_owned(), document: 0, path: String::new(), message }
    }
}

/// A manifest and where it stood.
struct Located {
    file: String,
    document: usize,
    manifest: Manifest,
}

/// Reads the documents of one YAML text; `file` is what messages call it. References
/// between manifests are not looked at: see [`directory`].
pub fn documents(file: &str, text: &str) -> Result<Vec<Manifest>, ManifestError> {
    let mut problems = Vec::new();
    let located = read_text(file, text, &mut problems);
    finish(located, problems)
}

/// Reads every `*.yaml` and `*.yml` of a directory (not of those below it) in the order
/// of their names, and checks that what manifests refer to is there.
pub fn directory(dir: &Path) -> Result<Vec<Manifest>, ManifestError> {
    let mut problems = Vec::new();
    let mut located = Vec::new();
    for path in manifest_files(dir)? {
        let file = path.display().to_string();
        match read_file(&path) {
            Ok(text) => located.extend(read_text(&file, &text, &mut problems)),
            Err(message) => problems.push(Problem::of_file(&file, message)),
        }
    }
    if located.is_empty() && problems.is_empty() {
        let file = dir.display().to_string();
        let message = "no manifest in this directory; put *.yaml files in it".to_owned();
        problems.push(Problem::of_file(&file, message));
    }
    if located.len() > MAX_DOCUMENTS {
        let message = format!("more than {MAX_DOCUMENTS} manifests");
        problems.push(Problem::of_file(&dir.display().to_string(), message));
    }
    // References of a set that lacks its unreadable parts would only confuse.
    if problems.is_empty() {
        let manifests: Vec<Manifest> = located.iter().map(|of| of.manifest.clone()).collect();
        for (index, Violation { path, message }) in rules::references(&manifests) {
            let Located { file, document, .. } = &located[index];
            problems.push(Problem { file: file.clone(), document: *document, path, message });
        }
    }
    finish(located, problems)
}

fn finish(located: Vec<Located>, problems: Vec<Problem>) -> Result<Vec<Manifest>, ManifestError> {
    if problems.is_empty() {
        Ok(located.into_iter().map(|of| of.manifest).collect())
    } else {
        Err(ManifestError { problems })
    }
}

fn manifest_files(dir: &Path) -> Result<Vec<std::path::PathBuf>, ManifestError> {
    let unreadable = |error: std::io::Error| {
        let message = format!("cannot read the directory: {error}");
        ManifestError { problems: vec![Problem::of_file(&dir.display().to_string(), message)] }
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        if is_yaml && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path) -> Result<String, String> {
    let size = fs::metadata(path).map_err(|error| format!("cannot read: {error}"))?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("{size} bytes, and at most {MAX_FILE_BYTES} are read; split the file"));
    }
    fs::read_to_string(path).map_err(|error| format!("cannot read: {error}"))
}

fn read_text(file: &str, text: &str, problems: &mut Vec<Problem>) -> Vec<Located> {
    let mut located = Vec::new();
    for (index, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let document_number = index + 1;
        let problem = |violation: Violation| Problem {
            file: file.to_owned(),
            document: document_number,
            path: violation.path,
            message: violation.message,
        };
        let value = match Value::deserialize(document) {
            Ok(Value::Null) => continue,
            Ok(value) => value,
            Err(error) => {
                let message = format!("not YAML: {error}");
                problems.push(problem(Violation { path: String::new(), message }));
                break;
            }
        };
        match manifest(value) {
            Ok(manifest) => {
                problems.extend(manifest.validate().into_iter().map(problem));
                located.push(Located {
                    file: file.to_owned(),
                    document: document_number,
                    manifest,
                });
            }
            Err(violation) => problems.push(problem(violation)),
        }
        if located.len() > MAX_DOCUMENTS {
            problems.push(Problem::of_file(file, format!("more than {MAX_DOCUMENTS} manifests")));
            break;
        }
    }
    located
}

fn at(path: &str, message: impl Into<String>) -> Violation {
    Violation { path: path.to_owned(), message: message.into() }
}

/// One document as a manifest, its rules not yet looked at.
fn manifest(value: Value) -> Result<Manifest, Violation> {
    let Value::Mapping(mut root) = value else {
        return Err(at("", "a manifest is a mapping with apiVersion, kind, metadata and spec"));
    };
    let kind = text(&mut root, "kind", || format!("write one of {}", Manifest::KINDS.join(", ")))?;
    if !Manifest::KINDS.contains(&kind.as_str()) {
        let hint = explain::nearest(&kind, &Manifest::KINDS).map_or_else(
            || format!("it is one of {}", Manifest::KINDS.join(", ")),
            |near| format!("did you mean {near}?"),
        );
        return Err(at("kind", format!("\"{kind}\" is not a kind of Rollwright; {hint}")));
    }
    let expected = format!("{GROUP}/{VERSION}");
    let api_version = text(&mut root, "apiVersion", || format!("write {expected}"))?;
    if api_version != expected {
        return Err(at("apiVersion", format!("\"{api_version}\" must be {expected}")));
    }
    let metadata = metadata(root.remove("metadata"), kind != "ResourcePool")?;
    let spec = root.remove("spec").ok_or_else(|| at("spec", "is missing; add it"))?;
    // What `kubectl get -o yaml` adds; the API server ignores it in an apply, too.
    root.remove("status");
    if let Some((key, _)) = root.into_iter().next() {
        let key = explain::key(&key);
        let known = ["apiVersion", "kind", "metadata", "spec"];
        return Err(at(&key, explain::unknown_field(&key, &known)));
    }
    Ok(match kind.as_str() {
        "ResourcePool" => {
            let spec = typed(spec, "spec")?;
            Manifest::ResourcePool(Box::new(ResourcePool { metadata, spec, status: None }))
        }
        "RolloutJob" => {
            let spec = typed(spec, "spec")?;
            Manifest::RolloutJob(Box::new(RolloutJob { metadata, spec, status: None }))
        }
        "ActionQueue" => {
            let spec = typed(spec, "spec")?;
            Manifest::ActionQueue(Box::new(ActionQueue { metadata, spec, status: None }))
        }
        _ => {
            let spec = typed(spec, "spec")?;
            Manifest::RewardService(Box::new(RewardService { metadata, spec, status: None }))
        }
    })
}

/// A required string of the document's root.
fn text(root: &mut Mapping, key: &str, right: impl Fn() -> String) -> Result<String, Violation> {
    match root.remove(key) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(at(key, format!("must be a string; {}", right()))),
        None => Err(at(key, format!("is missing; {}", right()))),
    }
}

/// Fields of `metadata` that the API server knows.
const METADATA: [&str; 15] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "generateName",
    "generation",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

fn metadata(value: Option<Value>, namespaced: bool) -> Result<ObjectMeta, Violation> {
    let missing_name = || at("metadata.name", "is missing; add it");
    let value = value.ok_or_else(missing_name)?;
    if let Value::Mapping(fields) = &value {
        for key in fields.keys().map(explain::key) {
            if !METADATA.contains(&key.as_str()) {
                let message = explain::unknown_field(&key, &METADATA[..4]);
                return Err(at(&format!("metadata.{key}"), message));
            }
        }
    }
    let metadata: ObjectMeta = typed(value, "metadata")?;
    let name = metadata.name.as_deref().ok_or_else(missing_name)?;
    name.parse::<Name>().map_err(|error| at("metadata.name", error.to_string()))?;
    if let Some(namespace) = &metadata.namespace {
        if !namespaced {
            let message = "a ResourcePool belongs to no namespace; remove it, and say who may use the pool in spec.allowedNamespaces";
            return Err(at("metadata.namespace", message));
        }
        namespace.parse::<Name>().map_err(|error| at("metadata.namespace", error.to_string()))?;
    }
    Ok(metadata)
}

fn typed<T: DeserializeOwned>(value: Value, root: &str) -> Result<T, Violation> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = explain::path(root, error.path());
        explain::error(path, &error.inner().to_string())
    })
}
