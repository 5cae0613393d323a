//! The custom resources as a real API server reads them: what it takes, and that whatever our
//! parser refuses is refused at `kubectl apply` too.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed helper is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use kube::Client;
use rollwright_e2e_kubernetes::{install_definitions, test};
use serde_json::Value;

/// Said of a document that names no kind which the API server has, or no object.
const NOWHERE: &str = "nowhere to send it";

/// What `kubectl` refuses itself, since it cannot tell where to send it.
const NOWHERE_TO_SEND: [&str; 8] = [
    "a manifest is a mapping with apiVersion, kind, metadata and spec",
    "apiVersion: \"rollwright.dev/v1\" must be rollwright.dev/v1alpha1",
    "apiVersion: is missing; write rollwright.dev/v1alpha1",
    "kind: \"ActionQeue\" is not a kind of Rollwright; did you mean ActionQueue?",
    "kind: \"Pod\" is not a kind of Rollwright; it is one of ResourcePool, RolloutJob, ActionQueue, RewardService",
    "kind: is missing; write one of ResourcePool, RolloutJob, ActionQueue, RewardService",
    "metadata.name: is missing; add it",
    "not YAML: mapping values are not allowed in this context at line 3 column 5",
];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn files(dir: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository(dir)).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// What `kubectl apply --server-side --dry-run=server` sends; the error is the server's message.
async fn apply(client: &Client, namespace: &str, text: &str) -> Result<(), String> {
    let object: Value = serde_yaml::from_str(text).unwrap_or_default();
    let field = |path| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let (Some(version), Some(kind), Some(name)) =
        (field("/apiVersion"), field("/kind"), field("/metadata/name"))
    else {
        return Err(NOWHERE.into());
    };
    let plural = format!("{}s", kind.to_lowercase());
    let scope = match (field("/metadata/namespace"), kind.as_str()) {
        (_, "ResourcePool") => String::new(),
        (Some(named), _) => format!("/namespaces/{named}"),
        (None, _) => format!("/namespaces/{namespace}"),
    };
    let uri = format!(
        "/apis/{version}{scope}/{plural}/{name}?fieldManager=test&dryRun=All&fieldValidation=Strict"
    );
    let request = http::Request::patch(uri)
        .header("Content-Type", "application/apply-patch+yaml")
        .body(text.to_owned().into_bytes())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.message == "404 page not found" => {
            Err(NOWHERE.into())
        }
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("{error}: {text}"),
    }
}

/// The field that a sentence of ours is about: `pools` of `spec.pools[1]: ...`. The API server
/// writes elements of lists by their keys, so more cannot be compared.
fn field(sentence: &str) -> &str {
    match sentence.split_once(": ") {
        None | Some(("not YAML", _)) => "",
        Some((path, _)) => path.rsplit('.').next().unwrap().split('[').next().unwrap(),
    }
}

/// Documents with their namespace replaced.
fn in_namespace(name: &str, text: &str) -> String {
    let line = |line: &str| match line.split_once("  namespace: ") {
        Some(("", _)) => format!("  namespace: {name}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn the_samples_are_taken() -> anyhow::Result<()> {
    test("samples", async |namespace| {
        install_definitions(&namespace.kubectl()).await?;
        let mut seen = 0;
        let dir = repository("manifests/samples");
        let folders = fs::read_dir(&dir)?.map(|entry| entry.unwrap().path());
        let folders = folders.filter(|path| path.is_dir()).chain([dir.clone()]);
        for file in folders.flat_map(|folder| files(folder.to_str().unwrap())) {
            let text = in_namespace(namespace.name(), &fs::read_to_string(&file)?);
            namespace
                .kubectl()
                .apply_dry(&text)
                .await
                .map_err(|error| error.context(file.display().to_string()))?;
            seen += text.split("\n---\n").count();
        }
        ensure!(seen >= 40, "{seen} documents");
        Ok(())
    })
}

#[test]
fn what_we_refuse_the_api_server_refuses() -> anyhow::Result<()> {
    test("refused", async |namespace| {
        install_definitions(&namespace.kubectl()).await?;
        let (mut taken, mut unsent, mut unnamed, mut seen) =
            (BTreeSet::new(), BTreeSet::new(), Vec::new(), 0);
        for file in files("crds/tests/refused") {
            for text in fs::read_to_string(&file)?.split("\n---\n") {
                seen += 1;
                let ours = text.lines().next().unwrap().strip_prefix("# ").unwrap().to_owned();
                // Nothing in the API server reads JSON, for one.
                let alone = text.lines().nth(1) == Some("# us alone");
                match apply(&namespace.client(), namespace.name(), text).await {
                    Ok(()) if alone => {}
                    Err(theirs) if alone => {
                        unnamed.push(format!("not ours alone: {ours}\ntheirs: {theirs}\n"));
                    }
                    Ok(()) => drop(taken.insert(ours)),
                    Err(theirs) if theirs == NOWHERE => drop(unsent.insert(ours)),
                    Err(theirs) => {
                        if !theirs.contains(field(&ours)) {
                            unnamed.push(format!("ours:   {ours}\ntheirs: {theirs}\n"));
                        }
                    }
                }
            }
        }
        ensure!(seen >= 140, "{seen} documents");
        ensure!(taken.is_empty(), "the API server takes what we refuse: {taken:#?}");
        ensure!(unsent == NOWHERE_TO_SEND.map(str::to_owned).into(), "not to be sent: {unsent:#?}");
        ensure!(unnamed.is_empty(), "the field is not named:\n{}", unnamed.join("\n"));
        Ok(())
    })
}
