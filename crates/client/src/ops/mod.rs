//! The vocabulary of the procedures: their arguments, results and attributes, which are the same with every version of NFS,
//! as `nfs_fattr` and `nfs_rpc_ops` are in Linux.
//!
//! `v3` and `v4` convert from and to the wire: a procedure is a call of NFSv3 (RFC 1813 section 3.3), or a COMPOUND of
//! NFSv4. Nothing here has an encoding, and no version has a meaning here. Where one version has more than the other, the
//! result has an optional part: NFSv3 returns attributes before a change ([`Wcc::before`]), NFSv4 the change attribute
//! ([`Wcc::change`]).
//!
//! Statuses and names of procedures are those of RFC 1813, with the numbers that most of them also have in NFSv4
//! (RFC 8881 section 15.1). A status that only NFSv4 has is [`crate::Error::Nfs4`].

mod arguments;
mod entries;
mod types;

pub use arguments::SpaceChange;
pub(crate) use arguments::{
    Access, AccessOk, Call, Commit, Create, CreateExclusive, CreateOk, CreatedExclusive, Fsinfo, Fsstat,
    Getattr, LeftToSet, Link, LockEpoch, Lookup, LookupOk, Mkdir, Mknod, NameIn, OpenState, Pathconf, Read,
    ReadOk, Readdir, Readdirplus, Readlink, Remove, Rename, Rmdir, Setattr, Symlink, Write, WriteOk, class,
    is_unrepeatable,
};
pub use entries::{DirEntry, DirPage};
#[doc(inline)]
pub use millrace_nfs::v3::{Procedure, Status, access};
pub use types::{
    Attributes, ChangeNumbers, CommitOk, CreateHow, FileHandle, FileType, FsInfo, FsStat, LinkOk, MknodWhat,
    NfsTime, PathConf, RenameOk, SetAttributes, SetTime, SpecData, StableHow, Verifier, Wcc, WccAttr,
};
