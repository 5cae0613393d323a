//! One worker as the router sees it.

use std::collections::BTreeSet;

use super::affinity::ClassIndex;
use super::breaker::Breaker;
use super::event::{Role, WorkerSpec};
use super::need::Need;
use crate::ids::WorkerId;
use crate::version::{RequestId, Version};

/// A worker's number inside the router; never given twice.
pub(super) type Seat = u32;

/// Requests in flight for each slot, in units of 2^-16.
pub(super) type Load = u64;

/// Whether a worker stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stay {
    Here,
    /// Goes when what it has in flight has ended.
    Draining,
    /// Left: only known until what it had in flight has ended.
    Gone,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) class: ClassIndex,
    pub(super) role: Role,
    pub(super) slots: u32,
    pub(super) version: Option<Version>,
    pub(super) stay: Stay,
    pub(super) held: bool,
    /// Gets only what is pinned to its version.
    pub(super) reserved: bool,
    /// Why its health check fails.
    pub(super) unhealthy: Option<String>,
    pub(super) breaker: Breaker,
    pub(super) in_flight: BTreeSet<RequestId>,
}

impl Worker {
    pub(super) fn new(id: WorkerId, class: ClassIndex, spec: &WorkerSpec, held: bool) -> Self {
        Self {
            id,
            class,
            role: spec.role,
            slots: spec.slots,
            version: spec.version,
            stay: Stay::Here,
            held,
            reserved: false,
            unhealthy: None,
            breaker: Breaker::new(),
            in_flight: BTreeSet::new(),
        }
    }

    /// Stays, and answers its health check.
    pub(super) fn healthy(&self) -> bool {
        self.stay == Stay::Here && self.unhealthy.is_none()
    }

    /// Works, or will at once when it is no longer held.
    pub(super) fn in_service(&self) -> bool {
        self.healthy() && !self.breaker.is_open()
    }

    /// Takes requests as soon as it has room.
    pub(super) fn usable(&self) -> bool {
        self.in_service() && !self.held
    }

    /// Takes a request now.
    pub(super) fn has_room(&self) -> bool {
        self.usable() && self.in_flight.len() < self.slots as usize && self.breaker.admits()
    }

    pub(super) fn gone(&self) -> bool {
        self.stay == Stay::Gone
    }

    pub(super) fn meets(&self, need: Need) -> bool {
        need.met_by(self.version) && (!self.reserved || matches!(need, Need::Exactly(_)))
    }

    pub(super) fn load(&self) -> Load {
        ((self.in_flight.len() as Load) << 16) / Load::from(self.slots.max(1))
    }

    /// Has ended everything although it is to get no more.
    pub(super) fn idle(&self) -> bool {
        let quiet = match self.stay {
            Stay::Here => self.held,
            Stay::Draining => true,
            Stay::Gone => false,
        };
        quiet && self.in_flight.is_empty()
    }
}
