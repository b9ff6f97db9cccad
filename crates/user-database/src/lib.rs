//! The users and groups of this host (nsswitch.conf(5)), of which lookups are kept, and the names of owners of NFSv4,
//! `user@domain` (RFC 8881 section 5.9).
//!
//! The server names owners to its clients, and the client takes the names of any server.

mod domain;
mod lookups;

use std::io;

pub use domain::default_domain;
pub use lookups::Lookups;
use nix::unistd::{Gid, Group, Uid, User};

/// Maximum length of a name that is looked up in bytes: `LOGIN_NAME_MAX`.
const MAX_NAME: usize = 256;

/// What an owner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A user.
    User,
    /// A group.
    Group,
}

impl Kind {
    /// The name of a user or group with this number. May block.
    ///
    /// # Errors
    /// Those of the database.
    pub fn name(self, id: u32) -> io::Result<Option<String>> {
        Ok(match self {
            Self::User => User::from_uid(Uid::from_raw(id))?.map(|user| user.name),
            Self::Group => Group::from_gid(Gid::from_raw(id))?.map(|group| group.name),
        })
    }

    /// The number of a user or group with this name. May block.
    ///
    /// # Errors
    /// Those of the database.
    pub fn id(self, name: &str) -> io::Result<Option<u32>> {
        Ok(match self {
            Self::User => User::from_name(name)?.map(|user| user.uid.as_raw()),
            Self::Group => Group::from_name(name)?.map(|group| group.gid.as_raw()),
        })
    }
}

/// The name of an owner, and its domain; `None` if it has not this form, or is no name of any user.
pub fn split(owner: &str) -> Option<(&str, &str)> {
    let is_name = owner.len() <= MAX_NAME && !owner.contains('\0');
    owner.rsplit_once('@').filter(|(name, _)| is_name && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_have_a_name_and_a_domain() {
        let long = format!("{}@example.org", "a".repeat(MAX_NAME));
        for (owner, expected) in [
            ("alice@example.org", Some(("alice", "example.org"))),
            ("alice@a@b", Some(("alice@a", "b"))),
            ("alice@", Some(("alice", ""))),
            ("alice", None),
            ("@example.org", None),
            ("a\0b@example.org", None),
            ("", None),
            (&*long, None),
        ] {
            assert_eq!(split(owner), expected, "{owner:?}");
        }
    }

    #[test]
    fn the_database_of_the_host_has_root() {
        for kind in [Kind::User, Kind::Group] {
            assert_eq!((kind.id("root").unwrap(), kind.name(0).unwrap().as_deref()), (Some(0), Some("root")));
            assert_eq!((kind.id("no-such-one").unwrap(), kind.name(3_999_999_999).unwrap()), (None, None));
        }
    }
}
