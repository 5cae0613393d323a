//! Table 2: what placement and allocation cost.

use rollwright_core::placement::{Degree, allocate, place};

use super::model::QWEN3_14B;
use super::shape::{ERROR, draw};
use crate::paper::figure::{Figure, lower};

pub(super) fn figure() -> Figure {
    Figure::clocked(
        [
            lower(
                "heddle-placement-time",
                "000 Table 2, 6.2",
                "seconds to place 6,400 trajectories on 16 workers, exactly",
                0.037,
            ),
            lower(
                "heddle-manager-time",
                "000 Table 2",
                "seconds to allocate 64 GPUs for 6,400 trajectories, exactly",
                4.99,
            ),
        ],
        &["on one core of this machine; the values of Qwen3-14B, search"],
        |trial| {
            let shapes = draw(&mut trial.random, 6400, ERROR);
            let lengths: Vec<f64> = shapes.iter().map(|shape| shape.predicted).collect();
            let interference = QWEN3_14B.interference(6400)?;
            let degrees: Vec<Degree> = QWEN3_14B.degrees();
            let workers = [QWEN3_14B.token_time(4); 16];
            // Plans that fail would be quick: they count as failures.
            place(&lengths, &workers, &interference)?;
            allocate(&lengths, 64, 64, &degrees, &interference)?;
            Ok([
                trial.time(5, || place(&lengths, &workers, &interference)),
                trial.time(5, || allocate(&lengths, 64, 64, &degrees, &interference)),
            ])
        },
    )
}
