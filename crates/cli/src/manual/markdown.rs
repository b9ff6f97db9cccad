//! Pages of the reference, in the Markdown that they use, as text of man(7).

use super::roff::{example, paragraph, section};

/// The sections of `page` between the heading `from`, or the beginning, and the heading `to`, or the end. Tables become
/// lists of their first column.
pub(super) fn converted(page: &str, from: Option<&str>, to: Option<&str>) -> String {
    let mut lines = page.lines().peekable();
    let mut out = String::new();
    let mut is_shown = from.is_none();
    while let Some(line) = lines.next() {
        let heading = line.trim_start_matches('#').trim();
        if line.starts_with("## ") {
            is_shown = (is_shown || from == Some(heading)) && to != Some(heading);
        }
        if !is_shown || line.is_empty() || line.starts_with("# ") {
            continue;
        }
        if line.starts_with("### ") {
            out += &format!(".SS {}\n", paragraph(heading));
        } else if line.starts_with("## ") {
            out += &section(&paragraph(&heading.replace('`', "")));
        } else if line.starts_with("```") {
            let code: Vec<_> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            out += &format!(".PP\n{}", example(&code.join("\n")));
        } else if line.starts_with('|') {
            let next = lines.peek();
            if !line.starts_with("|---") && !next.is_some_and(|next| next.starts_with("|---")) {
                out += &row(line);
            }
        } else {
            let mut text = vec![line];
            let begins_other = |line: &str| ["|", "#", "```"].iter().any(|start| line.starts_with(start));
            while let Some(line) = lines.next_if(|line| !line.is_empty() && !begins_other(line)) {
                text.push(line);
            }
            out += &format!(".PP\n{}\n", paragraph(&text.join(" ")));
        }
    }
    out
}

/// A row of a table: name, default, and meaning.
fn row(line: &str) -> String {
    let line = line.trim_matches('|').replace("\\|", "\0");
    let cells: Vec<_> = line.split('|').map(|cell| paragraph(&cell.replace('\0', "|"))).collect();
    let [name, values @ .., meaning] = cells.as_slice() else { return String::new() };
    let default = match values.concat().as_str() {
        "" => String::new(),
        "required" => ".br\nRequired.\n".into(),
        default => format!(".br\nDefault: {default}.\n"),
    };
    format!(".TP\n{name}\n{meaning}.\n{default}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_and_tables_become_sections_and_lists() {
        let page = "# Title\n\n## First\n\nleft out\n\n## `[[b]]`\n\nOne\n`two`\n\n| key | default | meaning |\n|---|---|---|\n\
                    | `a` | 7 | x, `y\\|z` |\n| `c` | | w |\n\n```toml\n[[b]]\n```\n\n### Sub\n\n## Last\n\nz\n";
        let expected = ".SH \"[[b]]\"\n.PP\nOne \\fBtwo\\fR\n.TP\n\\fBa\\fR\nx, \\fBy|z\\fR.\n.br\nDefault: 7.\n.TP\n\\fBc\\fR\nw.\n.PP\n.nf\n[[b]]\n.fi\n.SS Sub\n";
        assert_eq!(converted(page, Some("`[[b]]`"), Some("Last")), expected);
    }
}
