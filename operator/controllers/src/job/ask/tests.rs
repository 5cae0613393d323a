use super::*;
use crate::gateway_client::Buffer;

fn told(drain: bool) -> Vec<WishedWorker> {
    vec![WishedWorker {
        name: "w".into(),
        url: "http://10.0.0.7:8000".into(),
        class: "h20".into(),
        role: "mixed",
        slots: 8,
        drain,
        bootstrap_port: None,
    }]
}

fn said(state: &str, drain: bool, at: Instant) -> Answer {
    let workers =
        vec![WorkerState { name: "w".into(), state: state.into(), in_flight: 3, version: Some(1) }];
    let job = JobState {
        version: 1,
        buffer: Buffer { trajectories: 8 },
        kept_fraction: None,
        tokens_per_second: Some(7.0),
        straggler_tax: None,
    };
    Answer { address: "10.0.0.9:9470".into(), told: told(drain), workers, job, at }
}

/// For how many seconds the answer is believed when it is told this.
fn believed(answer: Answer, address: &str, told: &[WishedWorker]) -> u64 {
    let (answers, at) = (Answers::default(), answer.at);
    answers.open().insert("u".into(), answer);
    let fresh = |after| answers.fresh("u", address, told, at + Duration::from_secs(after));
    (0..60).take_while(|after| fresh(*after).is_some()).count() as u64
}

#[test]
fn a_busy_gateway_is_asked_at_the_controllers_pace_and_not_at_that_of_its_figures() {
    let at = Instant::now();
    let address = "10.0.0.9:9470";
    assert_eq!(believed(said("serving", false, at), address, &told(false)), LATER.as_secs());
    assert_eq!(believed(said("joining", false, at), address, &told(false)), SOON.as_secs());
    assert_eq!(believed(said("draining", true, at), address, &told(true)), SOON.as_secs());
}

#[test]
fn it_is_told_at_once_what_it_does_not_know() {
    let at = Instant::now();
    let answer = || said("serving", false, at);
    assert_eq!(believed(answer(), "10.0.0.9:9470", &told(true)), 0, "a worker is drained");
    assert_eq!(believed(answer(), "10.0.0.9:9470", &[]), 0, "one is gone");
    assert_eq!(believed(answer(), "10.0.0.10:9470", &told(false)), 0, "it is another pod");
}

#[test]
fn answers_to_jobs_that_are_gone_are_forgotten() {
    let (answers, at) = (Answers::default(), Instant::now());
    answers.open().insert("u".into(), said("serving", false, at));
    assert_eq!(answers.fresh("another", "a", &[], at + LATER * 8), None);
    assert!(answers.open().is_empty());
}
