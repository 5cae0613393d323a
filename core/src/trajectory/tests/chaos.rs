//! Whatever the order of events, late ones, lost drivers and crashes: everything is released
//! once, a group settles with exactly what it needs, and no deadlock remains.

use proptest::prelude::*;

use super::world::{World, config, fault, group, open};
use crate::buffer::{self, OnStale, Taker};
use crate::fault::FaultKind;
use crate::ids::TrajectoryId;
use crate::trajectory::{Event, LogState, OpenGroup, Purpose, Turn};
use crate::version::{BatchId, RequestId, Version};

#[derive(Debug, Clone)]
pub(super) enum Step {
    Open {
        n: usize,
        needed: u32,
        evaluation: bool,
        recorded: bool,
    },
    AbortGroup(usize),
    Begin(usize),
    Generate(usize),
    EndTurn(usize, u64),
    Forgotten(usize),
    Given(usize),
    Report(usize),
    Complete(usize, Option<bool>),
    Score(usize, Scored),
    Write(usize, bool),
    Abort(usize, bool),
    /// What is next for a trajectory, so that some come to their end.
    Advance(usize),
    Version(u64),
    Take,
    Leave,
    Ack,
    Pass(u64),
    Crash,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Scored {
    Number,
    NoNumber,
    Fault(bool),
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    let scored = prop_oneof![
        6 => Just(Scored::Number),
        1 => Just(Scored::NoNumber),
        2 => proptest::bool::ANY.prop_map(Scored::Fault)
    ];
    prop_oneof![
        6 => (0usize..40, 0u32..5, prop::bool::weighted(0.2), prop::bool::weighted(0.8)).prop_map(
            |(n, needed, evaluation, recorded)| Step::Open { n, needed, evaluation, recorded }
        ),
        1 => (0usize..40).prop_map(Step::AbortGroup),
        12 => any().prop_map(Step::Begin),
        6 => any().prop_map(Step::Generate),
        18 => (any(), 0u64..4).prop_map(|(t, tokens)| Step::EndTurn(t, tokens)),
        1 => any().prop_map(Step::Forgotten),
        2 => any().prop_map(Step::Given),
        2 => any().prop_map(Step::Report),
        10 => (any(), prop::option::of(prop::bool::weighted(0.9)))
            .prop_map(|(t, reward)| Step::Complete(t, reward)),
        8 => (any(), scored).prop_map(|(t, scored)| Step::Score(t, scored)),
        18 => (any(), prop::bool::weighted(0.95)).prop_map(|(t, well)| Step::Write(t, well)),
        2 => (any(), proptest::bool::ANY).prop_map(|(t, infra)| Step::Abort(t, infra)),
        25 => any().prop_map(Step::Advance),
        2 => (0u64..3).prop_map(Step::Version),
        3 => Just(Step::Take),
        1 => Just(Step::Leave),
        3 => Just(Step::Ack),
        2 => (1u64..40).prop_map(Step::Pass),
        1 => Just(Step::Crash),
    ]
}

impl World {
    /// One that a driver runs, or one in six times any one: events of ended ones are late.
    fn pick(&self, pick: usize) -> Option<TrajectoryId> {
        let drivers = &self.outside.drivers;
        if !pick.is_multiple_of(6) && !drivers.is_empty() {
            return drivers.iter().nth(pick / 6 % drivers.len()).cloned();
        }
        let started = &self.outside.started;
        let recent = &started[started.len().saturating_sub(20)..];
        recent.get(pick % recent.len().max(1)).cloned()
    }

    fn event(&mut self, step: &Step) -> Option<Event> {
        Some(match *step {
            Step::AbortGroup(n) => {
                Event::AbortGroup { group: group(n), fault: fault(FaultKind::Cancelled) }
            }
            Step::Generate(t) => {
                let (trajectory, _) = self.flight(t)?;
                Event::Generated { trajectory, version: self.version }
            }
            Step::EndTurn(t, tokens) => {
                let (trajectory, request) = self.flight(t)?;
                self.outside.requests.remove(&(trajectory.clone(), request));
                let turn = self.turn(&trajectory, tokens);
                Event::TurnEnded { trajectory, request, turn }
            }
            Step::Forgotten(t) => {
                let (trajectory, request) = (self.pick(t)?, RequestId(u64::MAX));
                Event::TurnEnded { trajectory, request, turn: Turn::Lost }
            }
            Step::Report(t) => Event::Step(self.pick(t)?),
            Step::Complete(t, reward) => {
                let reward = reward.map(|finite| if finite { 1.0 } else { f64::NAN });
                Event::Complete { trajectory: self.pick(t)?, reward, taught: t % 3 == 0 }
            }
            Step::Score(t, scored) => {
                let picked = self.outside.calls.iter().nth(t % self.outside.calls.len().max(1));
                let trajectory = picked.cloned().or_else(|| self.pick(t))?;
                self.outside.calls.remove(&trajectory);
                let result = match scored {
                    Scored::Number => Ok(0.5),
                    Scored::NoNumber => Ok(f64::INFINITY),
                    Scored::Fault(true) => Err(fault(FaultKind::Infrastructure)),
                    Scored::Fault(false) => Err(fault(FaultKind::Action)),
                };
                Event::Scored { trajectory, result }
            }
            Step::Write(t, well) => {
                let picked = self.outside.writes.keys().nth(t % self.outside.writes.len().max(1));
                let Some(trajectory) = picked.cloned() else {
                    return Some(Event::Kept { trajectory: self.pick(t)?, result: Ok(()) });
                };
                let keep = self.outside.writes.remove(&trajectory)?;
                let result = if well { Ok(()) } else { Err(fault(FaultKind::Infrastructure)) };
                if well {
                    self.disk.records.insert(trajectory.clone(), keep);
                }
                Event::Kept { trajectory, result }
            }
            Step::Abort(t, infrastructure) => {
                let kind =
                    [FaultKind::Cancelled, FaultKind::Infrastructure][usize::from(infrastructure)];
                Event::AbortTrajectory { trajectory: self.pick(t)?, fault: fault(kind) }
            }
            Step::Version(newer) => Event::VersionChanged(Version(self.version.0 + newer)),
            _ => return None,
        })
    }

    fn flight(&self, pick: usize) -> Option<(TrajectoryId, RequestId)> {
        let requests = &self.outside.requests;
        requests.iter().nth(pick % requests.len().max(1)).cloned()
    }

    /// A turn of so many tokens, under the current version.
    pub(super) fn turn(&mut self, id: &TrajectoryId, tokens: u64) -> Turn {
        let recorded = self.core.trajectory(id.as_str()).is_some_and(|member| {
            self.core.group(member.group().as_str()).is_some_and(|g| g.settings().recorded)
        });
        let Some(log) = self.outside.logs.get_mut(id) else { return Turn::Lost };
        if tokens == 0 {
            return Turn::Lost;
        }
        log.turns += 1;
        log.prompt_tokens += 3;
        log.generated_tokens += tokens;
        if !recorded {
            let noted = self.core.trajectory(id.as_str()).and_then(|member| member.noted);
            if let Some(version) = noted {
                log.note(version);
            }
            return Turn::Unrecorded { prompt_tokens: 3, generated_tokens: tokens };
        }
        log.note(self.version);
        Turn::Recorded(*log)
    }

    fn next_steps(&self, id: &TrajectoryId, pick: usize) -> Vec<Step> {
        let at = |mut ids: Box<dyn Iterator<Item = &TrajectoryId> + '_>| ids.position(|o| o == id);
        let outside = &self.outside;
        if let Some(t) = at(Box::new(outside.requests.iter().map(|(of, _)| of))) {
            return vec![Step::EndTurn(t, 3)];
        }
        if let Some(t) = at(Box::new(outside.calls.iter())) {
            return vec![Step::Score(t, Scored::Number)];
        }
        if let Some(t) = at(Box::new(outside.writes.keys())) {
            return vec![Step::Write(t, true)];
        }
        match self.core.trajectory(id.as_str()).map(|member| member.log().turns) {
            Some(0) => vec![Step::Begin(pick)],
            Some(_) => vec![Step::Complete(pick, None)],
            None => vec![],
        }
    }

    pub(super) fn step(&mut self, step: &Step, crash: usize) {
        match *step {
            Step::Open { n, needed, evaluation, recorded } => {
                let pinned = self.version;
                let purpose =
                    if evaluation { Purpose::Evaluation { pinned } } else { Purpose::Training };
                let mut wish = OpenGroup { purpose, recorded, ..open(n, needed) };
                if let Some(open) = self.opened.get(&wish.group).filter(|_| needed == 0) {
                    wish = open.clone();
                } else if self.opened.contains_key(&wish.group) || needed == 0 {
                    return;
                }
                // A name is free again when its group is forgotten, but drivers of the old
                // group may live: callers do not use a name twice.
                let forgotten = self.opened.contains_key(&wish.group)
                    && self.core.group(wish.group.as_str()).is_none();
                if forgotten || (!evaluation && self.room() == 0) {
                    return;
                }
                if self.open(wish.clone()).is_err()
                    && self.core.group(wish.group.as_str()).is_none()
                {
                    self.opened.remove(&wish.group);
                }
            }
            Step::Begin(t) => {
                let Some(trajectory) = self.pick(t) else { return };
                let _ = self.request(&trajectory);
            }
            Step::Given(t) => {
                let Some(id) = self.pick(t) else { return };
                let Some(log) = self.outside.logs.get(&id).copied() else { return };
                let mut log = LogState { turns: log.turns + 1, ..log };
                log.generated_tokens += 5;
                // What was generated elsewhere may be old.
                log.note(Version(self.version.0 - 1));
                let before = self.outside.logs.insert(id.clone(), log);
                let given = Event::TokensGiven { trajectory: id.clone(), log };
                if self.send(given).is_err() {
                    self.outside.logs.extend(before.map(|log| (id, log)));
                }
            }
            Step::Take => self.buffer(buffer::Event::Take { taker: Taker(0), groups: None }),
            Step::Leave => self.buffer(buffer::Event::Leave(Taker(0))),
            Step::Ack => {
                if let Some(batch) = self.buffer.taken().map(|batch| batch.id) {
                    self.buffer(buffer::Event::Ack(batch));
                    self.buffer(buffer::Event::Ack(BatchId(1)));
                }
            }
            Step::Pass(secs) => self.pass(secs),
            Step::Advance(t) => {
                let Some(id) = self.pick(t) else { return };
                for next in self.next_steps(&id, t) {
                    self.step(&next, crash);
                }
            }
            Step::Crash => self.crash(),
            _ => {
                // A refusal is checked by the world to change nothing.
                if let Some(event) = self.event(step) {
                    let _ = self.send_and_crash(event, crash);
                }
            }
        }
        // The last group may pass the bound by all but one of the 5 that it starts.
        let most = self.buffer.bound() + 4 + self.refilled;
        assert!(self.held() <= most, "{} of {most}", self.held());
    }
}

pub(super) fn crash() -> impl Strategy<Value = usize> {
    prop_oneof![99 => Just(usize::MAX), 1 => 0usize..8]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn everything_is_released_once(
        steps in prop::collection::vec((step(), crash()), 0..400),
        bound in 0u32..3,
        by_start in any::<bool>(),
    ) {
        let on_stale = if by_start { OnStale::Abort } else { OnStale::Continue };
        let mut world = World::new(config(bound, on_stale));
        for (step, crash) in &steps {
            world.step(step, *crash);
        }
    }
}
