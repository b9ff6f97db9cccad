//! Plots in the layout of the papers: lines over threads, bars with lines of CPU time, bars of stages.
//!
//! Each plot is written as SVG and as PNG, by `plotters`. The text needs no font of the machine: two fonts
//! are compiled in (`fonts/`), and the SVG names alternatives that are equally wide or narrower. The colours
//! are those of Okabe and Ito, which are distinguishable with colour blindness; markers, dashes and
//! brightness repeat the distinction.

mod bars;
mod canvas;
mod frame;
mod lines;
mod stacked;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

/// A plot that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {}: {reason}", path.display())]
pub struct PlotError {
    /// The file, or its directory.
    path: PathBuf,
    reason: String,
}

impl PlotError {
    /// A conversion of errors of `path`, for `map_err`.
    fn at<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> Self {
        move |reason| Self { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// The heading of a plot.
#[derive(Debug, Clone, Default)]
pub struct Heading {
    /// The subject, in at most about 75 characters.
    pub title: String,
    /// The conditions of the measurement, in at most about 120 characters, or empty.
    pub note: String,
}

/// A line, or the bars of one colour.
#[derive(Debug, Clone)]
pub struct Series {
    /// The text in the legend: at most about 30 characters.
    pub name: String,
    /// One value for each category of the x axis. `None` was not measured and leaves a gap.
    pub values: Vec<Option<f64>>,
    /// Index of the colour in the palette, modulo [`COLOURS`].
    pub colour: usize,
    /// Whether the series is the counterpart of the series of the same colour, drawn as pale bars or as a
    /// dashed line with hollow markers.
    pub second: bool,
}

/// Number of colours in the palette.
pub const COLOURS: usize = canvas::PALETTE.len();

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// A linear scale from 0.
    #[default]
    Linear,
    /// Evenly spaced powers of ten. Values that are not positive are not drawn. Bars are never drawn on this
    /// scale.
    Log,
}

/// An axis and the series that use it.
#[derive(Debug, Clone, Default)]
pub struct Axis {
    /// The quantity with its unit: "MB/s", "CPU %".
    pub label: String,
    /// The scale.
    pub scale: Scale,
    /// The series.
    pub series: Vec<Series>,
}

/// The categories of the x axis, evenly spaced, so that threads 1, 2, 4, 8 appear as on a logarithmic scale.
#[derive(Debug, Clone)]
pub struct Places {
    /// The quantity: "threads".
    pub label: String,
    /// The names of the categories, from left to right.
    pub names: Vec<String>,
}

/// Lines with markers, as in figures 7 to 9 and 11 to 15 of TR06.
#[derive(Debug, Clone)]
pub struct Lines {
    /// Title and note.
    pub heading: Heading,
    /// The x axis.
    pub x: Places,
    /// The y axis and its lines.
    pub y: Axis,
}

/// Groups of bars, with lines on a separate axis on the right, as in figures 5 and 6 of TR06: bandwidth and
/// its CPU time.
#[derive(Debug, Clone)]
pub struct BarsWithLines {
    /// Title and note.
    pub heading: Heading,
    /// The x axis, with one group of bars for each category.
    pub x: Places,
    /// The left axis and its bars.
    pub bars: Axis,
    /// The right axis and its lines. The axis is omitted if there are no lines.
    pub lines: Axis,
}

/// Stacked bars in named groups, as in figure 10 of TR06: the stages of an operation's time.
#[derive(Debug, Clone)]
pub struct Stacked {
    /// Title and note.
    pub heading: Heading,
    /// The meaning of the names below the bars: "threads".
    pub x_label: String,
    /// The quantity with its unit: "% of an operation's time".
    pub y_label: String,
    /// The stages, from the bottom to the top.
    pub stages: Vec<String>,
    /// The groups, from left to right: "client, 128 KiB", "server, 128 KiB".
    pub groups: Vec<StackedGroup>,
}

/// Adjacent bars with a common name below.
#[derive(Debug, Clone)]
pub struct StackedGroup {
    /// The name of the group.
    pub name: String,
    /// The bars: the text below each, and a value for each stage, in the order of the stages.
    pub bars: Vec<(String, Vec<f64>)>,
}

impl Lines {
    /// Writes `DIR/NAME.svg` and `DIR/NAME.png`. Creates the directory if it does not exist.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), PlotError> {
        canvas::write(self, dir, name)
    }
}

impl BarsWithLines {
    /// Writes `DIR/NAME.svg` and `DIR/NAME.png`. Creates the directory if it does not exist.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), PlotError> {
        canvas::write(self, dir, name)
    }
}

impl Stacked {
    /// Writes `DIR/NAME.svg` and `DIR/NAME.png`. Creates the directory if it does not exist.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), PlotError> {
        canvas::write(self, dir, name)
    }
}
