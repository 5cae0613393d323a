//! Figures 12 and 14 to 16: rollouts of whole systems, and of each part.

use rollwright_core::placement::{Interference, allocate, place};

use super::model::{MODELS, Model, QWEN3_14B};
use super::rollout::{Fleet, Order, Where, in_turn, makespan, pinned};
use super::shape::{ASSUMED, ERROR, Shape, draw};
use crate::paper::figure::{Figure, higher};
use crate::paper::trial::{Failed, Trial};

/// GPUs of the testbed (000, section 7).
const GPUS: u64 = 64;
/// Trajectories for each worker of the baselines (000, 7.1).
const BATCH: u64 = 100;

pub(super) fn figures() -> [Figure; 5] {
    [
        Figure::simulated(
            [
                higher(
                    "heddle-rollout-verl",
                    "000 Fig. 12, 7.1",
                    "most throughput over Verl (pinned, round robin, alike workers), three models",
                    2.3,
                ),
                higher(
                    "heddle-rollout-slime",
                    "000 Fig. 12, 7.1",
                    "most throughput over Slime (least load at every step), three models",
                    2.5,
                ),
            ],
            ASSUMED,
            overall,
        ),
        Figure::simulated(
            [
                higher(
                    "heddle-scheduling-least",
                    "000 Fig. 14, 7.2",
                    "rollout time of the best other order over longest first",
                    1.1,
                ),
                higher(
                    "heddle-scheduling-most",
                    "000 Fig. 14, 7.2",
                    "rollout time of the worst other order over longest first",
                    1.26,
                ),
            ],
            ASSUMED,
            scheduling,
        ),
        Figure::simulated(
            [
                higher(
                    "heddle-placement-least",
                    "000 Fig. 15, 7.3",
                    "throughput of our placement over the better of cache-aware and least-load",
                    1.2,
                ),
                higher(
                    "heddle-placement-most",
                    "000 Fig. 15, 7.3",
                    "throughput of our placement over the worse of them",
                    1.5,
                ),
            ],
            ASSUMED,
            |trial| placement(trial, ERROR),
        ),
        Figure::simulated(
            [
                higher(
                    "heddle-placement-known-least",
                    "000 Fig. 15, 5.2, 7.3",
                    "as heddle-placement-least, lengths known as in 5.2",
                    1.2,
                ),
                higher(
                    "heddle-placement-known-most",
                    "000 Fig. 15, 5.2, 7.3",
                    "as heddle-placement-most, lengths known as in 5.2",
                    1.5,
                ),
            ],
            &["as heddle-placement-least, but lengths are known, as 000 5.2 has it"],
            |trial| placement(trial, 0.0),
        ),
        Figure::simulated(
            [
                higher(
                    "heddle-allocation-least",
                    "000 Fig. 16(a), 7.4",
                    "throughput of our allocation over the better of degree 1 and degree 8",
                    1.1,
                ),
                higher(
                    "heddle-allocation-most",
                    "000 Fig. 16(a), 7.4",
                    "throughput of our allocation over the worse of them",
                    1.3,
                ),
            ],
            ASSUMED,
            allocation,
        ),
    ]
}

/// What is compared, on one batch.
struct Case<'a> {
    model: Model,
    shapes: &'a [Shape],
}

/// Workers that are all alike.
fn alike(gpus: u64) -> Vec<u64> {
    vec![gpus; (GPUS / gpus) as usize]
}

impl Case<'_> {
    fn run(&self, gpus: Vec<u64>, place: Where, order: Order) -> f64 {
        makespan(&Fleet { model: self.model, gpus, place, order }, self.shapes)
    }

    fn in_turn(&self, workers: &[u64]) -> Where {
        in_turn(self.shapes.len(), workers.len())
    }

    fn predicted(&self) -> Vec<f64> {
        self.shapes.iter().map(|shape| shape.predicted).collect()
    }

    fn interference(&self) -> Result<Interference, Failed> {
        Ok(self.model.interference(self.shapes.len())?)
    }

    /// The core's placement on given workers.
    fn placed(&self, gpus: &[u64]) -> Result<Where, Failed> {
        let times: Vec<f64> = gpus.iter().map(|&gpus| self.model.token_time(gpus)).collect();
        let plan = place(&self.predicted(), &times, &self.interference()?)?;
        Ok(pinned(&plan.groups, self.shapes.len()))
    }

    /// The core's choice of workers, and its placement on them.
    fn allocated(&self) -> Result<(Vec<u64>, Where), Failed> {
        let degrees = self.model.degrees();
        let curve = self.interference()?;
        let plan = allocate(&self.predicted(), GPUS, GPUS, &degrees, &curve)?;
        Ok((plan.degrees, pinned(&plan.groups, self.shapes.len())))
    }
}

fn shapes(trial: &mut Trial<'_>, model: Model, error: f64) -> Vec<Shape> {
    let mut shapes = draw(&mut trial.random, (GPUS / model.degree * BATCH) as usize, error);
    trial.random.shuffle(&mut shapes);
    shapes
}

fn overall(trial: &mut Trial<'_>) -> Result<[f64; 2], Failed> {
    let mut most = [0.0_f64; 2];
    for model in MODELS {
        let shapes = shapes(trial, model, ERROR);
        let case = Case { model, shapes: &shapes };
        let (gpus, place) = case.allocated()?;
        let ours = case.run(gpus, place, Order::LongestFirst);
        let workers = alike(model.degree);
        let verl = case.run(workers.clone(), case.in_turn(&workers), Order::RoundRobin);
        let slime = case.run(workers, Where::LeastLoad, Order::RoundRobin);
        most = [most[0].max(verl / ours), most[1].max(slime / ours)];
    }
    Ok(most)
}

fn scheduling(trial: &mut Trial<'_>) -> Result<[f64; 2], Failed> {
    let shapes = shapes(trial, QWEN3_14B, ERROR);
    let case = Case { model: QWEN3_14B, shapes: &shapes };
    let (gpus, place) = case.allocated()?;
    let run = |order| case.run(gpus.clone(), place.clone(), order);
    let ours = run(Order::LongestFirst);
    let (robin, shortest) = (run(Order::RoundRobin), run(Order::ShortestFirst));
    Ok([robin.min(shortest) / ours, robin.max(shortest) / ours])
}

fn placement(trial: &mut Trial<'_>, error: f64) -> Result<[f64; 2], Failed> {
    let shapes = shapes(trial, QWEN3_14B, error);
    let case = Case { model: QWEN3_14B, shapes: &shapes };
    let workers = alike(QWEN3_14B.degree);
    let run = |place| case.run(workers.clone(), place, Order::LongestFirst);
    let ours = run(case.placed(&workers)?);
    let (cache, load) = (run(case.in_turn(&workers)), run(Where::LeastLoad));
    Ok([cache.min(load) / ours, cache.max(load) / ours])
}

fn allocation(trial: &mut Trial<'_>) -> Result<[f64; 2], Failed> {
    let shapes = shapes(trial, QWEN3_14B, ERROR);
    let case = Case { model: QWEN3_14B, shapes: &shapes };
    let (gpus, place) = case.allocated()?;
    let ours = case.run(gpus, place, Order::LongestFirst);
    let fixed = |degree| {
        let workers = alike(degree);
        let place = case.placed(&workers)?;
        Ok::<_, Failed>(case.run(workers, place, Order::LongestFirst))
    };
    let (one, eight) = (fixed(1)?, fixed(8)?);
    Ok([one.min(eight) / ours, one.max(eight) / ours])
}
