//! Names and ids. Cheap to clone: they are reference-counted strings.

use std::fmt;
use std::sync::Arc;

/// Longest id accepted, in bytes.
pub const MAX_LEN: usize = 128;

/// A string that cannot be an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{got}` is not a valid {what}: use 1 to {MAX_LEN} characters of A-Z a-z 0-9 . _ / -")]
pub struct InvalidId {
    what: &'static str,
    got: String,
}

fn check(what: &'static str, id: &str) -> Result<(), InvalidId> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._/-".contains(&b);
    if !id.is_empty() && id.len() <= MAX_LEN && id.bytes().all(allowed) {
        return Ok(());
    }
    let got = id.chars().take(MAX_LEN).collect();
    Err(InvalidId { what, got })
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the form: 1 to [`MAX_LEN`] of `[A-Za-z0-9._/-]`.
            pub fn new(id: &str) -> Result<Self, InvalidId> {
                check($what, id).map(|()| Self(id.into()))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id!(
    /// An action's idempotency key.
    ActionId,
    "action id"
);
id!(
    /// A trajectory, and thereby its sandbox.
    TrajectoryId,
    "trajectory id"
);
id!(
    /// The job that pays for an action in fair share.
    JobId,
    "job name"
);
id!(
    /// A node of a CPU pool.
    NodeId,
    "node name"
);
id!(
    /// A named quota of a pool.
    QuotaName,
    "quota name"
);
id!(
    /// A permit of a quota, held by a caller.
    PermitId,
    "permit id"
);
id!(
    /// A group of trajectories that are rolled out for one prompt.
    GroupId,
    "group id"
);
id!(
    /// An inference worker: one engine.
    WorkerId,
    "worker name"
);
id!(
    /// A domain of tasks, such as `swe` or `math`, whose load is alike.
    Task,
    "task name"
);
id!(
    /// A class of hardware that workers run on.
    Class,
    "class name"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_id() {
        for bad in ["", "a b", "ä", "a\n", &"x".repeat(MAX_LEN + 1)] {
            let error = ActionId::new(bad).unwrap_err().to_string();
            assert!(error.contains("valid action id"), "{error}");
        }
        assert_eq!(ActionId::new("g1/t2.reward-3").unwrap().as_str(), "g1/t2.reward-3");
    }
}
