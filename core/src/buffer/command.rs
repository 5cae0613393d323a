//! What the buffer decides.

use super::event::{Batch, SettledGroup, Taker};
use crate::version::BatchId;

/// An output of [`super::Buffer::on_event`], to be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Write the batch's number and groups to disk, unless it is given `again`; then
    /// answer the takers.
    Deliver {
        /// The batch.
        batch: Batch,
        /// Who waits for it.
        takers: Vec<Taker>,
        /// It was delivered before and is on disk.
        again: bool,
    },
    /// The batch is done: remove it and its groups from disk, in one write, then answer.
    Remove {
        /// Its number, to be kept as the last.
        batch: BatchId,
        /// Its groups.
        groups: Vec<SettledGroup>,
    },
    /// The group is too old: remove it from disk.
    Evict(SettledGroup),
}
