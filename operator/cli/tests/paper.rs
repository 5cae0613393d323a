//! `paper` at the command line: the shape of its answer, and refusals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use clap::Parser as _;
use rollwright_cli::{Cli, Failure, run};
use serde_json::Value;

fn paper(args: &[&str]) -> Result<String, Failure> {
    let cli = Cli::try_parse_from([&["kubectl-rollwright", "paper"], args].concat()).unwrap();
    let mut out = Vec::new();
    run(&cli, &mut std::io::empty(), &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn experiments(args: &[&str]) -> Vec<Value> {
    let text = paper(&[args, &["--json"]].concat()).unwrap();
    assert_eq!(text.matches('\n').count(), 1);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value.as_object().unwrap().len(), 1);
    value["experiments"].as_array().unwrap().clone()
}

#[test]
fn a_row_has_the_fields_of_the_contract() {
    let rows = experiments(&["darts", "--seeds", "3"]);
    assert!(rows.len() > 1);
    for row in &rows {
        for field in ["name", "source", "quantity"] {
            assert!(!row[field].as_str().unwrap().is_empty(), "{row}");
        }
        assert!(row["paper"].is_number(), "{row}");
        assert!(["higher", "lower", "equal"].contains(&row["better"].as_str().unwrap()), "{row}");
        assert!(row["assumptions"].as_array().unwrap().iter().all(Value::is_string), "{row}");
        if row["ours"].is_null() {
            assert!(!row["why"].as_str().unwrap().is_empty(), "{row}");
            assert_eq!((&row["seeds"], &row["interval"]), (&0.into(), &Value::Null), "{row}");
            continue;
        }
        let interval = row["interval"].as_array().unwrap();
        let [least, most] = [&interval[0], &interval[1]].map(|value| value.as_f64().unwrap());
        let ours = row["ours"].as_f64().unwrap();
        assert!(least <= ours && ours <= most, "{row}");
        assert_eq!(row["seeds"], 3, "{row}");
        assert!(row["shortfall"].as_f64().unwrap() >= 0.0, "{row}");
        assert!(row.get("why").is_none(), "{row}");
    }
}

#[test]
fn one_row_alone_is_the_same_as_among_others() {
    let all = experiments(&["rollart", "--seeds", "1", "--seed", "9"]);
    let one = experiments(&["rollart-redundant", "--seeds", "1", "--seed", "9"]);
    assert_eq!(one.len(), 1);
    assert!(all.contains(&one[0]));
    assert_eq!(all, experiments(&["rollart", "--seeds", "1", "--seed", "9"]));
    assert_ne!(one, experiments(&["rollart-redundant", "--seeds", "1", "--seed", "10"]));
}

#[test]
fn an_unknown_name_is_refused_with_those_that_are_known() {
    for name in ["heddle-", "tang", "", "tangram-act-cp", "x"] {
        let Err(Failure::Input(error)) = paper(&[name, "--json"]) else { panic!("{name} ran") };
        let text = error.to_string();
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains("tangram-act-cpu, ") && text.contains("long-tail-cap"), "{text}");
    }
}

#[test]
fn a_person_reads_aligned_columns() {
    let text = paper(&["long-tail", "--seeds", "1"]).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let column = lines[0].find("source").unwrap();
    assert!(lines[1..].iter().all(|line| line[column..].starts_with("004")), "{text}");
    assert!(lines.iter().any(|line| line.contains("short by ")), "{text}");
    assert!(lines.iter().any(|line| line.contains("depends on hardware")), "{text}");
}
