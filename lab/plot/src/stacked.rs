//! Stacked bars in named groups.

use plotters::prelude::*;

use super::{
    Stacked, StackedGroup,
    canvas::{Canvas, Drawn, Picture, Text},
    frame::{self, Axes, Plane, Range, Sample, around, hue},
};

/// The share of a category's width that its bar occupies.
const BAR: f64 = 0.84;
/// Space between groups, in categories.
const GAP: f64 = 0.6;

impl Stacked {
    /// Each group, with the x coordinate of its first bar.
    fn groups_at(&self) -> impl Iterator<Item = (f64, &StackedGroup)> {
        self.groups.iter().scan(GAP / 2.0, |next, group| {
            let at = *next;
            *next += group.bars.len() as f64 + GAP;
            Some((at, group))
        })
    }

    fn axes(&self) -> Axes<'_> {
        let bar = |at: f64, i: usize, name: &str| (at + i as f64 + 0.5, name.to_owned());
        let places = self.groups_at().flat_map(|(at, group)| {
            group.bars.iter().enumerate().map(move |(i, (name, _))| bar(at, i, name))
        });
        let sums = self.groups.iter().flat_map(|g| g.bars.iter().map(|(_, stages)| stages.iter().sum()));
        Axes {
            places: places.collect(),
            end: self.groups.iter().map(|g| g.bars.len() as f64 + GAP).sum::<f64>().max(1.0),
            x_label: &self.x_label,
            y_label: &self.y_label,
            range: Range::linear(sums),
            below: 88,
            right: None,
        }
    }

    fn draw_bar<DB: DrawingBackend>(
        on: &Canvas<'_, DB>,
        plane: &Plane,
        left: f64,
        stages: &[f64],
    ) -> Drawn<DB> {
        let mut sum = 0.0;
        for (n, value) in stages.iter().enumerate() {
            let below = plane.at(left + BAR, sum);
            sum += value;
            let corners = [plane.at(left, sum), below];
            on.area.draw(&Rectangle::new(corners, hue(n).filled()))?;
        }
        Ok(())
    }
}

impl Picture for Stacked {
    fn size(&self) -> (u32, u32) {
        frame::size(self.stages.len())
    }

    fn draw<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>) -> Drawn<DB> {
        // The legend has the vertical order of the bars.
        let names = self.stages.iter().enumerate().rev();
        let samples: Vec<_> = names.map(|(n, name)| Sample::Stage(n, name)).collect();
        let width = around(on, &self.heading, &samples)?;
        let (plane, _) = self.axes().draw(on, width)?;
        for (at, group) in self.groups_at() {
            for (i, (_, stages)) in group.bars.iter().enumerate() {
                Self::draw_bar(on, &plane, at + i as f64 + (1.0 - BAR) / 2.0, stages)?;
            }
            let middle = at + group.bars.len() as f64 / 2.0;
            Axes::write_below(on, &plane, (Text::Normal, middle, 46), &group.name)?;
        }
        Ok(())
    }
}
