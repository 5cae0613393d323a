//! A model of one node on which programs take their time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::world::{action, job, node, trajectory};
use crate::cpu::CoreSet;
use crate::elastic::Work;
use crate::ids::ActionId;
use crate::profile::Prior;
use crate::queue::{
    Command, Config, End, Event, Foresight, NodeOrder, NodeReport, NodeUp, OpenTrajectory, Queue,
    SubmitAction, Usage,
};
use crate::resources::{Cost, UnitChoice, Units};
use crate::time::Time;

/// An action as it really is.
#[derive(Debug, Clone)]
pub(super) struct Truth {
    pub(super) work: Work,
    /// Part of a core that it uses when it has it.
    pub(super) cpu: f64,
    /// What each core beyond the first adds to its time, as a part of it.
    pub(super) drag: f64,
}

#[derive(Debug)]
struct Program {
    attempt: u32,
    units: Units,
    cores: CoreSet,
    /// The part that is still to be done.
    left: f64,
    since: f64,
    began: f64,
}

/// One node, its queue and a clock in seconds.
pub(super) struct Timed {
    pub(super) queue: Queue,
    pub(super) now: f64,
    truths: BTreeMap<ActionId, Truth>,
    running: BTreeMap<ActionId, Program>,
    /// Units and time of every start.
    pub(super) started: BTreeMap<ActionId, (Units, f64)>,
    pub(super) ended: BTreeMap<ActionId, f64>,
    pub(super) resizes: usize,
    /// What each other program that runs adds to the time of one, as a part of it.
    pub(super) crowding: f64,
}

impl Timed {
    /// A node of so many cores, with one open trajectory of each of `jobs`.
    pub(super) fn new(config: Config, cores: u32, jobs: usize) -> Self {
        let mut timed = Self {
            queue: Queue::new(config),
            now: 0.0,
            truths: BTreeMap::new(),
            running: BTreeMap::new(),
            started: BTreeMap::new(),
            ended: BTreeMap::new(),
            resizes: 0,
            crowding: 0.0,
        };
        timed.send(Event::NodeUp(NodeUp {
            node: node(0),
            epoch: 1,
            numa: vec![(0..cores).collect()],
            memory: 1 << 40,
            sandboxes: Vec::new(),
            actions: Vec::new(),
        }));
        for n in 0..jobs {
            timed.open(n, n);
        }
        timed
    }

    /// A trajectory of a job, ready at once.
    pub(super) fn open(&mut self, t: usize, j: usize) {
        self.send(Event::Open(OpenTrajectory {
            trajectory: trajectory(t),
            job: job(j),
            memory: 1,
            min_cores: 1,
            deadline: None,
            placed: None,
        }));
        self.report(NodeReport::SandboxReady(trajectory(t)));
    }

    fn report(&mut self, report: NodeReport) {
        self.send(Event::Report { node: node(0), epoch: 1, report });
    }

    fn time(&self) -> Time {
        Time::ZERO + Duration::from_secs_f64(self.now)
    }

    fn send(&mut self, event: Event) {
        let commands = self.queue.on_event(event, self.time());
        for command in commands {
            if let Command::Node { order, .. } = command {
                self.carry_out(order);
            }
        }
    }

    fn carry_out(&mut self, order: NodeOrder) {
        match order {
            NodeOrder::Start { action, attempt, units, cores } => {
                self.check_free(&action, units, &cores);
                self.settle();
                self.started.insert(action.clone(), (units, self.now));
                let (left, since, began) = (1.0, self.now, self.now);
                let program = Program { attempt, units, cores, left, since, began };
                self.running.insert(action, program);
            }
            NodeOrder::Resize { action, units, cores } => {
                self.check_free(&action, units, &cores);
                self.settle();
                let Some(program) = self.running.get_mut(&action) else { return };
                self.resizes += usize::from(program.units != units);
                (program.units, program.cores) = (units, cores);
            }
            _ => {}
        }
    }

    /// What was done until now was done at the pace of until now.
    fn settle(&mut self) {
        let paces: Vec<f64> = self.running.keys().map(|action| self.pace(action)).collect();
        for (program, pace) in self.running.values_mut().zip(paces) {
            program.left -= (self.now - program.since) / pace;
            program.since = self.now;
        }
    }

    /// After each single order no core is anybody else's.
    fn check_free(&self, action: &ActionId, units: Units, cores: &CoreSet) {
        assert!(units.is_share() || cores.len() == units.ceil() as usize, "{units}: {cores:?}");
        for (other, program) in self.running.iter().filter(|(other, _)| *other != action) {
            let both_share = units.is_share() && program.units.is_share();
            assert!(both_share || !cores.overlaps(&program.cores), "{action} and {other}");
        }
    }

    /// Seconds that the whole of an action takes as it runs now.
    fn pace(&self, action: &ActionId) -> f64 {
        let units = self.running[action].units;
        let choices = self.truths[action].work.choices();
        let seconds =
            choices.iter().rfind(|choice| choice.units <= units).unwrap_or(&choices[0]).seconds;
        let others = (self.running.len() - 1) as f64;
        let crowded = 1.0 + self.crowding * others;
        seconds * crowded * (1.0 + self.truths[action].drag * (units.as_f64() - 1.0).max(0.0))
    }

    /// Submits an action of which `said` is said beforehand.
    pub(super) fn submit(&mut self, a: usize, t: usize, submitted: Submitted<'_>) {
        let Submitted { units, truth, said, profile, malleable, remaining } = submitted;
        self.truths.insert(action(a), truth);
        let cpu = UnitChoice::from_f64(units).unwrap();
        let foresight = Foresight {
            profile: profile.into(),
            said,
            remaining,
            malleable,
            prior: Prior::default(),
        };
        self.send(Event::Submit(SubmitAction {
            action: action(a),
            trajectory: trajectory(t),
            cost: Cost { cpu, quota: BTreeMap::new() },
            start_by: None,
            submitted: None,
            foresight,
        }));
    }

    /// The next that happens by itself up to `until`: a program ends, or a timer fires.
    /// False where nothing does; then it is `until`.
    pub(super) fn step(&mut self, until: f64) -> bool {
        let end = |(id, program): (&ActionId, &Program)| {
            (program.since + program.left * self.pace(id), id.clone())
        };
        let next_end = self.running.iter().map(end).min_by(|a, b| a.0.total_cmp(&b.0));
        let timer = self.queue.next_wakeup().map(|at| at.since(Time::ZERO).as_secs_f64());
        let timer = timer.filter(|at| next_end.as_ref().is_none_or(|(end, _)| at < end));
        if let Some(at) = timer {
            if at > until {
                self.now = until;
                return false;
            }
            // To the nanosecond, which a float of seconds does not hold.
            self.now = self.now.max(at + 1e-6);
            self.send(Event::Tick);
            return true;
        }
        match next_end {
            Some((at, id)) if at <= until => {
                self.now = self.now.max(at);
                self.end(&id);
                true
            }
            _ => {
                self.now = until;
                false
            }
        }
    }

    fn end(&mut self, id: &ActionId) {
        self.settle();
        let Some(program) = self.running.remove(id) else { return };
        self.ended.insert(id.clone(), self.now);
        let seconds = self.now - program.began;
        let cpu_seconds = Some(seconds * self.truths[id].cpu);
        self.report(NodeReport::ActionEnded {
            action: id.clone(),
            attempt: program.attempt,
            end: End::Finished,
            not_started: false,
            usage: Some(Usage { seconds, cpu_seconds }),
        });
    }

    /// As long as the last submission waits for others.
    pub(super) fn gather(&mut self) {
        self.run_until(self.now + 0.06);
    }

    pub(super) fn run_until(&mut self, until: f64) {
        while self.step(until) {}
    }

    /// Units that an action has now.
    pub(super) fn units(&self, a: usize) -> Option<f64> {
        self.running.get(&action(a)).map(|program| program.units.as_f64())
    }
}

/// An action as it is submitted.
#[derive(Debug, Clone)]
pub(super) struct Submitted<'a> {
    pub(super) units: &'a [f64],
    pub(super) truth: Truth,
    pub(super) said: Prior,
    pub(super) profile: &'a str,
    pub(super) malleable: bool,
    pub(super) remaining: Option<f64>,
}

/// One of which all is said truly.
pub(super) fn foreseen(units: &[f64], seconds: f64, serial: f64) -> Submitted<'_> {
    let said = Prior { seconds: Some(seconds), serial: Some(serial) };
    Submitted { said, ..unforeseen(units, seconds, serial) }
}

/// One of which nothing is said.
pub(super) fn unforeseen(units: &[f64], seconds: f64, serial: f64) -> Submitted<'_> {
    let choice = UnitChoice::from_f64(units).unwrap();
    let truth =
        Truth { work: Work::amdahl(&choice, seconds, serial).unwrap(), cpu: 1.0, drag: 0.0 };
    Submitted {
        units,
        truth,
        said: Prior::default(),
        profile: "p",
        malleable: false,
        remaining: None,
    }
}
