//! Text in the language of man(7).

use std::fmt::Write;

/// Longest line of the source of a page in bytes, which `mandoc -Tlint` checks.
const MAX_LINE: usize = 80;

/// `text` without a meaning in roff.
pub(super) fn escaped(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
        .replace('`', "\\(ga")
        .replace('~', "\\(ti")
}

/// A section with a literal text.
pub(super) fn literal(title: &str, text: &str) -> String {
    format!("{}{}", section(title), example(text))
}

/// The header of a section.
pub(super) fn section(title: &str) -> String {
    format!(".SH \"{title}\"\n")
}

/// Lines that are shown as they are.
pub(super) fn example(text: &str) -> String {
    let lines = text.lines().map(|line| match escaped(line) {
        line if line.starts_with('.') => format!("\\&{line}\n"),
        line => format!("{line}\n"),
    });
    format!(".nf\n{}.fi\n", lines.collect::<String>())
}

/// A paragraph of a page in Markdown, with its code in bold.
pub(super) fn paragraph(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in without_links(text).replace("**", "").split('`').enumerate() {
        match i % 2 {
            0 => out += &escaped(part),
            _ => write!(out, "\\fB{}\\fR", escaped(part)).unwrap_or_default(),
        }
    }
    out.trim().to_owned()
}

fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (head, label) = before.rsplit_once('[').unwrap_or((before, ""));
        out += head;
        out += label;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    out + rest
}

/// `page` without superfluous white space, and with lines of at most [`MAX_LINE`] bytes where that does not change the
/// output.
pub(super) fn tidy(page: &str) -> String {
    // clap_mangen defines a string for the apostrophe before each part.
    let page = page.replace("\n.br\n\n.br\n", "\n.sp\n").replace("\\*(Aq", "\\(aq");
    let page = page.replace(".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n", "");
    let (mut out, mut is_literal, mut is_blank) = (String::new(), false, false);
    let mut last = "";
    for line in page.lines().map(str::trim_end) {
        let is_text = !line.starts_with('.');
        match line {
            ".nf" => is_literal = true,
            ".fi" => is_literal = false,
            "" if !is_literal => {
                is_blank = !last.starts_with('.');
                continue;
            }
            // The first paragraph of a section needs no macro.
            ".PP" if last.starts_with(".S") => continue,
            _ => {}
        }
        // Nor does a section end with one.
        if line.starts_with(".SH") && last == ".PP" {
            out.truncate(out.len() - ".PP\n".len());
        }
        if is_blank && is_text {
            out += ".sp\n";
        }
        // The line after TP is the tag.
        let is_filled = is_text && !is_literal && last != ".TP";
        out += &if is_filled { wrapped(line) } else { line.to_owned() };
        out.push('\n');
        (last, is_blank) = (line, false);
    }
    out
}

fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut length = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        // A line that begins with a period or a quote would be a request.
        let begins_line = length > 0 && length + 1 + word.len() > MAX_LINE && !word.starts_with(['.', '\'']);
        if begins_line {
            out.push('\n');
            length = 0;
        } else if length > 0 {
            out.push(' ');
            length += 1;
        }
        out += word;
        length += word.len();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_markdown_becomes_text_of_roff() {
        let text = "A [link](../x.md#y), `a-b` and **bold** don't";
        assert_eq!(paragraph(text), "A link, \\fBa\\-b\\fR and bold don\\(aqt");
        assert_eq!(example("x\\y\n.z"), ".nf\nx\\ey\n\\&.z\n.fi\n");
    }

    #[test]
    fn the_string_for_apostrophes_is_not_needed() {
        let page = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n.SH NAME\na server\\*(Aqs file\n";
        assert_eq!(tidy(page), ".SH NAME\na server\\(aqs file\n");
    }

    #[test]
    fn sections_neither_begin_nor_end_with_an_empty_paragraph() {
        assert_eq!(tidy(".SH A\n.PP\none\n.PP\n.SH B\ntwo\n"), ".SH A\none\n.SH B\ntwo\n");
    }

    #[test]
    fn long_lines_are_broken_between_words_and_literal_ones_are_not() {
        let words = "word ".repeat(40);
        let page = tidy(&format!(".PP\n{words}. end  \n\n.nf\n{words}\n\nx\n.fi\n"));
        let (filled, literal) = page.split_once(".nf\n").unwrap();
        assert!(filled.lines().all(|line| line.len() <= 82 && line.trim_end() == line), "{filled}");
        assert!(!filled.lines().skip(1).any(|line| line.starts_with('.')), "{filled}");
        assert_eq!(literal, format!("{}\n\nx\n.fi\n", words.trim_end()));
        assert_eq!(tidy(&format!(".TP\n{words}\na\n\nb\n\n.PP\n")).lines().count(), 6);
    }
}
