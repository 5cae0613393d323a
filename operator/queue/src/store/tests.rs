//! Tests of the store without a queue around it.

use super::*;

const RETENTION: Retention =
    Retention { keep_for: Duration::from_secs(8), max_results: 80, max_bytes: 1 << 20 };

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

fn end(store: &Store, id: &str, now: Time) -> Vec<Durable> {
    use rollwright_core::ids::ActionId;
    let record = Ended { job: "j".into(), at: now.as_nanos(), ..Ended::default() };
    let record = std::sync::Arc::new(record);
    store.commit(vec![Op::End { action: ActionId::new(id).unwrap(), record }], now).unwrap()
}

#[test]
fn results_are_kept_for_their_time_and_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let (store, first) = Store::open(dir.path(), RETENTION, at(1_000)).unwrap();
    end(&store, "a", at(1_000));
    end(&store, "b", at(1_005));
    drop(store);
    let (store, again) = Store::open(dir.path(), RETENTION, at(1_006)).unwrap();
    assert!(again.epoch > first.epoch);
    assert!(again.retained.may_hold("a") && again.retained.may_hold("b"));
    assert!(!again.retained.may_hold("c"));
    assert!(store.result("a", at(1_007)).unwrap().is_some());
    assert!(store.result("a", at(1_008)).unwrap().is_none(), "its time is over");
    assert!(store.result("b", at(1_008)).unwrap().is_some());
    // The bucket goes when the last in it is over, not before.
    let gone = end(&store, "c", at(1_020));
    assert!(gone.iter().any(|durable| matches!(durable, Durable::Expired { early: 0, .. })));
}

#[test]
fn too_many_results_push_out_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), RETENTION, at(1_000)).unwrap();
    for index in 0..200 {
        end(&store, &format!("a{index}"), at(1_000));
    }
    let kept =
        (0..200).filter(|index| store.result(&format!("a{index}"), at(1_000)).unwrap().is_some());
    let kept: Vec<_> = kept.collect();
    assert!(kept.len() <= 90 && kept.last() == Some(&199), "{kept:?}");
}

#[test]
fn a_corrupt_or_foreign_store_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), RETENTION, at(1)).unwrap();
    assert!(matches!(
        Store::open(dir.path(), RETENTION, at(1)).map(drop),
        Err(StoreError::Locked { .. })
    ));
    store.accepted.insert("a", b"\xff\xff\xff").unwrap();
    store.db.persist(PersistMode::SyncAll).unwrap();
    drop(store);
    let error = Store::open(dir.path(), RETENTION, at(1)).map(drop).unwrap_err().to_string();
    assert!(error.contains("corrupt: action `a`"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), RETENTION, at(1)).unwrap();
    let meta = store.db.keyspace("meta", KeyspaceCreateOptions::default).unwrap();
    meta.insert("schema", b"something-else/7").unwrap();
    store.db.persist(PersistMode::SyncAll).unwrap();
    drop((store, meta));
    let error = Store::open(dir.path(), RETENTION, at(1)).map(drop).unwrap_err().to_string();
    assert!(error.contains("something-else/7"), "{error}");
}

#[test]
fn too_many_bytes_push_out_the_oldest_and_that_is_counted() {
    use rollwright_core::ids::ActionId;
    let dir = tempfile::tempdir().unwrap();
    let retention = Retention { max_bytes: 80 << 10, ..RETENTION };
    let (store, _) = Store::open(dir.path(), retention, at(1_000)).unwrap();
    let mut dropped = 0;
    for index in 0..40 {
        let record =
            Ended { trajectory: "x".repeat(4 << 10), at: at(1_000).as_nanos(), ..Ended::default() };
        let action = ActionId::new(&format!("a{index}")).unwrap();
        let op = Op::End { action, record: std::sync::Arc::new(record) };
        for durable in store.commit(vec![op], at(1_000)).unwrap() {
            if let Durable::Expired { early, .. } = durable {
                dropped += early;
            }
        }
    }
    let kept =
        (0..40).filter(|index| store.result(&format!("a{index}"), at(1_000)).unwrap().is_some());
    let kept = kept.count();
    assert!((15..=25).contains(&kept), "{kept}");
    assert_eq!(kept + dropped, 40);
}

#[test]
fn the_directory_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().join("new/store"), dir.path().to_owned()] {
        std::fs::create_dir_all(dir.path()).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        drop(Store::open(&path, RETENTION, at(1)).unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn what_was_learned_is_found_again_the_latest_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let record = |at: u64| {
        let level = Level { units: 2.0, weight: 7.0, mean: 1.5 };
        let (levels, buckets, counts) = (vec![level], vec![-3, 90], vec![1.0, 2.0]);
        let (job, name) = ("j".to_owned(), "tests".to_owned());
        Profile { job, name, at, levels, buckets, counts, ..Profile::default() }
    };
    let (store, first) = Store::open(dir.path(), RETENTION, at(1)).unwrap();
    assert!(first.profiles.is_empty());
    let op = |key: &str, record: Option<Profile>| Op::Profile {
        key: key.to_owned(),
        record: record.map(Box::new),
    };
    // Twice in one batch, since a key may stand in one only once.
    store.commit(vec![op("a", Some(record(1))), op("a", Some(record(2)))], at(1)).unwrap();
    store.commit(vec![op("b", Some(record(3))), op("c", Some(record(4)))], at(1)).unwrap();
    store.commit(vec![op("b", None)], at(1)).unwrap();
    drop(store);
    let (_store, again) = Store::open(dir.path(), RETENTION, at(2)).unwrap();
    let expected = [("a".to_owned(), record(2)), ("c".to_owned(), record(4))];
    assert_eq!(again.profiles, expected);
}

#[test]
fn a_call_that_was_started_is_found_again_until_it_is_answered() {
    use rollwright_core::ids::ActionId;
    let dir = tempfile::tempdir().unwrap();
    let record = |node: &str| StartedCall {
        job: "j".to_owned(),
        service: "judge".to_owned(),
        node: node.to_owned(),
        engine: 7,
        ..StartedCall::default()
    };
    let id = |action: &str| ActionId::new(action).unwrap();
    let start = |action: &str| Op::Start { action: id(action), record: Box::new(record("gpus")) };
    let answer = |action: &str| {
        let call = CallAnswer { service: "judge".to_owned(), ..CallAnswer::default() };
        let ended = Ended { at: at(1).as_nanos(), call: Some(call.into()), ..Ended::default() };
        Op::Answer { action: id(action), record: std::sync::Arc::new(ended) }
    };
    let (store, first) = Store::open(dir.path(), RETENTION, at(1)).unwrap();
    assert!(first.calls.is_empty());
    let durable = store.commit(vec![start("a"), start("b")], at(1)).unwrap();
    let started: Vec<_> = durable
        .into_iter()
        .filter_map(|durable| match durable {
            Durable::Started(action) => Some(action),
            _ => None,
        })
        .collect();
    assert_eq!(started, [id("a"), id("b")]);
    store.commit(vec![answer("a")], at(1)).unwrap();
    // Nobody is to be told of a start that is over already.
    let both = store.commit(vec![start("c"), answer("c")], at(1)).unwrap();
    assert!(matches!(both.as_slice(), [Durable::Answered { .. }]));
    drop(store);
    let (_store, again) = Store::open(dir.path(), RETENTION, at(2)).unwrap();
    assert_eq!(again.calls, [("b".to_owned(), record("gpus"))]);
}
