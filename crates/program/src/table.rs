//! Plain text tables: aligned columns, a line under the header, no colours or borders.

use std::fmt;

use comfy_table::{CellAlignment, ContentArrangement};

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Left-aligned, for text.
    Left,
    /// Right-aligned, for numbers.
    Right,
}

/// A table with an aligned text representation.
pub struct Table {
    inner: comfy_table::Table,
    columns: Vec<Align>,
    header: bool,
}

impl Table {
    /// Creates a table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let mut inner = comfy_table::Table::new();
        inner.set_header(columns.iter().map(|(name, _)| *name));
        Self::with(inner, true, columns.iter().map(|(_, align)| *align).collect())
    }

    /// Creates a table without a header.
    pub fn bare(columns: &[Align]) -> Self {
        Self::with(comfy_table::Table::new(), false, columns.to_vec())
    }

    fn with(mut inner: comfy_table::Table, header: bool, columns: Vec<Align>) -> Self {
        inner.load_style(comfy_table::presets::NOTHING);
        inner.set_content_arrangement(ContentArrangement::Disabled);
        let mut table = Self { inner, columns, header };
        table.align();
        table
    }

    /// Adds a row.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.inner.add_row(cells.into_iter().map(Into::into).collect::<Vec<String>>());
        // The columns exist after the first row is added.
        if self.inner.row_count() == 1 {
            self.align();
        }
    }

    fn align(&mut self) {
        for (i, align) in self.columns.iter().enumerate() {
            if let Some(c) = self.inner.column_mut(i) {
                c.set_padding((if i == 0 { 0 } else { 1 }, 1));
                c.set_cell_alignment(match align {
                    Align::Left => CellAlignment::Left,
                    Align::Right => CellAlignment::Right,
                });
            }
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.inner.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let width = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0);
        for (i, line) in lines.iter().enumerate() {
            writeln!(f, "{line}")?;
            if i == 0 && self.header {
                writeln!(f, "{}", "-".repeat(width))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_space() {
        let mut t = Table::new(&[("test", Align::Left), ("MB/s", Align::Right)]);
        t.row(["read", "3900"]);
        t.row(["random-read", "4"]);
        assert_eq!(
            t.to_string(),
            "test         MB/s\n-----------------\nread         3900\nrandom-read     4\n"
        );
    }
}
