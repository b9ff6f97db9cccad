//! Diagnostics of a configuration file: the position of an error in the text, corrections of misspelt keys, warnings of
//! deprecated keys.

use toml::de::{DeTable, DeValue};

/// How like a known key an unknown one must be (Jaro-Winkler, 0 to 1) to be offered as its correction.
const ALIKE: f64 = 0.8;

/// `reason` after the line and column of `key` in `text`.
pub(crate) fn located(text: &str, key: &str, reason: &str) -> String {
    match offset_of(text, key) {
        Some(at) => format!("{}: {reason}", position(text, at)),
        None => reason.to_owned(),
    }
}

/// Line and column, both counted from 1, of the byte `at`.
fn position(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}")
}

/// Where the key `at` stands, or the innermost of the tables around it that is there.
fn offset_of(text: &str, at: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut parts = at.split('.');
    let first = parts.next()?;
    let (key, mut value) = table.get_ref().iter().find(|(k, _)| k.get_ref() == first)?;
    let mut offset = key.span().start;
    for part in parts {
        let (at, inner) = match value.get_ref() {
            DeValue::Table(t) => match t.iter().find(|(k, _)| k.get_ref() == part) {
                Some((key, inner)) => (key.span().start, inner),
                None => break,
            },
            DeValue::Array(list) => match part.parse().ok().and_then(|i: usize| list.get(i)) {
                Some(inner) => (inner.span().start, inner),
                None => break,
            },
            _ => break,
        };
        (offset, value) = (at, inner);
    }
    Some(offset)
}

/// Keys of the Read-Read design, which is for research. They have no effect.
const RESEARCH: [&str; 3] = ["design", "exposed_buffers", "exposure"];

/// A warning for each deprecated key in `text`.
pub(crate) fn deprecated(text: &str) -> Vec<String> {
    let found = RESEARCH.into_iter().filter_map(|key| Some((key, offset_of(text, key)?)));
    let warning = |(key, at)| {
        format!(
            "{}: the key `{key}` is deprecated and has no effect; remove it (the Read-Read design is an option of \
             millrace-lab)",
            position(text, at)
        )
    };
    found.map(warning).collect()
}

/// Where in `text` the error is, and what it is, in one line.
pub(crate) fn one_line(text: &str, e: &toml::de::Error) -> String {
    let mut message = e.message().trim().replace('\n', "; ");
    // What is deprecated is not offered.
    for key in RESEARCH {
        message = message.replace(&format!("`{key}`, "), "");
    }
    let what = slip(&message).unwrap_or(message);
    match e.span() {
        Some(span) => format!("{}: {what}", position(text, span.start)),
        None => what,
    }
}

/// What was probably meant, where the message is serde's about a key that nobody knows.
fn slip(message: &str) -> Option<String> {
    let mut names = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    let near = names.map(|known| (strsim::jaro_winkler(unknown, known), known));
    let (_, known) = near.filter(|(alike, _)| *alike >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("there is no key `{unknown}`; is `{known}` meant?"))
}
