//! Lines played to their end, every decision checked on the way.

mod examples;
mod properties;

use proptest::prelude::*;

use super::room::Room;
use super::work::seconds;
use super::*;
use crate::resources::{UnitChoice, Units};
use crate::time::Time;

const UNITS: [&[f64]; 7] = [
    &[1.0, 2.0, 4.0, 8.0],
    &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    &[1.0],
    &[0.25, 1.0, 2.0, 4.0],
    &[2.0, 4.0],
    &[0.5],
    &[4.0, 8.0],
];

fn work(units: &[f64], duration: f64, serial: f64) -> Work {
    Work::amdahl(&UnitChoice::from_f64(units).unwrap(), duration, serial).unwrap()
}

fn works(kinds: usize) -> impl Strategy<Value = Work> {
    (
        0..kinds,
        prop_oneof![4 => 0.0..100.0_f64, 1 => Just(0.0)],
        prop_oneof![Just(0.0), Just(0.05), Just(0.3), Just(1.0)],
    )
        .prop_map(|(kind, duration, serial)| work(UNITS[kind], duration, serial))
}

fn at(time: f64) -> Time {
    Time::ZERO + seconds(time)
}

#[derive(Debug, Clone)]
struct Job {
    submitted: Time,
    work: Work,
    malleable: bool,
}

fn jobs(kinds: usize, most: usize, spread: f64) -> impl Strategy<Value = Vec<Job>> {
    let job = (0.0..=spread, works(kinds));
    prop::collection::vec(job, 1..most).prop_map(|jobs| {
        let job = |(time, work)| Job { submitted: at(time), work, malleable: false };
        jobs.into_iter().map(job).collect()
    })
}

/// One start, and what waited meanwhile.
struct Started {
    job: usize,
    at: Time,
    passed: Vec<usize>,
    /// The least units of the first that waits on fit no more.
    blocked: bool,
}

struct Ran {
    job: usize,
    units: Units,
    ends: Time,
    left: f64,
    since: Time,
}

struct Played {
    starts: Vec<Started>,
    ends: Vec<Time>,
}

impl Played {
    fn flow(&self, jobs: &[Job]) -> f64 {
        self.ends.iter().zip(jobs).map(|(e, job)| e.since(job.submitted).as_secs_f64()).sum()
    }
}

/// Plays a line to its end and checks every decision on the way.
fn play(cores: u32, jobs: &[Job], mut decide: impl FnMut(&Line, &[usize]) -> Decision) -> Played {
    let mut to_come: Vec<usize> = (0..jobs.len()).collect();
    to_come.sort_by_key(|&job| (std::cmp::Reverse(jobs[job].submitted), std::cmp::Reverse(job)));
    let mut waiting: Vec<usize> = Vec::new();
    let mut running: Vec<Ran> = Vec::new();
    let mut played = Played { starts: Vec::new(), ends: vec![Time::ZERO; jobs.len()] };
    let rank = |job: usize| (jobs[job].work.rank(jobs[job].submitted), job);
    loop {
        let arrival = to_come.last().map(|&job| jobs[job].submitted);
        let end = running.iter().map(|ran| ran.ends).min();
        let Some(now) = arrival.into_iter().chain(end).min() else { break };
        running.retain(|ran| {
            if ran.ends == now {
                played.ends[ran.job] = now;
            }
            ran.ends != now
        });
        let mut come = Vec::new();
        while to_come.last().is_some_and(|&job| jobs[job].submitted == now) {
            come.extend(to_come.pop());
        }
        waiting.extend(&come);
        waiting.sort_by_key(|&job| rank(job));
        for ran in &mut running {
            let choices = jobs[ran.job].work.choices();
            let pace = choices.iter().find(|c| c.units == ran.units).unwrap().seconds;
            ran.left = (ran.left - now.since(ran.since).as_secs_f64() / pace).max(0.0);
            ran.since = now;
        }
        loop {
            let views: Vec<Running> = running
                .iter()
                .map(|ran| {
                    let Job { submitted, work, malleable } = &jobs[ran.job];
                    let (submitted, left) = (*submitted, ran.left);
                    let resizable = malleable.then_some(Resizable { work, submitted, left });
                    Running { ends: ran.ends, units: ran.units, resizable }
                })
                .collect();
            let lined: Vec<Waiting> = waiting
                .iter()
                .map(|&job| {
                    let Job { submitted, work, malleable } = &jobs[job];
                    Waiting { work, submitted: *submitted, resizable: *malleable }
                })
                .collect();
            let line = Line {
                now,
                cores,
                running: &views,
                waiting: &lined,
                beyond: 0,
                idle_trajectories: running.len(),
            };
            let decision = decide(&line, &come);
            for given in &decision.resizes {
                let ran = &mut running[given.index];
                assert!(jobs[ran.job].malleable);
                let choices = jobs[ran.job].work.choices();
                let choice = choices.iter().find(|c| c.units == given.units).unwrap();
                ran.units = given.units;
                ran.ends = now + seconds((ran.left * choice.seconds).max(1e-9));
            }
            let mut gone = Vec::new();
            for given in &decision.starts {
                let job = waiting[given.index];
                assert!(!gone.contains(&job), "started twice");
                gone.push(job);
                let choices = jobs[job].work.choices();
                let choice = choices.iter().find(|c| c.units == given.units).unwrap();
                let ends = now + seconds(choice.seconds.max(1e-9));
                running.push(Ran { job, units: given.units, ends, left: 1.0, since: now });
            }
            waiting.retain(|job| !gone.contains(job));
            let mut room = Room::of(&Line { running: &[], ..line });
            for ran in &running {
                assert!(room.fits(ran.units), "more cores than there are");
                room.take(ran.units);
            }
            let blocked = waiting.first().is_some_and(|&j| !room.fits(jobs[j].work.least().units));
            let started = gone.len();
            for job in gone {
                played.starts.push(Started { job, at: now, passed: waiting.clone(), blocked });
            }
            come.clear();
            if started < WINDOW || waiting.is_empty() {
                break;
            }
        }
        assert!(!running.is_empty() || waiting.is_empty(), "nothing will ever start");
    }
    played
}

fn elastic(cores: u32, jobs: &[Job]) -> Played {
    let mut policy = Elastic::default();
    play(cores, jobs, |line, come| {
        for &job in come {
            policy.submitted(line.now, true, jobs[job].work.clone());
        }
        let mut again = policy.clone();
        let decision = policy.decide(line);
        assert_eq!(decision, again.decide(line), "not deterministic");
        decision
    })
}

/// First come first served with up to so many cores.
fn fixed(cores: u32, jobs: &[Job], limit: u32) -> Played {
    play(cores, jobs, |line, _| {
        let mut room = Room::of(line);
        let mut order: Vec<usize> = (0..line.waiting.len()).collect();
        order.sort_by_key(|&index| line.waiting[index].submitted);
        let given = order.into_iter().map(|index| Given {
            index,
            units: line.waiting[index].work.at_most(limit.min(cores)).units,
        });
        let starts = given.take_while(|given| {
            let fits = room.fits(given.units);
            room.take(given.units);
            fits
        });
        Decision { resizes: Vec::new(), starts: starts.collect() }
    })
}
