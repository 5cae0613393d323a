//! The simulator at the command line: answers, refusals, and whatever the bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeSet;
use std::path::Path;

use clap::Parser as _;
use proptest::prelude::*;
use rollwright_cli::{Cli, Failure, run};
use serde_json::Value;

const CLUSTER: &str = r#"{"pools":[{"name":"cpu","kind":"cpu","nodes":5,"cores":256,"numa":2,"memory_gib":2400},
          {"name":"rm","kind":"gpu","nodes":5,"gpus":8},
          {"name":"search","kind":"quota","concurrency":64,"per_period":600,"period_s":60}],
 "services":[{"name":"judge","pool":"rm","degrees":[4,8],"restore_s":1.2}],
 "depth":2}"#;
const TRAJECTORY: &str = r#"{"trajectory":"t1","arrival_s":0,"memory_gib":4,"phases":[{"generate_s":12.1},{"action":{"pool":"cpu","kind":"tests","units":[1,2,4,8],"duration_s":120,"serial":0.05}},{"action":{"pool":"rm","service":"judge","units":[4,8],"duration_s":9,"serial":0.1}},{"action":{"pool":"search","duration_s":1.5}}]}"#;

/// With the workload from standard input.
fn simulate(
    cluster: &[u8],
    workload: &[u8],
    policy: &str,
    more: &[&str],
) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cluster.json");
    std::fs::write(&file, cluster).unwrap();
    let mut args = vec!["kubectl-rollwright", "simulate", "actions", "--workload", "-"];
    args.extend(["--cluster", file.to_str().unwrap(), "--policy", policy, "--seed", "1"]);
    args.extend(more);
    let cli = Cli::try_parse_from(args).unwrap();
    let mut out = Vec::new();
    match run(&cli, &mut &workload[..], &mut out) {
        Ok(()) => Ok(String::from_utf8(out).unwrap()),
        Err(Failure::Input(error)) => {
            assert!(out.is_empty());
            Err(error.to_string().replace(file.to_str().unwrap(), "cluster.json"))
        }
        Err(failure @ Failure::Output { .. }) => panic!("{failure}"),
    }
}

fn answer(workload: &str, policy: &str) -> Value {
    let text = simulate(CLUSTER.as_bytes(), workload.as_bytes(), policy, &["--json"]).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn close(value: &Value, want: f64) {
    let got = value.as_f64().unwrap();
    assert!((got - want).abs() < 1e-9, "{got} is not {want}");
}

#[test]
fn the_example_of_the_contract_runs() {
    let report = answer(TRAJECTORY, "fixed:4");
    assert_eq!((report["trajectories"].clone(), report["actions"].clone()), (1.into(), 3.into()));
    // 120 * (0.05 + 0.95 / 4), 1.2 + 9 * (0.1 + 0.9 / 4), 1.5
    close(&report["act_s"]["max"], 34.5);
    close(&report["exec_s"]["p50"], 4.125);
    close(&report["makespan_s"], 12.1 + 34.5 + 4.125 + 1.5);
    close(&report["utilization"]["cpu"], 4.0 * 34.5 / (1280.0 * 52.225));
    close(&report["queue_s"]["max"], 0.0);
    for policy in ["static:4", "kubernetes:0.5:4"] {
        close(&answer(TRAJECTORY, policy)["makespan_s"], 12.1 + 34.5 + 2.925 + 1.5);
    }
}

#[test]
fn the_same_input_gives_the_same_bytes_but_for_the_time_of_decisions() {
    let lines: Vec<String> =
        (0..50).map(|i| TRAJECTORY.replace("\"t1\"", &format!("\"t{i}\""))).collect();
    let strip = |policy: &str| {
        let mut report = answer(&lines.join("\n"), policy);
        report.as_object_mut().unwrap().remove("decision_us").unwrap();
        report.to_string()
    };
    for policy in
        ["elastic", "elastic-trajectory", "tangram", "fixed:8", "static:8", "kubernetes:1:8"]
    {
        assert_eq!(strip(policy), strip(policy));
    }
}

#[test]
fn a_table_for_people() {
    let table = simulate(CLUSTER.as_bytes(), TRAJECTORY.as_bytes(), "fixed:4", &[]).unwrap();
    assert!(table.contains("1 trajectories with 3 actions under fixed:4 (simulated)"), "{table}");
}

#[test]
fn a_trace_shows_every_action_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace.json");
    // So many that they wait for GPUs and for the quota.
    let lines: Vec<String> =
        (0..90).map(|i| TRAJECTORY.replace("\"t1\"", &format!("\"t{i}\""))).collect();
    for policy in ["elastic", "elastic-trajectory", "tangram", "fixed:4", "static:4"] {
        let more = ["--json", "--trace", file.to_str().unwrap()];
        let report =
            simulate(CLUSTER.as_bytes(), lines.join("\n").as_bytes(), policy, &more).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let named = |name: &str| -> Vec<&Value> {
            let events = trace["traceEvents"].as_array().unwrap();
            events.iter().filter(|event| event["name"] == name).collect()
        };
        assert_eq!(named("process_name").len(), 3);
        let of = |event: &Value| {
            (event["args"]["trajectory"].to_string(), event["args"]["phase"].as_u64())
        };
        let runs: BTreeSet<_> = named("runs").into_iter().map(of).collect();
        assert_eq!((runs.len(), named("runs").len()), (270, 270));
        let seconds = |name: &str| -> f64 {
            named(name).iter().map(|event| event["dur"].as_f64().unwrap() / 1e6).sum()
        };
        let mean = |field: &str| report[field]["mean"].as_f64().unwrap() * 270.0;
        assert!((seconds("runs") - mean("exec_s")).abs() < 1e-3, "{policy}");
        assert!((seconds("waits") - mean("queue_s")).abs() < 1e-3, "{policy}");
        assert!(mean("queue_s") > 0.0 && named("waits").len() < 270, "{policy}");
    }
}

#[test]
fn bad_clusters_are_refused_with_their_place() {
    let pools = |pools: &str| format!("{{\"pools\":[{pools}]}}");
    let cpu = r#"{"name":"cpu","kind":"cpu","nodes":1,"cores":4,"memory_gib":8}"#;
    let quota = |rest: &str| pools(&format!(r#"{{"name":"q","kind":"quota"{rest}}}"#));
    let service = |service: &str| {
        format!(
            r#"{{"pools":[{cpu},{{"name":"rm","kind":"gpu","nodes":1,"gpus":4}}],"services":[{service}]}}"#
        )
    };
    let cases = [
        (String::new(), "$: the input is empty"),
        (pools(""), ""),
        ("{}".to_owned(), "$.pools: missing"),
        (pools(&format!("{cpu},{cpu}")), "$.pools[1].name: the name is used twice"),
        (
            pools(&cpu.replace("\"cpu\",\"nodes", "\"tpu\",\"nodes")),
            "$.pools[0].kind: unknown kind",
        ),
        (
            pools(&cpu.replace("\"cores\":4", "\"cores\":0")),
            "$.pools[0].cores: must be a whole number from 1",
        ),
        (pools(&cpu.replace("\"cores\":4,", "")), "$.pools[0].cores: missing"),
        (
            pools(&cpu.replace("\"nodes\":1", "\"nodes\":1.5")),
            "$.pools[0].nodes: must be a whole number",
        ),
        (
            pools(&cpu.replace("\"nodes\":1", "\"nodes\":1e15")),
            "$.pools[0].nodes: must be at most 1000000",
        ),
        (
            pools(&cpu.replace("\"memory_gib\":8", "\"memory_gib\":0")),
            "$.pools[0].memory_gib: must be a number above 0",
        ),
        (
            pools(&cpu.replace("\"nodes\":1", "\"nodes\":1,\"gpus\":8")),
            "$.pools[0].gpus: unknown field",
        ),
        (
            pools(&cpu.replace("\"nodes\":1", "\"nodes\":1,\"nodes\":1")),
            "$.pools[0].nodes: given twice",
        ),
        (
            pools(&cpu.replace("\"nodes\":1", "\"nodes\":1,\"numa\":0")),
            "$.pools[0].numa: must be a whole number from 1",
        ),
        (quota(""), "$.pools[0].concurrency: missing: a quota needs"),
        (quota(r#","concurrency":0"#), "$.pools[0].concurrency: must be a whole number from 1"),
        (quota(r#","per_period":5"#), "$.pools[0].period_s: missing: per_period needs it"),
        (quota(r#","concurrency":5,"period_s":5"#), "$.pools[0].per_period: missing"),
        (quota(r#","per_period":5,"period_s":0"#), "$.pools[0].period_s: must be a number above 0"),
        (
            service(r#"{"name":"a","pool":"gone","degrees":[1],"restore_s":1}"#),
            "$.services[0].pool: unknown pool",
        ),
        (
            service(r#"{"name":"a","pool":"cpu","degrees":[1],"restore_s":1}"#),
            "$.services[0].pool: a service needs a pool of kind gpu",
        ),
        (
            service(r#"{"name":"a","pool":"rm","degrees":[],"restore_s":1}"#),
            "$.services[0].degrees: no degree fits",
        ),
        (
            service(r#"{"name":"a","pool":"rm","degrees":[3],"restore_s":1}"#),
            "$.services[0].degrees[0]: must be 1, 2, 4 or 8",
        ),
        (
            service(r#"{"name":"a","pool":"rm","degrees":[8],"restore_s":1}"#),
            "$.services[0].degrees: no degree fits",
        ),
        (
            service(r#"{"name":"a","pool":"rm","degrees":[1,1],"restore_s":1}"#),
            "$.services[0].degrees[1]: given twice",
        ),
        (
            service(r#"{"name":"a","pool":"rm","degrees":[1],"restore_s":-1}"#),
            "$.services[0].restore_s: must be a number, 0 or more",
        ),
        (r#"{"pools":[],"depth":0}"#.to_owned(), "$.depth: must be a whole number from 1"),
    ];
    let idle = r#"{"trajectory":"t","phases":[{"generate_s":1}]}"#;
    for (cluster, want) in cases {
        let got = simulate(cluster.as_bytes(), idle.as_bytes(), "fixed:1", &["--json"]);
        match got {
            Ok(_) => assert_eq!(want, "", "{cluster}"),
            Err(got) => assert!(
                !want.is_empty() && got.starts_with(&format!("cluster.json:{want}")),
                "{cluster}\n got {got}\nwant {want}"
            ),
        }
    }
}

#[test]
fn bad_workloads_are_refused_with_their_line() {
    let action = |action: &str| format!(r#"{{"trajectory":"x","phases":[{{"action":{action}}}]}}"#);
    let cases = [
        ("{".to_owned(), "$: line 1, column 2: expected a name"),
        ("\u{1}".to_owned(), "$: line 1, column 1"),
        (r#"{"trajectory":"x"}"#.to_owned(), "$.phases: missing"),
        (r#"{"trajectory":"t1","phases":[]}"#.to_owned(), "$.trajectory: the name is used twice"),
        (r#"{"trajectory":"x","phases":[],"phase":1}"#.to_owned(), "$.phase: unknown field: did you mean phases?"),
        (r#"{"trajectory":"x","phases":[{}]}"#.to_owned(), "$.phases[0]: must have one of generate_s and action"),
        (r#"{"trajectory":"x","phases":[{"generate_s":-1}]}"#.to_owned(), "$.phases[0].generate_s: must be a number, 0 or more"),
        (r#"{"trajectory":"x","arrival_s":1e12,"phases":[]}"#.to_owned(), "$.arrival_s: must be at most 1000000000 seconds"),
        (action(r#"{"pool":"gone","duration_s":1}"#), "$.phases[0].action.pool: unknown pool"),
        (action(r#"{"pool":"cpu"}"#), "$.phases[0].action.duration_s: missing"),
        (action(r#"{"pool":"cpu","duration_s":1,"service":"judge"}"#), "$.phases[0].action.service: pool cpu has no GPUs"),
        (action(r#"{"pool":"rm","duration_s":1}"#), "$.phases[0].action.service: missing"),
        (action(r#"{"pool":"rm","duration_s":1,"service":"gone"}"#), "$.phases[0].action.service: unknown service"),
        (action(r#"{"pool":"rm","duration_s":1,"service":"judge","units":[1,2]}"#), "$.phases[0].action.units: none is a degree"),
        (action(r#"{"pool":"cpu","duration_s":1,"units":[]}"#), "$.phases[0].action.units: is empty"),
        (action(r#"{"pool":"cpu","duration_s":1,"units":[2,1]}"#), "$.phases[0].action.units[1]: must be larger"),
        (action(r#"{"pool":"cpu","duration_s":1,"units":[0]}"#), "$.phases[0].action.units[0]: must be a number above 0"),
        (action(r#"{"pool":"cpu","duration_s":1,"units":[0.2,0.5]}"#), "$.phases[0].action.units[1]: must be whole"),
        (action(r#"{"pool":"cpu","duration_s":1,"units":[1.5]}"#), "$.phases[0].action.units[0]: must be whole"),
        (action(r#"{"pool":"search","duration_s":1,"units":[0.5]}"#), "$.phases[0].action.units[0]: must be whole"),
        (action(r#"{"pool":"cpu","duration_s":1,"units":[257]}"#), "$.phases[0].action.units: at least 257 cores, more than the 256 of a node"),
        (action(r#"{"pool":"cpu","duration_s":1,"serial":1.1}"#), "$.phases[0].action.serial: must be from 0 to 1"),
        (action(r#"{"pool":"cpu","duration_s":1,"malleable":1}"#), "$.phases[0].action.malleable: must be true or false"),
        (r#"{"trajectory":"x","memory_gib":2401,"phases":[{"action":{"pool":"cpu","duration_s":1}}]}"#.to_owned(), "$: its memory fits no node of pool cpu"),
    ];
    for (line, want) in cases {
        // A blank line between them is none.
        let workload = format!("{TRAJECTORY}\n\n{line}\n");
        let got =
            simulate(CLUSTER.as_bytes(), workload.as_bytes(), "fixed:1", &["--json"]).unwrap_err();
        assert!(got.starts_with(&format!("-:3: {want}")), "{line}\n got {got}\nwant {want}");
    }
    let empty = simulate(CLUSTER.as_bytes(), b"\n\n", "fixed:1", &[]).unwrap_err();
    assert_eq!(empty, "-:1: $: the workload is empty: give one trajectory on each line");
    let policy = simulate(CLUSTER.as_bytes(), TRAJECTORY.as_bytes(), "best", &[]).unwrap_err();
    assert!(policy.starts_with("--policy:$: unknown policy \"best\": use elastic"), "{policy}");
    let big = simulate(CLUSTER.as_bytes(), TRAJECTORY.as_bytes(), "static:300", &[]).unwrap_err();
    assert_eq!(big, "-:1: $: a pod of 300 cores fits no node of pool cpu: use fewer");
}

#[test]
fn pods_need_a_replica_of_every_service() {
    // The second takes both GPUs; nothing of the workload asks for the first.
    let cluster = br#"{"pools":[{"name":"rm","kind":"gpu","nodes":1,"gpus":2}],
        "services":[{"name":"a","pool":"rm","degrees":[2],"restore_s":1},
                    {"name":"b","pool":"rm","degrees":[1],"restore_s":1}]}"#;
    let workload = br#"{"trajectory":"t","phases":[{"generate_s":1}]}"#;
    for policy in ["static:1", "kubernetes:1:1"] {
        let refusal = simulate(cluster, workload, policy, &["--json"]).unwrap_err();
        assert!(refusal.starts_with("cluster.json:$.services[1]: no replica fits"), "{refusal}");
    }
    assert!(simulate(cluster, workload, "fixed:1", &["--json"]).is_ok());
}

#[test]
fn nodes_that_nobody_needs_cost_nothing() {
    let cluster = CLUSTER.replace("\"nodes\":5", "\"nodes\":100000");
    let small = CLUSTER.replace("\"nodes\":5", "\"nodes\":2000");
    for policy in ["elastic", "elastic-trajectory", "tangram", "fixed:4", "static:4"] {
        let act = |cluster: &str| {
            let text = simulate(cluster.as_bytes(), TRAJECTORY.as_bytes(), policy, &["--json"]);
            serde_json::from_str::<Value>(&text.unwrap()).unwrap()["act_s"].clone()
        };
        assert_eq!(act(&cluster), act(&small), "{policy}");
    }
}

#[test]
fn one_standard_input_is_not_two_files() {
    let args = [
        "kubectl-rollwright",
        "simulate",
        "actions",
        "--cluster",
        "-",
        "--workload",
        "-",
        "--policy",
        "fixed:1",
    ];
    let cli = Cli::try_parse_from(args).unwrap();
    let refused = run(&cli, &mut CLUSTER.as_bytes(), &mut Vec::new()).unwrap_err();
    assert!(refused.to_string().starts_with("--workload:$: standard input is the cluster"));
    assert!(!Path::new("--workload").exists());
}

proptest! {
    #[test]
    fn mutated_inputs_end_in_a_report_or_one_line(
        of_cluster in any::<bool>(),
        cut in (any::<prop::sample::Index>(), 0_usize..12),
        put in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..6),
            prop::sample::select(vec![
                "0", "-1", "1e999", "1e308", "9007199254740991", "null", "[]", "{}", "\"\"", ",", "1,", "\n", "[[[[[[",
            ]).prop_map(|text| text.as_bytes().to_vec()),
        ],
        policy in prop::sample::select(vec!["elastic", "elastic-trajectory", "tangram", "fixed:2", "static:2", "kubernetes:0.5:4"]),
    ) {
        let mut inputs = [CLUSTER.as_bytes().to_vec(), TRAJECTORY.as_bytes().to_vec()];
        let bytes = &mut inputs[usize::from(!of_cluster)];
        let from = cut.0.index(bytes.len());
        let to = (from + cut.1).min(bytes.len());
        bytes.splice(from..to, put);
        match simulate(&inputs[0], &inputs[1], policy, &["--json"]) {
            Ok(text) => prop_assert!(serde_json::from_str::<Value>(&text).unwrap().is_object()),
            Err(line) => prop_assert!(!line.chars().any(char::is_control), "{line:?}"),
        }
    }

    #[test]
    fn any_bytes_end_in_one_line(
        cluster in prop::collection::vec(any::<u8>(), 0..200),
        workload in prop::collection::vec(any::<u8>(), 0..200),
        policy in any::<String>(),
    ) {
        for refused in [
            simulate(&cluster, TRAJECTORY.as_bytes(), "elastic", &["--json"]),
            simulate(CLUSTER.as_bytes(), &workload, "elastic", &["--json"]),
            simulate(CLUSTER.as_bytes(), TRAJECTORY.as_bytes(), &format!("x{policy}"), &["--json"]),
        ] {
            let line = refused.unwrap_err();
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }
}
