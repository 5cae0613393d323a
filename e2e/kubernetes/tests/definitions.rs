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

/// What our parser refuses and the API server takes, by our sentence: only an admission policy
/// could say these at `kubectl apply`. An entry that is refused after all fails the test.
const ONLY_OURS: [&str; 0] = [];

/// What `kubectl` refuses itself, since it cannot tell where to send it.
const NOWHERE_TO_SEND: [&str; 0] = [];

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
        return Err("nowhere to send it".into());
    };
    let plural = format!("{}s", kind.to_lowercase());
    let scope = match (field("/metadata/namespace"), kind.as_str()) {
        (None, "ResourcePool") => String::new(),
        (namespace_, _) => format!("/namespaces/{}", namespace_.unwrap_or(namespace.into())),
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
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("{error}: {text}"),
    }
}

#[test]
fn the_samples_are_taken() -> anyhow::Result<()> {
    test("samples", async |namespace| {
        install_definitions(&namespace.kubectl()).await?;
        let mut seen = 0;
        for file in [files("manifests/samples"), files("manifests/samples/standalone")].concat() {
            let text = fs::read_to_string(&file)?
                .replace("namespace: research", &format!("namespace: {}", namespace.name()));
            namespace
                .kubectl()
                .apply_dry(&text)
                .await
                .map_err(|error| error.context(file.display().to_string()))?;
            seen += text.split("\n---\n").count();
        }
        ensure!(seen >= 10, "{seen} documents");
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
                match apply(&namespace.client(), namespace.name(), text).await {
                    Ok(()) => drop(taken.insert(ours)),
                    Err(theirs) if theirs == "nowhere to send it" => drop(unsent.insert(ours)),
                    Err(theirs) => {
                        let path = ours.split(": ").next().unwrap();
                        if !theirs.contains(path) {
                            unnamed.push(format!("ours:   {ours}\ntheirs: {theirs}\n"));
                        }
                    }
                }
            }
        }
        ensure!(seen >= 140, "{seen} documents");
        let expected = |list: &[&str]| list.iter().map(|&it| it.to_owned()).collect();
        similar(&taken, &expected(&ONLY_OURS), "taken by the API server")?;
        similar(&unsent, &expected(&NOWHERE_TO_SEND), "not to be sent")?;
        ensure!(unnamed.is_empty(), "the field is not named:\n{}", unnamed.join("\n"));
        Ok(())
    })
}

fn similar(seen: &BTreeSet<String>, known: &BTreeSet<String>, what: &str) -> anyhow::Result<()> {
    let new: Vec<_> = seen.difference(known).collect();
    let gone: Vec<_> = known.difference(seen).collect();
    ensure!(new.is_empty() && gone.is_empty(), "{what}: new {new:#?}, no longer {gone:#?}");
    Ok(())
}
