use super::*;
use crate::job::fleet::{Kind, Node, Worker};
use crate::job::observe::Trial;
use rollwright_core::router::Role;

const UID: &str = "u";

fn seen(name: &str, node: &str, trial: Option<Trial>, failed: bool) -> Seen {
    let kind = Kind { pool: "h20".parse().unwrap(), role: Role::Mixed, degree: 2 };
    let stage = if failed { Stage::Failing } else { Stage::Starting };
    Seen {
        worker: Worker {
            name: name.into(),
            kind,
            nodes: vec![node.into()],
            stage,
            current: true,
            idle: true,
        },
        class: "h20".into(),
        ip: None,
        started: false,
        trouble: None,
        trial,
        failed,
        version: None,
    }
}

/// How far `n0` is trusted, and which workers are given up, after a look.
fn judge(book: &Setbacks, mut seen: Vec<Seen>, now: Instant) -> (Trust, Vec<String>) {
    let node =
        Node { pool: "h20".parse().unwrap(), gpus: 8, taken: 0, open: true, trust: Trust::Good };
    let mut nodes: Nodes = [("n0".to_owned(), node)].into();
    book.judge(UID, &mut seen, &mut nodes, now);
    let failing = seen.into_iter().filter(|seen| seen.worker.stage == Stage::Failing);
    (nodes["n0"].trust, failing.map(|seen| seen.worker.name).collect())
}

#[test]
fn a_node_rests_ever_longer_up_to_a_bound_and_is_forgiven_in_the_end() {
    let book = Setbacks::default();
    let mut now = Instant::now();
    let mut waits = Vec::new();
    for round in 0..8 {
        let failed = seen(&format!("w{round}"), "n0", None, true);
        assert_eq!(judge(&book, vec![failed], now).0, Trust::None);
        let mut waited = 0;
        while judge(&book, Vec::new(), now).0 == Trust::None {
            (now, waited) = (now + Duration::from_secs(1), waited + 1);
        }
        assert_eq!(judge(&book, Vec::new(), now).0, Trust::Low);
        waits.push(waited);
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(judge(&book, Vec::new(), now + FORGOTTEN).0, Trust::Good);
    assert!(book.jobs.lock().unwrap().is_empty(), "and nothing of it is kept");
}

#[test]
fn a_failure_counts_once_however_often_and_in_whatever_number_it_is_seen() {
    let book = Setbacks::default();
    let begun = Instant::now();
    let both = || vec![seen("a", "n0", None, true), seen("b", "n0", None, true)];
    judge(&book, both(), begun);
    assert_eq!(judge(&book, both(), begun + FIRST).0, Trust::Low, "it has waited its time");
    assert_eq!(judge(&book, vec![seen("c", "n1", None, true)], begun + FIRST).0, Trust::Low);
}

#[test]
fn what_is_in_trouble_for_too_long_without_a_break_is_given_up() {
    let book = Setbacks::default();
    let begun = Instant::now();
    let troubled = |trial| vec![seen("a", "n0", trial, false)];
    let patience = Trial::Refused.patience();
    assert_eq!(judge(&book, troubled(Some(Trial::Refused)), begun), (Trust::Good, vec![]));
    let almost = begun + patience.checked_sub(Duration::from_secs(1)).unwrap();
    assert_eq!(judge(&book, troubled(Some(Trial::Refused)), almost).1, [""; 0]);
    // A break.
    assert_eq!(judge(&book, troubled(None), almost).1, [""; 0]);
    assert_eq!(judge(&book, troubled(Some(Trial::Refused)), begun + patience).1, [""; 0]);
    let later = begun + patience * 2;
    assert_eq!(
        judge(&book, troubled(Some(Trial::Refused)), later),
        (Trust::None, vec!["a".into()])
    );
    // Where the node takes nobody any more there is nothing to wait for.
    let closed = vec![seen("b", "n0", Some(Trial::Closed), false)];
    assert_eq!(judge(&book, closed, later).1, ["b"]);
}

#[test]
fn jobs_that_nobody_looks_at_any_more_are_forgotten() {
    let book = Setbacks::default();
    let begun = Instant::now();
    judge(&book, vec![seen("a", "n0", None, true)], begun);
    book.judge("another", &mut [], &mut Nodes::new(), begun + FORGOTTEN);
    assert!(book.jobs.lock().unwrap().is_empty());
}
