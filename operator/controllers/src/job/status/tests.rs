use super::*;
use crate::gateway_client::Buffer;
use crate::golden;
use crate::job::fixtures;
use crate::job::plan::Fallback;
use crate::job::validate::Stops;
use rollwright_core::router::Role;

fn job() -> RolloutJob {
    fixtures::job(&fixtures::spec("{fixed: {groups: [{pool: h20, degree: 2, workers: 2}]}}", ""))
}

fn seen(name: &str, stage: Stage, version: i64) -> Seen {
    let kind = Kind { pool: "h20".parse().unwrap(), role: Role::Mixed, degree: 2 };
    Seen {
        worker: Worker {
            name: name.into(),
            kind,
            nodes: vec!["n0".into()],
            stage,
            current: true,
            idle: false,
        },
        class: "h20".into(),
        ip: Some("10.0.0.7".into()),
        started: true,
        trouble: None,
        trial: None,
        failed: false,
        version: Some(version),
    }
}

fn state(version: i64, tokens: f64) -> JobState {
    JobState {
        version,
        buffer: Buffer { trajectories: 8 },
        kept_fraction: Some(0.5),
        tokens_per_second: Some(tokens),
        straggler_tax: None,
    }
}

fn kept(names: &[&str]) -> Plan {
    Plan { kept: names.iter().map(|name| (*name).to_owned()).collect(), ..Plan::default() }
}

fn outcome<'a>(
    seen: &'a [Seen],
    plan: Option<(&'a Plan, &'a Ground)>,
    job: Result<&'a JobState, &'a str>,
) -> Outcome<'a> {
    Outcome {
        problems: &[],
        waits_for_keys: false,
        seen,
        plan,
        below: None,
        minimum: 2,
        job,
        unfinished: false,
        refused: None,
        resting: &[],
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn holds(status: &RolloutJobStatus, kind: &str) -> bool {
    status.conditions.iter().any(|of| of.type_ == kind && of.status == "True")
}

#[test]
fn a_job_that_runs() {
    let workers = [seen("a", Stage::Serving, 3), seen("b", Stage::Serving, 3)];
    let (plan, ground) = (kept(&["a", "b"]), Ground::from("as listed"));
    let state = state(3, 1234.5);
    let outcome = outcome(&workers, Some((&plan, &ground)), Ok(&state));
    let (found, _) = status(&job(), &outcome, at(0));
    golden::check("job", "status", &found.clone());
    assert!(holds(&found, types::READY) && holds(&found, types::GATEWAY_REACHABLE));
    assert_eq!(found.phase, Some(Phase::Running));
}

#[test]
fn what_trembles_is_not_written() {
    let workers = [seen("a", Stage::Serving, 3)];
    let (plan, ground) = (kept(&["a"]), Ground::new());
    let first = state(3, 1000.0);
    let mut job = job();
    let (before, _) = status(&job, &outcome(&workers, Some((&plan, &ground)), Ok(&first)), at(0));
    job.status = Some(before.clone());
    let near = state(3, 1150.0);
    let (after, _) = status(&job, &outcome(&workers, Some((&plan, &ground)), Ok(&near)), at(60));
    assert_eq!(before, after, "neither the rate nor the time");
    let far = state(3, 2000.0);
    let (after, _) = status(&job, &outcome(&workers, Some((&plan, &ground)), Ok(&far)), at(60));
    assert_eq!(after.tokens_per_second, Some(2000.0));
}

#[test]
fn a_silent_gateway_keeps_the_figures_and_is_said() {
    let workers = [seen("a", Stage::Serving, 3)];
    let (plan, ground) = (kept(&["a"]), Ground::new());
    let first = state(3, 1000.0);
    let mut job = job();
    let (before, _) = status(&job, &outcome(&workers, Some((&plan, &ground)), Ok(&first)), at(0));
    job.status = Some(before.clone());
    let silent = outcome(&workers, Some((&plan, &ground)), Err("no pod of it runs"));
    let (after, _) = status(&job, &silent, at(1));
    assert!(!holds(&after, types::GATEWAY_REACHABLE) && !holds(&after, types::READY));
    assert_eq!(after.tokens_per_second, before.tokens_per_second);
    assert_eq!(after.workers, before.workers);
}

#[test]
fn fallbacks_waiting_and_problems_are_said() {
    let kind = Kind { pool: "h800".parse().unwrap(), role: Role::Mixed, degree: 8 };
    let way = Fallback { from: "h800".parse().unwrap(), to: "h20".parse().unwrap() };
    let plan =
        Plan { waiting: [(kind, 3)].into(), fallbacks: [(way, 2)].into(), ..Plan::default() };
    let ground = Ground::new();
    let state = state(0, 0.0);
    let mut outcome = outcome(&[], Some((&plan, &ground)), Ok(&state));
    let (found, wishes) = status(&job(), &outcome, at(0));
    assert!(holds(&found, types::AFFINITY_FALLBACK));
    let said =
        |kind: &str| wishes.iter().find(|wish| wish.kind() == kind).unwrap().message().to_owned();
    assert!(said(types::AFFINITY_FALLBACK).contains("2 workers are on `h20`: `h800` had no room"));
    assert_eq!(said(types::PROGRESSING), "no room for 3 of degree 8 on `h800`");
    assert_eq!(found.workers[0].wanted, 3);
    let problem = Problem {
        reason: reasons::POOL_NOT_FOUND,
        message: "there is no pool".to_owned(),
        stops: Stops::Workers,
    };
    let problems = [problem];
    outcome.problems = &problems;
    outcome.plan = None;
    let (found, _) = status(&job(), &outcome, at(0));
    assert!(!holds(&found, types::RESOLVED) && !holds(&found, types::READY));
    assert_eq!(found.phase, Some(Phase::Failed));
}

#[test]
fn below_the_minimum_is_said_until_it_is_over() {
    let (plan, ground) = (kept(&["a"]), Ground::new());
    let state = state(0, 0.0);
    let mut job = job();
    let gone = [seen("a", Stage::Draining, 0)];
    let mut now = outcome(&gone, Some((&plan, &ground)), Ok(&state));
    now.below = Some(0);
    job.status = Some(status(&job, &now, at(0)).0);
    assert!(holds(job.status.as_ref().unwrap(), types::CAPACITY_BELOW_MINIMUM));
    let coming = [seen("a", Stage::Starting, 0)];
    let (found, _) = status(&job, &outcome(&coming, Some((&plan, &ground)), Ok(&state)), at(1));
    assert!(holds(&found, types::CAPACITY_BELOW_MINIMUM), "it does not serve yet");
    job.status = Some(found);
    let there = [seen("a", Stage::Serving, 0)];
    let (found, _) = status(&job, &outcome(&there, Some((&plan, &ground)), Ok(&state)), at(2));
    assert!(!holds(&found, types::CAPACITY_BELOW_MINIMUM));
}

#[test]
fn a_suspended_job_is_one_without_workers() {
    let (plan, ground) = (Plan::default(), Ground::new());
    let mut job = job();
    job.spec.suspend = true;
    let workers = [seen("a", Stage::Draining, 0)];
    let state = state(0, 0.0);
    let (found, _) = status(&job, &outcome(&workers, Some((&plan, &ground)), Ok(&state)), at(0));
    assert!(!holds(&found, types::SUSPENDED));
    let (found, _) = status(&job, &outcome(&[], Some((&plan, &ground)), Ok(&state)), at(0));
    assert!(holds(&found, types::SUSPENDED));
    assert_eq!(found.phase, Some(Phase::Suspended));
}

#[test]
fn figures_have_three_digits() {
    let shown = |old, new| steady(old, new).to_string();
    assert_eq!(shown(None, 1234.56), "1230");
    assert_eq!(shown(None, 0.123_456), "0.123");
    assert_eq!(shown(Some(5.0), 0.0), "0");
    assert_eq!(shown(Some(0.0), 7.0), "7");
}

#[test]
fn nodes_that_rest_are_told_from_nodes_that_are_full() {
    let kind = Kind { pool: "h20".parse().unwrap(), role: Role::Mixed, degree: 2 };
    let plan = Plan { waiting: [(kind, 1)].into(), ..Plan::default() };
    let ground = Ground::new();
    let job_state = state(1, 1.0);
    let progressing = |resting: &[&str]| {
        let outcome = Outcome { resting, ..outcome(&[], Some((&plan, &ground)), Ok(&job_state)) };
        let (_, wishes) = status(&job(), &outcome, Timestamp::UNIX_EPOCH);
        let wish = wishes.into_iter().find(|of| of.kind() == types::PROGRESSING).unwrap();
        (wish.reason(), wish.message().to_owned())
    };
    assert_eq!(progressing(&[]).0, reasons::WAITING_FOR_GPUS);
    let (reason, message) = progressing(&["n0", "n1"]);
    assert_eq!(reason, reasons::WORKERS_FAILING);
    assert!(message.contains("2 of the nodes (n0, n1)"), "{message}");
}
