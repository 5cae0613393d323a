//! `plan placement`.

use rollwright_core::placement::{Interference, MAX_KINDS, Placement, PlanError, place};
use serde::Serialize;

use super::{interference, longest, seconds};
use crate::input::{Fault, Value};
use crate::report::{Table, json};

#[derive(Debug, Serialize)]
struct Answer<'a> {
    makespan_s: f64,
    groups: &'a [Vec<usize>],
}

struct Input {
    lengths: Vec<f64>,
    token_times: Vec<f64>,
    interference: Interference,
}

pub(super) fn answer(value: &Value, as_json: bool) -> Result<String, Fault> {
    let input = read(value)?;
    let placement =
        place(&input.lengths, &input.token_times, &input.interference).map_err(|error| {
            let field = if error == PlanError::Overflow { "lengths" } else { "workers" };
            Fault::new(error.to_string()).in_field(field)
        })?;
    Ok(if as_json {
        json(&Answer { makespan_s: placement.makespan, groups: &placement.groups })
    } else {
        report(&input, &placement)
    })
}

fn read(value: &Value) -> Result<Input, Fault> {
    let input = value.object(&["lengths", "workers", "interference"])?;
    let lengths = input.required("lengths", |lengths| lengths.list(Value::non_negative))?;
    let token_times = input.required("workers", |workers| {
        let times = workers.list(|worker| {
            worker.object(&["token_time_s"])?.required("token_time_s", Value::positive)
        })?;
        let mut distinct = times.clone();
        distinct.sort_unstable_by(f64::total_cmp);
        distinct.dedup();
        match distinct.len() {
            0 => Err(Fault::new("is empty: give at least one worker")),
            got if got > MAX_KINDS => Err(Fault::new(PlanError::TooManyKinds { got }.to_string())),
            _ => Ok(times),
        }
    })?;
    let interference = input.required("interference", interference)?;
    Ok(Input { lengths, token_times, interference })
}

fn report(input: &Input, placement: &Placement) -> String {
    let mut table = Table::new(&["worker", "token time", "trajectories", "longest", "seconds"]);
    for (i, (group, time)) in placement.groups.iter().zip(&input.token_times).enumerate() {
        table.row([
            i.to_string(),
            time.to_string(),
            group.len().to_string(),
            longest(group, &input.lengths).to_string(),
            format!("{:.3}", seconds(group, &input.lengths, *time, &input.interference)),
        ]);
    }
    format!("{table}\nmakespan {:.3} s\n", placement.makespan)
}
