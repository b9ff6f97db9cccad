//! Types used by several operations (RFC 8881 section 3.3).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use crate::schema::{xdr_enum, xdr_struct};

xdr_struct! {
    /// `clientid4`: a client ID, assigned by the server to one incarnation of a client.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct ClientId {
        /// The number.
        pub number: u64,
    }
}

/// `sessionid4`: a session ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// The ID as XDR words.
    pub(super) fn words(self) -> [u32; 4] {
        let id = u128::from_be_bytes(self.0);
        [(id >> 96) as u32, (id >> 64) as u32, (id >> 32) as u32, id as u32]
    }

    /// The ID of these XDR words.
    pub(super) fn from_words(words: [u32; 4]) -> Self {
        Self(words.iter().fold(0, |id: u128, word| id << 32 | u128::from(*word)).to_be_bytes())
    }
}

impl Encode for SessionId {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.0);
    }
}

impl<'a> Decode<'a> for SessionId {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self(d.get()?))
    }
}

xdr_struct! {
    /// `stateid4`: an identifier of an open, of locks or of a delegation.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct Stateid {
        /// Number of changes of the state; in requests, 0 means the most recent one.
        pub seqid: u32,
        /// Identifies the state.
        pub other: [u8; 12],
    }
}

impl Stateid {
    /// All zeros: an access without an open (RFC 8881 section 8.2.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// All ones: a READ that share reservations do not restrict.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The current stateid of the COMPOUND.
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// A stateid that is never valid.
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// Whether it is one of the special stateids, or has their `other` field.
    pub fn is_special(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }
}

xdr_enum! {
    /// `nfs_ftype4`.
    pub enum FileType {
        /// A regular file.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        Block = 3,
        /// A character device.
        Character = 4,
        /// A symbolic link.
        Symlink = 5,
        /// A socket.
        Socket = 6,
        /// A named pipe.
        Fifo = 7,
        /// A directory of named attributes.
        AttributeDirectory = 8,
        /// A named attribute.
        NamedAttribute = 9,
    }
}

/// `nfstime4`: time since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NfsTime {
    /// Seconds; negative before the epoch.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, valid below 1,000,000,000 (not checked by decoding).
    pub nanoseconds: u32,
}

impl Encode for NfsTime {
    fn encode(&self, e: &mut Encoder) {
        let seconds = self.seconds.cast_unsigned();
        e.put_words([(seconds >> 32) as u32, seconds as u32, self.nanoseconds]);
    }
}

impl<'a> Decode<'a> for NfsTime {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { seconds: d.u64()?.cast_signed(), nanoseconds: d.u32()? })
    }
}

xdr_struct! {
    /// `specdata4`: a device number.
    #[derive(Default, Hash)]
    pub struct SpecData {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }
}

xdr_struct! {
    /// `fsid4`: a file system ID.
    #[derive(Default, Hash)]
    pub struct Fsid {
        /// First half.
        pub major: u64,
        /// Second half.
        pub minor: u64,
    }
}

xdr_struct! {
    /// `change_info4`: change attributes of a directory around an operation.
    #[derive(Default)]
    pub struct ChangeInfo {
        /// Whether both were read atomically with the operation.
        pub atomic: bool,
        /// Change attribute before the operation.
        pub before: u64,
        /// Change attribute after the operation.
        pub after: u64,
    }
}

xdr_enum! {
    /// `stable_how4`: requested or achieved stability of written data.
    pub enum StableHow {
        /// May be lost until COMMIT.
        Unstable = 0,
        /// The data, and the metadata needed to read it, are stable.
        DataSync = 1,
        /// Data and metadata are stable.
        FileSync = 2,
    }
}

/// Access rights of ACCESS (RFC 8881 section 18.1, RFC 8276 section 8.3).
pub mod access {
    /// Read a file, or list a directory.
    pub const READ: u32 = 0x01;
    /// Look up names in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Modify data, or directory entries.
    pub const MODIFY: u32 = 0x04;
    /// Append data, or add directory entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete directory entries.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// Read extended attributes.
    pub const XATTR_READ: u32 = 0x40;
    /// Set or remove extended attributes.
    pub const XATTR_WRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XATTR_LIST: u32 = 0x100;
}
