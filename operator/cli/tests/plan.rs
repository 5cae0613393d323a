//! The planner as a process: answers, refusals, and whatever the bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod support;

use clap::Parser as _;
use proptest::prelude::*;
use rollwright_cli::{Cli, Failure, run};
use serde_json::{Value, json};

use support::process;

const ARRANGE: &str = r#"{"tasks":[{"units":[1,2,4],"durations":[8.0,4.5,2.6]},{"units":[1,2],"durations":[5,3]}],"free":4}"#;
const CHUNKS: &str = r#"{"tasks":[{"units":[1,2,4],"durations":[8.0,4.5,2.6]},{"units":[2,8],"durations":[5,3]}],"chunks":{"1":0,"2":1,"4":1,"8":2}}"#;
const PLACEMENT: &str = r#"{"lengths":[4000,900,800,100],"workers":[{"token_time_s":0.006},{"token_time_s":0.02}],"interference":[1.0,1.05,1.1]}"#;
const ALLOCATION: &str = r#"{"lengths":[4000,900,800,100],"gpus":10,"max_workers":4,"degrees":{"1":0.020,"2":0.012,"8":0.006},"interference":[1.0,1.05,1.1]}"#;

/// The planner within this process.
fn plan(what: &str, input: &[u8], as_json: bool) -> Result<String, String> {
    let mut args = vec!["kubectl-rollwright", "plan", what, "--input", "-"];
    args.extend(as_json.then_some("--json"));
    let cli = Cli::try_parse_from(args).unwrap();
    let mut out = Vec::new();
    match run(&cli, &mut &input[..], &mut out) {
        Ok(()) => Ok(String::from_utf8(out).unwrap()),
        Err(Failure::Input(error)) => {
            assert!(out.is_empty());
            Err(error.to_string())
        }
        Err(failure @ Failure::Output { .. }) => panic!("{failure}"),
    }
}

fn answer(what: &str, input: &str) -> Value {
    serde_json::from_str(&plan(what, input.as_bytes(), true).unwrap()).unwrap()
}

#[test]
fn plans_are_the_optimum() {
    // 2 + 2 of 4 cores: 4.5 + 3.
    assert_eq!(answer("arrange", ARRANGE), json!({"total_s": 7.5, "units": [2, 2]}));
    // One chunk of 4 and one of 8.
    assert_eq!(answer("arrange", CHUNKS), json!({"total_s": 5.6, "units": [4, 8]}));
    assert_eq!(
        answer("placement", PLACEMENT),
        json!({"makespan_s": 24.0, "groups": [[0], [1, 2, 3]]})
    );
    let allocation = answer("allocation", ALLOCATION);
    assert_eq!(allocation["makespan_s"], 24.0);
    assert_eq!(allocation["degrees"][0], 8);
}

#[test]
fn the_process_prints_one_object_or_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tasks.json");
    std::fs::write(&file, ARRANGE).unwrap();
    let good = process(&["plan", "arrange", "--input", file.to_str().unwrap(), "--json"], b"");
    assert_eq!(good.status.code(), Some(0));
    assert_eq!(good.stdout, b"{\"total_s\":7.5,\"units\":[2,2]}\n");
    assert_eq!(good.stderr, b"");

    let bad = process(&["plan", "placement", "--input", "-", "--json"], b"{\"lengths\":[1,-2]}");
    assert_eq!(bad.status.code(), Some(2));
    assert_eq!(bad.stdout, b"");
    assert_eq!(bad.stderr, b"error: -:$.lengths[1]: must be a number, 0 or more, got -2.0\n");

    let gone = process(&["plan", "arrange", "--input", "/no/such\nfile", "--json"], b"");
    assert_eq!(gone.status.code(), Some(2));
    let line = String::from_utf8(gone.stderr).unwrap();
    assert!(line.starts_with("error: /no/such\\nfile:$: cannot be read: "), "{line}");
    assert_eq!(line.lines().count(), 1);

    let table = process(&["plan", "placement", "--input", "-"], PLACEMENT.as_bytes());
    assert_eq!(table.status.code(), Some(0));
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("worker  token time  trajectories"), "{table}");
    assert!(table.contains("makespan 24.000 s"), "{table}");

    for help in [&["--help"][..], &["plan", "arrange", "--help"]] {
        let help = process(help, b"");
        assert_eq!(help.status.code(), Some(0));
        assert!(String::from_utf8(help.stdout).unwrap().contains("\"units\""));
    }
}

/// What is wrong, the input, and the place and the sentence that it is refused with.
fn refused(what: &str, cases: &[(&str, &str)]) {
    for (input, want) in cases {
        let got = plan(what, input.as_bytes(), true).expect_err(input);
        assert!(got.starts_with(&format!("-:{want}")), "{input}\n got {got}\nwant {want}");
    }
}

#[test]
fn bad_arrangements_are_refused_with_their_place() {
    let task = |units: &str, durations: &str| {
        format!(r#"{{"tasks":[{{"units":{units},"durations":{durations}}}],"free":4}}"#)
    };
    refused(
        "arrange",
        &[
            ("", "$: the input is empty"),
            ("[]", "$: must be an object with tasks, free, chunks, got a list"),
            (r#"{"free":4}"#, "$.tasks: missing"),
            (r#"{"tasks":[]}"#, "$.free: missing: give free or chunks"),
            (r#"{"tasks":[],"free":4,"chunks":{}}"#, "$.chunks: given beside free"),
            (r#"{"tasks":[],"free":4,"frees":4}"#, "$.frees: unknown field: did you mean free?"),
            (r#"{"tasks":[],"free":4,"free":4}"#, "$.free: given twice"),
            (r#"{"tasks":[],"free":0}"#, "$.free: must be a whole number from 1"),
            (r#"{"tasks":[],"free":-1}"#, "$.free: must be a whole number from 1"),
            (r#"{"tasks":[],"free":1.5}"#, "$.free: must be a whole number from 1"),
            (
                r#"{"tasks":[],"free":"4"}"#,
                "$.free: must be a whole number from 1 to 9007199254740991, got the text \"4\"",
            ),
            (r#"{"tasks":[],"free":null}"#, "$.free: must be a whole number"),
            (r#"{"tasks":[],"free":1e30}"#, "$.free: must be a whole number"),
            (r#"{"tasks":{},"free":4}"#, "$.tasks: must be a list, got an object"),
            (r#"{"tasks":[3],"free":4}"#, "$.tasks[0]: must be an object with units, durations"),
            (r#"{"tasks":[{"units":[1]}],"free":4}"#, "$.tasks[0].durations: missing"),
            (
                r#"{"tasks":[{"units":[1],"durations":[1],"x\n":1}],"free":4}"#,
                "$.tasks[0][\"x\\n\"]: unknown field: known here: units, durations",
            ),
            (&task("[]", "[]"), "$.tasks[0].units: is empty"),
            (&task("[1,1]", "[1,1]"), "$.tasks[0].units[1]: must be larger than the one before"),
            (&task("[2,1]", "[1,1]"), "$.tasks[0].units[1]: must be larger"),
            (&task("[0,1]", "[1,1]"), "$.tasks[0].units[0]: must be a whole number from 1"),
            (&task("[0.5,1]", "[1,1]"), "$.tasks[0].units[0]: must be a whole number"),
            (&task("[1,2]", "[1]"), "$.tasks[0].durations: has 1 numbers: give 2"),
            (&task("[1]", "[-0.1]"), "$.tasks[0].durations[0]: must be a number, 0 or more"),
            (
                &task("[1]", "[1e999]"),
                "$.tasks[0].durations[0]: \"1e999\" is beyond 64-bit numbers",
            ),
            (&task("[1]", "[NaN]"), "$.tasks[0].durations[0]: line 1"),
            (
                &task("[1]", "[true]"),
                "$.tasks[0].durations[0]: must be a number, 0 or more, got true or false",
            ),
            (
                &task("[5]", "[1]"),
                "$.free: the tasks need at least 5 units, more than fit into 4 free units",
            ),
            (&format!("{ARRANGE} x"), "$: line 1"),
            (r#"{"tasks":[],"chunks":{"3":1}}"#, "$.chunks[\"3\"]: unknown size"),
            (r#"{"tasks":[],"chunks":{"1":1,"1":2}}"#, "$.chunks[\"1\"]: given twice"),
            (r#"{"tasks":[],"chunks":{"1":-1}}"#, "$.chunks[\"1\"]: must be a whole number from 0"),
            (r#"{"tasks":[],"chunks":[1]}"#, "$.chunks: must be an object such as"),
            (
                r#"{"tasks":[{"units":[3],"durations":[1]}],"chunks":{"8":1}}"#,
                "$.tasks[0].units[0]: must be 1, 2, 4 or 8 on chunks, got 3",
            ),
            (
                r#"{"tasks":[{"units":[8],"durations":[1]}],"chunks":{"4":2}}"#,
                "$.chunks: the tasks need at least 8 units",
            ),
            (
                r#"{"tasks":[{"units":[1],"durations":[1e308]},{"units":[1],"durations":[1e308]}],"free":2}"#,
                "$.free: the durations sum to more",
            ),
        ],
    );
}

#[test]
fn bad_placements_are_refused_with_their_place() {
    let with = |workers: &str, interference: &str| {
        format!(r#"{{"lengths":[1],"workers":{workers},"interference":{interference}}}"#)
    };
    let kinds: Vec<String> = (1..=17).map(|t| format!("{{\"token_time_s\":{t}}}")).collect();
    refused(
        "placement",
        &[
            (r#"{"workers":[],"interference":[1]}"#, "$.lengths: missing"),
            (&with("[]", "[1]"), "$.workers: is empty"),
            (&with("[{}]", "[1]"), "$.workers[0].token_time_s: missing"),
            (
                &with(r#"[{"token_time_s":0}]"#, "[1]"),
                "$.workers[0].token_time_s: must be a number above 0, got 0.0",
            ),
            (
                &with(r#"[{"token_time_s":1,"token_time_s":1}]"#, "[1]"),
                "$.workers[0].token_time_s: given twice",
            ),
            (
                &with(&format!("[{}]", kinds.join(",")), "[1]"),
                "$.workers: 17 distinct token times: at most 16",
            ),
            (&with(r#"[{"token_time_s":1}]"#, "[]"), "$.interference: it is empty"),
            (
                &with(r#"[{"token_time_s":1}]"#, "[1.0,1.2,1.1]"),
                "$.interference[2]: the factor at size 3 is below",
            ),
            (
                &with(r#"[{"token_time_s":1}]"#, "[0]"),
                "$.interference[0]: must be a number above 0",
            ),
            (
                r#"{"lengths":[1e308],"workers":[{"token_time_s":1e308}],"interference":[1]}"#,
                "$.lengths: the makespan is larger",
            ),
        ],
    );
}

#[test]
fn bad_allocations_are_refused_with_their_place() {
    let with = |gpus: &str, workers: &str, degrees: &str| {
        format!(
            r#"{{"lengths":[1],"gpus":{gpus},"max_workers":{workers},"degrees":{degrees},"interference":[1]}}"#
        )
    };
    refused(
        "allocation",
        &[
            (&with("0", "1", r#"{"1":1}"#), "$.gpus: must be a whole number from 1"),
            (&with("1", "0", r#"{"1":1}"#), "$.max_workers: must be a whole number from 1"),
            (&with("1", "1", "{}"), "$.degrees: is empty"),
            (&with("1", "1", r#"{"1":1,"1":2}"#), "$.degrees[\"1\"]: given twice"),
            (&with("1", "1", r#"{"01":1}"#), "$.degrees[\"01\"]: a degree must be"),
            (&with("1", "1", r#"{"0":1}"#), "$.degrees[\"0\"]: a degree must be"),
            (&with("1", "1", r#"{"one":1}"#), "$.degrees.one: a degree must be"),
            (&with("1", "1", r#"{"1":0}"#), "$.degrees[\"1\"]: must be a number above 0"),
            (
                &with("1", "1", r#"{"2":1,"4":1}"#),
                "$.gpus: 1 GPUs do not hold one worker: the smallest degree is 2",
            ),
            (
                &with("1", "1", r#"{"99999999999999999999":1}"#),
                "$.degrees[\"99999999999999999999\"]: a degree",
            ),
        ],
    );
}

#[test]
fn nothing_to_plan_is_no_error() {
    assert_eq!(answer("arrange", r#"{"tasks":[],"free":1}"#), json!({"total_s": 0.0, "units": []}));
    assert_eq!(
        answer("placement", r#"{"lengths":[],"workers":[{"token_time_s":1}],"interference":[1]}"#),
        json!({"makespan_s": 0.0, "groups": [[]]})
    );
    assert_eq!(
        answer(
            "placement",
            r#"{"lengths":[0,-0.0],"workers":[{"token_time_s":1}],"interference":[1]}"#
        ),
        json!({"makespan_s": 0.0, "groups": [[0, 1]]})
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whole pieces removed, repeated or replaced: most are wrong, none may panic.
    #[test]
    fn mutated_inputs_end_in_an_answer_or_one_line(
        which in 0_usize..4,
        cut in (any::<prop::sample::Index>(), 0_usize..12),
        put in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..6),
            prop::sample::select(vec![
                "0", "-1", "1e999", "1e308", "9007199254740991", "NaN", "null", "[]", "{}", "\"\"", ",", "1,",
                "\"free\":1,", "[[[[[[[[[[[[", "\u{2028}",
            ]).prop_map(|text| text.as_bytes().to_vec()),
        ],
        as_json in any::<bool>(),
    ) {
        let (what, input) = [
            ("arrange", ARRANGE), ("arrange", CHUNKS), ("placement", PLACEMENT), ("allocation", ALLOCATION),
        ][which];
        let mut bytes = input.as_bytes().to_vec();
        let from = cut.0.index(bytes.len());
        let to = (from + cut.1).min(bytes.len());
        bytes.splice(from..to, put);
        one_answer(what, &bytes, as_json)?;
    }

    #[test]
    fn any_bytes_end_in_an_answer_or_one_line(
        what in prop::sample::select(vec!["arrange", "placement", "allocation"]),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        one_answer(what, &bytes, true)?;
    }
}

fn one_answer(what: &str, bytes: &[u8], as_json: bool) -> Result<(), TestCaseError> {
    match plan(what, bytes, as_json) {
        Ok(text) if as_json => {
            let answer: Value = serde_json::from_str(&text).unwrap();
            prop_assert!(answer.is_object() && text.ends_with('\n') && text.lines().count() == 1);
        }
        Ok(_) => {}
        Err(line) => {
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
            prop_assert!(line.starts_with("-:$"), "{line}");
        }
    }
    Ok(())
}

#[test]
fn the_examples_of_the_help_are_true() {
    for (what, input, want) in [
        (
            "arrange",
            r#"{"tasks": [{"units": [1,2,4], "durations": [8.0,4.5,2.6]}], "free": 16}"#,
            json!({"total_s": 2.6, "units": [4]}),
        ),
        ("placement", PLACEMENT, json!({"makespan_s": 24.0, "groups": [[0], [1, 2, 3]]})),
        (
            "allocation",
            ALLOCATION,
            json!({"makespan_s": 24.0, "degrees": [8, 1], "groups": [[0], [1, 2, 3]]}),
        ),
    ] {
        assert_eq!(answer(what, input), want);
    }
}
