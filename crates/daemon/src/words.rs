//! Errors of serde and of the TOML parser in words for administrators.

use toml::de::DeValue;

use crate::keys;

/// Minimum similarity (Jaro-Winkler, 0 to 1) of an unknown word to the known word that is suggested.
const MIN_SIMILARITY: f64 = 0.8;

/// The entry or element of a list that an error is about.
pub(crate) struct Place<'v> {
    /// Keys, and indices of lists, from the top: `export`, `0`, `squash`.
    pub(crate) path: Vec<String>,
    pub(crate) value: &'v DeValue<'v>,
    /// The text of the value in the file.
    pub(crate) written: &'v str,
}

impl Place<'_> {
    /// The innermost key.
    fn key(&self) -> &str {
        self.path.iter().rev().find(|part| !is_index(part)).map_or("", String::as_str)
    }

    fn is_element(&self) -> bool {
        self.path.last().is_some_and(|part| is_index(part))
    }

    /// The header of the innermost table.
    fn table(&self) -> String {
        let keys: Vec<_> = self.path.iter().filter(|part| !is_index(part)).map(String::as_str).collect();
        if self.is_element() { format!("[[{}]]", keys.join(".")) } else { format!("[{}]", keys.join(".")) }
    }
}

fn is_index(part: &str) -> bool {
    part.bytes().all(|b| b.is_ascii_digit())
}

/// The error `message` about `place`, if that is known.
pub(crate) fn in_words(message: &str, place: Option<&Place<'_>>) -> String {
    let message = message.trim().replace('\n', "; ");
    let found = if message == "wanted string or table" {
        place.map(|place| format!("`{}` is a text, in quotation marks", place.key()))
    } else if message.starts_with("unknown field ") {
        unknown_key(&message, place)
    } else {
        place.and_then(|place| {
            let wrong_type = || wrong_type(message.strip_prefix("invalid type: ")?, place);
            let out_of_range = || out_of_range(message.strip_prefix("invalid value: ")?, place);
            let variant = || unknown_variant(message.strip_prefix("unknown variant ")?, place);
            let missing = || missing(message.strip_prefix("missing field ")?, place);
            wrong_type().or_else(out_of_range).or_else(variant).or_else(missing)
        })
    };
    let is_value = message.starts_with("invalid ");
    let remedy = if is_value { "; write text in quotation marks" } else { "" };
    found.unwrap_or_else(|| message.replace(", expected nothing", remedy))
}

/// The words in backquotes.
fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('`').skip(1).step_by(2)
}

fn similar<'k>(unknown: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let near = known.into_iter().map(|known| (strsim::jaro_winkler(unknown, known), known));
    let near = near.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

/// The known key that serde's message about an unknown one may mean.
pub(crate) fn meant(message: &str) -> Option<&str> {
    let mut names = quoted(message.strip_prefix("unknown field ")?);
    similar(names.next()?, names)
}

/// The headers of tables, `""` for the keys above the first one.
const TABLES: [&str; 7] =
    ["", "[limits]", "[nfs4]", "[stages]", "[[export]]", "[[target]]", "[[target]]\n[[target.lun]]"];

/// Whether the table below `header` has the key `key`.
fn has_key(header: &str, key: &str) -> bool {
    let list = toml::from_str::<keys::File>(&format!("{header}\n\"\" = 1\n"));
    list.is_err_and(|e| quoted(e.message()).skip(1).any(|known| known == key))
}

fn unknown_key(message: &str, place: Option<&Place<'_>>) -> Option<String> {
    let unknown = quoted(message).next()?;
    let translated = match unknown {
        "ro" => Some("write read_only = true"),
        "rw" => Some("leave it out, or write read_only = false"),
        "path" | "dir" | "directory" => Some("write backend = \"local:PATH\""),
        "no_root_squash" => Some("write squash = \"none\""),
        "root_squash" => Some("write squash = \"root\""),
        "all_squash" => Some("write squash = \"all\""),
        _ => None,
    };
    let is_export = place.is_some_and(|place| place.path.first().is_some_and(|first| first == "export"));
    if let Some(translated) = translated.filter(|_| is_export) {
        return Some(format!("there is no key `{unknown}`; {translated}"));
    }
    if let Some(known) = meant(message) {
        return Some(format!("there is no key `{unknown}`; is `{known}` meant?"));
    }
    let table = TABLES.into_iter().find(|table| has_key(table, unknown))?;
    Some(match table.lines().last() {
        None => format!("`{unknown}` is a key of the whole file; move it above the first [table]"),
        Some(header) => format!("`{unknown}` is a key of {header}; move it there"),
    })
}

fn wrong_type(message: &str, place: &Place<'_>) -> Option<String> {
    let (_, expected) = message.rsplit_once(", expected ")?;
    let (key, written) = (place.key(), place.written);
    let [table, rest @ ..] = place.path.as_slice() else { return None };
    if matches!(table.as_str(), "limits" | "nfs4" | "stages")
        && rest.first().is_some_and(|part| is_index(part))
    {
        return Some(format!("there is one table {table}; write [{table}]"));
    }
    let is_simple = !matches!(place.value, DeValue::Array(_) | DeValue::Table(_));
    let is_text = place.value.is_str();
    Some(match expected {
        "a sequence" if place.value.is_table() => {
            let header =
                place.path.iter().filter(|part| !is_index(part)).cloned().collect::<Vec<_>>().join(".");
            format!("there may be several tables {key}; write [[{header}]], with two brackets")
        }
        "a sequence" if is_simple => format!("`{key}` is a list; write {key} = [{written}]"),
        "a boolean" => format!("`{key}` is true or false; write {key} = true or {key} = false"),
        "a string" if is_simple && place.is_element() => {
            format!("the elements of `{key}` are texts; write \"{written}\", in quotation marks")
        }
        "a string" if is_simple => {
            format!("`{key}` is a text; write {key} = \"{written}\", in quotation marks")
        }
        "a string" => format!("`{key}` is a text, in quotation marks"),
        "usize" | "u64" | "u32" | "u16" => {
            match place.value.as_str().and_then(|text| text.parse::<u64>().ok()) {
                Some(number) if is_text => format!("`{key}` is a number; write {key} = {number}"),
                _ => format!("`{key}` is a whole number, without quotation marks; {written} is not"),
            }
        }
        _ if expected.starts_with("struct ") || expected == "a map" => {
            format!("`{key}` is a table; write {} in a line, and its keys below", place.table())
        }
        _ => format!("`{key}` is {expected}"),
    })
}

fn out_of_range(message: &str, place: &Place<'_>) -> Option<String> {
    let (_, expected) = message.rsplit_once(", expected ")?;
    let max: u64 = match expected {
        "u16" => u16::MAX.into(),
        "u32" => u32::MAX.into(),
        "u64" | "usize" => return Some(format!("`{}` is {}; give 0 or more", place.key(), place.written)),
        _ => return None,
    };
    Some(format!("`{}` is {}; give 0 to {max}", place.key(), place.written))
}

fn unknown_variant(message: &str, place: &Place<'_>) -> Option<String> {
    let key = place.key();
    let mut words = quoted(message);
    let (unknown, known) = (words.next()?, words.collect::<Vec<_>>());
    // The words of exports(5).
    let translated = match unknown {
        "no_root_squash" => Some("none"),
        "root_squash" => Some("root"),
        "all_squash" => Some("all"),
        _ => similar(unknown, known.iter().copied()),
    };
    let choice = format!(
        "`{key}` is one of {}",
        known.iter().map(|k| format!("\"{k}\"")).collect::<Vec<_>>().join(", ")
    );
    Some(match translated.filter(|word| known.contains(word)) {
        Some(word) => format!("{choice}; for \"{unknown}\" write {key} = \"{word}\""),
        None => format!("{choice}, not \"{unknown}\""),
    })
}

fn missing(message: &str, place: &Place<'_>) -> Option<String> {
    let key = quoted(message).next()?;
    let table = place.table();
    let example = match (table.as_str(), key) {
        ("[[export]]", "name") => ", such as name = \"/data\"",
        ("[[export]]", "backend") => ", such as backend = \"local:/srv/data\"",
        ("[[target.lun]]", "path") => ", such as path = \"/data/disk0\"",
        _ => "",
    };
    Some(format!("this {table} has no `{key}`; add it{example}"))
}
