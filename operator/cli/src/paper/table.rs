//! The rows as a person reads them.

use rollwright_sim::paper::{Better, Outcome};

/// Columns, text to the left and numbers to the right; under a row that no simulation
/// can tell, why.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let cells = |outcome: &Outcome| {
        [
            outcome.name.to_owned(),
            outcome.source.to_owned(),
            number(outcome.paper),
            outcome.ours.map_or_else(|| "-".to_owned(), number),
            outcome.interval.map_or_else(String::new, |[least, most]| {
                format!("{}..{}", number(least), number(most))
            }),
            verdict(outcome),
        ]
    };
    let titles = ["name", "source", "paper", "ours", "interval", ""].map(str::to_owned);
    let mut rows = vec![titles];
    rows.extend(outcomes.iter().map(cells));
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |row: &[String; 6]| {
        let [name, source, paper, ours, interval, verdict] = row;
        let [names, sources, papers, all_ours, intervals] = widths;
        let line = format!(
            "{name:names$}  {source:sources$}  {paper:>papers$}  {ours:>all_ours$}  {interval:>intervals$}  {verdict}"
        );
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn verdict(outcome: &Outcome) -> String {
    let Some(shortfall) = outcome.shortfall else {
        return outcome.why.unwrap_or_default().to_owned();
    };
    let percent = format!("{:.0}%", shortfall * 100.0);
    match outcome.better {
        Better::Equal => format!("off by {percent}"),
        _ if shortfall == 0.0 => "reached".to_owned(),
        _ => format!("short by {percent}"),
    }
}

/// Three digits that count.
fn number(value: f64) -> String {
    let digits = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    let places = (2.0 - digits).clamp(0.0, 9.0) as usize;
    format!("{value:.places$}")
}
