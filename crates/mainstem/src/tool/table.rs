//! Tables on standard output.

use std::io::{self, Write};

use super::failure::{Failure, io_message};

/// Rows of cells. All rows have as many cells as the header.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with only a header.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.rows[0].len());
        self.rows.push(row);
    }

    fn text(&self) -> String {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// Prints the table.
    ///
    /// # Errors
    /// If writing fails, except when standard output is closed.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        print(&self.text())
    }
}

/// Prints text.
///
/// # Errors
/// As [`Table::print`].
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("standard output: {}", io_message(&error))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_columns_to_their_widest_cell() {
        let mut table = Table::new(&["TOPIC", "N"]);
        table.push(vec!["été-orders".into(), "1".into()]);
        table.push(vec![String::new(), String::new()]);
        assert_eq!(table.text(), "TOPIC       N\nété-orders  1\n\n");
    }
}
