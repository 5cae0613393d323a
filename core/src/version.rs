//! Numbers that name things: a policy's version, a request, a batch.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A version of the policy's weights; a later one is greater.
    Version
);
number!(
    /// A generation request: one HTTP call. Greater than that of every earlier call
    /// to the same gateway, so it is also the order of arrival.
    RequestId
);
number!(
    /// A batch that was given to the trainer.
    BatchId
);
