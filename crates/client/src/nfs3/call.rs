//! The calls of the protocol layer: an NFSv3 procedure, which is a COMPOUND in NFSv4.

use millrace_nfs::{
    v3::{self, Procedure},
    v4::Stateid,
};
use millrace_xdr::{Decoder, Encode, XdrError};

use super::entries::DirPage;
use crate::nfs4::compound::Compound;

/// The arguments of a procedure. [`Encode`] gives those of NFSv3, [`Compound`] the operations of NFSv4. The results of
/// both are those of NFSv3.
pub(crate) trait Call: Encode + Compound {
    /// The procedure.
    const PROCEDURE: Procedure;

    /// Decodes the results of NFSv3 after a status of success.
    fn decode(d: &mut Decoder<'_>) -> Result<Self::Ok, XdrError>;

    /// Maximum size of the entries of a directory in the reply, in bytes.
    fn entries(&self) -> Option<u32> {
        None
    }
}

macro_rules! calls {
    ($($procedure:ident($args:ty)),* $(,)?) => {
        $(impl Call for $args {
            const PROCEDURE: Procedure = Procedure::$procedure;

            fn decode(d: &mut Decoder<'_>) -> Result<Self::Ok, XdrError> {
                d.get()
            }
        })*
    };
}

calls! {
    Getattr(v3::GetattrArgs),
    Setattr(Setattr),
    Lookup(v3::LookupArgs<'_>),
    Access(v3::AccessArgs),
    Readlink(v3::ReadlinkArgs),
    Read(Read),
    Write(Write),
    Create(Create<'_>),
    Mkdir(v3::MkdirArgs<'_>),
    Symlink(v3::SymlinkArgs<'_>),
    Mknod(v3::MknodArgs<'_>),
    Remove(v3::RemoveArgs<'_>),
    Rmdir(v3::RmdirArgs<'_>),
    Rename(v3::RenameArgs<'_>),
    Link(v3::LinkArgs<'_>),
    Fsstat(v3::FsstatArgs),
    Fsinfo(v3::FsinfoArgs),
    Pathconf(v3::PathconfArgs),
    Commit(v3::CommitArgs),
}

/// The arguments of CREATE.
pub(crate) struct Create<'a> {
    pub(crate) args: v3::CreateArgs<'a>,
    /// Identifies the open of the file in NFSv4, which ends with the call; unique, because the server combines the
    /// opens of one owner.
    pub(crate) owner: u64,
}

impl Encode for Create<'_> {
    fn encode(&self, e: &mut millrace_xdr::Encoder) {
        e.put(&self.args);
    }
}

/// The arguments of an exclusive CREATE.
pub(crate) struct CreateExclusive<'a> {
    pub(crate) at: v3::DirOpArgs<'a>,
    pub(crate) verifier: v3::Verifier,
    /// The mode that NFSv4 sets with the creation; `None` leaves it to SETATTR.
    pub(crate) mode: Option<u32>,
    /// As [`Create::owner`].
    pub(crate) owner: u64,
}

/// The result of [`CreateExclusive`].
pub(crate) struct CreatedExclusive {
    pub(crate) created: v3::CreateOk,
    pub(crate) left: LeftToSet,
}

/// The attributes that an exclusive creation leaves to SETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeftToSet {
    pub(crate) mode: bool,
    pub(crate) times: bool,
}

impl LeftToSet {
    /// The attributes to set for a file with this mode.
    pub(crate) fn attributes(self, mode: u32) -> v3::Sattr {
        let time = if self.times { v3::SetTime::ServerTime } else { v3::SetTime::DontChange };
        v3::Sattr { mode: self.mode.then_some(mode), atime: time, mtime: time, ..v3::Sattr::default() }
    }
}

impl Encode for CreateExclusive<'_> {
    fn encode(&self, e: &mut millrace_xdr::Encoder) {
        e.put(&v3::CreateArgs { where_: self.at, how: v3::CreateHow::Exclusive(self.verifier) });
    }
}

impl Call for CreateExclusive<'_> {
    const PROCEDURE: Procedure = Procedure::Create;

    /// The server may have stored the verifier in any attribute (RFC 1813 section 3.3.8).
    fn decode(d: &mut Decoder<'_>) -> Result<CreatedExclusive, XdrError> {
        Ok(CreatedExclusive { created: d.get()?, left: LeftToSet { mode: true, times: true } })
    }
}

/// The arguments of SETATTR.
pub(crate) struct Setattr {
    pub(crate) args: v3::SetattrArgs,
    /// The state for NFSv4, which matters if the size is set.
    pub(crate) stateid: Stateid,
}

impl Encode for Setattr {
    fn encode(&self, e: &mut millrace_xdr::Encoder) {
        e.put(&self.args);
    }
}

/// The arguments of READ.
pub(crate) struct Read {
    pub(crate) args: v3::ReadArgs,
    /// The state for NFSv4.
    pub(crate) stateid: Stateid,
}

impl Encode for Read {
    fn encode(&self, e: &mut millrace_xdr::Encoder) {
        e.put(&self.args);
    }
}

/// The arguments of WRITE.
pub(crate) struct Write {
    pub(crate) args: v3::WriteArgs,
    /// The state for NFSv4.
    pub(crate) stateid: Stateid,
}

impl Encode for Write {
    fn encode(&self, e: &mut millrace_xdr::Encoder) {
        e.put(&self.args);
    }
}

impl Call for v3::ReaddirArgs {
    const PROCEDURE: Procedure = Procedure::Readdir;

    fn decode(d: &mut Decoder<'_>) -> Result<DirPage, XdrError> {
        DirPage::decode_plain(d)
    }

    fn entries(&self) -> Option<u32> {
        Some(self.count)
    }
}

impl Call for v3::ReaddirplusArgs {
    const PROCEDURE: Procedure = Procedure::Readdirplus;

    fn decode(d: &mut Decoder<'_>) -> Result<DirPage, XdrError> {
        DirPage::decode_plus(d)
    }

    fn entries(&self) -> Option<u32> {
        Some(self.maxcount)
    }
}

/// A change of the space of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceChange {
    /// Reserves space, and extends the file to the end of the range.
    Allocate,
    /// Releases the space: the range reads as zeros. The size stays.
    Deallocate,
    /// [`Self::Deallocate`], then [`Self::Allocate`]: zeros with reserved space.
    Zero,
}
