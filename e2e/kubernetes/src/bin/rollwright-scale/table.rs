//! The table of figures.

/// One figure; a cell with nothing to say is empty.
#[derive(Debug)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) figure: String,
    /// Ours, with its unit.
    pub(crate) ours: String,
    /// Plain Deployments in the same run.
    pub(crate) plain: String,
    /// What is asked for, and whether it is reached.
    pub(crate) target: Option<(&'static str, bool)>,
}

impl Row {
    /// A figure of ours alone.
    pub(crate) fn new(figure: impl Into<String>, ours: impl Into<String>) -> Self {
        Self { figure: figure.into(), ours: ours.into(), plain: String::new(), target: None }
    }

    /// Beside the same of plain Deployments.
    pub(crate) fn beside(self, plain: impl Into<String>) -> Self {
        Self { plain: plain.into(), ..self }
    }

    /// With what is asked for.
    pub(crate) fn target(self, target: &'static str, reached: bool) -> Self {
        Self { target: Some((target, reached)), ..self }
    }
}

/// The rows in aligned columns.
pub(crate) fn render(rows: &[Row]) -> String {
    let head = ["figure", "ours", "plain Deployments", "target", "reached"].map(str::to_owned);
    let cells = |row: &Row| {
        let (target, reached) = match row.target {
            Some((target, reached)) => (target, if reached { "yes" } else { "NO" }),
            None => ("", ""),
        };
        [row.figure.clone(), row.ours.clone(), row.plain.clone(), target.into(), reached.into()]
    };
    let lines: Vec<[String; 5]> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..5).map(|column| width(column).unwrap_or(0)).collect();
    let line = |cells: &[String; 5]| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            Row::new("settled", "9 s").beside("8 s").target("at most 60 s more", true),
            Row::new("memory", "100 MiB"),
        ];
        let expected = "\
figure   ours     plain Deployments  target             reached
settled  9 s      8 s                at most 60 s more  yes
memory   100 MiB";
        assert_eq!(render(&rows), expected);
    }
}
