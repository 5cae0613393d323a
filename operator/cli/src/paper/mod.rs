//! `paper`: what the source texts measured, simulated again.

mod measure;
mod table;

use std::path::Path;

use rollwright_sim::paper::{Figure, Outcome, figures};
use serde::Serialize;

use crate::command::Paper;
use crate::failure::Failure;
use crate::input::Fault;
use crate::report::json;

/// The answer.
#[derive(Debug, Serialize)]
struct Report {
    experiments: Vec<Outcome>,
}

/// Measures what is asked for.
pub(crate) fn run(args: &Paper) -> Result<String, Failure> {
    let figures = figures();
    let wanted = |row: &str| args.name.as_deref().is_none_or(|name| is_named(row, name));
    let chosen: Vec<Figure> = figures
        .iter()
        .filter(|figure| figure.rows.iter().any(|row| wanted(row.name)))
        .cloned()
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> =
            figures.iter().flat_map(|figure| &figure.rows).map(|row| row.name).collect();
        let fault = Fault::new(format!("no such experiment: use one of {}", names.join(", ")));
        return Err(fault.in_file(Path::new("NAME")).into());
    }
    let seeds: Vec<u64> = (0..args.seeds).map(|i| args.seed.wrapping_add(i << 32)).collect();
    let measured = measure::measure(&chosen, &seeds)?;
    let outcomes = chosen.iter().zip(&measured).flat_map(|(figure, of)| Outcome::of(figure, of));
    let experiments: Vec<Outcome> = outcomes.filter(|outcome| wanted(outcome.name)).collect();
    Ok(if args.json { json(&Report { experiments }) } else { table::table(&experiments) })
}

/// Whether `name` is the row's, or its beginning up to a dash.
fn is_named(row: &str, name: &str) -> bool {
    row.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
