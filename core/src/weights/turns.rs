//! Which worker's turn it is in a commit.

use super::Weights;
use super::config::Strategy;
use super::worker::{At, Phase, Then, Worker};
use crate::ids::WorkerId;

/// Failures after which a rolling update that no worker has managed is given up.
const ROLLING_GIVES_UP: usize = 2;

impl Weights {
    /// What follows from the event as a whole.
    pub(super) fn review(&mut self) {
        loop {
            self.take_turns();
            if !self.conclude() {
                break;
            }
        }
        self.check_pins();
    }

    /// Takes workers out of service whose turn it is.
    fn take_turns(&mut self) {
        let of = |test: fn(&Worker) -> bool| {
            let found = self.workers.iter().filter(|(_, worker)| test(worker));
            found.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        };
        let (ready, barred) = (of(Worker::ready), of(Worker::barred));
        let at_work = of(|worker| worker.held() && worker.job().is_some()).len();
        let pulling = !of(Worker::pulls).is_empty();
        let pulling_in_service = !of(|worker| worker.pulls() && !worker.held()).is_empty();
        let away = of(|worker| worker.held_since.is_some() && worker.job().is_some()).len();
        let update = self.update.as_ref().filter(|update| update.commits());
        let hopeless = update.is_some_and(|update| {
            update.succeeded == 0 && update.failures.len() >= ROLLING_GIVES_UP
        });
        let succeeded = update.is_some_and(|update| update.succeeded > 0);
        let alive = succeeded || !ready.is_empty() || at_work > 0;
        let go = match self.config.strategy {
            Strategy::Pause if pulling_in_service => 0,
            Strategy::Pause => ready.len(),
            Strategy::Rolling { .. } if hopeless => {
                if at_work == 0 {
                    self.give_up();
                    return;
                }
                0
            }
            Strategy::Rolling { max_unavailable } => {
                (max_unavailable.max(1) as usize).saturating_sub(away)
            }
        };
        for id in ready.iter().take(go) {
            if let Some(Phase::Working(_, At::Ready { after })) =
                self.workers.get(id).map(|worker| &worker.phase)
            {
                let after = *after;
                self.go_on(id, after);
            }
        }
        // Where all stop at once, nobody serves the old version beside those that go on.
        let others_go = self.config.strategy == Strategy::Pause && go > 0;
        for id in barred.iter().filter(|_| !pulling || others_go) {
            self.bar(id, alive);
        }
    }

    /// A worker could not pull the version: it leaves service if any other could.
    fn bar(&mut self, id: &WorkerId, alive: bool) {
        let Some(worker) = self.workers.get(id) else { return };
        let Phase::Working(_, At::Barred(fault)) = &worker.phase else { return };
        let fault = fault.clone();
        let member = self.update.as_ref().is_some_and(|update| update.members.contains(id));
        if alive || !member {
            self.drain(id, Then::Fail(fault));
        } else {
            self.release(id);
            self.failed(id, fault);
        }
    }

    /// Leaves those in service at the old version whose turn has not come.
    fn give_up(&mut self) {
        let Some(update) = &mut self.update else { return };
        for id in std::mem::take(&mut update.members) {
            self.release(&id);
        }
    }
}
