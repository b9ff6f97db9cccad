//! Versions of NFS.

use std::{fmt, str::FromStr};

/// A version of NFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Version {
    /// NFSv3 (RFC 1813).
    V3,
    /// NFSv4.1 (RFC 8881).
    V4_1,
    /// NFSv4.2 (RFC 7862).
    V4_2,
}

impl Version {
    /// All versions, in the order in which a client without [`crate::Options::vers`] tries them.
    pub(crate) const ALL: [Self; 3] = [Self::V4_2, Self::V4_1, Self::V3];

    /// The minor version of NFSv4.
    pub(crate) const fn minor_version(self) -> Option<u32> {
        match self {
            Self::V3 => None,
            Self::V4_1 => Some(1),
            Self::V4_2 => Some(2),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3 => "3",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
        })
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "3" => Ok(Self::V3),
            "4.1" => Ok(Self::V4_1),
            "4.2" => Ok(Self::V4_2),
            _ => Err(format!("unknown NFS version {s:?}: use 3, 4.1 or 4.2")),
        }
    }
}
