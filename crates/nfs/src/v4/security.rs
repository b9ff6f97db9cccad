//! Security: SECINFO, SECINFO_NO_NAME, and the credentials of callbacks (RFC 8881 sections 18.29, 18.33,
//! 18.36, 18.45).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{List, Name, Opaque};
use crate::schema::{xdr_enum, xdr_struct};

/// RPC security flavors (RFC 5531 section 8.1).
mod flavor {
    pub(super) const NONE: u32 = 0;
    pub(super) const SYS: u32 = 1;
    pub(super) const GSS: u32 = 6;
}

/// Maximum length of a decoded GSS handle or mechanism OID in bytes.
const MAX_GSS: usize = 1024;

xdr_struct! {
    /// An AUTH_SYS credential (RFC 5531 appendix A).
    pub struct AuthSys<'a> {
        /// Arbitrary number.
        pub stamp: u32,
        /// Name of the machine.
        pub machine_name: Opaque<'a, 255>,
        /// User.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Supplementary groups.
        pub gids: List<u32, 16>,
    }
}

xdr_struct! {
    /// `gss_cb_handles4`: RPCSEC_GSS handles.
    #[derive(Copy)]
    pub struct GssHandles<'a> {
        /// Protection: 1 none, 2 integrity, 3 privacy.
        pub service: u32,
        /// Handle from the server.
        pub from_server: Opaque<'a, MAX_GSS>,
        /// Handle from the client.
        pub from_client: Opaque<'a, MAX_GSS>,
    }
}

/// A credential for callbacks (RFC 8881 section 18.36).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackSecurity<'a> {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys<'a>),
    /// RPCSEC_GSS.
    Gss(GssHandles<'a>),
}

impl Encode for CallbackSecurity<'_> {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::None => e.put_u32(flavor::NONE),
            Self::Sys(credential) => {
                e.put_u32(flavor::SYS);
                e.put(credential);
            }
            Self::Gss(handles) => {
                e.put_u32(flavor::GSS);
                e.put(handles);
            }
        }
    }
}

impl<'a> Decode<'a> for CallbackSecurity<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            flavor::NONE => Ok(Self::None),
            flavor::SYS => d.get().map(Self::Sys),
            flavor::GSS => d.get().map(Self::Gss),
            n => Err(d.invalid(n)),
        }
    }
}

xdr_struct! {
    /// Arguments of BACKCHANNEL_CTL. The result has no data.
    pub struct BackchannelCtlArgs<'a> {
        /// RPC program number of callbacks.
        pub callback_program: u32,
        /// Credentials of which the server uses one for callbacks.
        pub callback_security: List<CallbackSecurity<'a>, 64>,
    }
}

xdr_struct! {
    /// Arguments of SECINFO.
    #[derive(Copy)]
    pub struct SecinfoArgs<'a> {
        /// Name in the current directory.
        pub name: Name<'a>,
    }
}

xdr_enum! {
    /// `secinfo_style4`: the object that SECINFO_NO_NAME concerns.
    pub enum SecinfoStyle {
        /// The current file handle.
        CurrentFh = 0,
        /// The parent directory of the current one.
        Parent = 1,
    }
}

xdr_struct! {
    /// Arguments of SECINFO_NO_NAME.
    pub struct SecinfoNoNameArgs {
        /// The object.
        pub style: SecinfoStyle,
    }
}

/// `secinfo4`: a security flavor that the server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secinfo<'a> {
    /// A flavor without parameters: its number, not that of RPCSEC_GSS.
    Flavor(u32),
    /// RPCSEC_GSS.
    Gss {
        /// OID of the mechanism.
        oid: Opaque<'a, MAX_GSS>,
        /// Quality of protection; 0: default.
        qop: u32,
        /// Protection: 1 none, 2 integrity, 3 privacy.
        service: u32,
    },
}

/// The object identifier of Kerberos 5, 1.2.840.113554.1.2.2 (RFC 1964 section 1).
const KERBEROS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2];

impl Secinfo<'_> {
    /// AUTH_NONE.
    pub const NONE: Self = Self::Flavor(flavor::NONE);
    /// AUTH_SYS.
    pub const SYS: Self = Self::Flavor(flavor::SYS);

    /// Kerberos 5 with a protection: 1 none, 2 integrity, 3 privacy.
    pub const fn kerberos(service: u32) -> Self {
        Self::Gss { oid: Opaque(KERBEROS), qop: 0, service }
    }

    /// The number of the flavor in the results of MNT (RFC 2623 section 2.3.1.2); `None` for other mechanisms.
    pub fn number(&self) -> Option<u32> {
        match self {
            Self::Flavor(flavor) => Some(*flavor),
            Self::Gss { oid, service: service @ 1..=3, .. } if oid.0 == KERBEROS => Some(390_002 + service),
            Self::Gss { .. } => None,
        }
    }
}

impl Encode for Secinfo<'_> {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Flavor(flavor) => e.put_u32(*flavor),
            Self::Gss { oid, qop, service } => {
                e.put_u32(flavor::GSS);
                e.put(oid);
                e.put_u32(*qop);
                e.put_u32(*service);
            }
        }
    }
}

impl<'a> Decode<'a> for Secinfo<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.u32()? {
            flavor::GSS => Self::Gss { oid: d.get()?, qop: d.get()?, service: d.get()? },
            n => Self::Flavor(n),
        })
    }
}

xdr_struct! {
    /// Result of SECINFO and SECINFO_NO_NAME: the accepted flavors, the preferred first.
    pub struct SecinfoOk<'a> {
        /// The flavors.
        pub flavors: List<Secinfo<'a>, 64>,
    }
}
