//! Played lines, brute force, and the bounds that the policy promises.

use proptest::prelude::*;

use super::room::Room;
use super::together::together;
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

/// The least sum of durations with all of them started.
fn brute_force(works: &[&Work], free: u32) -> Option<f64> {
    let Some((first, rest)) = works.split_first() else { return Some(0.0) };
    let sums = first.choices().iter().filter_map(|choice| {
        Some(choice.seconds + brute_force(rest, free.checked_sub(choice.units.ceil())?)?)
    });
    sums.reduce(f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Everything starts, within the cores, with units of its own; the same each time.
    #[test]
    fn every_line_is_served(cores in 8..40_u32, jobs in jobs(7, 40, 200.0)) {
        let played = elastic(cores, &jobs);
        prop_assert_eq!(played.starts.len(), jobs.len());
    }

    /// Nothing starves: past its rank an action is passed only where it does not fit.
    #[test]
    fn nobody_is_passed_beyond_its_rank(cores in 8..16_u32, jobs in jobs(7, 60, 60.0)) {
        let rank = |job: usize| jobs[job].work.rank(jobs[job].submitted);
        for started in elastic(cores, &jobs).starts {
            for &passed in &started.passed {
                let late = rank(passed) < started.at && rank(passed) < rank(started.job);
                prop_assert!(!late || started.blocked, "{passed} passed by {}", started.job);
            }
        }
    }

    /// On a batch, where nothing is unforeseen, no fixed degree is better by more than
    /// what the weight of the end costs.
    #[test]
    fn a_batch_is_no_worse_than_the_best_fixed_degree(
        cores in 8..33_u32,
        jobs in jobs(4, 24, 0.0),
    ) {
        let ours = elastic(cores, &jobs).flow(&jobs);
        for limit in [1, 2, 4, 8] {
            let theirs = fixed(cores, &jobs, limit).flow(&jobs);
            prop_assert!(ours <= 1.03 * theirs + 1e-6, "{ours} s, fixed:{limit} {theirs} s");
        }
    }

    /// What can be resized is, within the cores; nothing starts before its turn.
    #[test]
    fn malleable_actions_share_the_cores(cores in 8..33_u32, jobs in jobs(5, 30, 100.0)) {
        let jobs: Vec<Job> =
            jobs.into_iter().map(|job| Job { malleable: true, ..job }).collect();
        let rank = |job: usize| jobs[job].work.rank(jobs[job].submitted);
        let played = elastic(cores, &jobs);
        prop_assert_eq!(played.starts.len(), jobs.len());
        for started in &played.starts {
            let passed = started.passed.iter().filter(|&&job| rank(job) < rank(started.job));
            prop_assert_eq!(passed.count(), 0);
        }
    }

    #[test]
    fn together_is_exact(works in prop::collection::vec(works(3), 1..5), free in 1..12_u32) {
        let waiting: Vec<Waiting> = works
            .iter()
            .map(|work| Waiting { work, submitted: Time::ZERO, resizable: false })
            .collect();
        let line = Line {
            now: Time::ZERO,
            cores: free,
            running: &[],
            waiting: &waiting,
            beyond: 0,
            idle_trajectories: 0,
        };
        let best = brute_force(&works.iter().collect::<Vec<_>>(), free);
        let got = together(&line, Room::of(&line)).map(|units| {
            let chosen = units.iter().zip(&works).map(|(units, work)| {
                work.choices().iter().find(|choice| choice.units == *units).unwrap().seconds
            });
            chosen.sum::<f64>()
        });
        prop_assert_eq!(best.is_some(), got.is_some());
        if let (Some(best), Some(got)) = (best, got) {
            prop_assert!((best - got).abs() < 1e-6, "{got} s, the best is {best} s");
        }
    }

    /// Tangram starts a prefix of its line, within the cores, and always ends.
    #[test]
    fn tangram_serves_prefixes(
        cores in 8..40_u32,
        jobs in jobs(7, 40, 200.0),
        depth in prop_oneof![Just(None), (1..4_usize).prop_map(Some)],
    ) {
        let played = play(cores, &jobs, |line, _| {
            // Its line is in the order of submission.
            let mut order: Vec<usize> = (0..line.waiting.len()).collect();
            order.sort_by_key(|&index| line.waiting[index].submitted);
            let waiting: Vec<Waiting> = order.iter().map(|&index| line.waiting[index]).collect();
            let starts = tangram(&Line { waiting: &waiting, ..*line }, depth);
            assert!(starts.iter().enumerate().all(|(place, given)| given.index == place));
            let starts = starts.into_iter().map(|g| Given { index: order[g.index], ..g });
            Decision { resizes: Vec::new(), starts: starts.collect() }
        });
        prop_assert_eq!(played.starts.len(), jobs.len());
    }
}

fn batch(count: usize, work: &Work) -> Vec<Job> {
    vec![Job { submitted: Time::ZERO, work: work.clone(), malleable: false }; count]
}

/// Waves of 8 cores are a little better in the mean and end a third later.
#[test]
fn of_two_plans_nearly_as_good_the_sooner_end_is_taken() {
    let jobs = batch(20, &work(&[1.0, 2.0, 4.0, 8.0], 120.0, 0.1));
    let played = elastic(128, &jobs);
    let eight = fixed(128, &jobs, 8);
    assert_eq!(played.ends.iter().max(), Some(&at(39.0)));
    assert_eq!(eight.ends.iter().max(), Some(&at(51.0)));
    assert!(played.flow(&jobs) < 1.01 * eight.flow(&jobs));
}

/// A line longer than the window starts all that fits, at once.
#[test]
fn a_window_ends_no_round() {
    let jobs = batch(3 * WINDOW + 5, &work(&[0.25, 2.0], 10.0, 1.0));
    let played = elastic(256, &jobs);
    assert!(played.starts.iter().all(|started| started.at == Time::ZERO));
}

/// A batch is no news of a second one; a stream is news of more of it.
#[test]
fn what_has_lasted_is_expected_to_last() {
    let one = work(&[1.0], 1.0, 0.0);
    let mut arrivals = Arrivals::default();
    for _ in 0..10 {
        arrivals.submitted(Time::ZERO, true, one.clone(), Demand::default());
    }
    assert!(arrivals.expected(at(5.0), 10).is_empty());
    for second in 1..=5 {
        arrivals.submitted(at(f64::from(second)), second > 3, one.clone(), Demand::default());
    }
    let after = |idle: usize| -> Vec<f64> {
        arrivals.expected(at(5.0), idle).iter().map(|expected| expected.after).collect()
    };
    assert_eq!(after(10), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
    // Only one trajectory is there to return, the others must open.
    assert_eq!(after(1), [1.0, 4.0, 5.0, 6.0, 9.0, 10.0]);
}

/// One long action and short ones that would end after the first is due wait for it; the
/// short ones that end before do not.
#[test]
fn holes_are_filled_without_delay() {
    let four = work(&[4.0], 5.0, 1.0);
    let (short, long) = (work(&[1.0], 4.0, 1.0), work(&[1.0], 40.0, 1.0));
    let waiting =
        [&four, &long, &short].map(|work| Waiting { work, submitted: at(0.0), resizable: false });
    let running = [Running { ends: at(10.0), units: Units::cores(2), resizable: None }];
    let line = Line {
        now: at(5.0),
        cores: 4,
        running: &running,
        waiting: &waiting,
        beyond: 0,
        idle_trajectories: 0,
    };
    let decision = Elastic::default().decide(&line);
    assert_eq!(decision.starts, [Given { index: 2, units: Units::cores(1) }]);
}

/// What should have ended by now, or ends at once, holds its cores until it does.
#[test]
fn an_end_that_is_due_frees_nothing_yet() {
    let (none, some) = (work(&[1.0, 2.0], 0.0, 0.5), work(&[1.0, 2.0], 9.0, 0.5));
    let waiting = [&none, &some, &some, &some, &some].map(|work| Waiting {
        work,
        submitted: at(5.0),
        resizable: false,
    });
    let running = [Running { ends: at(1.0), units: Units::cores(2), resizable: None }];
    let line = Line {
        now: at(5.0),
        cores: 4,
        running: &running,
        waiting: &waiting,
        beyond: 0,
        idle_trajectories: 0,
    };
    let started = Elastic::default().decide(&line).starts;
    assert!(!started.is_empty());
    assert!(started.iter().map(|given| given.units.ceil()).sum::<u32>() <= 2);
}

/// Many that can be resized stand beside many that can not.
#[test]
fn a_long_malleable_line_fits() {
    let elastic_work = work(&[0.25, 1.0, 2.0], 10.0, 0.1);
    let mut jobs = batch(3 * WINDOW, &elastic_work);
    for (place, job) in jobs.iter_mut().enumerate() {
        job.malleable = place % 3 > 0;
        job.submitted = at(place as f64 / 100.0);
    }
    assert_eq!(elastic(64, &jobs).starts.len(), jobs.len());
}

#[test]
fn numbers_that_are_none_are_refused() {
    let units = UnitChoice::from_f64(&[1.0, 2.0]).unwrap();
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(Work::amdahl(&units, bad, 0.1), Err(InvalidWork::Duration { .. })));
    }
    for bad in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(Work::amdahl(&units, 1.0, bad), Err(InvalidWork::Serial { .. })));
    }
}
