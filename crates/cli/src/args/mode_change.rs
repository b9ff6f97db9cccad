//! Changes of permissions on the command line, as chmod(1) has them.

use std::str::FromStr;

/// All permissions.
const ALL: u32 = 0o7777;
/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// A mode of chmod(1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModeChange(Vec<Step>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    operator: char,
    /// The bits that the letters before the operator select; `None`: there are no letters.
    who: Option<u32>,
    bits: Bits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bits {
    /// With `X`, the bits for executing too, if it is a directory or some bit for executing is set.
    These { bits: u32, has_x: bool },
    /// Those that the file has for a class: the number of its lowest bit.
    CopyOf(u32),
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || "permissions must be octal, 0 to 7777, or changes such as u+w,go-rx".to_owned();
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= ALL).ok_or_else(invalid)?;
            let bits = Bits::These { bits, has_x: false };
            return Ok(Self(vec![Step { operator: '=', who: Some(ALL), bits }]));
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            let start = clause.find(['+', '-', '=']).ok_or_else(invalid)?;
            let (letters, mut rest) = clause.split_at(start);
            let who = letters.chars().try_fold(0, |all, class| Some(all | class_bits(class)?));
            let who = Some(who.ok_or_else(invalid)?).filter(|_| !letters.is_empty());
            while let Some(operator) = rest.chars().next() {
                let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |end| end + 1);
                let bits = permissions(&rest[1..end]).ok_or_else(invalid)?;
                steps.push(Step { operator, who, bits });
                rest = &rest[end..];
            }
        }
        Ok(Self(steps))
    }
}

/// The bits of `u`, `g`, `o` or `a`.
fn class_bits(class: char) -> Option<u32> {
    Some(match class {
        'u' => 0o4700,
        'g' => 0o2070,
        'o' => 0o1007,
        'a' => ALL,
        _ => return None,
    })
}

fn permissions(letters: &str) -> Option<Bits> {
    match letters {
        "u" => return Some(Bits::CopyOf(6)),
        "g" => return Some(Bits::CopyOf(3)),
        "o" => return Some(Bits::CopyOf(0)),
        _ => {}
    }
    let (mut bits, mut has_x) = (0, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            'X' => has_x = true,
            's' => bits |= SET_ID,
            't' => bits |= 0o1000,
            _ => return None,
        }
    }
    Some(Bits::These { bits, has_x })
}

impl ModeChange {
    /// The mode of an object that has the mode `old`. `mask`: the umask.
    pub(crate) fn apply(&self, old: u32, is_directory: bool, mask: u32) -> u32 {
        self.0.iter().fold(old & ALL, |mode, step| {
            let bits = match step.bits {
                Bits::These { bits, has_x } if has_x && (is_directory || mode & 0o111 != 0) => bits | 0o111,
                Bits::These { bits, .. } => bits,
                Bits::CopyOf(shift) => (mode >> shift & 7) * 0o111,
            };
            let selected = step.who.unwrap_or(ALL);
            let changed = bits & selected & if step.who.is_none() { !mask } else { ALL };
            match step.operator {
                '+' => mode | changed,
                '-' => mode & !changed,
                _ => {
                    let kept = if is_directory { SET_ID & !bits } else { 0 };
                    mode & (!selected | kept) | changed
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_chmod() {
        // Made with chmod(1) of coreutils 9.1 and umask 022.
        for (change, old, is_directory, new) in [
            ("640", 0o755, false, 0o640),
            ("0", 0o6777, false, 0),
            ("755", 0o2700, true, 0o2755),
            ("u+w,go-rx", 0o455, false, 0o600),
            ("+w", 0o444, false, 0o644),
            ("a+w", 0o444, false, 0o666),
            ("-w", 0o666, false, 0o466),
            ("=rx", 0o777, false, 0o555),
            ("u=rwX,go=rX", 0o600, false, 0o644),
            ("u=rwX,go=rX", 0o700, false, 0o755),
            ("u=rwX,go=rX", 0o700, true, 0o755),
            ("g+s,o+t", 0o755, true, 0o3755),
            ("u+s", 0o755, false, 0o4755),
            ("g=rx", 0o2770, true, 0o2750),
            ("g=rx", 0o2770, false, 0o750),
            ("g=u", 0o740, false, 0o770),
            ("o=g-w", 0o770, false, 0o775),
            ("u+rwx-w", 0o000, false, 0o500),
            ("a=", 0o777, false, 0),
            ("=rx", 0o7777, false, 0o555),
            ("=rx", 0o7777, true, 0o6555),
            ("u=s", 0o755, true, 0o4055),
        ] {
            let change: ModeChange = change.parse().unwrap();
            assert_eq!(
                format!("{:o}", change.apply(old, is_directory, 0o022)),
                format!("{new:o}"),
                "{change:?} {old:o}"
            );
        }
        for wrong in ["", "8", "10000", "rwx", "z+r", "u+z", "u+w,", "u+rg"] {
            assert!(wrong.parse::<ModeChange>().is_err(), "{wrong}");
        }
    }
}
