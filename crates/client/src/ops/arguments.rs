//! Arguments and results of the procedures.

use millrace_buffer::Views;
use millrace_nfs::v4::Stateid;
use millrace_oncrpc::CallClass;

use super::{
    Attributes, CommitOk, CreateHow, DirPage, FileHandle, FsInfo, FsStat, LinkOk, MknodWhat, NfsTime,
    PathConf, Procedure, RenameOk, SetAttributes, SetTime, StableHow, Verifier, Wcc,
};

/// The arguments of a call, which `v3` and `v4` encode, and whose results they decode.
pub(crate) trait Call: Send + Sync {
    /// The results.
    type Ok: Send;

    /// The procedure.
    const PROCEDURE: Procedure;

    /// Maximum size of the entries of a directory in the reply, in bytes.
    fn entries(&self) -> Option<u32> {
        None
    }
}

/// Whether the server must recognize a retransmission. WRITE is idempotent, but see [`crate::retransmission`].
pub(crate) fn is_unrepeatable(procedure: Procedure) -> bool {
    !procedure.is_idempotent() || procedure == Procedure::Write
}

pub(crate) fn class(procedure: Procedure) -> CallClass {
    match procedure {
        Procedure::Read => CallClass::Read,
        Procedure::Write => CallClass::Write,
        _ => CallClass::Other,
    }
}

macro_rules! calls {
    ($($procedure:ident($request:ty) -> $ok:ty),* $(,)?) => {
        $(impl Call for $request {
            type Ok = $ok;
            const PROCEDURE: Procedure = Procedure::$procedure;
        })*
    };
}

calls! {
    Getattr(Getattr) -> Attributes,
    Setattr(Setattr) -> Wcc,
    Lookup(Lookup<'_>) -> LookupOk,
    Access(Access) -> AccessOk,
    Readlink(Readlink) -> Views,
    Read(Read) -> ReadOk,
    Write(Write) -> WriteOk,
    Create(Create<'_>) -> CreateOk,
    Create(CreateExclusive<'_>) -> CreatedExclusive,
    Mkdir(Mkdir<'_>) -> CreateOk,
    Symlink(Symlink<'_>) -> CreateOk,
    Mknod(Mknod<'_>) -> CreateOk,
    Remove(Remove<'_>) -> Wcc,
    Rmdir(Rmdir<'_>) -> Wcc,
    Rename(Rename<'_>) -> RenameOk,
    Link(Link<'_>) -> LinkOk,
    Fsstat(Fsstat) -> FsStat,
    Fsinfo(Fsinfo) -> FsInfo,
    Pathconf(Pathconf) -> PathConf,
    Commit(Commit) -> CommitOk,
}

/// Identifies the time between two losses of locks of a file: it changes when the server has revoked locks, and again when
/// their owners have unlocked. What was accepted in one epoch must not change the file in a later one, because other
/// clients may have held the locks in between. Unique in the session, so that an epoch of a file that was dropped is not
/// taken for one of the same file opened again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LockEpoch(pub(crate) u64);

impl LockEpoch {
    /// Before the first lock of the file: nothing is protected that could be lost.
    pub(crate) const UNLOCKED: Self = Self(0);
}

/// The open of a locked file, in which a request reads or changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenState {
    /// Anonymous if the file is not locked.
    pub(crate) stateid: Stateid,
    /// When the operation of the request began: it ends with [`crate::Error::LocksLost`] in another epoch.
    pub(crate) since: LockEpoch,
}

impl OpenState {
    /// That of a file without locks.
    pub(crate) const NONE: Self = Self { stateid: Stateid::ANONYMOUS, since: LockEpoch::UNLOCKED };
}

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameIn<'a> {
    pub(crate) dir: FileHandle,
    pub(crate) name: &'a [u8],
}

pub(crate) struct Getattr {
    pub(crate) object: FileHandle,
}

pub(crate) struct Setattr {
    pub(crate) object: FileHandle,
    pub(crate) attributes: SetAttributes,
    /// The call fails unless the object has this ctime.
    pub(crate) guard: Option<NfsTime>,
    /// The state for NFSv4, which matters if the size is set.
    pub(crate) state: OpenState,
}

pub(crate) struct Lookup<'a> {
    pub(crate) what: NameIn<'a>,
}

pub(crate) struct LookupOk {
    pub(crate) object: FileHandle,
    pub(crate) attributes: Option<Attributes>,
    /// The attributes of the directory.
    pub(crate) dir: Option<Attributes>,
}

pub(crate) struct Access {
    pub(crate) object: FileHandle,
    /// Bits of [`super::access`].
    pub(crate) access: u32,
}

pub(crate) struct AccessOk {
    pub(crate) attributes: Option<Attributes>,
    pub(crate) access: u32,
}

pub(crate) struct Readlink {
    pub(crate) symlink: FileHandle,
}

pub(crate) struct Read {
    pub(crate) file: FileHandle,
    pub(crate) offset: u64,
    pub(crate) count: u32,
    /// The state for NFSv4.
    pub(crate) state: OpenState,
}

pub(crate) struct ReadOk {
    /// Whether the data reaches the end of the file.
    pub(crate) eof: bool,
    pub(crate) data: Views,
}

pub(crate) struct Write {
    pub(crate) file: FileHandle,
    pub(crate) offset: u64,
    pub(crate) stable: StableHow,
    pub(crate) data: Views,
    /// The state for NFSv4.
    pub(crate) state: OpenState,
}

pub(crate) struct WriteOk {
    pub(crate) file: Wcc,
    pub(crate) count: u32,
    pub(crate) committed: StableHow,
    pub(crate) verifier: Verifier,
}

pub(crate) struct Create<'a> {
    pub(crate) at: NameIn<'a>,
    pub(crate) how: CreateHow,
    /// Identifies the open of the file in NFSv4, which ends with the call; unique, because the server combines the
    /// opens of one owner.
    pub(crate) owner: u64,
}

/// The result of a creation.
pub(crate) struct CreateOk {
    pub(crate) object: Option<FileHandle>,
    pub(crate) attributes: Option<Attributes>,
    /// Change of the directory.
    pub(crate) dir: Wcc,
}

/// The arguments of an exclusive CREATE.
pub(crate) struct CreateExclusive<'a> {
    pub(crate) at: NameIn<'a>,
    pub(crate) verifier: Verifier,
    /// The mode that NFSv4 sets with the creation; `None` leaves it to SETATTR.
    pub(crate) mode: Option<u32>,
    /// As [`Create::owner`].
    pub(crate) owner: u64,
}

/// The result of [`CreateExclusive`].
pub(crate) struct CreatedExclusive {
    pub(crate) created: CreateOk,
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
    pub(crate) fn attributes(self, mode: u32) -> SetAttributes {
        let time = if self.times { SetTime::ServerTime } else { SetTime::DontChange };
        SetAttributes {
            mode: self.mode.then_some(mode),
            atime: time,
            mtime: time,
            ..SetAttributes::default()
        }
    }
}

pub(crate) struct Mkdir<'a> {
    pub(crate) at: NameIn<'a>,
    pub(crate) attributes: SetAttributes,
}

pub(crate) struct Symlink<'a> {
    pub(crate) at: NameIn<'a>,
    pub(crate) attributes: SetAttributes,
    pub(crate) target: Views,
}

pub(crate) struct Mknod<'a> {
    pub(crate) at: NameIn<'a>,
    pub(crate) what: MknodWhat,
}

pub(crate) struct Remove<'a> {
    pub(crate) object: NameIn<'a>,
}

pub(crate) struct Rmdir<'a> {
    pub(crate) object: NameIn<'a>,
}

pub(crate) struct Rename<'a> {
    pub(crate) from: NameIn<'a>,
    pub(crate) to: NameIn<'a>,
}

pub(crate) struct Link<'a> {
    pub(crate) file: FileHandle,
    pub(crate) link: NameIn<'a>,
}

/// The page of a directory after `cookie`.
pub(crate) struct Readdir {
    pub(crate) dir: FileHandle,
    pub(crate) cookie: u64,
    pub(crate) verifier: Verifier,
    /// Maximum size of the page in bytes.
    pub(crate) count: u32,
}

impl Call for Readdir {
    type Ok = DirPage;
    const PROCEDURE: Procedure = Procedure::Readdir;

    fn entries(&self) -> Option<u32> {
        Some(self.count)
    }
}

/// As [`Readdir`], with the attributes and handles of the entries.
pub(crate) struct Readdirplus(pub(crate) Readdir);

impl Call for Readdirplus {
    type Ok = DirPage;
    const PROCEDURE: Procedure = Procedure::Readdirplus;

    fn entries(&self) -> Option<u32> {
        Some(self.0.count)
    }
}

pub(crate) struct Fsstat {
    pub(crate) root: FileHandle,
}

pub(crate) struct Fsinfo {
    pub(crate) root: FileHandle,
}

pub(crate) struct Pathconf {
    pub(crate) object: FileHandle,
}

pub(crate) struct Commit {
    pub(crate) file: FileHandle,
    pub(crate) offset: u64,
    /// 0 extends to the end of the file.
    pub(crate) count: u32,
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
