//! The users of RPCSEC_GSS (RFC 2203), and how their calls are protected.

use std::{fmt, str::FromStr, sync::Arc};

use smallvec::SmallVec;

/// How a call and its reply are protected (`rpc_gss_service_t`), in increasing order. The text form is that of nfs(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protection {
    /// `krb5`: the header of the call is signed.
    Authentication = 1,
    /// `krb5i`: arguments and results are signed too.
    Integrity = 2,
    /// `krb5p`: arguments and results are encrypted.
    Privacy = 3,
}

impl Protection {
    /// All, in increasing order.
    pub const ALL: [Self; 3] = [Self::Authentication, Self::Integrity, Self::Privacy];

    /// The one with this number.
    pub(crate) fn from_wire(service: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|protection| *protection as u32 == service)
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Authentication => "krb5",
            Self::Integrity => "krb5i",
            Self::Privacy => "krb5p",
        })
    }
}

/// A security flavor. The text form is that of nfs(5) and exports(5) (`sec`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SecurityFlavor {
    /// `sys`: AUTH_SYS, the ids that the client states.
    #[default]
    Sys,
    /// `krb5`, `krb5i`, `krb5p`: RPCSEC_GSS with Kerberos 5.
    Kerberos(Protection),
}

impl SecurityFlavor {
    /// All.
    pub const ALL: [Self; 4] = [
        Self::Sys,
        Self::Kerberos(Protection::Authentication),
        Self::Kerberos(Protection::Integrity),
        Self::Kerberos(Protection::Privacy),
    ];

    /// The number in the results of MNT (RFC 2623 section 2.3.1.2).
    pub const fn number(self) -> u32 {
        match self {
            Self::Sys => 1,
            Self::Kerberos(protection) => 390_002 + protection as u32,
        }
    }

    /// The flavor with this [number](Self::number); `None` for others, such as AUTH_NONE.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|flavor| flavor.number() == number)
    }
}

impl fmt::Display for SecurityFlavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sys => f.write_str("sys"),
            Self::Kerberos(protection) => protection.fmt(f),
        }
    }
}

impl FromStr for SecurityFlavor {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|flavor| flavor.to_string() == s);
        found.ok_or_else(|| format!("`{s}` is not a security flavor: write sys, krb5, krb5i or krb5p"))
    }
}

/// The user of a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GssCaller {
    /// The principal, such as `alice@EXAMPLE.ORG`.
    pub principal: String,
    /// Its ids at the server; `None`: it is no user of the server.
    pub user: Option<UserIds>,
}

/// The ids of a user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub gids: SmallVec<[u32; 16]>,
}

/// A credential of RPCSEC_GSS whose call was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GssIdentity {
    /// The user of the context.
    pub caller: Arc<GssCaller>,
    /// The protection of the call.
    pub protection: Protection,
    /// Bytes by which the protection makes a reply longer, at most.
    pub reply_overhead: usize,
}
