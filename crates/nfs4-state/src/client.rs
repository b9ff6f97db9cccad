//! A client, as its sessions and its state refer to it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_admission::ClientAddr;
use millrace_nfs::v4::{Bitmap, ClientId, Status};
use parking_lot::Mutex;

use crate::{
    back_channel::BackChannel,
    heap::Heap,
    identify::ExchangeId,
    lease::Lease,
    table::{Revoked, Table},
};

/// The caller who has requested SP4_MACH_CRED for a client (RFC 8881 section 2.10.8.3).
#[derive(Debug)]
pub(crate) struct Machine {
    principal: Box<[u8]>,
    /// Operations with which it may end what others have opened.
    pub(crate) allowed: Bitmap,
}

/// One incarnation of a client.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    serial: u32,
    owner: Box<[u8]>,
    pub(crate) machine: Option<Machine>,
    /// What its state occupies.
    pub(crate) heap: Arc<Heap>,
    /// Number of stateids that are reserved and not added yet.
    pub(crate) reserved: AtomicUsize,
    pub(crate) lease: Lease,
    /// `SEQ4_STATUS_*`.
    flags: AtomicU32,
    /// It has sent RECLAIM_COMPLETE.
    pub(crate) reclaimed: AtomicBool,
    /// It is not on the list of clients, because state of it was revoked.
    pub(crate) unlisted: AtomicBool,
    pub(crate) table: Mutex<Table>,
    /// It is removed, and state of it is not yet.
    pub(crate) has_rest: AtomicBool,
    /// Number of its blocking requests for locks that wait.
    pub(crate) waiting: AtomicUsize,
    /// The back channels of its sessions.
    pub(crate) back_channels: Mutex<Vec<Arc<BackChannel>>>,
    callbacks: AtomicUsize,
    /// Number of its delegations.
    pub(crate) delegations: AtomicUsize,
    /// Time of the last CB_RECALL_ANY in milliseconds; 0 if there was none.
    pub(crate) asked: AtomicU64,
}

/// Maximum number of callbacks that are sent or wait for a slot.
const CALLBACKS: usize = 64;
/// SEQ4_STATUS_CB_PATH_DOWN.
const CB_PATH_DOWN: u32 = 1;
/// SEQ4_STATUS_ADMIN_STATE_REVOKED.
const ADMIN_STATE_REVOKED: u32 = 0x20;
/// SEQ4_STATUS_RECALLABLE_STATE_REVOKED.
const RECALLABLE_STATE_REVOKED: u32 = 0x40;

impl Client {
    pub(crate) fn new(
        (id, serial): (ClientId, u32),
        args: &ExchangeId<'_>,
        heap: Arc<Heap>,
        now: Duration,
    ) -> Self {
        let machine = args.machine.map(|allowed| Machine { principal: args.principal.into(), allowed });
        Self {
            id,
            serial,
            owner: args.owner.into(),
            machine,
            heap,
            reserved: AtomicUsize::new(0),
            lease: Lease::new(now),
            flags: AtomicU32::new(0),
            reclaimed: AtomicBool::new(false),
            unlisted: AtomicBool::new(false),
            table: Mutex::new(Table::default()),
            has_rest: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            back_channels: Mutex::default(),
            callbacks: AtomicUsize::new(0),
            delegations: AtomicUsize::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// The client ID.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// A number that no other client has.
    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    /// The address that has sent EXCHANGE_ID.
    pub(crate) fn address(&self) -> ClientAddr {
        self.heap.address()
    }

    /// `co_ownerid`: what the client calls itself.
    pub fn owner(&self) -> &[u8] {
        &self.owner
    }

    /// Checks that the caller may change the client and its sessions, if it has SP4_MACH_CRED. Arguments are as in
    /// [`ExchangeId`].
    ///
    /// # Errors
    /// WRONG_CRED
    pub fn check_machine(&self, principal: &[u8], is_protected: bool) -> Result<(), Status> {
        match &self.machine {
            Some(machine) if !is_protected || *machine.principal != *principal => Err(Status::WrongCred),
            _ => Ok(()),
        }
    }

    /// The operations with which the caller that [`check_machine`](Self::check_machine) permits may end what others have
    /// opened; none without SP4_MACH_CRED.
    pub fn machine_allowed(&self) -> Bitmap {
        self.machine.as_ref().map_or(Bitmap::EMPTY, |machine| machine.allowed)
    }

    /// Whether the client is removed.
    pub fn is_removed(&self) -> bool {
        self.lease.has_ended()
    }

    /// `sr_status_flags` of SEQUENCE.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the flags of SEQUENCE that report revoked stateids that the client has not freed.
    pub(crate) fn set_revoked(&self, revoked: Revoked) {
        let flags = [(ADMIN_STATE_REVOKED, revoked.others), (RECALLABLE_STATE_REVOKED, revoked.delegations)];
        for (flag, count) in flags {
            match count {
                0 => self.flags.fetch_and(!flag, Ordering::Relaxed),
                _ => self.flags.fetch_or(flag, Ordering::Relaxed),
            };
        }
    }

    /// Whether callbacks can be sent.
    pub(crate) fn can_be_called(&self) -> bool {
        self.back_channels.lock().iter().any(|back| back.is_up())
    }

    /// The status flag of a client none of whose back channels has a connection.
    pub(crate) fn path_flags(&self) -> u32 {
        let back_channels = self.back_channels.lock();
        let connected = back_channels.iter().any(|back| back.is_connected());
        let down = !connected && back_channels.iter().any(|back| back.is_down());
        if down { CB_PATH_DOWN } else { 0 }
    }

    /// Counts a callback, unless there are too many.
    pub(crate) fn admit_callback(&self) -> bool {
        let admit = |n| (n < CALLBACKS).then_some(n + 1);
        self.callbacks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit).is_ok()
    }

    /// Ends a callback that was admitted.
    pub(crate) fn end_callback(&self) {
        self.callbacks.fetch_sub(1, Ordering::Relaxed);
    }
}
