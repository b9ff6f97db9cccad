//! Owners and groups on the command line, as chown(1) has them.

use std::str::FromStr;

use nix::unistd::{Group, User};

/// `OWNER`, `OWNER:GROUP`, `OWNER:` (with its login group) or `:GROUP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (owner, group) = text.split_once(':').map_or((text, None), |(owner, group)| (owner, Some(group)));
        let user = User::from_name(owner).ok().flatten();
        let uid = match owner {
            "" => None,
            _ => Some(number(owner, user.as_ref().map(|user| user.uid.as_raw()), "user")?),
        };
        let gid = match group {
            None => None,
            Some("") => user.map(|user| user.gid.as_raw()),
            Some(name) => {
                let found = Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
                Some(number(name, found, "group")?)
            }
        };
        match (uid, gid) {
            (None, None) => Err("name an owner, a group, or both, such as alice:users".into()),
            _ => Ok(Self { uid, gid }),
        }
    }
}

fn number(name: &str, found: Option<u32>, what: &str) -> Result<u32, String> {
    found
        .or_else(|| name.parse().ok())
        .ok_or_else(|| format!("this host has no {what} {name:?}; use its number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_or_numbers() {
        let of = |text: &str| text.parse::<Owner>().map(|owner| (owner.uid, owner.gid));
        assert_eq!(of("root"), Ok((Some(0), None)));
        assert_eq!(of("root:"), Ok((Some(0), Some(0))));
        assert_eq!(of("4000000000:5"), Ok((Some(4_000_000_000), Some(5))));
        assert_eq!(of(":root"), Ok((None, Some(0))));
        for wrong in ["", ":", "no such user", "root:no such group", "-1"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
