//! The users of RPCSEC_GSS (RFC 2203), and how their calls are protected.

use std::{fmt, sync::Arc};

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
}
