//! Groups of bars, with lines on a separate axis.

use plotters::{prelude::*, style::text_anchor::HPos};

use super::{
    BarsWithLines,
    canvas::{Canvas, Drawn, INK, Picture, Text},
    frame::{self, Axes, Plane, Range, Sample, around, fill, lines, values},
};

/// The share of a category's width that its bars occupy.
const GROUP: f64 = 0.8;

impl Picture for BarsWithLines {
    fn size(&self) -> (u32, u32) {
        frame::size(self.bars.series.len() + self.lines.series.len())
    }

    fn draw<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>) -> Drawn<DB> {
        let bars = self.bars.series.iter().map(Sample::Box);
        let samples: Vec<_> = bars.chain(self.lines.series.iter().map(Sample::Line)).collect();
        let width = around(on, &self.heading, &samples)?;
        let right = (!self.lines.series.is_empty())
            .then(|| (self.lines.label.as_str(), Range::linear(values(&self.lines))));
        let range = Range::linear(values(&self.bars));
        let (left, right) = Axes { range, right, ..Axes::new(&self.x, &self.bars) }.draw(on, width)?;
        self.draw_bars(on, &left)?;
        lines(on, &self.lines.series, &right)
    }
}

impl BarsWithLines {
    fn draw_bars<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>, plane: &Plane) -> Drawn<DB> {
        let width = GROUP / self.bars.series.len().max(1) as f64;
        // The left edge of each category's next bar. The existing bars of a category are centred.
        let places = self.bars.series.iter().map(|s| s.values.len()).max().unwrap_or(0);
        let has =
            |place: usize| self.bars.series.iter().filter_map(|s| s.values.get(place)?.as_ref()).count();
        let first = |place: usize| place as f64 + (1.0 - has(place) as f64 * width) / 2.0;
        let mut next: Vec<f64> = (0..places).map(first).collect();
        for series in &self.bars.series {
            for (value, next) in series.values.iter().zip(&mut next) {
                let Some(value) = value else { continue };
                let left = *next;
                *next += width;
                let corners = [plane.at(left, *value), plane.at(left + width * 0.9, 0.0)];
                on.area.draw(&Rectangle::new(corners, fill(series).filled()))?;
                if *value == 0.0 {
                    // The mark distinguishes a measured zero from a missing value.
                    let (x, y) = plane.at(left + width * 0.45, 0.0);
                    on.write_at(Text::Small, INK, (x, y - on.px(9), HPos::Center), "0")?;
                }
            }
        }
        Ok(())
    }
}
