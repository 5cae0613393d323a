//! Samples, generated definitions and directories of manifests.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs;
use std::path::PathBuf;

use rollwright_crds::{Manifest, definitions, parse};

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

#[test]
fn definitions_are_up_to_date() {
    definitions::check(&repository("manifests/crds")).unwrap();
}

#[test]
fn check_names_a_stale_file() {
    let dir = tempfile::tempdir().unwrap();
    definitions::write(dir.path()).unwrap();
    definitions::check(dir.path()).unwrap();
    fs::write(dir.path().join("actionqueues.yaml"), "old").unwrap();
    let error = definitions::check(dir.path()).unwrap_err().to_string();
    assert!(error.contains("actionqueues.yaml") && !error.contains("resourcepools"), "{error}");
}

#[test]
fn samples_are_accepted_and_of_all_kinds() {
    let samples = parse::directory(&repository("manifests/samples")).unwrap();
    for kind in Manifest::KINDS {
        assert!(samples.iter().any(|sample| sample.kind() == kind), "{kind}");
    }
}

#[test]
fn the_standalone_directory_has_what_one_machine_needs() {
    let manifests = parse::directory(&repository("manifests/samples/standalone")).unwrap();
    let queue = manifests.iter().find_map(|manifest| match manifest {
        Manifest::ActionQueue(queue) => Some(&queue.spec),
        _ => None,
    });
    let queue = queue.unwrap();
    let template = &queue.templates[0];
    assert_eq!((template.name.as_str(), template.pull), ("busybox", false));
    assert_eq!(template.memory.bytes(), 64 << 20);
    let profiles: Vec<_> = queue.profiles.iter().map(|profile| profile.name.as_str()).collect();
    assert_eq!(profiles[..3], ["default", "share", "tests"]);
    assert_eq!(queue.results.keep_for.duration().as_secs(), 3600);
}

#[test]
fn what_is_read_is_written_the_same() {
    for sample in parse::directory(&repository("manifests/samples")).unwrap() {
        let text = match &sample {
            Manifest::ResourcePool(object) => serde_yaml::to_string(object),
            Manifest::RolloutJob(object) => serde_yaml::to_string(object),
            Manifest::ActionQueue(object) => serde_yaml::to_string(object),
            Manifest::RewardService(object) => serde_yaml::to_string(object),
        };
        let again = parse::documents("again", &text.unwrap()).unwrap();
        assert_eq!(again, [sample]);
    }
}

/// What a directory with these files is refused for.
fn directory(files: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let error = parse::directory(dir.path()).unwrap_err().to_string();
    error.replace(&format!("{}/", dir.path().display()), "")
}

const HEAD: &str = "apiVersion: rollwright.dev/v1alpha1\n";

#[test]
fn references_must_lead_somewhere() {
    let pool =
        format!("{HEAD}kind: ResourcePool\nmetadata: {{name: local}}\nspec: {{cpu: {{}}}}\n");
    let queue =
        |spec: &str| format!("{HEAD}kind: ActionQueue\nmetadata: {{name: q}}\nspec: {{{spec}}}\n");
    let elsewhere = |name: &str| {
        let metadata = format!("{{name: {name}, namespace: research}}");
        queue("pools: [local]").replace("{name: q}", &metadata)
    };
    let reward = |spec: &str| {
        format!(
            "{HEAD}kind: RewardService\nmetadata: {{name: r}}\nspec: {{sandbox: {{command: {{shell: a}}, {spec}}}}}\n"
        )
    };
    let table = [
        (
            vec![("p.yaml", pool.clone()), ("q.yaml", queue("pools: [loca]"))],
            "q.yaml, document 1: spec.pools[0]: there is no ResourcePool \"loca\"; there is \"local\"",
        ),
        (
            vec![
                ("p.yaml", pool.clone()),
                ("q.yaml", queue("pools: [local], profiles: [{name: p, quota: {api: 1}}]")),
            ],
            "q.yaml, document 1: spec.profiles[0].quota.api: there is no limit \"api\", nor any other limit",
        ),
        (
            vec![("p.yaml", format!("{pool}---\n{pool}"))],
            "p.yaml, document 2: metadata.name: ResourcePool \"local\" is there twice; each must be different",
        ),
        (
            vec![
                ("p.yaml", pool.clone()),
                ("q.yaml", queue("pools: [local]")),
                ("r.yaml", queue("pools: [local]").replace("name: q", "name: r")),
            ],
            "r.yaml, document 1: spec.pools[0]: ResourcePool \"local\" is bound to ActionQueue \"q\" already; a pool has one owner",
        ),
        (
            vec![
                ("p.yaml", pool.replace("{cpu: {}}", "{cpu: {}, allowedNamespaces: [a]}")),
                ("q.yaml", queue("pools: [local]")),
            ],
            "q.yaml, document 1: spec.pools[0]: ResourcePool \"local\" does not allow namespace \"default\"; add it to spec.allowedNamespaces of the pool",
        ),
        (
            vec![
                ("p.yaml", pool.clone()),
                ("q.yaml", queue("pools: [local], profiles: [{name: default}]")),
                ("r.yaml", reward("queue: q, template: t")),
            ],
            "r.yaml, document 1: spec.sandbox.template: there is no template \"t\", nor any other template",
        ),
        (
            vec![("r.yaml", reward("queue: q, template: t"))],
            "r.yaml, document 1: spec.sandbox.queue: there is no ActionQueue \"q\", nor any other ActionQueue",
        ),
        (
            vec![
                ("p.yaml", pool.clone()),
                ("q.yaml", elsewhere("q")),
                ("r.yaml", reward("queue: q, template: t")),
            ],
            "r.yaml, document 1: spec.sandbox.queue: there is no ActionQueue \"q\" in namespace \"default\"; there is one in namespace \"research\"",
        ),
        (
            vec![
                ("p.yaml", pool.clone()),
                ("q.yaml", elsewhere("other")),
                ("r.yaml", reward("queue: q, template: t")),
            ],
            "r.yaml, document 1: spec.sandbox.queue: there is no ActionQueue \"q\" in namespace \"default\", nor any other ActionQueue",
        ),
    ];
    for (files, says) in table {
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        assert_eq!(directory(&files), says);
    }
}

#[test]
fn an_empty_directory_and_a_huge_file_are_refused() {
    assert!(directory(&[]).ends_with("no manifest in this directory; put *.yaml files in it"));
    let huge = "#".repeat(5 << 20);
    assert!(directory(&[("a.yaml", &huge)]).contains("at most 4194304 are read"));
}

#[test]
fn every_problem_is_named_at_once() {
    let text = format!(
        "{HEAD}kind: ActionQueue\nmetadata: {{name: q}}\nspec: {{pools: []}}\n---\n{HEAD}kind: Nothing\n"
    );
    let error = parse::documents("a.yaml", &text).unwrap_err();
    let at: Vec<_> =
        error.problems.iter().map(|problem| (problem.document, problem.path.as_str())).collect();
    assert_eq!(at, [(1, "spec.pools"), (2, "kind")]);
}
