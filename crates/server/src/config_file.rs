//! Configuration files: where in the text a mistake is, and what was probably meant.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::{Backend, Config, ServerError};

/// A configuration that cannot be, and the key that says so.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// The key in a file: `limits.rtmax`, or `export.1.name` for that of the second export.
    pub(crate) at: String,
    /// A sentence that says what to change.
    pub(crate) what: String,
}

impl Wrong {
    pub(crate) fn new(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self { at: at.into(), what: what.into() }
    }
}

/// How like a known key an unknown one must be (Jaro-Winkler, 0 to 1) to be taken for a slip.
const ALIKE: f64 = 0.8;

impl Config {
    /// Reads a TOML file. It must be valid by itself: nothing outside it mends its exports and limits.
    ///
    /// # Errors
    /// When it cannot be read, or says something that is not understood or cannot be, with line and column.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ServerError> {
        let (config, text) = read(path.as_ref())?;
        config.check_contents().map_err(|w| located(path.as_ref(), &text, &w))?;
        Ok(config)
    }

    /// As [`Self::from_file`], for whoever wants to know whether a server could use the file: checks also the design
    /// and that directories are there. Opens no address.
    ///
    /// # Errors
    /// As [`Self::from_file`].
    pub fn check_file(path: impl AsRef<Path>) -> Result<Self, ServerError> {
        let (config, text) = read(path.as_ref())?;
        let checked = config.check_rest().and_then(|()| config.check_directories());
        checked.map_err(|w| located(path.as_ref(), &text, &w))?;
        Ok(config)
    }

    fn check_directories(&self) -> Result<(), Wrong> {
        let exports = self.exports.iter().enumerate().filter_map(|(i, e)| match &e.backend {
            Backend::Local { path } => Some((format!("export.{i}.backend"), path)),
            Backend::Memory { .. } => None,
        });
        for (at, path) in exports.chain(self.state_dir.iter().map(|d| ("state_dir".to_owned(), d))) {
            if !path.is_dir() {
                let what = format!("there is no directory {}; make it, or correct the path", path.display());
                return Err(Wrong::new(at, what));
            }
        }
        Ok(())
    }

    /// Refuses two exports of one name, and directories that lie in each other: a file in both would be open to
    /// whom the weaker of two policies lets in.
    pub(crate) fn check_overlaps(&self) -> Result<(), Wrong> {
        let mut seen: Vec<(&str, Option<PathBuf>)> = Vec::new();
        for (i, e) in self.exports.iter().enumerate() {
            let dir = match &e.backend {
                // Links and `..` are followed where the directory is there; else the text must do.
                Backend::Local { path } => Some(path.canonicalize().unwrap_or_else(|_| path.clone())),
                Backend::Memory { .. } => None,
            };
            if seen.iter().any(|(name, _)| *name == e.name) {
                let what = format!("export {} is there twice; give each export a name of its own", e.name);
                return Err(Wrong::new(format!("export.{i}.name"), what));
            }
            let inside = |a: &Option<PathBuf>, b: &Option<PathBuf>| match (a, b) {
                (Some(a), Some(b)) => a.starts_with(b) || b.starts_with(a),
                _ => false,
            };
            if let Some((other, _)) = seen.iter().find(|(_, d)| inside(d, &dir)) {
                let what = format!(
                    "the directories of exports {other} and {} overlap; export one of them, or directories that do not \
                     lie in each other",
                    e.name
                );
                return Err(Wrong::new(format!("export.{i}.backend"), what));
            }
            seen.push((&e.name, dir));
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<(Config, String), ServerError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ServerError::ReadConfig { path: path.to_owned(), source })?;
    let config = text.parse().map_err(|e| match e {
        ServerError::Config(what) => ServerError::Config(format!("{}: {what}", path.display())),
        other => other,
    })?;
    Ok((config, text))
}

fn located(path: &Path, text: &str, wrong: &Wrong) -> ServerError {
    let at = offset_of(text, &wrong.at).map(|at| format!("{}: ", position(text, at))).unwrap_or_default();
    ServerError::Config(format!("{}: {at}{}", path.display(), wrong.what))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        Config::check_file(&file).unwrap_err().to_string()
    }

    fn export(name: &str, backend: &str) -> String {
        format!("[[export]]\nname = \"{name}\"\nbackend = \"{backend}\"\n")
    }

    #[test]
    fn a_mistake_is_told_with_line_column_and_what_was_probably_meant() {
        let a = export("/a", "memory:1MiB");
        for (text, says) in [
            (
                format!("{a}  readonly = true\n"),
                "line 4, column 3: there is no key `readonly`; is `read_only` meant?",
            ),
            ("zzz = 1\n".to_owned(), "line 1, column 1: unknown field `zzz`, expected one of"),
            (format!("{a}{a}"), "line 5, column 1: export /a is there twice"),
            (format!("[limits]\n  credits = 0\n{a}"), "line 2, column 3: limits.credits is 0"),
            (format!("[limits]\nmemory = \"1MiB\"\n{a}"), "line 2, column 1: limits.memory is 1MiB"),
            (format!("x = [\n{a}"), "line 3, column"),
            (export("a", "memory:1MiB"), "line 2, column 1: export name `a`"),
            (export("/a", "local:DIR/none"), "line 3, column 1: there is no directory"),
            (format!("state_dir = \"DIR/none\"\n{a}"), "line 1, column 1: there is no directory"),
            (
                "\ndesign = \"read-read\"\n".to_owned(),
                "line 2, column 10: design read-read is a research option",
            ),
            ("registration = \"all-physical\"\n".to_owned(), "research option: use millrace-lab"),
        ] {
            let said = refused(&text);
            assert!(said.contains(says) && said.lines().count() == 1, "{says}\nbut: {said}");
        }
    }

    #[test]
    fn keys_of_the_read_read_design_are_read_with_a_warning() {
        let text = "design = \"read-write\"\nexposed_buffers = \"not-accepted\"\n[exposure]\nregions = 8\n";
        let config: Config = text.parse().unwrap();
        let said = &config.deprecated;
        assert_eq!(said.len(), 3, "{said:?}");
        for (line, key) in ["design", "exposed_buffers", "exposure"].into_iter().enumerate() {
            let start = format!("line {}, column ", line + 1);
            assert!(said[line].starts_with(&start) && said[line].contains(key), "{said:?}");
            assert!(said[line].contains("millrace-lab"), "{said:?}");
        }
        assert!("crc = true\n".parse::<Config>().unwrap().deprecated.is_empty());
    }

    #[test]
    fn directories_that_lie_in_each_other_are_refused_also_through_links() {
        for (one, two) in
            [("DIR/a", "DIR/a"), ("DIR/a", "DIR/a/b"), ("DIR/a/b", "DIR/a"), ("DIR/link", "DIR/a/b")]
        {
            let text = export("/x", &format!("local:{one}")) + &export("/y", &format!("local:{two}"));
            let said = refused(&text);
            assert!(
                said.contains("line 6, column 1: the directories of exports /x and /y overlap"),
                "{said}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["data", "data2"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let of = |n: &str| format!("local:{}", dir.path().join(n).display());
        let text = export("/x", &of("data")) + &export("/x/y", &of("data2"));
        text.parse::<Config>().unwrap().check_overlaps().unwrap();
    }
}
