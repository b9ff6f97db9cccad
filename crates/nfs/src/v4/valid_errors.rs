//! The errors that each operation can return (RFC 8881 section 15.2, RFC 7862 section 11.2).

use super::{
    Operation,
    Status::{self, *},
};

/// Errors that any operation can return, because they concern the session or the size of the COMPOUND.
const ALL: &[Status] =
    &[DeadSession, OpNotInSession, RepTooBig, RepTooBigToCache, ReqTooBig, RetryUncachedRep, TooManyOps];
/// Errors of operations with a current file handle.
const OBJECT: &[Status] = &[FhExpired, Moved, NoFileHandle, ServerFault, Stale];
/// Errors of operations with a name in a directory.
const NAME: &[Status] = &[Access, BadChar, BadName, BadXdr, Delay, Inval, NameTooLong, NotDir];
/// Errors of operations with a stateid.
const STATEID: &[Status] = &[AdminRevoked, BadStateid, BadXdr, Delay, Expired, OldStateid];
/// Errors of operations on a file with a stateid, besides those of stateids.
const FILE: &[Status] =
    &[Access, DelegRevoked, Grace, Inval, Io, IsDir, Locked, OpenMode, Symlink, WrongType];
/// Errors of operations on data that a layout may describe.
const LAYOUT: &[Status] = &[PnfsIoHole, PnfsNoLayout];
/// Errors of operations that take space.
const SPACE: &[Status] = &[DQuot, NoSpc, RoFs];
/// Errors of operations that compare attributes.
const COMPARISON: &[Status] =
    &[Access, AttrNotSupp, BadChar, BadXdr, Delay, Grace, Inval, Io, UnknownLayouttype, WrongType];
/// Errors of operations on extended attributes.
const XATTR: &[Status] = &[Access, BadXdr, Delay, Grace, Inval, Io, NotSupp, Perm, WrongType];

impl Operation {
    /// Whether a server may return the status for this operation.
    ///
    /// The sources are RFC 8881 section 15.2, and RFC 7862 section 11.2 for the operations of minor version 2. Errors
    /// that these tables omit, but other sections require or the Linux kernel's server returns, are permitted too: PERM
    /// of EXCHANGE_ID (RFC 8881 section 18.35.4), WRONG_CRED of EXCHANGE_ID and BIND_CONN_TO_SESSION (section 2.10.8.3),
    /// NOTSUPP of OPEN with a claim that is not supported, OPENMODE of OPEN for writing under a read delegation, ISDIR of
    /// RENAME, ISDIR and SYMLINK of SETATTR of a size; NOTSUPP of COPY and COPY_NOTIFY, which are optional (RFC 7862
    /// section 13), and XDEV of COPY, as of CLONE; WRONGSEC of COPY and CLONE for
    /// the saved file handle, as of LINK and RENAME (RFC 8881 section 2.6.3.1.2); NOFILEHANDLE of
    /// OFFLOAD_CANCEL and OFFLOAD_STATUS (RFC 7862 sections 15.8.3 and 15.9.3 have a current file handle). RFC 8276
    /// describes the errors of operations on extended attributes in sections 8.3 and 8.4: they are those of GETATTR and
    /// SETATTR with NOXATTR and XATTR2BIG.
    pub fn permits(self, status: Status) -> bool {
        status == Ok || ALL.contains(&status) || self.errors().iter().any(|list| list.contains(&status))
    }

    /// The errors that are specific to the operation.
    fn errors(self) -> &'static [&'static [Status]] {
        match self {
            Self::Access => &[OBJECT, &[Access, BadXdr, Delay, Inval, Io]],
            Self::BackchannelCtl => &[&[BadXdr, Delay, Inval, NoEnt]],
            Self::BindConnToSession => {
                &[&[BadSession, BadXdr, BadSessionDigest, Delay, Inval, NotOnlyOp, ServerFault, WrongCred]]
            }
            Self::Close => &[OBJECT, STATEID, &[LocksHeld, WrongCred]],
            Self::Commit => &[OBJECT, &[Access, BadXdr, Delay, Io, IsDir, Symlink, WrongType]],
            Self::Create => &[
                OBJECT,
                NAME,
                SPACE,
                &[AttrNotSupp, BadOwner, BadType, Exist, Io, MLink, Perm, UnsafeCompound],
            ],
            Self::CreateSession => &[&[
                BadXdr,
                ClidInuse,
                Delay,
                Inval,
                NoEnt,
                NotOnlyOp,
                NoSpc,
                SeqMisordered,
                ServerFault,
                StaleClientid,
                TooSmall,
                WrongCred,
            ]],
            Self::Delegpurge => &[&[BadXdr, Delay, NotSupp, ServerFault, WrongCred]],
            Self::Delegreturn => &[OBJECT, STATEID, &[DelegRevoked, Inval, NotSupp, WrongCred]],
            Self::DestroyClientid => {
                &[&[BadXdr, ClientidBusy, Delay, NotOnlyOp, ServerFault, StaleClientid, WrongCred]]
            }
            Self::DestroySession => &[&[
                BackChanBusy,
                BadSession,
                BadXdr,
                CbPathDown,
                ConnNotBoundToSession,
                Delay,
                NotOnlyOp,
                ServerFault,
                StaleClientid,
                WrongCred,
            ]],
            Self::ExchangeId => &[&[
                BadChar,
                BadXdr,
                ClidInuse,
                Delay,
                EncrAlgUnsupp,
                HashAlgUnsupp,
                Inval,
                NoEnt,
                NotOnlyOp,
                NotSame,
                Perm,
                ServerFault,
                WrongCred,
            ]],
            Self::FreeStateid => {
                &[&[BadXdr, BadStateid, Delay, LocksHeld, OldStateid, ServerFault, WrongCred]]
            }
            Self::GetDirDelegation => {
                &[OBJECT, &[Access, BadXdr, Delay, DirdelegUnavail, Grace, Inval, Io, NotDir, NotSupp]]
            }
            Self::Getattr => &[OBJECT, &[Access, BadXdr, Delay, Grace, Inval, Io, WrongType]],
            Self::Getdeviceinfo => {
                &[&[BadXdr, Delay, Inval, NoEnt, NotSupp, ServerFault, TooSmall, UnknownLayouttype]]
            }
            Self::Getdevicelist => {
                &[OBJECT, &[BadXdr, BadCookie, Delay, Inval, Io, NotSupp, NotSame, UnknownLayouttype]]
            }
            Self::Getfh => &[&[FhExpired, Moved, NoFileHandle, Stale]],
            Self::Layouterror | Self::Layoutstats => &[
                OBJECT,
                STATEID,
                &[
                    DelegRevoked,
                    Grace,
                    Inval,
                    IsDir,
                    NoGrace,
                    NotSupp,
                    UnknownLayouttype,
                    WrongCred,
                    WrongType,
                ],
            ],
            Self::Layoutcommit | Self::Layoutget | Self::Layoutreturn => {
                &[&[BadXdr, Delay, Inval, NoFileHandle, NotSupp, ServerFault]]
            }
            Self::Link => &[
                OBJECT,
                NAME,
                SPACE,
                &[Exist, FileOpen, Grace, IsDir, Io, MLink, NotSupp, Symlink, WrongSec, WrongType, XDev],
            ],
            Self::Lock => &[
                OBJECT,
                STATEID,
                &[
                    Access,
                    BadRange,
                    Deadlock,
                    Denied,
                    Grace,
                    Inval,
                    IsDir,
                    LockNotsupp,
                    LockRange,
                    NoGrace,
                    OpenMode,
                    ReclaimBad,
                    ReclaimConflict,
                    RoFs,
                    Symlink,
                    WrongCred,
                    WrongType,
                ],
            ],
            Self::Lockt => &[
                &[FhExpired, Moved, NoFileHandle, Stale],
                &[Access, BadXdr, BadRange, Delay, Denied, Grace, Inval, IsDir, LockRange, RoFs, Symlink],
                &[WrongCred, WrongType],
            ],
            Self::Locku => &[OBJECT, STATEID, &[Access, BadRange, Inval, LockRange, WrongCred]],
            Self::Lookup => &[OBJECT, NAME, &[Io, NoEnt, Symlink, WrongSec]],
            Self::Lookupp => &[OBJECT, &[Access, Delay, Io, NoEnt, NotDir, Symlink, WrongSec]],
            Self::Verify => &[OBJECT, COMPARISON, &[NotSame]],
            Self::Nverify => &[OBJECT, COMPARISON, &[Same]],
            Self::Open => &[
                OBJECT,
                NAME,
                STATEID,
                SPACE,
                &[
                    AttrNotSupp,
                    BadOwner,
                    DelegAlreadyWanted,
                    DelegRevoked,
                    Exist,
                    FBig,
                    Grace,
                    IsDir,
                    Io,
                    NoEnt,
                    NoGrace,
                    NotSupp,
                    OpenMode,
                    Perm,
                    ReclaimBad,
                    ReclaimConflict,
                    ShareDenied,
                    Symlink,
                    UnsafeCompound,
                    WrongSec,
                    WrongType,
                ],
            ],
            Self::OpenDowngrade => &[OBJECT, STATEID, &[Inval, RoFs, WrongCred]],
            Self::Openattr => {
                &[OBJECT, SPACE, &[Access, BadXdr, Delay, Io, NoEnt, NotSupp, UnsafeCompound, WrongType]]
            }
            Self::Putfh => &[&[BadHandle, BadXdr, Delay, Moved, ServerFault, Stale, WrongSec]],
            Self::Putpubfh | Self::Putrootfh => &[&[Delay, ServerFault, WrongSec]],
            Self::Read => &[OBJECT, STATEID, FILE, LAYOUT],
            Self::Write => &[OBJECT, STATEID, FILE, LAYOUT, SPACE, &[FBig]],
            Self::Readdir => {
                &[OBJECT, &[Access, BadXdr, BadCookie, Delay, Inval, Io, NotDir, NotSame, TooSmall]]
            }
            Self::Readlink => &[OBJECT, &[Access, Delay, Inval, Io, WrongType]],
            Self::ReclaimComplete => {
                &[OBJECT, &[BadXdr, CompleteAlready, Delay, Inval, WrongCred, WrongType]]
            }
            Self::Remove => &[OBJECT, NAME, &[FileOpen, Grace, Io, NoEnt, NotEmpty, RoFs]],
            Self::Rename => &[
                OBJECT,
                NAME,
                SPACE,
                &[Exist, FileOpen, Grace, Io, IsDir, MLink, NoEnt, NotEmpty, WrongSec, XDev],
            ],
            Self::RestoreFh => &[OBJECT, &[WrongSec]],
            Self::Savefh => &[OBJECT],
            Self::Secinfo => &[OBJECT, NAME, &[NoEnt]],
            Self::SecinfoNoName => &[OBJECT, &[Access, BadXdr, Delay, Inval, NoEnt, NotDir, NotSupp]],
            Self::Sequence => &[&[
                BadSession,
                BadSlot,
                BadXdr,
                BadHighSlot,
                ConnNotBoundToSession,
                Delay,
                SequencePos,
                SeqFalseRetry,
                SeqMisordered,
            ]],
            Self::SetSsv => &[&[BadXdr, BadSessionDigest, Delay, Inval, NotSupp]],
            Self::Setattr => &[
                OBJECT,
                STATEID,
                FILE,
                SPACE,
                &[AttrNotSupp, BadChar, BadOwner, FBig, Perm, UnknownLayouttype],
            ],
            Self::TestStateid => &[&[BadXdr, Delay, ServerFault]],
            Self::WantDelegation => &[
                OBJECT,
                &[BadXdr, Delay, DelegAlreadyWanted, Grace, Inval, Io, NotSupp, NoGrace],
                &[RecallConflict, ReclaimBad, ReclaimConflict],
            ],
            Self::OpenConfirm
            | Self::Renew
            | Self::Setclientid
            | Self::SetclientidConfirm
            | Self::ReleaseLockowner => &[&[NotSupp]],
            Self::Allocate => &[OBJECT, STATEID, FILE, SPACE, &[FBig, NotSupp]],
            Self::Deallocate => &[OBJECT, STATEID, FILE, &[FBig, NotSupp, RoFs]],
            Self::WriteSame => &[OBJECT, STATEID, FILE, LAYOUT, SPACE, &[FBig, NotSupp]],
            Self::Copy => &[
                OBJECT,
                STATEID,
                FILE,
                LAYOUT,
                SPACE,
                &[FBig, NotSupp, OffloadDenied, PartnerNotsupp, PartnerNoAuth, WrongSec, XDev],
            ],
            Self::Clone => &[OBJECT, STATEID, FILE, LAYOUT, SPACE, &[FBig, NotSupp, WrongSec, XDev]],
            Self::CopyNotify => &[OBJECT, STATEID, FILE, LAYOUT, &[NotSupp]],
            Self::IoAdvise => &[OBJECT, STATEID, FILE, &[FBig, NotSupp]],
            Self::OffloadCancel | Self::OffloadStatus => {
                &[STATEID, &[CompleteAlready, Grace, NoFileHandle, NotSupp, ServerFault]]
            }
            Self::ReadPlus => &[OBJECT, STATEID, FILE, LAYOUT, &[NotSupp]],
            Self::Seek => &[OBJECT, STATEID, FILE, LAYOUT, &[NotSupp, NxIo, UnionNotsupp]],
            Self::Getxattr => &[OBJECT, XATTR, &[NameTooLong, NoXattr, TooSmall, Xattr2Big]],
            Self::Setxattr => &[OBJECT, XATTR, SPACE, &[BadChar, Exist, NameTooLong, NoXattr, Xattr2Big]],
            Self::Listxattrs => &[OBJECT, XATTR, &[BadCookie, NameTooLong, TooSmall]],
            Self::Removexattr => &[OBJECT, XATTR, &[DQuot, NameTooLong, NoXattr, NoSpc, RoFs]],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_the_operation() {
        for (operation, status, permitted) in [
            (Operation::Lookup, NoEnt, true),
            (Operation::Lookup, BadStateid, false),
            (Operation::Putfh, NoFileHandle, false),
            (Operation::Remove, Symlink, false),
            (Operation::Commit, BadStateid, false),
            (Operation::Read, TooManyOps, true),
            (Operation::Read, Ok, true),
            (Operation::Read, NoSpc, false),
            (Operation::Write, NoSpc, true),
            (Operation::Seek, NxIo, true),
            (Operation::Read, NxIo, false),
            (Operation::ReadPlus, NxIo, false),
            (Operation::ReadPlus, PnfsNoLayout, true),
            (Operation::Allocate, NoSpc, true),
            (Operation::Allocate, PnfsIoHole, false),
            (Operation::Deallocate, RoFs, true),
            (Operation::Deallocate, NoSpc, false),
            (Operation::Setattr, PnfsNoLayout, false),
            (Operation::Clone, XDev, true),
            (Operation::Clone, WrongSec, true),
            (Operation::Getattr, WrongSec, false),
            (Operation::Secinfo, WrongSec, false),
            (Operation::Clone, OffloadDenied, false),
            (Operation::Copy, OffloadNoReqs, false),
            (Operation::OffloadStatus, Stale, false),
            (Operation::Setclientid, NotSupp, true),
        ] {
            assert_eq!(operation.permits(status), permitted, "{operation} {status:?}");
        }
    }

    /// The row of COPY in the table of RFC 7862 section 11.2.
    #[test]
    fn copy_has_the_errors_of_its_row() {
        let row = [
            Access,
            AdminRevoked,
            BadXdr,
            BadStateid,
            DeadSession,
            Delay,
            DelegRevoked,
            DQuot,
            Expired,
            FBig,
            FhExpired,
            Grace,
            Inval,
            Io,
            IsDir,
            Locked,
            Moved,
            NoFileHandle,
            NoSpc,
            OffloadDenied,
            OldStateid,
            OpenMode,
            OpNotInSession,
            PartnerNoAuth,
            PartnerNotsupp,
            PnfsIoHole,
            PnfsNoLayout,
            RepTooBig,
            RepTooBigToCache,
            ReqTooBig,
            RetryUncachedRep,
            RoFs,
            ServerFault,
            Stale,
            Symlink,
            TooManyOps,
            WrongType,
        ];
        for status in (0..20_000).filter_map(|number| Status::try_from(number).ok()) {
            let expected =
                status == Ok || row.contains(&status) || [NotSupp, WrongSec, XDev].contains(&status);
            assert_eq!(Operation::Copy.permits(status), expected, "{status:?}");
        }
    }

    /// RFC 8881 section 15.1.16 has the errors that no operation of minor version 1 returns.
    #[test]
    fn obsolete_errors_are_not_permitted() {
        for number in 0..=75 {
            let Result::Ok(operation) = Operation::try_from(number) else { continue };
            for status in [BadSeqid, LeaseMoved, RestoreFh, StaleStateid, Resource, MinorVersMismatch] {
                assert!(!operation.permits(status), "{operation} {status:?}");
            }
        }
    }
}
