//! What the calls of a scoring are called at the queue.

use std::fmt::Write as _;

use rollwright_core::ids::{MAX_LEN, TrajectoryId};
use sha2::{Digest as _, Sha256};

/// The id of a call, and of a pristine sandbox: `ID.reward`, `ID.reward.2` and so on, with
/// the name of the service where several may be asked about one trajectory. Another attempt
/// is another id, since the answer of the first is stored.
pub(super) fn name(trajectory: &TrajectoryId, service: Option<&str>, attempt: u32) -> String {
    let mut suffix = ".reward".to_owned();
    if let Some(service) = service {
        suffix = format!(".{service}{suffix}");
    }
    if attempt > 1 {
        suffix = format!("{suffix}.{attempt}");
    }
    let whole = format!("{trajectory}{suffix}");
    if whole.len() <= MAX_LEN {
        return whole;
    }
    let mut name = String::with_capacity(MAX_LEN);
    for byte in Sha256::digest(whole.as_bytes()) {
        // Writing into a String cannot fail.
        let _ok = write!(name, "{byte:02x}");
    }
    name + ".reward"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable_distinct_and_short_enough() {
        let id = TrajectoryId::new("g.1").unwrap();
        for (service, attempt, expected) in [
            (None, 1, "g.1.reward"),
            (None, 2, "g.1.reward.2"),
            (Some("judge"), 1, "g.1.judge.reward"),
            (Some("judge"), 3, "g.1.judge.reward.3"),
        ] {
            assert_eq!(name(&id, service, attempt), expected);
        }
        let long = |last: &str| TrajectoryId::new(&format!("{}{last}", "x".repeat(127))).unwrap();
        let names = [
            name(&long("a"), None, u32::MAX),
            name(&long("b"), None, u32::MAX),
            name(&long("b"), None, 1),
            name(&long("b"), Some("judge"), 1),
        ];
        for (at, one) in names.iter().enumerate() {
            assert!(one.len() <= MAX_LEN && !names[..at].contains(one), "{one}");
            assert!(TrajectoryId::new(one).is_ok());
        }
    }
}
