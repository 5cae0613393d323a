//! What the calls of a scoring are called at the queue.

use std::fmt::Write as _;

use rollwright_core::ids::{MAX_LEN, TrajectoryId};
use sha2::{Digest as _, Sha256};

/// What a model is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) service: &'a str,
    pub(super) path: &'a str,
    pub(super) body: &'a [u8],
}

/// The id of a call, and of a pristine sandbox: `ID.reward`, `ID.reward.2` and so on, for a call
/// with the service, since several may be asked about one trajectory, and a digest of what it
/// is asked: a job made anew may have trajectories of the same names. Another attempt is
/// another id, since the answer of the first is stored.
pub(super) fn name(trajectory: &TrajectoryId, asked: Option<Asked<'_>>, attempt: u32) -> String {
    let mut suffix = ".reward".to_owned();
    if let Some(Asked { service, path, body }) = asked {
        let digest = Sha256::new().chain_update(path).chain_update([0]).chain_update(body);
        suffix = format!(".{service}.{}{suffix}", hex(&digest.finalize()[..8]));
    }
    if attempt > 1 {
        suffix = format!("{suffix}.{attempt}");
    }
    let whole = format!("{trajectory}{suffix}");
    if whole.len() <= MAX_LEN {
        return whole;
    }
    hex(&Sha256::digest(whole.as_bytes())) + ".reward"
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing into a String cannot fail.
        let _ok = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable_distinct_and_short_enough() {
        let id = TrajectoryId::new("g.1").unwrap();
        let asked = |service, body| Some(Asked { service, path: "/pooling", body });
        for (asked, attempt, expected) in [
            (None, 1, "g.1.reward"),
            (None, 2, "g.1.reward.2"),
            (asked("judge", b"{}"), 1, "g.1.judge.e6f3290c96601cd5.reward"),
            (asked("judge", b"{}"), 3, "g.1.judge.e6f3290c96601cd5.reward.3"),
        ] {
            assert_eq!(name(&id, asked, attempt), expected);
        }
        // Another trajectory of that name is another call.
        assert_ne!(name(&id, asked("judge", b"{}"), 1), name(&id, asked("judge", b"[]"), 1));
        let long = |last: &str| TrajectoryId::new(&format!("{}{last}", "x".repeat(127))).unwrap();
        let names = [
            name(&long("a"), None, u32::MAX),
            name(&long("b"), None, u32::MAX),
            name(&long("b"), None, 1),
            name(&long("b"), asked("judge", b"{}"), 1),
        ];
        for (at, one) in names.iter().enumerate() {
            assert!(one.len() <= MAX_LEN && !names[..at].contains(one), "{one}");
            assert!(TrajectoryId::new(one).is_ok());
        }
    }
}
