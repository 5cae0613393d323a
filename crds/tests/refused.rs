//! Every document under `tests/refused/` is refused, with the sentence in its first
//! line; its second line says who refuses it: a CEL `rule` of the definition, its
//! `schema`, only `us` (the API server checks such things elsewhere), or `us alone`.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use rollwright_crds::{definitions, parse};
use serde_json::Value;

struct Refused {
    says: String,
    by: String,
    text: String,
}

fn refused() -> Vec<Refused> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/refused");
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            text.split("\n---\n").map(str::to_owned).collect::<Vec<_>>()
        })
        .map(|text| {
            let mut comments = text.lines().map(|line| line.strip_prefix("# ").unwrap());
            let (says, by) = (comments.next().unwrap().into(), comments.next().unwrap().into());
            Refused { says, by, text }
        })
        .collect()
}

/// Schema of the kind of a document.
fn schema(kind: &str) -> Value {
    definitions::all()
        .unwrap()
        .into_iter()
        .map(|(_, definition)| definition)
        .find(|definition| definition["spec"]["names"]["kind"] == kind)
        .map(|definition| definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
        .unwrap()
}

/// Whole numbers where the schema says `number` become floating point, as in the API
/// server, whose CEL is typed by the schema.
fn type_numbers(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                type_numbers(&schema["properties"][name], value);
            }
        }
        Value::Array(items) => {
            for item in items {
                type_numbers(&schema["items"], item);
            }
        }
        Value::Number(number) if schema["type"] == "number" => {
            *value = Value::from(number.as_f64().unwrap());
        }
        _ => {}
    }
}

/// Messages of the CEL rules that a document breaks.
fn broken_rules(text: &str) -> BTreeSet<String> {
    let mut object: Value = serde_yaml::from_str(text).unwrap();
    let schema = schema(object["kind"].as_str().unwrap());
    type_numbers(&schema, &mut object);
    match kube_cel::Validator::new().validate(&schema, &object, None) {
        Ok(()) => BTreeSet::new(),
        Err(errors) => errors.into_vec().into_iter().map(|error| error.message).collect(),
    }
}

fn all_rules(schema: &Value, into: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            for rule in fields
                .get("x-kubernetes-validations")
                .into_iter()
                .flat_map(|rules| rules.as_array().unwrap())
            {
                // Only the API server sees an old object.
                if !rule["rule"].as_str().unwrap().contains("oldSelf") {
                    into.insert(rule["message"].as_str().unwrap().to_owned());
                }
            }
            fields.values().for_each(|value| all_rules(value, into));
        }
        Value::Array(items) => items.iter().for_each(|value| all_rules(value, into)),
        _ => {}
    }
}

#[test]
fn each_is_refused_with_its_sentence() {
    let all = refused();
    assert!(all.len() >= 40, "{} documents", all.len());
    for Refused { says, text, .. } in all {
        let error = parse::documents("t", &text).expect_err(&text);
        let said = error.to_string();
        let said = said.strip_prefix("t, document 1: ").unwrap();
        assert_eq!(said, says, "{text}");
    }
}

#[test]
fn rules_of_the_definitions_refuse_what_we_refuse() {
    let mut broken = BTreeSet::new();
    for Refused { by, text, .. } in refused().iter().filter(|refused| refused.by == "rule") {
        let rules = broken_rules(text);
        assert!(!rules.is_empty(), "no {by} refuses {text}");
        broken.extend(rules);
    }
    let mut rules = BTreeSet::new();
    for (_, definition) in definitions::all().unwrap() {
        all_rules(&definition, &mut rules);
    }
    let untested: Vec<_> = rules.difference(&broken).collect();
    assert!(untested.is_empty(), "no refused document for {untested:#?}");
    let unknown: Vec<_> = broken.difference(&rules).collect();
    assert!(unknown.is_empty(), "rules fail to evaluate: {unknown:#?}");
}

#[test]
fn rules_of_the_definitions_accept_the_samples() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../manifests/samples");
    let mut seen = 0;
    for dir in [dir.clone(), dir.join("standalone")] {
        for file in fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()) {
            if file.is_dir() {
                continue;
            }
            for text in fs::read_to_string(&file).unwrap().split("\n---\n") {
                assert_eq!(broken_rules(text), BTreeSet::new(), "{}", file.display());
                seen += 1;
            }
        }
    }
    assert!(seen >= 10, "{seen} documents");
}
