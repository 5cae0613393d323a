//! ARL-Tangram (001): actions on CPUs, GPUs and quotas.

mod batching;
mod coding;
mod cpu;
mod elasticity;
mod overhead;
mod search;
mod services;
mod teachers;

use super::figure::{Figure, equal, lower};
use crate::policy::Policy;

pub(super) fn figures() -> Vec<Figure> {
    let mut figures = vec![cpu::end_to_end(), cpu::pods_110()];
    figures.extend(cpu::scaling());
    figures.extend(elasticity::figures());
    figures.extend(services::figures());
    figures.extend([search::figure(), overhead::figure()]);
    figures.push(Figure::beyond(
        [
            lower("tangram-act-breakdown-coding", "001 Table 1", "execution per action, batch 1280, s", 0.975),
            lower("tangram-act-breakdown-mopd", "001 Table 1", "execution per action, batch 2048, s", 0.621),
        ],
        "seconds of the text's own data set and models, which it does not give: the ratios beside it are measured",
    ));
    figures.push(Figure::beyond(
        [equal(
            "tangram-sm-activity",
            "001 Fig. 3(b)",
            "SM activity of 12 dedicated reward services",
            0.03,
        )],
        "depends on hardware: activity inside a GPU is not simulated",
    ));
    figures
}

/// The running queue's default.
const OURS: Policy = Policy::Elastic;

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) =
        values.into_iter().fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}
