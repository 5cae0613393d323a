//! Rows and how they are measured.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::trial::{Failed, Trial};

/// One number of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Its name here: unique, the text's name first.
    pub name: &'static str,
    /// The text, and where in it.
    pub source: &'static str,
    /// What it tells.
    pub quantity: &'static str,
    /// What the text says.
    pub paper: f64,
    /// Which way is better.
    pub better: Better,
}

/// Which way a quantity is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
    /// Neither: it describes a workload, and should agree.
    Equal,
}

macro_rules! row {
    ($way:ident, $better:ident, $doc:literal) => {
        #[doc = $doc]
        pub(super) const fn $way(
            name: &'static str,
            source: &'static str,
            quantity: &'static str,
            paper: f64,
        ) -> Row {
            Row { name, source, quantity, paper, better: Better::$better }
        }
    };
}

row!(higher, Higher, "A row of which more is better.");
row!(lower, Lower, "A row of which less is better.");
row!(equal, Equal, "A row that should agree.");

/// Rows that one measurement gives.
#[derive(Clone)]
pub struct Figure {
    /// In the order of what is measured.
    pub rows: Vec<Row>,
    /// What the text does not state, and what was taken instead.
    pub assumptions: &'static [&'static str],
    how: How,
}

/// Draws a workload, and measures.
type Measure = Arc<dyn Fn(&mut Trial<'_>) -> Result<Vec<f64>, Failed> + Send + Sync>;

/// Where the values come from.
#[derive(Clone)]
enum How {
    /// The same for the same seed.
    Simulated(Measure),
    /// Times of this machine.
    Clocked(Measure),
    /// No simulation can tell.
    Beyond(&'static str),
}

impl Figure {
    /// Rows that a simulation measures: the same seed gives the same values.
    pub fn simulated<const N: usize>(
        rows: [Row; N],
        assumptions: &'static [&'static str],
        measure: fn(&mut Trial<'_>) -> Result<[f64; N], Failed>,
    ) -> Self {
        let measure = move |trial: &mut Trial<'_>| measure(trial).map(Vec::from);
        Self { rows: rows.into(), assumptions, how: How::Simulated(Arc::new(measure)) }
    }

    /// Rows that time our code on this machine: they differ from run to run.
    pub fn clocked<const N: usize>(
        rows: [Row; N],
        assumptions: &'static [&'static str],
        measure: fn(&mut Trial<'_>) -> Result<[f64; N], Failed>,
    ) -> Self {
        let figure = Self::simulated(rows, assumptions, measure);
        match figure.how {
            How::Simulated(measure) => Self { how: How::Clocked(measure), ..figure },
            _ => figure,
        }
    }

    /// Rows that no simulation can speak to, and why.
    pub fn beyond<const N: usize>(rows: [Row; N], why: &'static str) -> Self {
        Self { rows: rows.into(), assumptions: &[], how: How::Beyond(why) }
    }

    /// Whether there is something to measure.
    pub fn is_measured(&self) -> bool {
        self.why().is_none()
    }

    /// Whether the values are times of this machine.
    pub fn is_clocked(&self) -> bool {
        matches!(self.how, How::Clocked(_))
    }

    /// Why no simulation can tell.
    pub fn why(&self) -> Option<&'static str> {
        match self.how {
            How::Beyond(why) => Some(why),
            How::Simulated(_) | How::Clocked(_) => None,
        }
    }

    /// A value for each row, from the workload that a seed draws; none where there is
    /// nothing to measure. The seed counts for this figure alone, whatever else runs.
    /// `clock` reads a clock that is used for nothing but the time that our code takes.
    pub fn measure(
        &self,
        seed: u64,
        clock: &mut dyn FnMut() -> Duration,
    ) -> Result<Vec<f64>, Failed> {
        match &self.how {
            How::Simulated(measure) | How::Clocked(measure) => {
                measure(&mut Trial::new(seed, self.rows[0].name, clock))
            }
            How::Beyond(_) => Ok(Vec::new()),
        }
    }
}

impl fmt::Debug for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figure").field("rows", &self.rows).finish_non_exhaustive()
    }
}
