//! Client IDs and sessions: arguments and results (RFC 8881 sections 18.34 to 18.37, 18.46, 18.50, 18.51).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{Bitmap, CallbackSecurity, ClientId, List, NfsTime, Opaque, SessionId, Verifier};
use crate::schema::{xdr_enum, xdr_struct};

/// Maximum length of the opaque strings that name clients, servers and owners (`NFS4_OPAQUE_LIMIT`).
pub const OPAQUE_LIMIT: usize = 1024;

/// Flags of EXCHANGE_ID (RFC 8881 section 18.35).
pub mod exchange_id_flags {
    /// The client understands NFS4ERR_MOVED as a referral.
    pub const SUPP_MOVED_REFER: u32 = 0x0000_0001;
    /// The client understands NFS4ERR_MOVED as a migration.
    pub const SUPP_MOVED_MIGR: u32 = 0x0000_0002;
    /// The client can fence operations (RFC 7862 section 11).
    pub const SUPP_FENCE_OPS: u32 = 0x0000_0004;
    /// Stateids are bound to the principal that created them.
    pub const BIND_PRINC_STATEID: u32 = 0x0000_0100;
    /// A server without pNFS.
    pub const USE_NON_PNFS: u32 = 0x0001_0000;
    /// A metadata server.
    pub const USE_PNFS_MDS: u32 = 0x0002_0000;
    /// A data server.
    pub const USE_PNFS_DS: u32 = 0x0004_0000;
    /// Request: update a confirmed record.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// Reply: the record is confirmed.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// All flags of a request.
    pub const REQUEST: u32 = SUPP_MOVED_REFER
        | SUPP_MOVED_MIGR
        | SUPP_FENCE_OPS
        | BIND_PRINC_STATEID
        | USE_NON_PNFS
        | USE_PNFS_MDS
        | USE_PNFS_DS
        | UPD_CONFIRMED_REC_A;
}

xdr_struct! {
    /// `client_owner4`.
    #[derive(Copy)]
    pub struct ClientOwner<'a> {
        /// Identifies the incarnation of the client.
        pub verifier: Verifier,
        /// Identifies the client.
        pub id: Opaque<'a, OPAQUE_LIMIT>,
    }
}

xdr_struct! {
    /// `state_protect_ops4`: operations, as bits of a [`Bitmap`].
    pub struct ProtectedOperations {
        /// Operations that require the machine credential.
        pub must_enforce: Bitmap,
        /// Operations that the machine credential may execute.
        pub must_allow: Bitmap,
    }
}

/// `state_protect4_a`: requested protection of the client's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateProtect {
    /// SP4_NONE.
    None,
    /// SP4_MACH_CRED.
    MachineCredential(ProtectedOperations),
    /// SP4_SSV. The parameters are skipped; encoded, they are empty.
    Ssv,
}

impl Encode for StateProtect {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::None => e.put_u32(0),
            Self::MachineCredential(operations) => {
                e.put_u32(1);
                e.put(operations);
            }
            Self::Ssv => [2, 0, 0, 0, 0, 0, 0].into_iter().for_each(|word| e.put_u32(word)),
        }
    }
}

impl<'a> Decode<'a> for StateProtect {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => Ok(Self::None),
            1 => d.get().map(Self::MachineCredential),
            2 => {
                d.get::<ProtectedOperations>()?;
                skip_algorithms(d)?; // hash algorithms
                skip_algorithms(d)?; // encryption algorithms
                d.u64()?; // window and number of GSS handles
                Ok(Self::Ssv)
            }
            n => Err(d.invalid(n)),
        }
    }
}

/// Skips `sec_oid4<>`.
fn skip_algorithms(d: &mut Decoder<'_>) -> Result<(), XdrError> {
    for _ in 0..d.count(64, 4)? {
        d.opaque(OPAQUE_LIMIT)?;
    }
    Ok(())
}

xdr_struct! {
    /// `nfs_impl_id4`: identifies an implementation.
    #[derive(Copy)]
    pub struct ImplementationId<'a> {
        /// DNS domain of the author.
        pub domain: Opaque<'a, OPAQUE_LIMIT>,
        /// Product and version.
        pub name: Opaque<'a, OPAQUE_LIMIT>,
        /// Time of the build.
        pub date: NfsTime,
    }
}

xdr_struct! {
    /// Arguments of EXCHANGE_ID.
    #[derive(Copy)]
    pub struct ExchangeIdArgs<'a> {
        /// The client.
        pub owner: ClientOwner<'a>,
        /// Bits of [`exchange_id_flags`].
        pub flags: u32,
        /// Requested protection of the client's state.
        pub state_protect: StateProtect,
        /// Implementation of the client (a list of at most one element).
        pub implementation: Option<ImplementationId<'a>>,
    }
}

xdr_struct! {
    /// `server_owner4`.
    #[derive(Copy)]
    pub struct ServerOwner<'a> {
        /// Addresses with equal minor and major IDs admit trunking of sessions.
        pub minor_id: u64,
        /// Addresses with equal major IDs belong to the same server.
        pub major_id: Opaque<'a, OPAQUE_LIMIT>,
    }
}

xdr_struct! {
    /// Result of EXCHANGE_ID.
    #[derive(Copy)]
    pub struct ExchangeIdOk<'a> {
        /// Client ID.
        pub client_id: ClientId,
        /// Sequence number of the next CREATE_SESSION.
        pub sequence: u32,
        /// Bits of [`exchange_id_flags`].
        pub flags: u32,
        /// Granted protection of the state: none, or with the machine credential. (XDR discriminants 0 and 1,
        /// as those of an optional value. Decoding rejects SP4_SSV.)
        pub state_protect: Option<ProtectedOperations>,
        /// The server.
        pub server_owner: ServerOwner<'a>,
        /// Servers with the same scope share client IDs and file handles.
        pub server_scope: Opaque<'a, OPAQUE_LIMIT>,
        /// Implementation of the server (a list of at most one element).
        pub implementation: Option<ImplementationId<'a>>,
    }
}

/// Flags of CREATE_SESSION (RFC 8881 section 18.36).
pub mod create_session_flags {
    /// The reply cache survives a restart of the server.
    pub const PERSIST: u32 = 0x1;
    /// The connection is also used for callbacks.
    pub const CONN_BACK_CHAN: u32 = 0x2;
    /// The connection changes to RDMA mode.
    pub const CONN_RDMA: u32 = 0x4;
    /// All flags.
    pub const ALL: u32 = PERSIST | CONN_BACK_CHAN | CONN_RDMA;
}

xdr_struct! {
    /// `channel_attrs4`: limits of a channel. Sizes are in bytes and include the RPC header.
    #[derive(Default)]
    pub struct ChannelAttrs {
        /// Padding of requests (`ca_headerpadsize`).
        pub header_pad_size: u32,
        /// Maximum size of a request.
        pub max_request_size: u32,
        /// Maximum size of a reply.
        pub max_response_size: u32,
        /// Maximum size of a reply in the reply cache.
        pub max_response_size_cached: u32,
        /// Maximum number of operations of a COMPOUND.
        pub max_operations: u32,
        /// Maximum number of concurrent requests: slots.
        pub max_requests: u32,
        /// RDMA read resources (a list of at most one element).
        pub rdma_ird: Option<u32>,
    }
}

xdr_struct! {
    /// Arguments of CREATE_SESSION.
    pub struct CreateSessionArgs<'a> {
        /// Client ID.
        pub client_id: ClientId,
        /// Sequence number.
        pub sequence: u32,
        /// Bits of [`create_session_flags`].
        pub flags: u32,
        /// Requested limits of the fore channel.
        pub fore: ChannelAttrs,
        /// Requested limits of the back channel.
        pub back: ChannelAttrs,
        /// RPC program number of callbacks.
        pub callback_program: u32,
        /// Credentials of which the server uses one for callbacks.
        pub callback_security: List<CallbackSecurity<'a>, 64>,
    }
}

xdr_struct! {
    /// Result of CREATE_SESSION.
    pub struct CreateSessionOk {
        /// Session ID.
        pub session: SessionId,
        /// Sequence number of the request.
        pub sequence: u32,
        /// Bits of [`create_session_flags`].
        pub flags: u32,
        /// Limits of the fore channel.
        pub fore: ChannelAttrs,
        /// Limits of the back channel.
        pub back: ChannelAttrs,
    }
}

xdr_struct! {
    /// Arguments of DESTROY_SESSION. The result has no data.
    pub struct DestroySessionArgs {
        /// Session ID.
        pub session: SessionId,
    }
}

xdr_struct! {
    /// Arguments of DESTROY_CLIENTID. The result has no data.
    pub struct DestroyClientidArgs {
        /// Client ID.
        pub client_id: ClientId,
    }
}

xdr_enum! {
    /// `channel_dir_from_client4`.
    pub enum RequestedDirection {
        /// The fore channel.
        Fore = 1,
        /// The back channel.
        Back = 2,
        /// The fore channel, and the back channel if possible.
        ForeOrBoth = 3,
        /// The back channel, and the fore channel if possible.
        BackOrBoth = 7,
    }
}

xdr_enum! {
    /// `channel_dir_from_server4`.
    pub enum Direction {
        /// The fore channel.
        Fore = 1,
        /// The back channel.
        Back = 2,
        /// Both.
        Both = 3,
    }
}

xdr_struct! {
    /// Arguments of BIND_CONN_TO_SESSION.
    pub struct BindConnToSessionArgs {
        /// Session ID.
        pub session: SessionId,
        /// Channels.
        pub direction: RequestedDirection,
        /// Whether the connection changes to RDMA mode.
        pub use_rdma: bool,
    }
}

xdr_struct! {
    /// Result of BIND_CONN_TO_SESSION.
    pub struct BindConnToSessionOk {
        /// Session ID.
        pub session: SessionId,
        /// Channels.
        pub direction: Direction,
        /// Whether the connection changes to RDMA mode.
        pub use_rdma: bool,
    }
}

/// Arguments of SEQUENCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceArgs {
    /// Session ID.
    pub session: SessionId,
    /// Sequence number of the request in its slot.
    pub sequence: u32,
    /// Slot.
    pub slot: u32,
    /// Highest slot that the client uses.
    pub highest_slot: u32,
    /// Whether the server must cache the reply.
    pub cache_this: bool,
}

// Each COMPOUND has SEQUENCE: the words of its arguments and of its result are converted at once.
impl Encode for SequenceArgs {
    fn encode(&self, e: &mut Encoder) {
        let Self { session, sequence, slot, highest_slot, cache_this } = *self;
        let [s0, s1, s2, s3] = session.words();
        e.put_words([s0, s1, s2, s3, sequence, slot, highest_slot, cache_this.into()]);
    }
}

impl<'a> Decode<'a> for SequenceArgs {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let [s0, s1, s2, s3, sequence, slot, highest_slot, cache_this] = d.words()?;
        let session = SessionId::from_words([s0, s1, s2, s3]);
        match cache_this {
            0 | 1 => Ok(Self { session, sequence, slot, highest_slot, cache_this: cache_this == 1 }),
            other => Err(d.invalid(other)),
        }
    }
}

/// Result of SEQUENCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceOk {
    /// Session ID.
    pub session: SessionId,
    /// Sequence number of the request.
    pub sequence: u32,
    /// Slot.
    pub slot: u32,
    /// Highest slot that the server accepts.
    pub highest_slot: u32,
    /// Highest slot that the client should use.
    pub target_highest_slot: u32,
    /// Bits of [`sequence_flags`].
    pub status_flags: u32,
}

impl Encode for SequenceOk {
    fn encode(&self, e: &mut Encoder) {
        let Self { session, sequence, slot, highest_slot, target_highest_slot, status_flags } = *self;
        let [s0, s1, s2, s3] = session.words();
        e.put_words([s0, s1, s2, s3, sequence, slot, highest_slot, target_highest_slot, status_flags]);
    }
}

impl<'a> Decode<'a> for SequenceOk {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let [s0, s1, s2, s3, sequence, slot, highest_slot, target_highest_slot, status_flags] = d.words()?;
        let session = SessionId::from_words([s0, s1, s2, s3]);
        Ok(Self { session, sequence, slot, highest_slot, target_highest_slot, status_flags })
    }
}

/// Status flags of SEQUENCE (RFC 8881 section 18.46).
pub mod sequence_flags {
    /// No session of the client has a back channel.
    pub const CB_PATH_DOWN: u32 = 0x0001;
    /// GSS contexts of callbacks will expire.
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x0002;
    /// GSS contexts of callbacks have expired.
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x0004;
    /// The lease has expired and all state was revoked.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x0008;
    /// The lease has expired and some state was revoked.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x0010;
    /// State was revoked for another reason.
    pub const ADMIN_STATE_REVOKED: u32 = 0x0020;
    /// Recallable state was revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x0040;
    /// A lease has moved to another server.
    pub const LEASE_MOVED: u32 = 0x0080;
    /// The server has restarted: state must be reclaimed.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x0100;
    /// This session has no back channel.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x0200;
    /// The back channel has an error that SEQUENCE cannot resolve.
    pub const BACKCHANNEL_FAULT: u32 = 0x0400;
    /// A device ID has changed.
    pub const DEVID_CHANGED: u32 = 0x0800;
    /// A device ID was deleted.
    pub const DEVID_DELETED: u32 = 0x1000;
}

xdr_struct! {
    /// Arguments of RECLAIM_COMPLETE. The result has no data.
    pub struct ReclaimCompleteArgs {
        /// Whether it concerns only the file system of the current file handle.
        pub one_fs: bool,
    }
}
