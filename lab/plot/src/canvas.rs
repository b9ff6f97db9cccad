//! The drawing surface: fonts, colours, scale, and the two files.

use std::{fs, io::BufWriter, path::Path, sync::Once};

use plotters::{
    coord::Shift,
    prelude::*,
    style::{
        FontStyle, register_font,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::PlotError;

/// The colours of Okabe and Ito, ordered by how easily they are distinguished.
pub(super) const PALETTE: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
    RGBColor(240, 228, 66),
];
/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(34, 34, 34);
/// Secondary text.
pub(super) const GREY: RGBColor = RGBColor(90, 90, 90);
/// Grid lines.
pub(super) const FAINT: RGBColor = RGBColor(222, 222, 222);

/// The font names of the SVG. DejaVu Sans is the widest of them, so that text that fits here also fits with
/// the others.
const FONT: &str = "DejaVu Sans, Verdana, Arial, Helvetica, sans-serif";
static REGULAR: &[u8] = include_bytes!("fonts/DejaVuSans.ttf");
static BOLD: &[u8] = include_bytes!("fonts/DejaVuSans-Bold.ttf");

/// Pixels of the PNG per unit of the plot's size, in each direction.
const SHARPNESS: u32 = 2;
/// Pixels drawn per pixel of the PNG, in each direction. Their mean smooths edges.
const SAMPLES: u32 = 2;
/// Pixels drawn per unit, in each direction.
const FINE: u32 = SHARPNESS * SAMPLES;

/// The result of drawing.
pub(super) type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// A plot that can be drawn with any backend.
pub(super) trait Picture {
    /// Width and height in units.
    fn size(&self) -> (u32, u32);

    /// Draws the plot.
    fn draw<DB: DrawingBackend>(&self, on: &Canvas<'_, DB>) -> Drawn<DB>;
}

/// A drawing area and the number of its pixels per unit.
pub(super) struct Canvas<'a, DB: DrawingBackend> {
    pub(super) area: &'a DrawingArea<DB, Shift>,
    scale: u32,
    /// Pixels by which text is moved down, to centre it.
    drop: i32,
}

/// The size of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text {
    Title,
    Normal,
    Small,
}

impl<'a, DB: DrawingBackend> Canvas<'a, DB> {
    /// `units` in pixels.
    pub(super) fn px(&self, units: i32) -> i32 {
        units * self.scale as i32
    }

    /// A line style with a width of `tenths` of a unit.
    pub(super) fn stroke(&self, colour: RGBColor, tenths: u32) -> ShapeStyle {
        colour.stroke_width((tenths * self.scale).div_ceil(10))
    }

    fn style(&self, kind: Text, colour: RGBColor, from: HPos) -> TextStyle<'static> {
        let (size, style) = match kind {
            Text::Title => (21, FontStyle::Bold),
            Text::Normal => (16, FontStyle::Normal),
            Text::Small => (14, FontStyle::Normal),
        };
        let font = FontDesc::new(FontFamily::Name(FONT), f64::from(size * self.scale), style);
        TextStyle { font, color: colour.to_backend_color(), pos: Pos::new(from, VPos::Center) }
    }

    /// The width of `text` in units.
    pub(super) fn width(&self, kind: Text, text: &str) -> i32 {
        let style = self.style(kind, INK, HPos::Left);
        // Fails only for a font that is not registered.
        let (w, _) = self.area.estimate_text_size(text, &style).unwrap_or_default();
        (w / self.scale).cast_signed() + 1
    }

    /// Writes `text` with its left end, centre or right end at a position in units.
    pub(super) fn write(&self, kind: Text, colour: RGBColor, at: (i32, i32, HPos), text: &str) -> Drawn<DB> {
        self.write_at(kind, colour, (self.px(at.0), self.px(at.1), at.2), text)
    }

    /// As [`Self::write`], at a position in pixels.
    pub(super) fn write_at(
        &self,
        kind: Text,
        colour: RGBColor,
        at: (i32, i32, HPos),
        text: &str,
    ) -> Drawn<DB> {
        let style = self.style(kind, colour, at.2);
        self.area.draw_text(text, &style, (at.0, at.1 + self.drop))
    }

    /// Width and height in units.
    pub(super) fn size(&self) -> (i32, i32) {
        let (w, h) = self.area.dim_in_pixel();
        ((w / self.scale).cast_signed(), (h / self.scale).cast_signed())
    }
}

/// Writes `picture` as SVG and as PNG.
pub(super) fn write(picture: &impl Picture, dir: &Path, name: &str) -> Result<(), PlotError> {
    static FONTS: Once = Once::new();
    FONTS.call_once(|| {
        for (style, bytes) in [(FontStyle::Normal, REGULAR), (FontStyle::Bold, BOLD)] {
            // Fails only for invalid font data.
            drop(register_font(FONT, style, bytes));
        }
    });
    fs::create_dir_all(dir).map_err(PlotError::at(dir))?;
    let path = dir.join(format!("{name}.svg"));
    fs::write(&path, svg(picture).map_err(PlotError::at(&path))?).map_err(PlotError::at(&path))?;
    let path = dir.join(format!("{name}.png"));
    png(picture, &path)
}

fn svg(picture: &impl Picture) -> Result<String, String> {
    let (w, h) = picture.size();
    let mut text = String::new();
    draw(picture, SVGBackend::with_string(&mut text, (w * FINE, h * FINE)), FINE, 0)?;
    // Coordinates are integers, so that the plot is drawn larger than its nominal size.
    let drawn = format!("width=\"{}\" height=\"{}\"", w * FINE, h * FINE);
    Ok(text.replacen(&drawn, &format!("width=\"{w}\" height=\"{h}\""), 1))
}

fn png(picture: &impl Picture, path: &Path) -> Result<(), PlotError> {
    let (w, h) = picture.size();
    let mut fine = vec![0; (w * FINE * h * FINE * 3) as usize];
    let backend = BitMapBackend::with_buffer(&mut fine, (w * FINE, h * FINE));
    // Bitmaps centre text by the height of the font, which places the letters slightly above the middle.
    draw(picture, backend, FINE, FINE.cast_signed() * 5 / 2).map_err(PlotError::at(path))?;
    let (w, h) = (w * SHARPNESS, h * SHARPNESS);
    let file = fs::File::create(path).map_err(PlotError::at(path))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), w, h);
    encoder.set_color(png::ColorType::Rgb);
    let mut out = encoder.write_header().map_err(PlotError::at(path))?;
    out.write_image_data(&mean(&fine, (w * SAMPLES) as usize)).map_err(PlotError::at(path))?;
    out.finish().map_err(PlotError::at(path))
}

/// The image of half the size whose pixels are the means of squares of [`SAMPLES`] by `SAMPLES` pixels of an
/// image `width` pixels wide.
fn mean(fine: &[u8], width: usize) -> Vec<u8> {
    let side = SAMPLES as usize;
    let mut out = Vec::with_capacity(fine.len() / (side * side));
    for rows in fine.chunks_exact(width * 3 * side) {
        for x in 0..width / side {
            for channel in 0..3 {
                let sum: u32 = (0..side * side)
                    .map(|i| rows[((i / side) * width + x * side + i % side) * 3 + channel])
                    .map(u32::from)
                    .sum();
                out.push((sum / (SAMPLES * SAMPLES)) as u8);
            }
        }
    }
    out
}

fn draw<DB: DrawingBackend>(
    picture: &impl Picture,
    backend: DB,
    scale: u32,
    drop: i32,
) -> Result<(), String> {
    let area = backend.into_drawing_area();
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    picture.draw(&Canvas { area: &area, scale, drop }).map_err(|e| e.to_string())?;
    area.present().map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::mean;

    #[test]
    fn four_pixels_become_their_mean() {
        let row = |a: u8, b: u8| [[a; 3], [a; 3], [b; 3], [b; 3]].concat();
        let image = [row(0, 200), row(100, 100)].concat();
        assert_eq!(mean(&image, 4), [50, 50, 50, 150, 150, 150]);
    }
}
