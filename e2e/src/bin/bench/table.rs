//! The table of figures.

/// One figure.
#[derive(Debug)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) figure: String,
    /// Ours, with its unit.
    pub(crate) ours: String,
    /// The baseline of the same run, or `-`.
    pub(crate) baseline: String,
    /// Ours against the baseline, or against the bound.
    pub(crate) ratio: String,
    /// What is asked for.
    pub(crate) target: String,
    /// Whether it is reached.
    pub(crate) reached: bool,
}

/// Prints the rows in aligned columns.
pub(crate) fn print(rows: &[Row]) {
    let cells = |row: &Row| {
        let reached = if row.reached { "yes" } else { "NO" };
        [&row.figure, &row.ours, &row.baseline, &row.ratio, &row.target]
            .map(String::clone)
            .into_iter()
            .chain([reached.to_owned()])
            .collect::<Vec<_>>()
    };
    let head = ["figure", "ours", "baseline", "ratio", "target", "reached"].map(str::to_owned);
    let lines: Vec<Vec<String>> =
        std::iter::once(head.to_vec()).chain(rows.iter().map(cells)).collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
