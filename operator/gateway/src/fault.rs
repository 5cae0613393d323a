//! Faults of the gateway, by their kind.

use rollwright_core::fault::{Fault, FaultKind};

/// The request was wrong.
pub(crate) fn user(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::User, reason, message)
}

/// Something of ours, or below us, failed.
pub(crate) fn infrastructure(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Infrastructure, reason, message)
}

/// Somebody cancelled it.
pub(crate) fn cancelled(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Cancelled, reason, message)
}
