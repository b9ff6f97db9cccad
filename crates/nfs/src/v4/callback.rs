//! Callbacks: CB_COMPOUND and its operations (RFC 8881 sections 18.36.3 and 20). The server calls, the client
//! answers. CB_COMPOUND's result has the form of that of COMPOUND ([`CompoundRes`](super::CompoundRes),
//! [`CompoundEncoder`](super::CompoundEncoder)).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{Bitmap, FileHandle, List, MAX_TAG, Opaque, SessionId, StateOwner, Stateid};
use crate::schema::{xdr_enum, xdr_struct};

/// RPC version of the callback program, whose number is chosen by the client.
pub const CALLBACK_VERSION: u32 = 1;
/// Procedure of the callback program that does nothing (CB_NULL).
pub const CB_NULL: u32 = 0;
/// Procedure of the callback program that executes operations (CB_COMPOUND).
pub const CB_COMPOUND: u32 = 1;

xdr_enum! {
    /// `nfs_cb_opnum4`: the operations of CB_COMPOUND.
    pub enum CallbackOperation {
        /// CB_GETATTR.
        Getattr = 3,
        /// CB_RECALL.
        Recall = 4,
        /// CB_LAYOUTRECALL.
        Layoutrecall = 5,
        /// CB_NOTIFY.
        Notify = 6,
        /// CB_PUSH_DELEG.
        PushDeleg = 7,
        /// CB_RECALL_ANY.
        RecallAny = 8,
        /// CB_RECALLABLE_OBJ_AVAIL.
        RecallableObjAvail = 9,
        /// CB_RECALL_SLOT.
        RecallSlot = 10,
        /// CB_SEQUENCE.
        Sequence = 11,
        /// CB_WANTS_CANCELLED.
        WantsCancelled = 12,
        /// CB_NOTIFY_LOCK.
        NotifyLock = 13,
        /// CB_NOTIFY_DEVICEID.
        NotifyDeviceid = 14,
        /// CB_OFFLOAD.
        Offload = 15,
    }
}

/// The beginning of the arguments of CB_COMPOUND. The operations follow: each is a number (see
/// [`CallbackOperation`]) and its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallbackArgs<'a> {
    /// Tag, which the client returns.
    pub tag: Opaque<'a, MAX_TAG>,
    /// Minor version.
    pub minor_version: u32,
    /// 0 in minor version 1 and later.
    pub callback_ident: u32,
    /// Number of operations.
    pub operations: u32,
}

impl Encode for CallbackArgs<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.tag);
        e.put_u32(self.minor_version);
        e.put_u32(self.callback_ident);
        e.put_u32(self.operations);
    }
}

impl<'a> Decode<'a> for CallbackArgs<'a> {
    /// Rejects a number of operations for which the message is too short.
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let (tag, minor_version, callback_ident) = (d.get()?, d.get()?, d.get()?);
        Ok(Self { tag, minor_version, callback_ident, operations: d.count(usize::MAX, 4)? as u32 })
    }
}

xdr_struct! {
    /// `referring_call4`: a request of the client to which a callback refers.
    pub struct ReferringCall {
        /// Sequence number of the request.
        pub sequence: u32,
        /// The slot of the request.
        pub slot: u32,
    }
}

xdr_struct! {
    /// `referring_call_list4`: requests of a session to which a callback refers, whose replies the client must
    /// process first (RFC 8881 section 2.10.6.3).
    pub struct ReferringCalls: Clone {
        /// Session ID.
        pub session: SessionId,
        /// The requests.
        pub calls: List<ReferringCall, 64>,
    }
}

xdr_struct! {
    /// Arguments of CB_SEQUENCE.
    pub struct CbSequenceArgs: Clone {
        /// Session ID.
        pub session: SessionId,
        /// Sequence number of the callback in its slot.
        pub sequence: u32,
        /// Slot of the back channel.
        pub slot: u32,
        /// Highest slot that the server uses.
        pub highest_slot: u32,
        /// Whether the client must cache the reply.
        pub cache_this: bool,
        /// Requests whose replies the client must process first.
        pub referring_calls: List<ReferringCalls, 64>,
    }
}

xdr_struct! {
    /// Result of CB_SEQUENCE.
    pub struct CbSequenceOk {
        /// Session ID.
        pub session: SessionId,
        /// Sequence number of the callback.
        pub sequence: u32,
        /// Slot of the back channel.
        pub slot: u32,
        /// Highest slot that the client accepts.
        pub highest_slot: u32,
        /// Highest slot that the server should use.
        pub target_highest_slot: u32,
    }
}

xdr_struct! {
    /// Arguments of CB_RECALL: the client must return a delegation. The result has no data.
    #[derive(Copy)]
    pub struct CbRecallArgs<'a> {
        /// Stateid of the delegation.
        pub stateid: Stateid,
        /// Whether the file will be truncated, so that data need not be written back.
        pub truncate: bool,
        /// The file.
        pub handle: FileHandle<'a>,
    }
}

xdr_struct! {
    /// Arguments of CB_GETATTR: the attributes of a file of which the client has a write delegation. The result is
    /// a `fattr4` ([`Attributes`](super::Attributes)).
    #[derive(Copy)]
    pub struct CbGetattrArgs<'a> {
        /// The file.
        pub handle: FileHandle<'a>,
        /// Requested attributes: `change` and `size`.
        pub requested: Bitmap,
    }
}

/// Types of objects that CB_RECALL_ANY recalls, as words of a [`Bitmap`](super::Bitmap).
pub mod recall_any {
    /// Read delegations.
    pub const READ_DELEGATIONS: u32 = 1;
    /// Write delegations.
    pub const WRITE_DELEGATIONS: u32 = 1 << 1;
    /// Directory delegations.
    pub const DIRECTORY_DELEGATIONS: u32 = 1 << 2;
}

xdr_struct! {
    /// Arguments of CB_RECALL_ANY: the client must return objects of its choice. The result has no data.
    pub struct CbRecallAnyArgs {
        /// Number of objects that the client may keep.
        pub keep: u32,
        /// Types of the objects: bits of [`recall_any`] in the first word.
        pub types: Bitmap,
    }
}

xdr_struct! {
    /// Arguments of CB_NOTIFY_LOCK: a lock that the client has waited for may be available. The result has no
    /// data.
    #[derive(Copy)]
    pub struct CbNotifyLockArgs<'a> {
        /// The file.
        pub handle: FileHandle<'a>,
        /// The owner that waits.
        pub owner: StateOwner<'a>,
    }
}
