//! `plan allocation`.

use rollwright_core::placement::{Allocation, Degree, Interference, PlanError, allocate};
use serde::Serialize;

use super::{interference, longest, seconds};
use crate::input::{Fault, Value};
use crate::report::{Table, json};

#[derive(Debug, Serialize)]
struct Answer<'a> {
    makespan_s: f64,
    degrees: &'a [u64],
    groups: &'a [Vec<usize>],
}

struct Input {
    lengths: Vec<f64>,
    gpus: u64,
    max_workers: u64,
    degrees: Vec<Degree>,
    interference: Interference,
}

pub(super) fn answer(value: &Value, as_json: bool) -> Result<String, Fault> {
    let input = read(value)?;
    let Input { lengths, gpus, max_workers, degrees, interference } = &input;
    let allocation =
        allocate(lengths, *gpus, *max_workers, degrees, interference).map_err(|error| {
            let field = if error == PlanError::Overflow { "lengths" } else { "gpus" };
            Fault::new(error.to_string()).in_field(field)
        })?;
    Ok(if as_json {
        json(&Answer {
            makespan_s: allocation.makespan,
            degrees: &allocation.degrees,
            groups: &allocation.groups,
        })
    } else {
        report(&input, &allocation)
    })
}

fn read(value: &Value) -> Result<Input, Fault> {
    let input = value.object(&["lengths", "gpus", "max_workers", "degrees", "interference"])?;
    Ok(Input {
        lengths: input.required("lengths", |lengths| lengths.list(Value::non_negative))?,
        gpus: input.required("gpus", Value::count)?,
        max_workers: input.required("max_workers", Value::count)?,
        degrees: input.required("degrees", degrees)?,
        interference: input.required("interference", interference)?,
    })
}

fn degrees(value: &Value) -> Result<Vec<Degree>, Fault> {
    let wanted = "an object such as {\"1\":0.020,\"2\":0.012}";
    let degrees = value.entries(wanted, |name, time| {
        let digits = name.bytes().all(|byte| byte.is_ascii_digit()) && !name.starts_with('0');
        let gpus = name.parse::<u64>().ok().filter(|_| digits);
        let wrong =
            || Fault::new("a degree must be a whole number of GPUs from 1 on, such as \"2\"");
        Ok(Degree { gpus: gpus.ok_or_else(wrong)?, token_time: time.positive()? })
    })?;
    if degrees.is_empty() {
        return Err(Fault::new("is empty: give at least one degree and its token time"));
    }
    Ok(degrees)
}

fn report(input: &Input, allocation: &Allocation) -> String {
    let mut table = Table::new(&["worker", "GPUs", "trajectories", "longest", "seconds"]);
    for (i, (group, gpus)) in allocation.groups.iter().zip(&allocation.degrees).enumerate() {
        let degree = input.degrees.iter().find(|degree| degree.gpus == *gpus);
        let time = degree.map_or(0.0, |degree| degree.token_time);
        table.row([
            i.to_string(),
            gpus.to_string(),
            group.len().to_string(),
            longest(group, &input.lengths).to_string(),
            format!("{:.3}", seconds(group, &input.lengths, time, &input.interference)),
        ]);
    }
    let used: u64 = allocation.degrees.iter().sum();
    format!("{table}\nmakespan {:.3} s on {used} of {} GPUs\n", allocation.makespan, input.gpus)
}
