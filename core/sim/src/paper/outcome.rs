//! What a row comes to.

use serde::Serialize;

use super::figure::{Better, Figure};

/// One row with what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Its name.
    pub name: &'static str,
    /// The text, and where in it.
    pub source: &'static str,
    /// What it tells.
    pub quantity: &'static str,
    /// What the text says.
    pub paper: f64,
    /// The mean over the seeds; absent where no simulation can tell.
    pub ours: Option<f64>,
    /// Which way is better.
    pub better: Better,
    /// By which part of the text's number ours is worse, 0 where it is not: 0.25 of a
    /// ratio of 4 is a ratio of 3.
    pub shortfall: Option<f64>,
    /// What the text does not state, and what was taken instead.
    pub assumptions: &'static [&'static str],
    /// How many workloads were drawn.
    pub seeds: usize,
    /// The least and the most of them.
    pub interval: Option<[f64; 2]>,
    /// Whether it is a time of this machine, which differs from run to run.
    pub clocked: bool,
    /// Why there is no number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
}

impl Outcome {
    /// Each row of a figure, from the values of each seed.
    pub fn of(figure: &Figure, measured: &[Vec<f64>]) -> Vec<Self> {
        let outcome = |(i, row): (usize, &super::Row)| {
            let values: Vec<f64> =
                measured.iter().filter_map(|values| values.get(i)).copied().collect();
            let ours =
                (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            Self {
                name: row.name,
                source: row.source,
                quantity: row.quantity,
                paper: row.paper,
                ours,
                better: row.better,
                shortfall: ours.map(|ours| shortfall(row.paper, ours, row.better)),
                assumptions: figure.assumptions,
                seeds: values.len(),
                interval: ours.map(|_| [least, most]),
                clocked: figure.is_clocked(),
                why: figure.why(),
            }
        };
        figure.rows.iter().enumerate().map(outcome).collect()
    }
}

/// By which part of the text's number ours is worse.
fn shortfall(paper: f64, ours: f64, better: Better) -> f64 {
    let above = ours / paper - 1.0;
    match better {
        Better::Higher => (-above).max(0.0),
        Better::Lower => above.max(0.0),
        Better::Equal => above.abs(),
    }
}
