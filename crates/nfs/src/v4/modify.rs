//! Changes of files and directories: arguments and results of SETATTR, CREATE, REMOVE, RENAME and LINK.

use millrace_xdr::{Decode, Decoder, Encode, Encoder, Views, XdrError};

use super::{Bitmap, ChangeInfo, FileType, MAX_PATH, Name, SpecData, Stateid};
use crate::schema::xdr_struct;

/// Arguments of SETATTR (RFC 8881 section 18.30). `A` is the type of the attributes:
/// [`Attributes`](super::Attributes) or [`Fattr`](super::Fattr).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetattrArgs<A> {
    /// Stateid for a change of the size.
    pub stateid: Stateid,
    /// Attributes to set.
    pub attributes: A,
}

impl<A: Encode> Encode for SetattrArgs<A> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.stateid);
        e.put(&self.attributes);
    }
}

impl<'a, A: Decode<'a>> Decode<'a> for SetattrArgs<A> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { stateid: d.get()?, attributes: d.get()? })
    }
}

xdr_struct! {
    /// Result of SETATTR; a failure has it, too.
    pub struct SetattrRes {
        /// Attributes that were set.
        pub set: Bitmap,
    }
}

/// `createtype4`: the object that CREATE creates.
#[derive(Debug, Clone)]
pub enum CreateType {
    /// A symbolic link with this target, by reference; at most [`MAX_PATH`] bytes.
    Symlink(Views),
    /// A block device.
    Block(SpecData),
    /// A character device.
    Character(SpecData),
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
    /// A directory.
    Directory,
    /// A type that CREATE does not create (regular file, named attribute and its directory); a server rejects
    /// it with [`Status::BadType`](super::Status::BadType).
    Other(FileType),
}

impl CreateType {
    /// Type of the object.
    pub const fn file_type(&self) -> FileType {
        match self {
            Self::Symlink(_) => FileType::Symlink,
            Self::Block(_) => FileType::Block,
            Self::Character(_) => FileType::Character,
            Self::Socket => FileType::Socket,
            Self::Fifo => FileType::Fifo,
            Self::Directory => FileType::Directory,
            Self::Other(t) => *t,
        }
    }
}

impl Encode for CreateType {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.file_type());
        match self {
            Self::Symlink(target) => e.put_payload(target.clone()),
            Self::Block(device) | Self::Character(device) => e.put(device),
            Self::Socket | Self::Fifo | Self::Directory | Self::Other(_) => {}
        }
    }
}

impl<'a> Decode<'a> for CreateType {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.get()? {
            FileType::Symlink => Self::Symlink(d.payload(MAX_PATH)?),
            FileType::Block => Self::Block(d.get()?),
            FileType::Character => Self::Character(d.get()?),
            FileType::Socket => Self::Socket,
            FileType::Fifo => Self::Fifo,
            FileType::Directory => Self::Directory,
            t => Self::Other(t),
        })
    }
}

/// Arguments of CREATE (RFC 8881 section 18.4). `A` is the type of the attributes.
#[derive(Debug, Clone)]
pub struct CreateArgs<'a, A> {
    /// The object to create.
    pub what: CreateType,
    /// Name in the current directory.
    pub name: Name<'a>,
    /// Attributes of the object.
    pub attributes: A,
}

impl<A: Encode> Encode for CreateArgs<'_, A> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.what);
        e.put(&self.name);
        e.put(&self.attributes);
    }
}

impl<'a, A: Decode<'a>> Decode<'a> for CreateArgs<'a, A> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { what: d.get()?, name: d.get()?, attributes: d.get()? })
    }
}

xdr_struct! {
    /// Result of CREATE.
    pub struct CreateOk {
        /// Change of the directory.
        pub dir: ChangeInfo,
        /// Attributes that were set.
        pub set: Bitmap,
    }
}

xdr_struct! {
    /// Arguments of REMOVE (RFC 8881 section 18.25). The result is the change of the directory
    /// ([`ChangeInfo`]).
    #[derive(Copy)]
    pub struct RemoveArgs<'a> {
        /// Name in the current directory.
        pub name: Name<'a>,
    }
}

xdr_struct! {
    /// Arguments of RENAME (RFC 8881 section 18.26).
    #[derive(Copy)]
    pub struct RenameArgs<'a> {
        /// Name in the saved directory.
        pub from: Name<'a>,
        /// Name in the current directory.
        pub to: Name<'a>,
    }
}

xdr_struct! {
    /// Result of RENAME.
    pub struct RenameOk {
        /// Change of the saved directory.
        pub from: ChangeInfo,
        /// Change of the current directory.
        pub to: ChangeInfo,
    }
}

xdr_struct! {
    /// Arguments of LINK (RFC 8881 section 18.9). The saved file handle is the file. The result is the change of
    /// the directory ([`ChangeInfo`]).
    #[derive(Copy)]
    pub struct LinkArgs<'a> {
        /// Name in the current directory.
        pub name: Name<'a>,
    }
}
