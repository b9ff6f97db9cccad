//! Groups of horizontal bars as SVG. Each group has its own scale, because units and magnitudes differ.
//!
//! Written by hand: the program does without the plot library of the laboratory, whose fonts it would contain.

use std::fmt::Write as _;

/// Bars with a common scale, which begins at 0.
pub(super) struct Group {
    pub(super) title: String,
    pub(super) bars: Vec<Bar>,
}

/// A bar with a name on its left and a text on its right.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) text: String,
}

/// Where bars begin, and their greatest length.
const LEFT: f64 = 190.0;
const LENGTH: f64 = 400.0;
/// Height of a bar with the space below it.
const BAR: usize = 20;
/// Space above and below the title of a group.
const GROUP: usize = 34;
const HEADER: usize = 56;
const WIDTH: usize = 760;
/// Longest name, in characters, that fits before `LEFT`.
const NAME: usize = 26;
/// Okabe and Ito's colours, which are distinguishable with colour blindness, except those that are pale on white.
const COLOURS: [&str; 5] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"];

/// An image with the groups below each other.
pub(super) fn chart(title: &str, note: &str, groups: &[Group]) -> String {
    let height = HEADER + groups.iter().map(|g| GROUP + BAR * g.bars.len()).sum::<usize>() + 16;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"Liberation Sans, Arial, Helvetica, sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"26\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
         <text x=\"16\" y=\"46\" fill=\"#555555\">{}</text>\n",
        escaped(title),
        escaped(note)
    );
    let mut y = HEADER;
    for group in groups {
        y += GROUP;
        let longest = group.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<text x=\"16\" y=\"{}\" font-weight=\"bold\">{}</text>",
            y - 10,
            escaped(&group.title)
        );
        for (bar, colour) in group.bars.iter().zip(COLOURS.iter().cycle()) {
            let length = if longest > 0.0 { bar.value / longest * LENGTH } else { 0.0 };
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{}</text>\n\
                 <rect x=\"{LEFT}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{base}\">{}</text>",
                LEFT - 8.0,
                escaped(&shortened(&bar.name)),
                BAR - 4,
                LEFT + length + 8.0,
                escaped(&bar.text),
                base = y + BAR - 8,
            );
            y += BAR;
        }
    }
    out + "</svg>\n"
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

/// `text` for the content of an element. Control characters, which XML excludes, are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            _ if letter.is_control() => out.push('?'),
            _ => out.push(letter),
        }
    }
    out
}
