//! MOUNT version 3 (RFC 1813 appendix I), which returns the root file handle of an export.

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use smallvec::SmallVec;

use crate::{
    schema::{xdr_enum, xdr_struct},
    v3::{FileHandle, RPC_REPLY_HEAD},
};

/// RPC program number.
pub const PROGRAM: u32 = 100_005;
/// Program version.
pub const VERSION: u32 = 3;
/// Maximum length of a path in bytes (MNTPATHLEN).
pub const MAX_PATH: usize = 1024;
/// Maximum length of a host or group name in bytes (MNTNAMLEN).
pub const MAX_NAME: usize = 255;
/// Maximum number of authentication flavors that are decoded.
pub const MAX_FLAVORS: usize = 64;

/// Maximum size of a reply to MNT in bytes, including the RPC header.
pub const MNT_REPLY_HEAD: usize = RPC_REPLY_HEAD + 4 + 68 + 4 + 4 * MAX_FLAVORS;
/// Maximum size of a reply to EXPORT or DUMP that the client accepts, in bytes, including the RPC header.
/// (The protocol has no limit.)
pub const LIST_REPLY_HEAD: usize = 64 * 1024;

xdr_enum! {
    /// The procedures.
    pub enum Procedure {
        /// Do nothing.
        Null = 0,
        /// Add a mount entry and return the root file handle.
        Mnt = 1,
        /// List the mount entries.
        Dump = 2,
        /// Remove a mount entry.
        Umnt = 3,
        /// Remove all mount entries of the caller.
        Umntall = 4,
        /// List the exports.
        Export = 5,
    }
}

xdr_enum! {
    /// `mountstat3`. `Display` gives a description.
    pub enum Status {
        /// MNT3_OK.
        Ok = 0,
        /// MNT3ERR_PERM.
        Perm = 1,
        /// MNT3ERR_NOENT.
        NoEnt = 2,
        /// MNT3ERR_IO.
        Io = 5,
        /// MNT3ERR_ACCES.
        Access = 13,
        /// MNT3ERR_NOTDIR.
        NotDir = 20,
        /// MNT3ERR_INVAL.
        Inval = 22,
        /// MNT3ERR_NAMETOOLONG.
        NameTooLong = 63,
        /// MNT3ERR_NOTSUPP.
        NotSupp = 10004,
        /// MNT3ERR_SERVERFAULT.
        ServerFault = 10006,
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ok => "no error",
            Self::Perm => "operation not permitted",
            Self::NoEnt => "the server has no such export",
            Self::Io => "input/output error on the server",
            Self::Access => "the server does not let this client mount it",
            Self::NotDir => "the path is not a directory",
            Self::Inval => "invalid path",
            Self::NameTooLong => "the path is too long",
            Self::NotSupp => "the server does not support this operation",
            Self::ServerFault => "the server failed",
        })
    }
}

impl std::error::Error for Status {}

/// The path argument of MNT and UMNT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dirpath<'a>(
    /// At most [`MAX_PATH`] bytes.
    pub &'a [u8],
);

impl Encode for Dirpath<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.0);
    }
}

impl<'a> Decode<'a> for Dirpath<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.opaque(MAX_PATH).map(Self)
    }
}

/// A host or group name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a>(
    /// At most [`MAX_NAME`] bytes.
    pub &'a [u8],
);

impl Encode for Name<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.0);
    }
}

impl<'a> Decode<'a> for Name<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.opaque(MAX_NAME).map(Self)
    }
}

/// Result of a successful MNT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MntOk {
    /// Root file handle of the export.
    pub handle: FileHandle,
    /// Authentication flavors in the server's order of preference (1: AUTH_SYS).
    pub flavors: SmallVec<[u32; 4]>,
}

/// The result of MNT.
pub type MntRes = Result<MntOk, Status>;

/// Encodes the result of MNT.
pub fn encode_mnt(res: &MntRes, e: &mut Encoder) {
    match res {
        Ok(ok) => {
            e.put(&Status::Ok);
            e.put(&ok.handle);
            e.put_u32(ok.flavors.len() as u32);
            ok.flavors.iter().for_each(|f| e.put_u32(*f));
        }
        Err(status) => e.put(status),
    }
}

/// Decodes the result of MNT. A failure status is part of the value.
///
/// # Errors
/// The result is malformed.
pub fn decode_mnt(d: &mut Decoder<'_>) -> Result<MntRes, XdrError> {
    let status: Status = d.get()?;
    if status != Status::Ok {
        return Ok(Err(status));
    }
    let handle = d.get()?;
    let n = d.count(MAX_FLAVORS, 4)?;
    let flavors = (0..n).map(|_| d.u32()).collect::<Result<_, _>>()?;
    Ok(Ok(MntOk { handle, flavors }))
}

xdr_struct! {
    /// An entry of DUMP.
    pub struct MountEntry<'a> {
        /// The client.
        pub hostname: Name<'a>,
        /// The mounted path.
        pub directory: Dirpath<'a>,
    }
}

/// An entry of EXPORT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportEntry<'a> {
    /// Path of the export.
    pub directory: Dirpath<'a>,
    /// Hosts and groups that may mount it; empty: all.
    pub groups: Vec<Name<'a>>,
}

impl Encode for ExportEntry<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.directory);
        encode_list(&self.groups, e);
    }
}

impl<'a> Decode<'a> for ExportEntry<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { directory: d.get()?, groups: decode_list(d)? })
    }
}

/// Encodes the result of DUMP ([`MountEntry`]) or EXPORT ([`ExportEntry`]).
pub fn encode_list<T: Encode>(list: &[T], e: &mut Encoder) {
    for item in list {
        e.put_bool(true);
        e.put(item);
    }
    e.put_bool(false);
}

/// Decodes the result of DUMP or EXPORT. The length of the list is bounded by the size of the message.
///
/// # Errors
/// The result is malformed.
pub fn decode_list<'a, T: Decode<'a>>(d: &mut Decoder<'a>) -> Result<Vec<T>, XdrError> {
    let mut out = Vec::new();
    while d.bool()? {
        out.push(d.get()?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn bytes(f: impl FnOnce(&mut Encoder)) -> Vec<u8> {
        let arena =
            millrace_xdr::Arena::new(millrace_buffer::ArenaConfig { limit: 64 << 20, huge_pages: false });
        let mut e = Encoder::new(&arena, 64);
        f(&mut e);
        e.finish().unwrap().head.to_vec()
    }

    #[test]
    fn mnt_results_have_handle_and_flavors() {
        let ok = Ok(MntOk { handle: FileHandle::new(&[1, 2, 3]).unwrap(), flavors: smallvec![1] });
        let b = bytes(|e| encode_mnt(&ok, e));
        assert_eq!(b, [0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(decode_mnt(&mut Decoder::from_bytes(&b)).unwrap(), ok);
        for cut in 0..b.len() {
            assert!(decode_mnt(&mut Decoder::from_bytes(&b[..cut])).is_err());
        }
        let b = bytes(|e| encode_mnt(&Err(Status::Access), e));
        assert_eq!(b, [0, 0, 0, 13]);
        assert_eq!(decode_mnt(&mut Decoder::from_bytes(&b)).unwrap(), Err(Status::Access));
    }

    #[test]
    fn export_lists_contain_group_lists() {
        let list = vec![
            ExportEntry { directory: Dirpath(b"/a"), groups: vec![] },
            ExportEntry { directory: Dirpath(b"/b"), groups: vec![Name(b"h1"), Name(b"h2")] },
        ];
        let b = bytes(|e| encode_list(&list, e));
        assert_eq!(&b[..16], [0, 0, 0, 1, 0, 0, 0, 2, b'/', b'a', 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_list::<ExportEntry<'_>>(&mut Decoder::from_bytes(&b)).unwrap(), list);
        for cut in 0..b.len() {
            assert!(decode_list::<ExportEntry<'_>>(&mut Decoder::from_bytes(&b[..cut])).is_err());
        }
    }

    #[test]
    fn paths_and_flavor_lists_are_bounded() {
        let long = [b'x'; MAX_PATH + 1];
        let b = bytes(|e| e.put_opaque(&long));
        assert!(matches!(Decoder::from_bytes(&b).get::<Dirpath<'_>>(), Err(XdrError::TooLong { .. })));
        let b = bytes(|e| {
            e.put(&Status::Ok);
            e.put_opaque(b"");
            e.put_u32(u32::MAX);
        });
        assert!(matches!(decode_mnt(&mut Decoder::from_bytes(&b)), Err(XdrError::TooLong { .. })));
    }

    #[test]
    fn dump_entries_are_host_and_directory() {
        let list = [MountEntry { hostname: Name(b"h"), directory: Dirpath(b"/e") }];
        let b = bytes(|e| encode_list(&list, e));
        assert_eq!(decode_list::<MountEntry<'_>>(&mut Decoder::from_bytes(&b)).unwrap(), list);
    }
}
