//! Figures in the layout of the papers: lines over threads, bars with lines of processor
//! time, bars of stages.
//!
//! Each picture is written twice, as SVG and as PNG, by `plotters`. Text needs no font of the machine: two faces are
//! part of the program (`fonts/`), and the SVG names others that are as wide or narrower. Colours are those of Okabe and
//! Ito, which people with any sight tell apart; markers, dashes and tones say the same again.

mod bars;
mod canvas;
mod frame;
mod lines;
mod stacked;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

/// A picture could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {}: {reason}", path.display())]
pub struct PlotError {
    /// The file, or its directory.
    path: PathBuf,
    reason: String,
}

impl PlotError {
    /// The error for `path`, for `map_err`.
    fn at<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> Self {
        move |reason| Self { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// What stands around a picture's data.
#[derive(Debug, Clone, Default)]
pub struct Heading {
    /// What is shown, in at most about 75 characters.
    pub title: String,
    /// Under which conditions it was measured, in at most about 120 characters; empty: nothing to say.
    pub note: String,
}

/// Values that belong together: a line, or bars of one colour.
#[derive(Debug, Clone)]
pub struct Series {
    /// What the legend says: at most about 30 characters.
    pub name: String,
    /// One value for each place on the x axis; `None` was not measured and leaves a gap.
    pub values: Vec<Option<f64>>,
    /// Which colour of the palette, counted from 0; the palette repeats after [`COLOURS`].
    pub colour: usize,
    /// Drawn as the counterpart of the series of the same colour: a pale bar, a dashed line with hollow markers.
    pub second: bool,
}

/// How many colours there are before they repeat.
pub const COLOURS: usize = canvas::PALETTE.len();

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Values from 0 on, evenly spaced.
    #[default]
    Linear,
    /// Powers of ten, evenly spaced; values that are not above 0 have no place. Bars are never drawn so.
    Log,
}

/// An axis, and what is drawn along it.
#[derive(Debug, Clone, Default)]
pub struct Axis {
    /// What is measured, with its unit: "MB/s", "CPU %".
    pub label: String,
    /// How it is divided.
    pub scale: Scale,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// The places on the x axis, evenly spaced: threads 1, 2, 4, 8 stand as on a logarithmic scale.
#[derive(Debug, Clone)]
pub struct Places {
    /// What they are: "threads".
    pub label: String,
    /// Their names, from left to right.
    pub names: Vec<String>,
}

/// Lines with markers, as figures 7 to 9 and 11 to 15 of TR06.
#[derive(Debug, Clone)]
pub struct Lines {
    /// Title and note.
    pub heading: Heading,
    /// The x axis.
    pub x: Places,
    /// The y axis and its lines.
    pub y: Axis,
}

/// Groups of bars, with lines on an axis of their own on the right, as figures 5 and 6 of TR06: bandwidth, and the
/// processor time that it takes.
#[derive(Debug, Clone)]
pub struct BarsWithLines {
    /// Title and note.
    pub heading: Heading,
    /// The x axis: one group of bars for each place.
    pub x: Places,
    /// The left axis and its bars.
    pub bars: Axis,
    /// The right axis and its lines; without series there is no right axis.
    pub lines: Axis,
}

/// Bars made of stages, one on the other, in named groups, as figure 10 of TR06: where the time of an operation goes.
#[derive(Debug, Clone)]
pub struct Stacked {
    /// Title and note.
    pub heading: Heading,
    /// What the names below the bars are: "threads".
    pub x_label: String,
    /// What is measured, with its unit: "% of an operation's time".
    pub y_label: String,
    /// The stages, from the bottom up.
    pub stages: Vec<String>,
    /// The groups, from left to right: "client, 128 KiB", "server, 128 KiB".
    pub groups: Vec<StackedGroup>,
}

/// Neighbouring bars with a name under them all.
#[derive(Debug, Clone)]
pub struct StackedGroup {
    /// The name of the group.
    pub name: String,
    /// The bars: what stands under each, and a value for each stage, in the stages' order.
    pub bars: Vec<(String, Vec<f64>)>,
}

impl Lines {
    /// Writes `DIR/NAME.svg` and `DIR/NAME.png`; makes the directory if it is not there.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), PlotError> {
        canvas::write(self, dir, name)
    }
}

impl BarsWithLines {
    /// Writes `DIR/NAME.svg` and `DIR/NAME.png`; makes the directory if it is not there.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), PlotError> {
        canvas::write(self, dir, name)
    }
}

impl Stacked {
    /// Writes `DIR/NAME.svg` and `DIR/NAME.png`; makes the directory if it is not there.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), PlotError> {
        canvas::write(self, dir, name)
    }
}
