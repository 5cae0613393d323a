//! A node's line under the elastic policy: views of it to the decision, and what the
//! decision says carried out.
//!
//! *Fair share and ranks.* Within a job the line is in the order of ranks, between jobs
//! in the order of standings: the view is the order in which the line would be served if
//! each took its least units and nothing ended. So a burst of one job stands behind the
//! first of another. Nothing starves: a job that holds nothing stands before all that
//! hold something, and while it waits what it was served stays while that of the others
//! grows; within it a rank never changes, so that only finitely many rank before an
//! action, those that are submitted within its own work after it; and the decision
//! itself passes the first of the view only where that does not delay it.

use std::time::Duration;

use super::action::{Place, Waiter};
use super::command::Outcome;
use super::held::Held;
use super::node::Node;
use super::{Queue, Seq, Timer};
use crate::cpu::CpuGrant;
use crate::elastic::{Decision, Elastic, Given, Line, Running, Waiting, Work};
use crate::fault::{Fault, FaultKind};
use crate::ids::NodeId;
use crate::profile::ProfileKey;
use crate::resources::Units;
use crate::time::Time;

/// Waiting actions of a line that a decision is shown; the rest only counts.
const SHOWN: usize = 96;

/// What would get more than its least units waits this part of its time, and no longer than
/// [`GATHER_MOST`], for those that are submitted together with it: submissions come one by
/// one, and what has begun on many cores does not give them back.
const GATHER: f64 = 1.0 / 200.0;
const GATHER_MOST: Duration = Duration::from_millis(20);

/// What is to be done with a line next.
enum Step {
    /// These can never run here.
    Refuse(Vec<Seq>),
    Do(Decided),
}

/// A decision, in terms of the queue.
#[derive(Default)]
struct Decided {
    resizes: Vec<(Seq, Units)>,
    starts: Vec<(Seq, Units)>,
    /// When the first is due of those that wait for others to come.
    gathers: Option<Time>,
    /// There may be more to do when this is done.
    more: bool,
}

impl Queue {
    pub(super) fn serve_line(&mut self, id: &NodeId) {
        self.expect_the_late(id);
        let mut gathers = None;
        while let Some(step) = self.next_step(id) {
            let waited = self.nodes.get(id).map(|node| node.line.len());
            let more = match step {
                Step::Refuse(never) => {
                    for seq in never {
                        self.exceeds_node(id, seq);
                    }
                    true
                }
                Step::Do(Decided { resizes, starts, gathers: due, mut more }) => {
                    gathers = due;
                    for (seq, units) in resizes {
                        self.resize(id, seq, units);
                    }
                    for (seq, units) in starts {
                        // Cores that were meant for one that needs quota are free again.
                        more |= !self.start(id, seq, units);
                    }
                    more
                }
            };
            if !more || self.nodes.get(id).map(|node| node.line.len()) == waited {
                break;
            }
        }
        self.wake_for_line(id, gathers);
    }

    /// What can be done at once, if anything.
    fn next_step(&mut self, id: &NodeId) -> Option<Step> {
        let node = self.nodes.get_mut(id).filter(|node| node.connected)?;
        let malleable = node.running.values().any(Held::is_resizable);
        if !malleable && (node.line.len() == 0 || node.cpu.is_full()) {
            return None;
        }
        // Taken out, since it looks at the rest of the node.
        let mut elastic = std::mem::take(&mut node.elastic);
        let step = self.step(id, &mut elastic);
        if let Some(node) = self.nodes.get_mut(id) {
            node.elastic = elastic;
        }
        step
    }

    fn step(&self, id: &NodeId, elastic: &mut Elastic) -> Option<Step> {
        let node = self.nodes.get(id)?;
        let amount = |waiter: &Waiter| u64::from(waiter.work.least().units.micros());
        let order = node.line.in_order(&self.cpu_share, self.now, SHOWN, amount);
        let most = node.cpu.exclusive_capacity();
        let exceeds = |units: Units| {
            !units.is_share() && usize::try_from(units.ceil()).is_ok_and(|c| c > most)
        };
        let never = order.iter().filter(|(_, waiter)| exceeds(waiter.work.least().units));
        let never: Vec<Seq> = never.map(|(place, _)| place.seq).collect();
        if !never.is_empty() {
            return Some(Step::Refuse(never));
        }
        let (running, mut spare) = running(node, self.now);
        // Cores that are kept for shares are for those alone that cannot use others.
        let mut inside = Vec::new();
        for (place, waiter) in &order {
            let units = waiter.work.least().units;
            let only = waiter.work.choices().iter().skip(1).all(|choice| exceeds(choice.units));
            let fits = u64::from(units.micros()) <= spare && node.cpu.fits(units);
            if only && units.is_share() && fits {
                spare -= u64::from(units.micros());
                inside.push((place.seq, units));
            }
        }
        if !inside.is_empty() {
            return Some(Step::Do(Decided { starts: inside, more: true, ..Decided::default() }));
        }
        let (seqs, running): (Vec<Seq>, Vec<Running>) = running.into_iter().unzip();
        let waiting = waiting(&order);
        if let Some(newcomers) = node.crowd.newcomers() {
            elastic.newcomers(newcomers);
        }
        let line = Line {
            now: self.now,
            cores: most as u32,
            running: &running,
            waiting: &waiting,
            beyond: node.line.len() - order.len(),
            // One action of a trajectory waits at a time, as a rule.
            idle_trajectories: node.trajectories.len().saturating_sub(node.line.len()),
        };
        let Decision { resizes, starts: given } = elastic.decide(&line);
        let resizes = resizes.into_iter().map(|given| (seqs[given.index], given.units));
        let resizes: Vec<_> = resizes.collect();
        let (mut gathers, mut starts) = (None, Vec::with_capacity(given.len()));
        for Given { index, units } in given {
            match gathering(order[index], units).filter(|due| *due > self.now) {
                Some(due) => gathers = Some(gathers.map_or(due, |first: Time| first.min(due))),
                None => starts.push((order[index].0.seq, units)),
            }
        }
        // All that was looked at starts: look at what stands behind it. A share that was
        // thought to take a core may have found room on one that is kept.
        let inside = spare > 0 && starts.iter().any(|(_, units)| units.is_share());
        let more = inside || starts.len() == SHOWN;
        Some(Step::Do(Decided { resizes, starts, gathers, more }))
    }

    /// False where it went to wait for quota instead.
    fn start(&mut self, id: &NodeId, seq: Seq, units: Units) -> bool {
        if !self.nodes.get(id).is_some_and(|node| node.cpu.fits(units)) {
            return true;
        }
        let has_quota = self.take_quota(seq);
        if has_quota {
            self.grant(id, seq, units);
            self.dirty.starts.insert(seq);
        }
        has_quota
    }

    /// It gets other exclusive cores than it has, as far as they are free.
    fn resize(&mut self, id: &NodeId, seq: Seq, units: Units) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(id) else { return };
        let Some(action) = self.actions.get_mut(&seq) else { return };
        let job = action.job.clone();
        let Some((_, running)) = action.running_of() else { return };
        let Some(CpuGrant::Exclusive(cores)) = &running.grant else { return };
        let Some(cores) = node.cpu.resize(cores, units.ceil() as usize) else { return };
        running.grant = Some(CpuGrant::Exclusive(cores));
        let before = std::mem::replace(&mut running.units, units);
        running.steady &= self.dirty.starts.contains(&seq);
        self.cpu_share.give_back(&job, u64::from(before.micros()), now);
        self.cpu_share.take(&job, u64::from(units.micros()), now);
        if let Some(held) = node.running.get_mut(&seq) {
            held.resize(units, now);
        }
        self.dirty.resized.insert(seq);
    }

    /// What should have ended by now is expected to end later.
    fn expect_the_late(&mut self, id: &NodeId) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(id) else { return };
        for (seq, held) in node.running.iter_mut().filter(|(_, held)| held.ends <= now) {
            let Some(action) = self.actions.get(seq) else { continue };
            let key = action.profile();
            let total = self.profiles.overdue(&key, &held.work, held.units, held.elapsed(now));
            held.expect(total, now);
        }
    }

    /// Where the decision was to wait although there is room, it is made again when what
    /// it waits for should have happened, or others should have come.
    fn wake_for_line(&mut self, id: &NodeId, gathers: Option<Time>) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let waits = node.connected && node.line.len() > 0 && node.cpu.free() > 0;
        let ends = waits.then(|| node.running.values().map(|held| held.ends).min()).flatten();
        let at = ends.into_iter().chain(gathers).min();
        if let Some(before) = std::mem::replace(&mut node.wakes, at).filter(|old| Some(*old) != at)
        {
            self.timers.remove(&(before, Timer::Line(id.clone())));
        }
        if let Some(at) = at {
            self.timers.insert((at, Timer::Line(id.clone())));
        }
    }

    /// More is known of a profile: what waits gets its new durations, in its old place.
    pub(super) fn relearn(&mut self, key: &ProfileKey) {
        for action in self.actions.values_mut() {
            let same = action.job == key.job && action.foresight.profile == key.profile;
            if !same || action.running_of().is_some() {
                continue;
            }
            let (prior, said) = (action.foresight.prior, action.foresight.said);
            let Ok(work) = self.profiles.work(key, &action.cost.cpu, prior, said) else { continue };
            action.work = work.in_place_of(&action.work).into();
            let node = self.trajectories.get(&action.trajectory).and_then(|t| t.node());
            let line = node.and_then(|node| self.nodes.get_mut(node)).map(|node| &mut node.line);
            if let Some((line, place)) = line.zip(action.place)
                && let Some(waiter) = line.get_mut(&action.job, &place)
            {
                waiter.work = action.work.clone();
            }
        }
    }

    pub(super) fn exceeds_node(&mut self, id: &NodeId, seq: Seq) {
        let Some(action) = self.actions.get(&seq) else { return };
        let Some(node) = self.nodes.get(id) else { return };
        let (least, most) = (action.cost.cpu.smallest(), node.cpu.exclusive_capacity());
        let message = format!(
            "its smallest CPU units are {least}, but node `{id}` gives {most} exclusive cores: allow fewer"
        );
        let fault = Fault::new(FaultKind::User, "ExceedsNode", message);
        self.end_action(seq, Outcome::Failed(fault));
    }
}

/// What runs, less the shares that fit on the cores that are kept for them; and what is
/// left of those cores, in millionths.
fn running(node: &Node, now: Time) -> (Vec<(Seq, Running<'_>)>, u64) {
    let mut spare = node.cpu.kept() as u64 * u64::from(Units::CORE);
    let mut views = Vec::with_capacity(node.running.len());
    for (seq, held) in &node.running {
        let mut units = held.units;
        if units.is_share() {
            let outside = u64::from(units.micros()).saturating_sub(spare);
            spare -= u64::from(units.micros()) - outside;
            match Units::from_f64(outside as f64 / f64::from(Units::CORE)) {
                Ok(rest) => units = rest,
                Err(_) => continue,
            }
        }
        views.push((*seq, held.view(units, now)));
    }
    (views, spare)
}

/// Until when a waiting action gathers others that gets more than its least units; `None`
/// where it does not, or can be made smaller at any time.
fn gathering((place, waiter): (&Place, &Waiter), units: Units) -> Option<Time> {
    let least = waiter.work.least();
    if units == least.units || waiter.malleable {
        return None;
    }
    let wait = Duration::try_from_secs_f64(least.seconds * GATHER).unwrap_or(GATHER_MOST);
    Some(submitted(place.rank, &waiter.work) + wait.min(GATHER_MOST))
}

/// When a work of this rank was submitted.
fn submitted(rank: Time, work: &Work) -> Time {
    let own = work.rank(Time::ZERO).as_nanos();
    Time::from_nanos(rank.as_nanos().saturating_sub(own))
}

/// The view of what waits. Its order, fair between jobs, is the order of the ranks that
/// it is given: where it is not that of the ranks themselves one counts as submitted
/// later.
fn waiting<'a>(order: &[(&Place, &'a Waiter)]) -> Vec<Waiting<'a>> {
    let mut rank = Time::ZERO;
    let view = |(place, waiter): &(&Place, &'a Waiter)| {
        rank = rank.max(place.rank);
        let work: &Work = &waiter.work;
        let submitted = submitted(rank, work);
        rank = work.rank(submitted);
        Waiting { work, submitted, resizable: waiter.malleable }
    };
    order.iter().map(view).collect()
}
