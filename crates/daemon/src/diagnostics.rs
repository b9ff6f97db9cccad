//! Diagnostics of a configuration file: the places of errors in the text, warnings of secrets.

use std::{
    ffi::OsString,
    fmt,
    ops::Range,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use millrace_runtime::percent_decode;

use toml::de::{DeTable, DeValue};

/// Longest line of which an excerpt is shown, in characters.
const MAX_LINE: usize = 160;

/// An error or a warning with its place in a configuration file. Its text form is one line, `FILE:LINE:COLUMN: MESSAGE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Name of the file.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// A sentence with the reason and the required change.
    pub message: String,
    /// The line with a mark below the place. Lines that may have secrets are not shown.
    pub excerpt: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, message, excerpt: _ } = self;
        write!(f, "{file}:{line}:{column}: {message}")
    }
}

/// The text of a configuration file, and the name of the file.
#[derive(Clone, Copy)]
pub(crate) struct Source<'t> {
    pub(crate) file: &'t str,
    pub(crate) text: &'t str,
}

impl Source<'_> {
    /// A diagnostic about the bytes `at`.
    pub(crate) fn diagnostic(self, at: Range<usize>, message: &str) -> Diagnostic {
        let Self { file, text } = self;
        let start = text.floor_char_boundary(at.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let content = text[line_start..].lines().next().unwrap_or_default();
        let line = text[..line_start].matches('\n').count() + 1;
        let before = text[line_start..start].chars();
        // Control characters could change the terminal.
        let message = message.trim().replace('\n', "; ").replace(char::is_control, " ");
        Diagnostic {
            file: file.replace(char::is_control, " "),
            line,
            column: before.count() + 1,
            message,
            excerpt: self
                .is_shown(content, line_start + content.len())
                .then(|| excerpt(line, content, start - line_start, at.len())),
        }
    }

    /// Whether an excerpt can show the line `content`, which ends at `end`, on a terminal and in a log. The key of a secret
    /// may be misspelt, and its value in another line: nothing is shown from the first mention of a target or user on.
    fn is_shown(self, content: &str, end: usize) -> bool {
        let above = self.text[..end].lines().filter(|line| !line.trim_start().starts_with('#'));
        let may_be_secret = above.chain([content]).any(|line| {
            let line = line.to_ascii_lowercase();
            ["target", "_user", "secret"].iter().any(|word| line.contains(word))
        });
        !may_be_secret && !content.trim().is_empty() && content.chars().count() <= MAX_LINE
    }

    /// A diagnostic about the key `key` (`limits.rtmax`, or `export.1.name`), or about the innermost existing table or list
    /// that would contain it.
    pub(crate) fn at_key(self, key: &str, message: &str) -> Diagnostic {
        self.diagnostic(span_of(self.text, key).unwrap_or_default(), message)
    }
}

/// The line `content` with marks below `length` bytes at `at`.
fn excerpt(line: usize, content: &str, at: usize, length: usize) -> String {
    let printable = |c: char| if c.is_control() && c != '\t' { ' ' } else { c };
    let gutter = " ".repeat(line.to_string().len());
    let (before, rest) = content.split_at_checked(at).unwrap_or((content, ""));
    // Tabs are as wide as in the line above.
    let space: String = before.chars().map(|c| if c == '\t' { c } else { ' ' }).collect();
    let marked = rest.get(..rest.floor_char_boundary(length)).unwrap_or(rest).trim_end();
    let marks = "^".repeat(marked.chars().count().max(1));
    let content: String = content.chars().map(printable).collect();
    format!("{gutter} |\n{line} | {}\n{gutter} | {space}{marks}", content.trim_end())
}

/// The bytes of the key `at`, or of the innermost existing table or list that would contain it.
fn span_of(text: &str, at: &str) -> Option<Range<usize>> {
    let (table, _) = DeTable::parse_recoverable(text);
    let mut parts = at.split('.');
    let first = parts.next()?;
    let (key, mut value) = table.get_ref().iter().find(|(k, _)| k.get_ref() == first)?;
    let mut span = key.span();
    for part in parts {
        let (at, inner) = match value.get_ref() {
            DeValue::Table(t) => match t.iter().find(|(k, _)| k.get_ref() == part) {
                Some((key, inner)) => (key.span(), inner),
                None => break,
            },
            DeValue::Array(list) => match part.parse().ok().and_then(|i: usize| list.get(i)) {
                Some(inner) => (inner.span(), inner),
                None => break,
            },
            _ => break,
        };
        (span, value) = (at, inner);
    }
    Some(span)
}

/// The path of a key ([`path`](crate::values::path)).
fn path_of(value: &DeValue<'_>) -> Option<PathBuf> {
    let encoded = || {
        let bytes = value.as_table()?.get("bytes")?.get_ref().as_str()?;
        percent_decode(bytes).ok().map(|bytes| OsString::from_vec(bytes).into())
    };
    value.as_str().map(PathBuf::from).or_else(encoded)
}

/// A warning for each CHAP secret that all users of this host can read: in the file `path`, or in another one.
pub(crate) fn readable_secrets(source: Source<'_>, path: &Path) -> Vec<Diagnostic> {
    let is_readable =
        |path: &Path| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.mode() & 0o004 != 0);
    let (table, _) = DeTable::parse_recoverable(source.text);
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
                let message =
                    format!("all users of this host can read the secret; run `chmod o-r {}`", file.display());
                warnings.push(source.diagnostic(key.span(), &message));
            }
        }
    }
    warnings
}
