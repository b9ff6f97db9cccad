//! Plots of curves, with the paper's figures beside them.

use std::{fs, path::Path};

use millrace_plot::{Axis, BarsWithLines, Heading, Lines, Places, Scale, Series};
use millrace_program::units::ByteSize;

use crate::{Curves, ReproduceError};

/// The format of x values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number: threads, clients, miles.
    Number,
    /// A number of bytes.
    Bytes,
}

/// A plot.
#[derive(Debug, Clone, Copy)]
pub struct Picture {
    /// The name of its file, after that of the claim.
    pub name: &'static str,
    /// The title.
    pub title: &'static str,
    /// The x axis: label and format.
    pub x: (&'static str, Unit),
    /// The y axis: label and scale.
    pub y: (&'static str, Scale),
    /// The curves.
    pub curves: &'static [&'static str],
    /// The label and curves of a right axis. The curves of the left axis are then drawn as bars, as they are
    /// if there is only one x value.
    pub right: Option<(&'static str, &'static [&'static str])>,
    /// The paper's points of a curve, drawn dashed beside it.
    pub paper: &'static [(&'static str, &'static [(f64, f64)])],
}

impl Picture {
    /// Writes `DIR/NAME.svg` and `DIR/NAME.png`, and returns the SVG.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn draw(
        &self,
        curves: &Curves,
        note: &str,
        dir: &Path,
        name: &str,
    ) -> Result<String, ReproduceError> {
        let heading = Heading { title: self.title.to_owned(), note: note.to_owned() };
        let places = self.places(curves);
        let x = Places { label: self.x.0.to_owned(), names: places.iter().map(|x| self.place(*x)).collect() };
        let axis = |label: &str, scale, series| Axis { label: label.to_owned(), scale, series };
        let mut left = self.series(curves, &places, self.curves, 0);
        left.extend(self.papers(&places));
        // A line needs two x values.
        let bars = |label, lines| BarsWithLines {
            heading: heading.clone(),
            x: x.clone(),
            bars: axis(self.y.0, Scale::Linear, left.clone()),
            lines: axis(label, Scale::Linear, lines),
        };
        match self.right {
            None if places.len() == 1 => bars("", Vec::new()).write(dir, name)?,
            None => {
                let y = axis(self.y.0, self.y.1, left.clone());
                Lines { heading: heading.clone(), x: x.clone(), y }.write(dir, name)?;
            }
            Some((label, names)) => {
                bars(label, self.series(curves, &places, names, self.curves.len())).write(dir, name)?;
            }
        }
        let path = dir.join(format!("{name}.svg"));
        fs::read_to_string(&path).map_err(|source| ReproduceError::File { path, source })
    }

    /// All curves of the plot.
    pub fn all_curves(&self) -> impl Iterator<Item = &'static str> {
        self.curves.iter().chain(self.right.map(|r| r.1).unwrap_or_default()).copied()
    }

    /// The text of an x value.
    pub(crate) fn place(&self, x: f64) -> String {
        match self.x.1 {
            Unit::Number => x.to_string(),
            Unit::Bytes => ByteSize(x.round() as u64).human().to_string(),
        }
    }

    /// The x values at which a curve or the paper has a value, in order.
    pub(crate) fn places(&self, curves: &Curves) -> Vec<f64> {
        let ours = self.all_curves().flat_map(|c| curves.points(c));
        let papers = self.paper.iter().flat_map(|(_, points)| *points);
        let mut places: Vec<f64> = ours.chain(papers).map(|(x, _)| *x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    fn series(&self, curves: &Curves, places: &[f64], names: &[&'static str], first: usize) -> Vec<Series> {
        let one = |(n, name): (usize, &&'static str)| Series {
            name: (*name).to_owned(),
            values: places.iter().map(|x| curves.at(name, *x)).collect(),
            colour: first + n,
            second: false,
        };
        names.iter().enumerate().map(one).collect()
    }

    /// The paper's points, dashed and in the colour of their curve.
    fn papers(&self, places: &[f64]) -> Vec<Series> {
        let value = |points: &[(f64, f64)], x: f64| points.iter().find(|p| p.0 == x).map(|p| p.1);
        let one = |(curve, points): &(&'static str, &'static [(f64, f64)])| Series {
            name: format!("paper: {curve}"),
            values: places.iter().map(|x| value(points, *x)).collect(),
            colour: self.curves.iter().position(|c| c == curve).unwrap_or(self.curves.len()),
            second: true,
        };
        self.paper.iter().map(one).collect()
    }
}
