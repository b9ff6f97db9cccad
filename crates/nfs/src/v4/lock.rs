//! Byte-range locks, TEST_STATEID and FREE_STATEID: arguments and results (RFC 8881 sections 18.10 to 18.12,
//! 18.38, 18.48).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{List, StateOwner, Stateid, Status};
use crate::schema::{xdr_enum, xdr_struct};

xdr_enum! {
    /// `nfs_lock_type4`.
    pub enum LockType {
        /// A shared lock.
        Read = 1,
        /// An exclusive lock.
        Write = 2,
        /// A shared lock; the client will wait for it.
        ReadWaiting = 3,
        /// An exclusive lock; the client will wait for it.
        WriteWaiting = 4,
    }
}

/// `locker4`: the owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locker<'a> {
    /// The first lock of the owner in the file.
    New {
        /// Ignored in minor version 1 and later.
        open_seqid: u32,
        /// Stateid of the open.
        open_stateid: Stateid,
        /// Ignored in minor version 1 and later.
        lock_seqid: u32,
        /// The owner.
        owner: StateOwner<'a>,
    },
    /// An owner with locks in the file.
    Existing {
        /// Stateid of the locks.
        lock_stateid: Stateid,
        /// Ignored in minor version 1 and later.
        lock_seqid: u32,
    },
}

impl Encode for Locker<'_> {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::New { open_seqid, open_stateid, lock_seqid, owner } => {
                e.put_bool(true);
                e.put_u32(*open_seqid);
                e.put(open_stateid);
                e.put_u32(*lock_seqid);
                e.put(owner);
            }
            Self::Existing { lock_stateid, lock_seqid } => {
                e.put_bool(false);
                e.put(lock_stateid);
                e.put_u32(*lock_seqid);
            }
        }
    }
}

impl<'a> Decode<'a> for Locker<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        if !d.bool()? {
            return Ok(Self::Existing { lock_stateid: d.get()?, lock_seqid: d.get()? });
        }
        Ok(Self::New { open_seqid: d.get()?, open_stateid: d.get()?, lock_seqid: d.get()?, owner: d.get()? })
    }
}

xdr_struct! {
    /// Arguments of LOCK. The result is a [`StateidOk`](super::StateidOk), or [`LockDenied`] with
    /// [`Status::Denied`].
    #[derive(Copy)]
    pub struct LockArgs<'a> {
        /// Type of the lock.
        pub lock_type: LockType,
        /// Whether the client held the lock before the server restarted.
        pub reclaim: bool,
        /// Offset in bytes.
        pub offset: u64,
        /// Length in bytes; `u64::MAX`: to the end of the file, however long it becomes.
        pub length: u64,
        /// The owner.
        pub locker: Locker<'a>,
    }
}

xdr_struct! {
    /// `LOCK4denied`: a conflicting lock. Data of LOCK and LOCKT with [`Status::Denied`].
    #[derive(Copy)]
    pub struct LockDenied<'a> {
        /// Offset in bytes.
        pub offset: u64,
        /// Length in bytes; `u64::MAX`: to the end of the file.
        pub length: u64,
        /// Type of the lock.
        pub lock_type: LockType,
        /// The owner of the conflicting lock.
        pub owner: StateOwner<'a>,
    }
}

xdr_struct! {
    /// Arguments of LOCKT. The result has no data, or [`LockDenied`] with [`Status::Denied`].
    #[derive(Copy)]
    pub struct LocktArgs<'a> {
        /// Type of the lock.
        pub lock_type: LockType,
        /// Offset in bytes.
        pub offset: u64,
        /// Length in bytes; `u64::MAX`: to the end of the file.
        pub length: u64,
        /// Owner whose locks do not conflict.
        pub owner: StateOwner<'a>,
    }
}

xdr_struct! {
    /// Arguments of LOCKU. The result is a [`StateidOk`](super::StateidOk).
    pub struct LockuArgs {
        /// Ignored by the server.
        pub lock_type: LockType,
        /// Ignored in minor version 1 and later.
        pub seqid: u32,
        /// Stateid of the locks.
        pub stateid: Stateid,
        /// Offset in bytes.
        pub offset: u64,
        /// Length in bytes; `u64::MAX`: to the end of the file.
        pub length: u64,
    }
}

/// Maximum number of stateids in a TEST_STATEID.
pub const MAX_TEST_STATEIDS: usize = 4096;

xdr_struct! {
    /// Arguments of TEST_STATEID.
    pub struct TestStateidArgs: Clone {
        /// The stateids.
        pub stateids: List<Stateid, MAX_TEST_STATEIDS>,
    }
}

xdr_struct! {
    /// Result of TEST_STATEID.
    pub struct TestStateidOk: Clone {
        /// The status of each stateid.
        pub statuses: List<Status, MAX_TEST_STATEIDS>,
    }
}

xdr_struct! {
    /// Arguments of FREE_STATEID. The result has no data.
    pub struct FreeStateidArgs {
        /// The stateid.
        pub stateid: Stateid,
    }
}
