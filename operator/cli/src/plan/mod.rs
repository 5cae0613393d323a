//! `plan`: exact optima from a file.

mod allocation;
mod arrange;
mod placement;

use std::io::Read;

use rollwright_core::placement::{Interference, InvalidInterference};

use crate::command::Plan;
use crate::input::{self, Fault, InputError, Value};

/// Reads an input and answers it, as a table or as one JSON object.
type Answer = fn(&Value, bool) -> Result<String, Fault>;

/// The answer to one input, as text or as one JSON object.
pub(crate) fn run(plan: &Plan, stdin: &mut impl Read) -> Result<String, InputError> {
    let (source, answer): (_, Answer) = match plan {
        Plan::Arrange(source) => (source, arrange::answer),
        Plan::Placement(source) => (source, placement::answer),
        Plan::Allocation(source) => (source, allocation::answer),
    };
    let bytes = input::read(&source.input, stdin)?;
    let value = input::parse(&bytes).map_err(|fault| fault.in_file(&source.input))?;
    answer(&value, source.json).map_err(|fault| fault.in_file(&source.input))
}

/// The factors by group size.
fn interference(value: &Value) -> Result<Interference, Fault> {
    Interference::new(value.list(Value::positive)?).map_err(|error| {
        let fault = Fault::new(error.to_string());
        match error {
            InvalidInterference::Empty => fault,
            InvalidInterference::Factor { size, .. } | InvalidInterference::Decreasing { size } => {
                fault.at(size - 1)
            }
        }
    })
}

/// Seconds of a group.
fn seconds(group: &[usize], lengths: &[f64], token_time: f64, interference: &Interference) -> f64 {
    interference.at(group.len()) * token_time * longest(group, lengths)
}

fn longest(group: &[usize], lengths: &[f64]) -> f64 {
    group.iter().map(|&i| lengths[i]).fold(0.0, f64::max)
}
