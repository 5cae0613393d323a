//! Quota calls: first come first served under every discipline.

use std::collections::VecDeque;

use rollwright_core::quota::{Quota, QuotaLimit};
use rollwright_core::time::Time;

use super::{Discipline, Queued};
use crate::workload::UNIT;
use crate::world::{Event, World};

/// A quota and those that wait for it.
pub(crate) struct Calls<'a> {
    quota: Quota,
    line: VecDeque<Queued<'a>>,
    wakes_at: Option<Time>,
}

impl<'a> Calls<'a> {
    pub(super) fn new(limit: QuotaLimit) -> Self {
        Self { quota: Quota::new(limit), line: VecDeque::new(), wakes_at: None }
    }

    pub(super) fn submitted(&mut self, queued: Queued<'a>) {
        self.line.push_back(queued);
    }

    pub(super) fn finished(&mut self, pool: usize, world: &mut World<'a>) {
        world.usage[pool].held.remove(UNIT, world.now);
        world.usage[pool].busy.remove(UNIT, world.now);
        self.quota.release(1);
    }

    pub(super) fn round<D: Discipline<'a>>(
        &mut self,
        pool: usize,
        discipline: &D,
        world: &mut World<'a>,
    ) {
        let now = Time::from_nanos(world.now);
        while let Some(&Queued { of, action, .. }) = self.line.front()
            && self.quota.try_take(1, now)
        {
            self.line.pop_front();
            world.usage[pool].held.add(UNIT, world.now);
            world.start(of, action, UNIT, action.nanos(discipline.call(action)));
        }
        let next = self.quota.next_room(now).filter(|_| !self.line.is_empty());
        if let Some(next) = next
            && self.wakes_at != Some(next)
        {
            self.wakes_at = Some(next);
            world.after(next.since(now).as_nanos() as u64, Event::Wakes);
        }
    }
}
