//! `plan arrange`.

use rollwright_core::arrange::{Arrangement, Choice, Chunks, Free, Task, arrange};
use serde::Serialize;

use crate::input::{Fault, Value};
use crate::report::{Table, json};

#[derive(Debug, Serialize)]
struct Answer<'a> {
    total_s: f64,
    units: &'a [u64],
}

pub(super) fn answer(value: &Value, as_json: bool) -> Result<String, Fault> {
    let (tasks, free) = read(value)?;
    let name = if matches!(free, Free::Cores(_)) { "free" } else { "chunks" };
    let arrangement =
        arrange(&tasks, &free).map_err(|error| Fault::new(error.to_string()).in_field(name))?;
    Ok(if as_json {
        json(&Answer { total_s: arrangement.total, units: &arrangement.units })
    } else {
        report(&tasks, &arrangement)
    })
}

fn read(value: &Value) -> Result<(Vec<Task>, Free), Fault> {
    let input = value.object(&["tasks", "free", "chunks"])?;
    let free = match (input.has("free"), input.has("chunks")) {
        (true, true) => {
            return Err(Fault::new("given beside free: give one of both").in_field("chunks"));
        }
        (false, false) => {
            return Err(Fault::new("missing: give free or chunks").in_field("free"));
        }
        (true, false) => Free::Cores(input.required("free", Value::count)?),
        (false, true) => Free::Chunks(input.required("chunks", chunks)?),
    };
    let on_chunks = matches!(free, Free::Chunks(_));
    let tasks = input.required("tasks", |tasks| tasks.list(|value| task(value, on_chunks)))?;
    Ok((tasks, free))
}

fn task(value: &Value, on_chunks: bool) -> Result<Task, Fault> {
    let task = value.object(&["units", "durations"])?;
    let units = task.required("units", |units| {
        let units = units.list(|value| {
            let units = value.count()?;
            if on_chunks && ![1, 2, 4, 8].contains(&units) {
                return Err(Fault::new(format!("must be 1, 2, 4 or 8 on chunks, got {units}")));
            }
            Ok(units)
        })?;
        if units.is_empty() {
            return Err(Fault::new("is empty: list at least one, such as [1]"));
        }
        match units.windows(2).position(|pair| pair[0] >= pair[1]) {
            None => Ok(units),
            Some(i) => {
                let what = format!("must be larger than the one before, got {}", units[i + 1]);
                Err(Fault::new(what).at(i + 1))
            }
        }
    })?;
    let durations = task.required("durations", |durations| {
        let durations = durations.list(Value::non_negative)?;
        if durations.len() == units.len() {
            return Ok(durations);
        }
        let (got, wanted) = (durations.len(), units.len());
        Err(Fault::new(format!("has {got} numbers: give {wanted}, one for each of units")))
    })?;
    let choices = units.into_iter().zip(durations);
    Task::new(choices.map(|(units, duration)| Choice { units, duration }))
        .map_err(|error| Fault::new(error.to_string()))
}

fn chunks(value: &Value) -> Result<Chunks, Fault> {
    let mut counts = [0; 4];
    let wanted = "an object such as {\"1\":0,\"2\":1,\"4\":1,\"8\":2}";
    value.entries(wanted, |name, count| {
        let sizes = ["1", "2", "4", "8"];
        let Some(level) = sizes.iter().position(|&size| size == name) else {
            return Err(Fault::new("unknown size of a chunk: use 1, 2, 4 or 8"));
        };
        let count = count.whole()?;
        counts[level] = u32::try_from(count)
            .map_err(|_| Fault::new(format!("must be at most {}, got {count}", u32::MAX)))?;
        Ok(())
    })?;
    Ok(Chunks::new(counts))
}

fn report(tasks: &[Task], arrangement: &Arrangement) -> String {
    let mut table = Table::new(&["task", "units", "seconds"]);
    for (i, (task, units)) in tasks.iter().zip(&arrangement.units).enumerate() {
        let choice = task.choices().iter().find(|choice| choice.units == *units);
        let seconds = choice.map_or(0.0, |choice| choice.duration);
        table.row([i.to_string(), units.to_string(), format!("{seconds:.3}")]);
    }
    let used: u64 = arrangement.units.iter().sum();
    format!("{table}\n{used} units, {:.3} s in sum\n", arrangement.total)
}
