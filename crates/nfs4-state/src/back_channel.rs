//! The back channel of a session: its connections and slots (RFC 8881, 2.10.3.1 and 20.9).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use millrace_nfs::v4::SessionId;
use millrace_oncrpc::{Callbacks, EncodedCredential};
use parking_lot::Mutex;

use crate::channel::ChannelAttributes;

/// Maximum number of connections. At the limit, an added connection replaces the oldest.
const CONNECTIONS: usize = 16;
/// Maximum number of slots, of which the client may have granted fewer.
const SLOTS: u32 = 16;
/// SEQ4_STATUS_CB_PATH_DOWN_SESSION.
const PATH_DOWN_SESSION: u32 = 0x200;
/// SEQ4_STATUS_BACKCHANNEL_FAULT.
const FAULT: u32 = 0x400;

/// Program and credentials of callbacks (arguments of CREATE_SESSION and BACKCHANNEL_CTL).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallbackTarget {
    /// RPC program number.
    pub program: u32,
    /// Minor version of the client: Linux finds the session by its ID and the minor version.
    pub minor_version: u32,
    /// Credential of the calls.
    pub credential: EncodedCredential,
}

/// The back channel of a session.
#[derive(Debug)]
pub struct BackChannel {
    session: SessionId,
    attributes: ChannelAttributes,
    target: Mutex<Option<CallbackTarget>>,
    connections: Mutex<Vec<Callbacks>>,
    slots: Mutex<Box<[Slot]>>,
    /// The client rejects the sequence numbers.
    fault: AtomicBool,
    /// The client has requested callbacks. The lack of a connection does not concern others.
    wanted: AtomicBool,
}

#[derive(Debug, Clone)]
struct Slot {
    /// Sequence number of the next callback.
    sequence: u32,
    used: bool,
}

impl BackChannel {
    pub(crate) fn new(session: SessionId, attributes: ChannelAttributes, wanted: bool) -> Self {
        let slots = vec![Slot { sequence: 1, used: false }; attributes.slots.min(SLOTS) as usize];
        Self {
            session,
            attributes,
            target: Mutex::new(None),
            connections: Mutex::default(),
            slots: Mutex::new(slots.into()),
            fault: AtomicBool::new(false),
            wanted: AtomicBool::new(wanted),
        }
    }

    /// The session ID.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The limits of the channel.
    pub fn attributes(&self) -> &ChannelAttributes {
        &self.attributes
    }

    /// Sets the program and the credentials of callbacks (CREATE_SESSION, BACKCHANNEL_CTL).
    pub fn set_target(&self, target: CallbackTarget) {
        *self.target.lock() = Some(target);
    }

    /// Adds a connection (CREATE_SESSION, BIND_CONN_TO_SESSION).
    pub fn add(&self, connection: &Callbacks) {
        self.wanted.store(true, Ordering::Relaxed);
        let mut connections = self.connections.lock();
        connections.retain(|other| other.is_open() && !other.is_same(connection));
        if connections.len() >= CONNECTIONS {
            connections.remove(0);
        }
        connections.push(connection.clone());
    }

    /// Removes a connection on which the client does not answer.
    pub fn remove(&self, connection: &Callbacks) {
        self.connections.lock().retain(|other| !other.is_same(connection));
    }

    /// Removes all connections.
    pub(crate) fn close(&self) {
        self.connections.lock().clear();
    }

    /// Whether it has an open connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connections.lock().iter().any(Callbacks::is_open)
    }

    /// Whether the client has requested callbacks, and the channel has no open connection.
    pub(crate) fn is_down(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && !self.is_connected()
    }

    /// The connection for the next callback: the newest that is open.
    pub fn connection(&self) -> Option<Callbacks> {
        self.connections.lock().iter().rfind(|connection| connection.is_open()).cloned()
    }

    /// Whether callbacks can be sent.
    pub fn is_up(&self) -> bool {
        self.is_connected() && self.flags() == 0
    }

    /// Records that the client rejects the sequence number of a slot: it must destroy the session.
    pub fn set_fault(&self) {
        self.fault.store(true, Ordering::Relaxed);
    }

    /// The flags of the back channel in `sr_status_flags`.
    pub(crate) fn flags(&self) -> u32 {
        let fault = if self.fault.load(Ordering::Relaxed) { FAULT } else { 0 };
        fault | if self.is_down() { PATH_DOWN_SESSION } else { 0 }
    }

    /// Begins a callback. `None` if there is no open connection or all slots are in use.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<CallbackSlot> {
        let target = self.target.lock().clone().filter(|_| self.is_up())?;
        let mut slots = self.slots.lock();
        let (number, slot) = (0..).zip(slots.iter_mut()).find(|(_, slot)| !slot.used)?;
        slot.used = true;
        Some(CallbackSlot { channel: self.clone(), target, number, sequence: slot.sequence })
    }
}

/// A slot in use by a callback; it is free when this is dropped.
#[derive(Debug)]
pub struct CallbackSlot {
    channel: Arc<BackChannel>,
    target: CallbackTarget,
    number: u32,
    sequence: u32,
}

impl CallbackSlot {
    /// The back channel.
    pub fn channel(&self) -> &BackChannel {
        &self.channel
    }

    /// Program and credentials of callbacks.
    pub fn target(&self) -> &CallbackTarget {
        &self.target
    }

    /// `csa_slotid`.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// `csa_sequenceid`.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Records that the client has executed a callback with the sequence number, so that the next one follows. If
    /// the result of a callback is unknown, the next one has the same number: the client rejects it as a retry if it
    /// has executed the former.
    pub fn advance(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }
}

impl Drop for CallbackSlot {
    fn drop(&mut self) {
        if let Some(slot) = self.channel.slots.lock().get_mut(self.number as usize) {
            *slot = Slot { sequence: self.sequence, used: false };
        }
    }
}
