//! The client ID and the session with a server (RFC 8881 sections 2.10 and 8.3 to 8.4): they are created at the start
//! (`establish.rs`) and again after the server has lost them (`recovery.rs`). `exchange.rs` makes calls in the slots of the
//! session; `lease.rs` renews the lease between calls; `callbacks.rs` accepts the calls of the server;
//! `end.rs` destroys both.

mod callbacks;
mod end;
mod establish;
mod exchange;
mod lease;
mod recovery;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32},
};

use millrace_nfs::v4::{self, ChannelAttrs, ClientId, Verifier};
use millrace_oncrpc::CallClass;
use millrace_runtime::{RuntimeExt, sync::Mutex};

pub(crate) use self::establish::is_unsupported;
use super::{
    ChangeProof,
    back_channel::BackChannel,
    delegations::Delegations,
    locks::LockedFiles,
    owners::Owners,
    slots::{MAX_SLOTS, Slots},
};
use crate::{
    Error,
    credential::CallCredential,
    pool::{CallSpec, Pool},
};

/// Maximum number of operations of a COMPOUND of this client, SEQUENCE included.
const MAX_OPERATIONS: u32 = 16;

/// Bytes of a request or reply beside the data of a WRITE or READ: the headers, and the other operations.
pub(crate) const OVERHEAD: u32 = 4096;

/// Maximum size of the replies that the server keeps for retransmissions, in bytes.
const CACHED_REPLY: u32 = 4096;

/// Maximum size of the reply to an operation on client IDs or sessions in bytes: that of EXCHANGE_ID has two opaques
/// of up to 1 KiB each, and the name of the implementation.
const STATE_REPLY: usize = 4096;

/// The properties of the calls of one procedure.
pub(crate) fn spec(name: &'static str, max_head: usize, class: CallClass) -> CallSpec {
    // The slot's sequence number identifies a retransmission, not the XID.
    CallSpec {
        program: v4::PROGRAM,
        version: v4::VERSION,
        procedure: 1,
        name,
        max_head,
        payload_offset: 0,
        keep_xid: false,
        class,
    }
}

/// The client's record at the server, according to its last replies.
#[derive(Default)]
struct ClientRecord {
    /// The client ID, and the sequence number of the next CREATE_SESSION.
    client: Option<(ClientId, u32)>,
    /// Whether the client has reclaimed its state and sent RECLAIM_COMPLETE.
    reclaimed: bool,
}

/// The sizes that the server has granted, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Granted {
    /// Maximum size of a request.
    pub(crate) request: u32,
    /// Maximum size of a reply.
    pub(crate) reply: u32,
}

/// A client of an NFSv4 server, with its current session. The connections of the pool share it.
pub(crate) struct Session {
    pub(crate) pool: Arc<Pool>,
    minor_version: u32,
    /// The users and groups that owners of files are.
    pub(super) owners: Owners,
    /// What calls request as proof of changes. It is set before the first change.
    pub(crate) proof: OnceLock<ChangeProof>,
    /// `co_ownerid`.
    owner: String,
    verifier: Verifier,
    /// Credentials of the operations on client ID and session.
    pub(super) credential: CallCredential,
    /// Requested limits of sessions.
    fore: ChannelAttrs,
    slots: Arc<Slots>,
    granted: Mutex<Granted>,
    /// Locked during recovery.
    record: Arc<futures::lock::Mutex<ClientRecord>>,
    /// Duration of a lease in seconds.
    lease: AtomicU32,
    /// Whether a call has renewed the lease since the last period of the renewal.
    renewed: AtomicBool,
    /// Number of slots that the server requests the client to use (`sr_target_highest_slotid` plus 1).
    target: AtomicU32,
    back_channel: BackChannel,
    pub(crate) delegations: Delegations,
    /// The files with locks.
    pub(crate) locked: LockedFiles,
    /// Whether the search for revoked state is in progress.
    pub(super) checks_revoked: AtomicBool,
    /// Whether the server reports revoked state.
    reports_revoked: AtomicBool,
}

impl Session {
    /// What calls request as proof of changes.
    pub(super) fn proof(&self) -> ChangeProof {
        self.proof.get().copied().unwrap_or_default()
    }

    /// Creates a client ID and a session over `pool`. `machine` is the host's name, and `domain`
    /// that of the names of owners ([`Options::domain`](crate::Options::domain)). `slots` is the requested number of
    /// calls in flight, `payload` the maximum size of the data of a call in bytes.
    ///
    /// # Errors
    /// [`Error::Nfs4`] and the errors of a call; [`is_unsupported`] returns whether the server lacks the minor version.
    pub(crate) async fn start(
        pool: Arc<Pool>,
        minor_version: u32,
        machine: &str,
        credential: CallCredential,
        domain: Option<String>,
        slots: u32,
        payload: u32,
    ) -> Result<Arc<Self>, Error> {
        let rt = Arc::clone(&pool.rt);
        let size = payload.saturating_add(OVERHEAD);
        let session = Arc::new(Self {
            pool,
            minor_version,
            owners: Owners::new(&rt, domain),
            proof: OnceLock::new(),
            owner: format!("millrace {machine} {} {:016x}", std::process::id(), rt.random_u64()),
            verifier: rt.random_u64().to_be_bytes(),
            credential,
            fore: ChannelAttrs {
                header_pad_size: 0,
                max_request_size: size,
                max_response_size: size,
                max_response_size_cached: CACHED_REPLY,
                max_operations: MAX_OPERATIONS,
                max_requests: slots.clamp(1, MAX_SLOTS),
                rdma_ird: None,
            },
            slots: Arc::default(),
            granted: Mutex::default(),
            record: Default::default(),
            lease: AtomicU32::new(0),
            renewed: AtomicBool::new(false),
            target: AtomicU32::new(0),
            back_channel: BackChannel::default(),
            delegations: Delegations::default(),
            locked: LockedFiles::default(),
            checks_revoked: AtomicBool::new(false),
            reports_revoked: AtomicBool::new(false),
        });
        session.accept_callbacks();
        if let Err(e) = session.recover(Some(0)).await {
            session.destroy().await;
            return Err(e);
        }
        rt.spawn("renew lease", Box::pin(lease::renew(Arc::clone(&rt), Arc::downgrade(&session))));
        Ok(session)
    }

    /// The limits of the current session.
    pub(crate) fn granted(&self) -> Granted {
        *self.granted.lock()
    }
}
