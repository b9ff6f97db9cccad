//! Copies within a server: arguments and results of COPY and CLONE (RFC 7862 sections 15.2, 15.13).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{List, OPAQUE_LIMIT, Opaque, StableHow, Stateid, Verifier};
use crate::schema::xdr_struct;

/// `netloc4`: location of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Netloc<'a> {
    /// A host name.
    Name(Opaque<'a, OPAQUE_LIMIT>),
    /// A URL.
    Url(Opaque<'a, OPAQUE_LIMIT>),
    /// A network ID such as `tcp`, and a universal address.
    Address(Opaque<'a, OPAQUE_LIMIT>, Opaque<'a, OPAQUE_LIMIT>),
}

impl Encode for Netloc<'_> {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Name(name) => {
                e.put_u32(1);
                e.put(name);
            }
            Self::Url(url) => {
                e.put_u32(2);
                e.put(url);
            }
            Self::Address(netid, address) => {
                e.put_u32(3);
                e.put(netid);
                e.put(address);
            }
        }
    }
}

impl<'a> Decode<'a> for Netloc<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            1 => d.get().map(Self::Name),
            2 => d.get().map(Self::Url),
            3 => Ok(Self::Address(d.get()?, d.get()?)),
            n => Err(d.invalid(n)),
        }
    }
}

xdr_struct! {
    /// `copy_requirements4`.
    pub struct CopyRequirements {
        /// Whether the bytes are copied in ascending order.
        pub consecutive: bool,
        /// Whether the copy is complete when the server replies.
        pub synchronous: bool,
    }
}

xdr_struct! {
    /// Arguments of COPY. The saved file handle is the source, the current one the destination.
    pub struct CopyArgs<'a> {
        /// Stateid of the source.
        pub source: Stateid,
        /// Stateid of the destination.
        pub destination: Stateid,
        /// Offset in the source in bytes.
        pub source_offset: u64,
        /// Offset in the destination in bytes.
        pub destination_offset: u64,
        /// Number of bytes; 0: to the end of the source.
        pub count: u64,
        /// Required order and completion.
        pub requirements: CopyRequirements,
        /// Servers that hold the source; none: this server.
        pub source_servers: List<Netloc<'a>, 64>,
    }
}

xdr_struct! {
    /// Result of COPY. A failure with [`Status::OffloadNoReqs`](super::Status::OffloadNoReqs) has
    /// [`CopyRequirements`].
    pub struct CopyOk {
        /// Stateid of an asynchronous copy (a list of at most one element).
        pub callback_id: Option<Stateid>,
        /// Number of bytes copied.
        pub count: u64,
        /// Stability of the data.
        pub committed: StableHow,
        /// Write verifier of the server instance.
        pub verifier: Verifier,
        /// Order and completion.
        pub requirements: CopyRequirements,
    }
}

xdr_struct! {
    /// Arguments of CLONE. The saved file handle is the source, the current one the destination. The result has no
    /// data.
    pub struct CloneArgs {
        /// Stateid of the source.
        pub source: Stateid,
        /// Stateid of the destination.
        pub destination: Stateid,
        /// Offset in the source in bytes.
        pub source_offset: u64,
        /// Offset in the destination in bytes.
        pub destination_offset: u64,
        /// Number of bytes; 0: to the end of the source.
        pub count: u64,
    }
}

xdr_struct! {
    /// Arguments of OFFLOAD_STATUS and OFFLOAD_CANCEL (RFC 7862 sections 15.8 and 15.9).
    pub struct OffloadArgs {
        /// Stateid of an asynchronous copy.
        pub stateid: Stateid,
    }
}
