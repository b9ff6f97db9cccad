//! Lines over categories.

use plotters::prelude::*;

use super::{
    Lines,
    canvas::{Canvas, Drawn, Picture},
    frame::{self, Axes, Sample, around, lines},
};

impl Picture for Lines {
    fn size(&self) -> (u32, u32) {
        frame::size(self.y.series.len())
    }

    fn draw<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>) -> Drawn<DB> {
        let samples: Vec<_> = self.y.series.iter().map(Sample::Line).collect();
        let width = around(on, &self.heading, &samples)?;
        let (plane, _) = Axes::new(&self.x, &self.y).draw(on, width)?;
        lines(on, &self.y.series, &plane)
    }
}
