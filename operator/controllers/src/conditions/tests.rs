use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const KINDS: [&str; 3] = ["Ready", "Resolved", "Bound"];
const REASONS: [&str; 2] = ["AsSpecified", "NoNodes"];

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let wish = (0..KINDS.len(), 0..3_u8, 0..REASONS.len()).prop_map(|(kind, status, reason)| {
        let (kind, reason) = (KINDS[kind], REASONS[reason]);
        match status {
            0 => Wish::is_true(kind, reason, "m"),
            1 => Wish::is_false(kind, reason, "m"),
            _ => Wish::unknown(kind, reason, "m"),
        }
    });
    proptest::collection::vec(wish, 0..5)
}

proptest! {
    /// Against a model that remembers, for each condition, when its status last changed.
    #[test]
    fn a_transition_time_is_when_the_status_last_changed(steps in proptest::collection::vec(wishes(), 1..12)) {
        let mut conditions = Vec::new();
        let mut model: BTreeMap<&str, (&str, i64)> = BTreeMap::new();
        for (step, wished) in steps.into_iter().enumerate() {
            let now = i64::try_from(step).unwrap() * 10;
            let first: BTreeMap<&str, Wish> =
                wished.iter().rev().map(|wish| (wish.kind, wish.clone())).collect();
            model.retain(|kind, _| first.contains_key(kind));
            for (kind, wish) in &first {
                let entry = model.entry(kind).or_insert((wish.status, now));
                if entry.0 != wish.status {
                    *entry = (wish.status, now);
                }
            }
            let timestamp = Timestamp::from_millisecond(now * 1000 + 7).unwrap();
            conditions = merge(&conditions, wished, Some(3), timestamp);
            let seen: BTreeMap<&str, (&str, i64)> = conditions
                .iter()
                .map(|c| (c.type_.as_str(), (c.status.as_str(), c.last_transition_time.0.as_second())))
                .collect();
            prop_assert_eq!(conditions.len(), model.len());
            prop_assert_eq!(&seen, &model);
        }
    }

    /// The same wishes again change nothing, at whatever time: no write in steady state.
    #[test]
    fn merging_again_is_the_identity(wished in wishes(), later in 1..1000_i64) {
        let at = |second| Timestamp::from_second(second).unwrap();
        let once = merge(&[], wished.clone(), Some(1), at(0));
        prop_assert!(changed(&once, &once_per_kind(&wished)).next().is_none());
        let twice = merge(&once, wished, Some(1), at(later));
        prop_assert_eq!(once, twice);
    }
}

fn once_per_kind(wished: &[Wish]) -> Vec<Wish> {
    let mut first: Vec<Wish> = Vec::new();
    for wish in wished {
        if first.iter().all(|earlier| earlier.kind != wish.kind) {
            first.push(wish.clone());
        }
    }
    first
}

#[test]
fn a_long_message_is_cut_at_a_character() {
    let merged = merge(
        &[],
        vec![Wish::is_true("Ready", "R", "é".repeat(3000))],
        None,
        Timestamp::UNIX_EPOCH,
    );
    assert_eq!(merged[0].message.chars().count(), LONGEST_MESSAGE + 3);
}
