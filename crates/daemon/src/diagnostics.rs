//! Diagnostics of a configuration file: the position of an error in the text, corrections of misspelt keys, warnings of
//! deprecated keys.

use std::{
    ffi::OsString,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use millrace_runtime::percent_decode;

use toml::de::{DeTable, DeValue};

/// Minimum similarity (Jaro-Winkler, 0 to 1) of an unknown key to the known key that is suggested.
const MIN_SIMILARITY: f64 = 0.8;

/// `reason` with the line and column of `key` in `text`.
pub(crate) fn located(text: &str, key: &str, reason: &str) -> String {
    match offset_of(text, key) {
        Some(at) => format!("{}: {reason}", position(text, at)),
        None => reason.to_owned(),
    }
}

/// Line and column, counted from 1, of the byte at offset `at`.
fn position(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}")
}

/// Offset of the key `at`, or of the innermost existing table that would contain it.
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

/// The error with its position in `text`, in one line.
pub(crate) fn one_line(text: &str, e: &toml::de::Error) -> String {
    let mut message = e.message().trim().replace('\n', "; ");
    // Deprecated keys are not suggested.
    for key in RESEARCH {
        message = message.replace(&format!("`{key}`, "), "");
    }
    let what = suggestion(&message).unwrap_or(message);
    match e.span() {
        Some(span) => format!("{}: {what}", position(text, span.start)),
        None => what,
    }
}

/// A suggestion for serde's message about an unknown key.
fn suggestion(message: &str) -> Option<String> {
    let mut names = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    let near = names.map(|known| (strsim::jaro_winkler(unknown, known), known));
    let (_, known) =
        near.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("there is no key `{unknown}`; is `{known}` meant?"))
}

/// The path of a key ([`path`](crate::values::path)).
fn path_of(value: &DeValue<'_>) -> Option<PathBuf> {
    let encoded = || {
        let bytes = value.as_table()?.get("bytes")?.get_ref().as_str()?;
        percent_decode(bytes).ok().map(|bytes| OsString::from_vec(bytes).into())
    };
    value.as_str().map(PathBuf::from).or_else(encoded)
}

/// A warning for each CHAP secret of the configuration `text` that all users of this host can read: in the file `path`, or
/// in another one.
pub(crate) fn readable_secrets(text: &str, path: &Path) -> Vec<String> {
    let is_readable = |path: &Path| std::fs::metadata(path).is_ok_and(|file| file.mode() & 0o004 != 0);
    let Ok(table) = DeTable::parse(text) else { return Vec::new() };
    let targets = table.get_ref().get("target").and_then(|targets| targets.get_ref().as_array());
    let tables = targets.into_iter().flatten().filter_map(|target| target.get_ref().as_table());
    let users = tables.flat_map(|target| ["incoming_user", "outgoing_user"].map(|user| target.get(user)));
    let mut warnings = Vec::new();
    for user in users.flatten().filter_map(|user| user.get_ref().as_table()) {
        for (key, value) in user {
            let file = match key.get_ref().as_ref() {
                "secret" => Some(path.to_owned()),
                "secret_file" => path_of(value.get_ref()),
                _ => None,
            };
            if let Some(file) = file.filter(|file| is_readable(file)) {
                let (at, file) = (position(text, key.span().start), file.display());
                warnings.push(format!(
                    "{at}: all users of this host can read the secret; run `chmod o-r {file}`"
                ));
            }
        }
    }
    warnings
}
