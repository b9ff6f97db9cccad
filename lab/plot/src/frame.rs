//! The parts around the data: heading, legend, axes.

use plotters::{
    coord::types::RangedCoordf64, element::DashedPathElement, prelude::*, style::text_anchor::HPos,
};

use super::{
    Axis, Heading, Places, Scale, Series,
    canvas::{Canvas, Drawn, FAINT, GREY, INK, PALETTE, Text},
};

/// Width of a plot, in units.
const WIDTH: u32 = 1000;
/// Height of a plot, in units, unless the legend needs more.
const HEIGHT: u32 = 500;
/// Margin at the edges.
const EDGE: i32 = 16;
/// Height of a line of the legend.
const LINE: i32 = 24;
/// Height of title and note.
const HEADING: i32 = 62;
/// Width of a sample in the legend, with the space after it.
const SAMPLE: i32 = 40;
/// The maximum width of a legend.
const LEGEND: i32 = 300;

/// An entry of the legend.
pub(super) enum Sample<'a> {
    Box(&'a Series),
    Line(&'a Series),
    Stage(usize, &'a str),
}

impl Sample<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Box(s) | Self::Line(s) => &s.name,
            Self::Stage(_, name) => name,
        }
    }
}

/// The colour of a series' bars, which is pale for a second series.
pub(super) fn fill(series: &Series) -> RGBColor {
    let colour = hue(series.colour);
    if series.second { pale(colour) } else { colour }
}

/// The colour with index `colour`.
pub(super) fn hue(colour: usize) -> RGBColor {
    PALETTE[colour % PALETTE.len()]
}

fn pale(RGBColor(r, g, b): RGBColor) -> RGBColor {
    let half = |c: u8| 255 - (255 - c) / 5 * 2;
    RGBColor(half(r), half(g), half(b))
}

/// Width and height of a plot with `samples` entries in the legend, in units.
pub(super) fn size(samples: usize) -> (u32, u32) {
    let legend = u32::try_from(samples).unwrap_or(0) * LINE as u32 + 100;
    (WIDTH, legend.max(HEIGHT))
}

/// The text of a number at an axis.
pub(super) fn tick(value: f64) -> String {
    let si = |v: f64, unit: &str| format!("{} {unit}", (v * 100.0).round() / 100.0);
    match value {
        v if v >= 1e9 => si(v / 1e9, "G"),
        v if v >= 1e6 => si(v / 1e6, "M"),
        v if v.fract() == 0.0 => thousands(v as u64),
        v => format!("{}", (v * 1000.0).round() / 1000.0),
    }
}

/// The upper end of an axis for `values`.
pub(super) fn top(values: impl IntoIterator<Item = f64>) -> f64 {
    let most = values.into_iter().filter(|v| v.is_finite()).fold(0.0, f64::max);
    if most > 0.0 { most * 1.06 } else { 1.0 }
}

/// The range of an axis and its scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    scale: Scale,
    bottom: f64,
    top: f64,
}

impl Range {
    /// A linear range from 0, with space for `values`.
    pub(super) fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        Self { scale: Scale::Linear, bottom: 0.0, top: top(values) }
    }

    /// A range for all series of an axis.
    fn of(axis: &Axis) -> Self {
        if axis.scale == Scale::Linear {
            return Self::linear(values(axis));
        }
        let positive = || values(axis).filter(|v| v.is_finite() && *v > 0.0).map(f64::log10);
        let least = positive().fold(f64::INFINITY, f64::min).floor();
        let most = positive().fold(f64::NEG_INFINITY, f64::max).ceil();
        let (least, most) = if least.is_finite() { (least, most.max(least + 1.0)) } else { (0.0, 1.0) };
        Self { scale: Scale::Log, bottom: 10_f64.powf(least), top: 10_f64.powf(most) }
    }

    /// The relative position of a value on the axis, from 0 to 1.
    fn part(self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value / self.top,
            Scale::Log if value <= self.bottom => 0.0,
            Scale::Log => (value / self.bottom).log10() / (self.top / self.bottom).log10(),
        }
    }

    /// Whether a value can be drawn.
    fn has(self, value: f64) -> bool {
        self.scale == Scale::Linear || value > 0.0
    }

    /// The values with a label.
    fn ticks(self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => RangedCoordf64::from(0.0..self.top).key_points(8),
            Scale::Log => {
                let powers = self.bottom.log10().round() as i32..=self.top.log10().round() as i32;
                powers.map(|p| 10_f64.powi(p)).collect()
            }
        }
    }
}

/// Draws heading and legend, and returns the remaining width for the data, in units.
pub(super) fn around<DB: DrawingBackend>(
    on: &Canvas<'_, DB>,
    heading: &Heading,
    samples: &[Sample<'_>],
) -> Result<i32, DrawingAreaErrorKind<DB::ErrorType>> {
    on.write(Text::Title, INK, (EDGE, 24, HPos::Left), &heading.title)?;
    on.write(Text::Small, GREY, (EDGE, 48, HPos::Left), &heading.note)?;
    let widest = samples.iter().map(|s| on.width(Text::Small, s.name())).max().unwrap_or(0);
    let left = on.size().0 - (widest + SAMPLE + EDGE + 8).min(LEGEND);
    for (i, sample) in samples.iter().enumerate() {
        let at = (left, HEADING + 44 + i as i32 * LINE);
        match sample {
            Sample::Line(series) => line_sample(on, at, series)?,
            Sample::Box(series) => box_sample(on, at, fill(series))?,
            Sample::Stage(n, _) => box_sample(on, at, hue(*n))?,
        }
        on.write(Text::Small, INK, (at.0 + SAMPLE, at.1, HPos::Left), sample.name())?;
    }
    Ok(left)
}

fn box_sample<DB: DrawingBackend>(on: &Canvas<'_, DB>, (x, y): (i32, i32), colour: RGBColor) -> Drawn<DB> {
    let corners = [(on.px(x + 12), on.px(y - 7)), (on.px(x + 30), on.px(y + 7))];
    on.area.draw(&Rectangle::new(corners, colour.filled()))
}

fn line_sample<DB: DrawingBackend>(on: &Canvas<'_, DB>, (x, y): (i32, i32), series: &Series) -> Drawn<DB> {
    stretch(on, [(on.px(x + 4), on.px(y)), (on.px(x + 34), on.px(y))], series, 0)?;
    marker(on, (on.px(x + 19), on.px(y)), series, 0)
}

/// A straight segment of a series' line, in pixels, wider by one step for each line that hides it.
fn stretch<DB: DrawingBackend>(
    on: &Canvas<'_, DB>,
    ends: [(i32, i32); 2],
    series: &Series,
    hidden: u32,
) -> Drawn<DB> {
    let stroke = on.stroke(hue(series.colour), 22 + 44 * hidden);
    if series.second {
        on.area.draw(&DashedPathElement::new(ends, on.px(7), on.px(5), stroke))
    } else {
        on.area.draw(&PathElement::new(ends, stroke))
    }
}

/// The marker of a series: a shape for each colour, hollow for a second series, larger by one step for each
/// line that hides it.
fn marker<DB: DrawingBackend>(
    on: &Canvas<'_, DB>,
    (x, y): (i32, i32),
    series: &Series,
    hidden: u32,
) -> Drawn<DB> {
    let more = 4 * hidden.cast_signed();
    let colour = hue(series.colour);
    let shape = |r: i32| -> Vec<(i32, i32)> {
        let r = on.px(r);
        let at =
            |points: &[(i32, i32)]| points.iter().map(|(a, b)| (x + a * r / 10, y + b * r / 10)).collect();
        match series.colour % 4 {
            0 => (0..24)
                .map(|i| f64::from(i) * std::f64::consts::TAU / 24.0)
                .map(|a| {
                    (x + (a.cos() * f64::from(r)).round() as i32, y + (a.sin() * f64::from(r)).round() as i32)
                })
                .collect(),
            1 => at(&[(-9, -9), (9, -9), (9, 9), (-9, 9)]),
            2 => at(&[(0, -12), (11, 8), (-11, 8)]),
            _ => at(&[(0, -12), (12, 0), (0, 12), (-12, 0)]),
        }
    };
    on.area.draw(&Polygon::new(shape(8 + more), WHITE.filled()))?;
    on.area.draw(&Polygon::new(shape(6 + more), colour.filled()))?;
    if series.second {
        on.area.draw(&Polygon::new(shape(3), WHITE.filled()))?;
    }
    Ok(())
}

/// The area of the data: categories from left to right, category `n` at `n + 0.5`, and values from the bottom
/// to the top.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane {
    /// Pixels of the whole plot: left and right, top and bottom.
    x: (i32, i32),
    y: (i32, i32),
    /// The x coordinate at the right end.
    end: f64,
    /// The range of the y axis.
    range: Range,
}

impl Plane {
    /// The pixel of a value.
    pub(super) fn at(&self, x: f64, y: f64) -> (i32, i32) {
        let between = |(from, to): (i32, i32), part: f64| from + (f64::from(to - from) * part).round() as i32;
        (between(self.x, x / self.end), between((self.y.1, self.y.0), self.range.part(y)))
    }

    /// The pixels of a series' values, one for each category.
    pub(super) fn points(&self, series: &Series) -> Vec<Option<(i32, i32)>> {
        let has = |v: &f64| self.range.has(*v);
        let at = |(i, v): (usize, &Option<f64>)| v.filter(has).map(|v| self.at(i as f64 + 0.5, v));
        series.values.iter().enumerate().map(at).collect()
    }
}

/// The labels and ranges of the axes.
pub(super) struct Axes<'a> {
    /// Position and name of each category on the x axis, from 0 to `end`.
    pub(super) places: Vec<(f64, String)>,
    pub(super) end: f64,
    pub(super) x_label: &'a str,
    pub(super) y_label: &'a str,
    pub(super) range: Range,
    /// Units of space below the x axis.
    pub(super) below: i32,
    /// The label and range of the right axis, if there is one.
    pub(super) right: Option<(&'a str, Range)>,
}

impl<'a> Axes<'a> {
    /// Axes for `x` and a left axis.
    pub(super) fn new(x: &'a Places, y: &'a Axis) -> Self {
        Self {
            places: x.names.iter().enumerate().map(|(i, n)| (i as f64 + 0.5, n.clone())).collect(),
            end: x.names.len().max(1) as f64,
            x_label: &x.label,
            y_label: &y.label,
            range: Range::of(y),
            below: 68,
            right: None,
        }
    }

    /// Draws the axes into a plot with at most `width` units for the data, and returns the areas of the left
    /// and of the right axis.
    pub(super) fn draw<DB: DrawingBackend>(
        &self,
        on: &Canvas<'_, DB>,
        width: i32,
    ) -> Result<(Plane, Plane), DrawingAreaErrorKind<DB::ErrorType>> {
        let (left, right) = (EDGE + 56, width - if self.right.is_some() { 62 } else { 8 });
        let (above, below) = (HEADING + 32, on.size().1 - self.below);
        let px = |(a, b)| (on.px(a), on.px(b));
        let plane = Plane { x: px((left, right)), y: px((above, below)), end: self.end, range: self.range };
        on.write(Text::Normal, INK, (EDGE, HEADING + 12, HPos::Left), self.y_label)?;
        for value in plane.range.ticks() {
            let (x, y) = plane.at(0.0, value);
            on.area.draw(&PathElement::new([(x, y), (plane.x.1, y)], on.stroke(FAINT, 10)))?;
            self.tick(on, (x, y, -1), value)?;
        }
        let mut second = plane;
        if let Some((label, range)) = self.right {
            second.range = range;
            on.write(Text::Normal, INK, (width - 4, HEADING + 12, HPos::Right), label)?;
            for value in second.range.ticks() {
                let (x, y) = second.at(self.end, value);
                self.tick(on, (x, y, 1), value)?;
            }
        }
        self.write_places(on, &plane)?;
        Ok((plane, second))
    }

    /// Draws a tick mark outside of an axis, to the left (-1) or to the right (1) of a pixel, and its value.
    fn tick<DB: DrawingBackend>(
        &self,
        on: &Canvas<'_, DB>,
        (x, y, side): (i32, i32, i32),
        value: f64,
    ) -> Drawn<DB> {
        let mark = [(x, y), (x + side * on.px(5), y)];
        on.area.draw(&PathElement::new(mark, on.stroke(INK, 10)))?;
        let from = if side < 0 { HPos::Right } else { HPos::Left };
        on.write_at(Text::Small, INK, (x + side * on.px(9), y, from), &tick(value))
    }

    fn write_places<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>, plane: &Plane) -> Drawn<DB> {
        let (left, bottom) = plane.at(0.0, 0.0);
        let (right, top) = plane.at(self.end, self.range.top);
        on.area
            .draw(&PathElement::new([(left, top), (left, bottom), (right, bottom)], on.stroke(INK, 10)))?;
        if self.right.is_some() {
            on.area.draw(&PathElement::new([(right, top), (right, bottom)], on.stroke(INK, 10)))?;
        }
        for (at, name) in &self.places {
            Self::write_below(on, plane, (Text::Small, *at, 24), name)?;
        }
        Self::write_below(on, plane, (Text::Normal, self.end / 2.0, self.below - 18), self.x_label)
    }

    /// Writes `text` `units` units below a position on the x axis.
    pub(super) fn write_below<DB: DrawingBackend>(
        on: &Canvas<'_, DB>,
        plane: &Plane,
        (kind, at, units): (Text, f64, i32),
        text: &str,
    ) -> Drawn<DB> {
        let (x, y) = plane.at(at, 0.0);
        on.write_at(kind, INK, (x, y + on.px(units), HPos::Center), text)
    }
}

/// All values of an axis.
pub(super) fn values(axis: &Axis) -> impl Iterator<Item = f64> {
    axis.series.iter().flat_map(|s| s.values.iter().flatten().copied())
}

/// The maximum number of steps by which a hidden line is widened.
const MOST_STEPS: usize = 2;

/// Draws series as lines with markers, the first one at the bottom, with gaps for missing values. Where others hide
/// a line, it is drawn wider than they are.
pub(super) fn lines<DB: DrawingBackend>(on: &Canvas<'_, DB>, all: &[Series], plane: &Plane) -> Drawn<DB> {
    let points: Vec<_> = all.iter().map(|series| plane.points(series)).collect();
    let near = |a: (i32, i32), b: (i32, i32)| (a.1 - b.1).abs() <= on.px(3);
    for (n, (series, own)) in all.iter().zip(&points).enumerate() {
        let hidden = |(i, at): (usize, &Option<(i32, i32)>)| {
            let hides = |other: &&Vec<Option<(i32, i32)>>| {
                at.zip(other.get(i).copied().flatten()).is_some_and(|(a, b)| near(a, b))
            };
            points.iter().skip(n + 1).filter(hides).count().min(MOST_STEPS) as u32
        };
        let hidden: Vec<u32> = own.iter().enumerate().map(hidden).collect();
        line(on, series, own, &hidden)?;
    }
    Ok(())
}

fn line<DB: DrawingBackend>(
    on: &Canvas<'_, DB>,
    series: &Series,
    points: &[Option<(i32, i32)>],
    hidden: &[u32],
) -> Drawn<DB> {
    let pairs = points.windows(2).zip(hidden.windows(2)).filter_map(|(pair, hidden)| {
        Some(([(*pair.first()?)?, (*pair.last()?)?], hidden.iter().copied().min()?))
    });
    // A light border separates the line from bars of the same colour.
    for (ends, hidden) in pairs.clone() {
        on.area.draw(&PathElement::new(ends, on.stroke(WHITE, 42 + 44 * hidden)))?;
    }
    for (ends, hidden) in pairs {
        stretch(on, ends, series, hidden)?;
    }
    let mut markers = points.iter().zip(hidden).filter_map(|(at, hidden)| Some(((*at)?, *hidden)));
    markers.try_for_each(|(at, hidden)| marker(on, at, series, hidden))
}

/// `n` with a comma between groups of three digits.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_an_axis_are_short() {
        let named = [0.0, 0.25, 150.0, 2500.0, 1_500_000.0, 3e9].map(tick);
        assert_eq!(named, ["0", "0.25", "150", "2,500", "1.5 M", "3 G"]);
    }

    #[test]
    fn an_axis_fits_its_largest_value_or_none() {
        assert!(top([3.0, 9.0, 1.0]) > 9.0);
        assert!(top([]) > 0.0 && top([0.0, f64::NAN]) > 0.0);
    }

    #[test]
    fn values_lie_between_the_axes() {
        let range = Range { scale: Scale::Linear, bottom: 0.0, top: 10.0 };
        let plane = Plane { x: (100, 500), y: (50, 250), end: 4.0, range };
        assert_eq!(
            [plane.at(0.0, 0.0), plane.at(4.0, 10.0), plane.at(2.0, 5.0)],
            [(100, 250), (500, 50), (300, 150)]
        );
    }

    #[test]
    fn powers_of_ten_are_evenly_spaced_on_a_logarithmic_axis() {
        let axis = |values: &[f64]| Axis {
            label: String::new(),
            scale: Scale::Log,
            series: vec![Series {
                name: String::new(),
                values: values.iter().map(|v| Some(*v)).collect(),
                colour: 0,
                second: false,
            }],
        };
        let range = Range::of(&axis(&[0.59, 934.0, 0.0]));
        assert_eq!(range.ticks(), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert!((range.part(1.0) - 0.25).abs() < 1e-9 && (range.part(100.0) - 0.75).abs() < 1e-9);
        assert_eq!((range.part(0.0), range.part(0.01)), (0.0, 0.0));
        assert!(range.has(0.59) && !range.has(0.0));
        assert_eq!(Range::of(&axis(&[])).ticks(), [1.0, 10.0]);
        assert_eq!(Range::of(&axis(&[10.0])).ticks(), [10.0, 100.0]);
    }
}
