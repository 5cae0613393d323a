//! Single rules, one test each.

use super::log;
use crate::fault::{Fault, FaultKind};
use crate::tokens::{Finish, LengthCap, Record, TokenFault, TokenLog};
use crate::version::Version;

const EOS: u32 = 9;

/// A log after one turn `[1, 2] -> [3, EOS]` under version 7.
fn one_turn(finish: Finish) -> TokenLog {
    let mut log = log();
    log.begin_turn(&[1, 2]).unwrap();
    log.append(&[3], &[-0.5], Version(7)).unwrap();
    log.append(&[EOS], &[-0.25], Version(7)).unwrap();
    log.end_turn(finish).unwrap();
    log
}

fn mask(log: &TokenLog) -> Vec<u8> {
    log.loss_mask().collect()
}

#[test]
fn what_follows_the_log_was_observed() {
    let mut log = one_turn(Finish::Stop);
    log.begin_turn(&[1, 2, 3, EOS, 4, 5]).unwrap();
    log.append(&[6], &[-1.0], Version(8)).unwrap();
    log.end_turn(Finish::Length).unwrap();
    assert_eq!(log.context(), [1, 2, 3, EOS, 4, 5, 6]);
    assert_eq!(mask(&log), [0, 0, 1, 1, 0, 0, 1]);
    let logprobs: Vec<_> = log.logprobs().collect();
    assert_eq!(logprobs, [None, None, Some(-0.5), Some(-0.25), None, None, Some(-1.0)]);
    let versions: Vec<_> = log.versions().iter().map(|r| (r.start, r.end, r.version.0)).collect();
    assert_eq!(versions, [(2, 4, 7), (6, 7, 8)]);
    assert_eq!((log.start_version(), log.newest_version()), (Some(Version(7)), Some(Version(8))));
    assert_eq!((log.turns(), log.finish()), (2, Some(Finish::Length)));
}

#[test]
fn a_repeated_end_token_was_observed() {
    let mut log = one_turn(Finish::Stop);
    log.begin_turn(&[1, 2, 3, EOS, EOS, 4]).unwrap();
    assert_eq!(log.context(), [1, 2, 3, EOS, EOS, 4]);
    assert_eq!(mask(&log), [0, 0, 1, 1, 0, 0]);
}

#[test]
fn a_replaced_end_token_is_not_trained_on() {
    for prompt in [&[1, 2, 3, 8, 4][..], &[1, 2, 3]] {
        let mut log = one_turn(Finish::Stop);
        log.begin_turn(prompt).unwrap();
        assert_eq!(log.context(), prompt);
        assert_eq!(log.generated(), 1);
        log.abandon_turn().unwrap();
        assert_eq!(log, one_turn(Finish::Stop));
    }
}

#[test]
fn a_token_that_is_no_end_token_must_be_there() {
    for finish in [Finish::Length, Finish::Abort, Finish::Other] {
        let mut log = one_turn(finish);
        let before = log.clone();
        let refused = log.begin_turn(&[1, 2, 3, 8, 4]).unwrap_err();
        assert_eq!(refused, TokenFault::Retokenised { at: 3, expected: EOS, got: Some(8) });
        assert_eq!(log, before);
    }
}

#[test]
fn a_history_tokenised_anew_is_refused_with_its_place() {
    let mut log = one_turn(Finish::Stop);
    let refused = log.begin_turn(&[1, 2, 4, EOS, 5]).unwrap_err();
    assert_eq!(refused, TokenFault::Retokenised { at: 2, expected: 3, got: Some(4) });
    let refused = log.begin_turn(&[1]).unwrap_err();
    assert_eq!(refused, TokenFault::Retokenised { at: 1, expected: 2, got: None });
    let fault = Fault::from(&refused);
    assert_eq!((fault.kind, &*fault.reason), (FaultKind::User, "Retokenised"));
    assert!(fault.message.contains("token 1 of the prompt is missing"), "{fault}");
    assert_eq!(log, one_turn(Finish::Stop));
}

#[test]
fn only_one_end_token_may_be_dropped() {
    let mut log = one_turn(Finish::Stop);
    log.begin_turn(&[1, 2, 3]).unwrap();
    log.end_turn(Finish::Stop).unwrap();
    assert!(log.begin_turn(&[1, 2, 4]).is_err());
}

#[test]
fn the_same_prompt_again_begins_the_turn_anew() {
    let mut log = one_turn(Finish::Stop);
    log.begin_turn(&[1, 2]).unwrap();
    log.append(&[5], &[-2.0], Version(8)).unwrap();
    log.end_turn(Finish::Stop).unwrap();
    assert_eq!(log.context(), [1, 2, 5]);
    assert_eq!((log.turns(), log.start_version()), (1, Some(Version(8))));
}

#[test]
fn a_turn_can_begin_again_or_be_abandoned() {
    let mut log = one_turn(Finish::Stop);
    log.begin_turn(&[1, 2, 3, EOS, 4]).unwrap();
    log.append(&[5, 6], &[-1.0, -1.0], Version(7)).unwrap();
    log.restart_turn().unwrap();
    assert_eq!((log.context(), log.turn_tokens()), (&[1, 2, 3, EOS, 4][..], &[][..]));
    log.append(&[7], &[-1.0], Version(8)).unwrap();
    assert_eq!(log.turn_tokens(), [7]);
    log.abandon_turn().unwrap();
    assert_eq!(log, one_turn(Finish::Stop));
}

#[test]
fn nothing_happens_without_a_turn_or_in_a_second_one() {
    let mut log = one_turn(Finish::Stop);
    assert_eq!(log.append(&[1], &[0.0], Version(7)), Err(TokenFault::NoTurn));
    assert_eq!(log.end_turn(Finish::Stop), Err(TokenFault::NoTurn));
    assert_eq!(log.restart_turn(), Err(TokenFault::NoTurn));
    assert_eq!(log.abandon_turn(), Err(TokenFault::NoTurn));
    assert_eq!(log.begin_turn(&[]), Err(TokenFault::EmptyPrompt));
    log.begin_turn(&[1, 2, 3, EOS, 4]).unwrap();
    assert_eq!(log.begin_turn(&[1, 2, 3, EOS, 4]), Err(TokenFault::TurnOpen));
}

#[test]
fn bad_tokens_are_refused_whole() {
    let mut log = one_turn(Finish::Stop);
    log.begin_turn(&[1, 2, 3, EOS, 4]).unwrap();
    let before = log.clone();
    let uneven = TokenFault::Uneven { ids: 2, logprobs: 1 };
    assert_eq!(log.append(&[1, 2], &[0.0], Version(7)), Err(uneven));
    let infinite = TokenFault::BadLogprob { index: 1, got: f32::NEG_INFINITY };
    assert_eq!(log.append(&[1, 2], &[0.0, f32::NEG_INFINITY], Version(7)), Err(infinite));
    assert!(log.append(&[1], &[f32::NAN], Version(7)).is_err());
    assert_eq!(log, before);
}

#[test]
fn the_cap_is_never_passed() {
    let mut log = TokenLog::new(LengthCap { tokens: 4, soft_penalty_tokens: Some(2) });
    let fault = log.begin_turn(&[1, 2, 3, 4]).unwrap_err();
    assert_eq!(fault, TokenFault::TooLong { tokens: 4, cap: 4, fits: 3 });
    log.begin_turn(&[1, 2]).unwrap();
    assert_eq!((log.room(), log.penalty()), (2, 0.0));
    let fault = log.append(&[3, 4, 5], &[0.0; 3], Version(1)).unwrap_err();
    assert_eq!(fault, TokenFault::TooLong { tokens: 5, cap: 4, fits: 2 });
    log.append(&[3, 4], &[0.0; 2], Version(1)).unwrap();
    // What an open turn has made may yet be dropped.
    assert_eq!((log.room(), log.penalty()), (0, 0.0));
    log.end_turn(Finish::Length).unwrap();
    assert_eq!((log.room(), log.penalty()), (0, -1.0));
}

#[test]
fn a_batch_has_its_fields() {
    let json = serde_json::to_value(one_turn(Finish::Stop).training_view()).unwrap();
    let expected = serde_json::json!({
        "token_ids": [1, 2, 3, EOS],
        "logprobs": [null, null, -0.5, -0.25],
        "loss_mask": [0, 0, 1, 1],
        "versions": [{"start": 2, "end": 4, "version": 7}],
    });
    assert_eq!(json, expected);
}

#[test]
fn a_damaged_record_is_no_log() {
    let cap = LengthCap { tokens: 1000, soft_penalty_tokens: None };
    let whole = serde_json::to_value(one_turn(Finish::Stop).record()).unwrap();
    let damage = [
        ("ranges", serde_json::json!([[2, 3, 7]])),
        ("ranges", serde_json::json!([[2, 1, 7]])),
        ("ranges", serde_json::json!([[2, 2, 7], [0, 0, 8]])),
        ("ranges", serde_json::json!([[u32::MAX, u32::MAX, 7]])),
        ("logprobs", serde_json::json!([-0.5])),
        ("last_start", serde_json::json!(5)),
    ];
    for (field, value) in damage {
        let mut record = whole.clone();
        record[field] = value;
        let record: Record<'_> = serde_json::from_value(record).unwrap();
        assert!(TokenLog::from_record(record, cap).is_err(), "{field}");
    }
}
