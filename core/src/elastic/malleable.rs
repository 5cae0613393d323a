//! Actions that may be given other units at every round.

use std::collections::BinaryHeap;

use super::line::{Decision, Given, Line};
use super::room::Room;
use super::work::Work;
use crate::gain::Gain;
use crate::resources::Units;
use crate::time::Time;

/// Shares the cores anew between all that runs and can be resized and all that waits.
/// A second of progress of an action is worth more the more rank behind it. With the same
/// speed-up `k^p` for all, the cost to go is linear in the sizes, and the sum of speed-ups is to
/// be maximized with weights `(i^q - (i-1)^q)^(1/q)`, `q = 1/(1-p)`, for the i-th from the
/// largest (heSRPT, arXiv 1903.09346): for a nearly linear speed-up that is i, the
/// completions that it delays, and for hardly any it is 1. Here each has the p of its own
/// curve for what it gets beyond its least units.
///
/// What runs keeps at least its smallest units, and no waiting action starts before one
/// that ranks before it.
pub(super) fn resize(line: &Line) -> Decision {
    let mut jobs = jobs(line);
    let mut chosen = share(line, &jobs);
    let held = (0..jobs.len()).find(|&k| jobs[k].of == Of::Waiting && chosen[k] == 0);
    if let Some(held) = held {
        let overtakes = |k: usize, job: &Job| k > held && job.of == Of::Waiting;
        if (0..jobs.len()).any(|k| overtakes(k, &jobs[k]) && chosen[k] > 0) {
            let mut k = 0;
            jobs.retain(|job| {
                k += 1;
                !overtakes(k - 1, job)
            });
            chosen = share(line, &jobs);
        }
    }
    let mut decision = Decision::default();
    let mut waits = false;
    for (job, &at) in jobs.iter().zip(&chosen) {
        waits |= at == 0;
        let Some(choice) = at.checked_sub(1).map(|at| job.work.choices()[at]) else { continue };
        let given = Given { index: job.index, units: choice.units };
        match job.of {
            Of::Running if line.running[job.index].units != choice.units => {
                decision.resizes.push(given);
            }
            Of::Waiting if !waits => decision.starts.push(given),
            Of::Running | Of::Waiting => {}
        }
    }
    decision.resizes.sort_by_key(|given| given.units > line.running[given.index].units);
    decision
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Running,
    Waiting,
}

#[derive(Debug, Clone, Copy)]
struct Job<'a> {
    of: Of,
    index: usize,
    rank: Time,
    work: &'a Work,
    /// The part of it that is still to be done.
    left: f64,
    /// At its fastest it lasts as long as all the work on all the cores: left to the end,
    /// it would be all that the end waits for.
    critical: bool,
    /// The exponent of its speed-up.
    power: f64,
}

/// All that may get cores, by rank. One that runs ranks by what is left of it.
fn jobs<'a>(line: &Line<'a>) -> Vec<Job<'a>> {
    let running = line.running.iter().enumerate().filter_map(|(index, running)| {
        let resizable = running.resizable?;
        let full = resizable.work.rank(resizable.submitted).since(resizable.submitted);
        let left = resizable.left.clamp(0.0, 1.0);
        let rank = resizable.submitted + full.mul_f64(left);
        let work = resizable.work;
        let power = power(work);
        Some(Job { of: Of::Running, index, rank, work, left, critical: false, power })
    });
    let waiting = line.waiting.iter().enumerate().map(|(index, waiting)| Job {
        of: Of::Waiting,
        index,
        rank: waiting.work.rank(waiting.submitted),
        work: waiting.work,
        left: 1.0,
        critical: false,
        power: power(waiting.work),
    });
    let mut jobs: Vec<Job> = running.chain(waiting).collect();
    let fixed = line.running.iter().filter(|running| running.resizable.is_none());
    let fixed = fixed.map(|r| r.ends.since(line.now).as_secs_f64() * r.units.as_f64());
    let work = jobs.iter().map(|job| job.left * job.work.least().cost());
    let drained = fixed.chain(work).sum::<f64>() / f64::from(line.cores);
    for job in jobs.iter_mut().filter(|_| line.beyond == 0) {
        job.critical = job.left * job.work.at_most(line.cores).seconds >= drained;
    }
    jobs.sort_by_key(|job| job.rank);
    jobs
}

/// Of each job how many of its choices it has come up to; 0: it gets nothing.
fn share(line: &Line, jobs: &[Job]) -> Vec<usize> {
    let steepest = jobs.iter().map(|job| job.power).fold(0.0, f64::max);
    let mut room = Room::of(line);
    let mut chosen = vec![0; jobs.len()];
    for (job, at) in jobs.iter().zip(&mut chosen) {
        if job.of == Of::Running {
            room.give_back(line.running[job.index].units);
            *at = 1;
        }
    }
    for job in jobs.iter().filter(|job| job.of == Of::Running) {
        room.take(job.work.least().units);
    }
    let units = |job: &Job, at: usize| at.checked_sub(1).map(|at| job.work.choices()[at].units);
    let mut steps: BinaryHeap<Gain> = (0..jobs.len())
        .filter_map(|k| best_step(jobs, steepest, line.beyond, k, chosen[k]))
        .collect();
    while let Some(step) = steps.pop() {
        let job = &jobs[step.index];
        let before: Option<Units> = units(job, chosen[step.index]);
        let Some(after) = units(job, step.to) else { continue };
        if let Some(before) = before {
            room.give_back(before);
        }
        if room.fits(after) {
            room.take(after);
            chosen[step.index] = step.to;
            steps.extend(best_step(jobs, steepest, line.beyond, step.index, step.to));
        } else if let Some(before) = before {
            room.take(before);
        }
    }
    chosen
}

/// The exponent of its speed-up; 1 where it has no choice.
fn power(work: &Work) -> f64 {
    let choices = work.choices();
    let (least, most) = (choices[0], choices[choices.len() - 1]);
    let faster = (least.seconds / most.seconds).ln();
    let larger = (most.units.as_f64() / least.units.as_f64().max(1.0)).ln();
    if larger > 0.0 && faster.is_finite() { (faster / larger).clamp(0.0, 0.98) } else { 0.98 }
}

/// What a second of progress is worth, `delayed` that rank behind it included.
fn weight(power: f64, delayed: usize) -> f64 {
    let (inverse, delayed) = (1.0 - power, delayed as f64);
    delayed * (1.0 - ((delayed - 1.0) / delayed).powf(1.0 / inverse)).powf(inverse)
}

/// The best step up of one job: weighted speed-up for each core.
fn best_step(jobs: &[Job], steepest: f64, beyond: usize, index: usize, at: usize) -> Option<Gain> {
    let choices = jobs[index].work.choices();
    let slowest = choices[0].seconds;
    let speed = |at: usize| {
        at.checked_sub(1).map_or((0.0, 0.0), |at| {
            let choice = choices[at];
            let speed = if choice.seconds > 0.0 { slowest / choice.seconds } else { 1e9 };
            (choice.units.as_f64(), speed)
        })
    };
    let delayed = if jobs[index].critical { jobs.len() } else { jobs.len() - index + beyond };
    // To start at all is worth the same to any curve.
    let weight = weight(if at == 0 { steepest } else { jobs[index].power }, delayed);
    let (units, from) = speed(at);
    let steps = (at + 1..=choices.len()).map(|to| {
        let (more, faster) = speed(to);
        Gain { worth: weight * (faster - from) / (more - units), index, to }
    });
    steps.reduce(|best, step| if step.worth > best.worth { step } else { best })
}
