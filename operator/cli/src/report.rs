//! How answers look.

use std::fmt;

use serde::Serialize;

/// One JSON object, and the end of the line.
pub(crate) fn json(answer: &impl Serialize) -> String {
    // Numbers, lists and names that are text: nothing that JSON cannot say.
    let mut text = serde_json::to_string(answer).unwrap_or_default();
    text.push('\n');
    text
}

/// Columns of numbers, aligned to the right under their names.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(names: &[&str]) -> Self {
        Self { rows: vec![names.iter().map(ToString::to_string).collect()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if i == 0 { "" } else { "  " };
                write!(f, "{gap}{cell:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
