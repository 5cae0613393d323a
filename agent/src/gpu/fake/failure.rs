//! What can go wrong on the fake, on order.

use std::path::Path;

use rollwright_core::gpu::Order;

/// A failure to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FakeFailure {
    /// A sleep returns without an error, and nothing is done.
    SleepLies,
    /// A sleep does what it says, and the memory does not return.
    MemoryStays,
    /// A wake-up does not return.
    WakeHangs,
    /// A wake-up returns, and the engine answers nothing.
    WakesMute,
    /// The process dies while it is restored.
    DiesRestoring,
    /// The device reports an error of its memory (ECC).
    MemoryError,
    /// The node has no memory for another engine.
    HostShort,
    /// The process cannot be ended.
    StopHangs,
}

impl FakeFailure {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SleepLies,
        Self::MemoryStays,
        Self::WakeHangs,
        Self::WakesMute,
        Self::DiesRestoring,
        Self::MemoryError,
        Self::HostShort,
        Self::StopHangs,
    ];

    /// The order that it fails.
    pub(super) fn of(self, what: Order) -> bool {
        match self {
            Self::SleepLies | Self::MemoryStays => what == Order::Evict,
            Self::WakeHangs => what == Order::Wake,
            Self::WakesMute | Self::DiesRestoring | Self::MemoryError => {
                matches!(what, Order::Wake | Order::Launch)
            }
            Self::HostShort => what == Order::Launch,
            Self::StopHangs => what == Order::Stop,
        }
    }
}

/// A failure of this order that a file asks for, which is then removed.
pub(super) fn ordered(dir: &Path, what: Order) -> Option<FakeFailure> {
    let of_order = FakeFailure::ALL.into_iter().filter(|failure| failure.of(what));
    // Whoever removes the file has it: one failure for each.
    of_order.into_iter().find(|f| std::fs::remove_file(dir.join(format!("{f:?}"))).is_ok())
}
