//! How long calls and orders may take.

use std::time::Duration;

/// Of a call that says nothing of it.
const CALL: Duration = Duration::from_mins(10);
/// Of an order that says nothing of it.
const ORDER: Duration = Duration::from_mins(10);
/// Longest limit of either.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// How long a call may run.
pub(super) fn call(limit: Option<prost_types::Duration>) -> Duration {
    within(limit, CALL)
}

/// How long an order may take.
pub(super) fn order(limit: Option<prost_types::Duration>) -> Duration {
    within(limit, ORDER)
}

/// What a message says, as far as a clock can count.
fn within(limit: Option<prost_types::Duration>, default: Duration) -> Duration {
    limit.and_then(|limit| limit.try_into().ok()).unwrap_or(default).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_limit_that_no_clock_reaches_is_cut() {
        let longest = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
        let limit = order(Some(longest));
        assert!(Instant::now().checked_add(limit).is_some());
        assert_eq!(call(None), CALL);
    }
}
