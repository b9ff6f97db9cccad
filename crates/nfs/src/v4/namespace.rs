//! File handles, names and attributes: arguments and results of PUTFH, GETFH, LOOKUP, ACCESS and GETATTR.
//!
//! PUTROOTFH, PUTPUBFH, SAVEFH, RESTOREFH and LOOKUPP have neither arguments nor data in their results.

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{Bitmap, FileHandle, Name};
use crate::schema::xdr_struct;

/// Arguments of PUTFH (RFC 8881 section 18.19). The result has no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutfhArgs<'a> {
    /// The new current file handle.
    pub handle: FileHandle<'a>,
}

impl Encode for PutfhArgs<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.handle);
    }
}

impl<'a> Decode<'a> for PutfhArgs<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::HANDLES_DECODED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Self { handle: d.get()? })
    }
}

xdr_struct! {
    /// Result of GETFH (RFC 8881 section 18.8).
    #[derive(Copy)]
    pub struct GetfhOk<'a> {
        /// The current file handle.
        pub handle: FileHandle<'a>,
    }
}

xdr_struct! {
    /// Arguments of LOOKUP (RFC 8881 section 18.13). The result has no data.
    #[derive(Copy)]
    pub struct LookupArgs<'a> {
        /// Name in the current directory.
        pub name: Name<'a>,
    }
}

xdr_struct! {
    /// Arguments of ACCESS (RFC 8881 section 18.1).
    pub struct AccessArgs {
        /// Requested access rights: bits of [`access`](super::access).
        pub access: u32,
    }
}

xdr_struct! {
    /// Result of ACCESS.
    pub struct AccessOk {
        /// The subset of the requested rights that the server can check.
        pub supported: u32,
        /// The granted subset of the supported rights.
        pub access: u32,
    }
}

xdr_struct! {
    /// Arguments of GETATTR (RFC 8881 section 18.7). The result is a `fattr4`
    /// ([`Attributes::encode_requested`](super::Attributes::encode_requested), [`Fattr`](super::Fattr)).
    pub struct GetattrArgs {
        /// Requested attributes.
        pub requested: Bitmap,
    }
}
