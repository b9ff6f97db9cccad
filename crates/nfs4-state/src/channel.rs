//! Attributes of a session's channels and their negotiation (RFC 8881, 18.36).

use millrace_nfs::v4::Status;

use crate::limits::Limits;

/// Smallest size of requests of the fore channel: an RPC header with AUTH_NONE (40 bytes), the header of a COMPOUND
/// without tag (12), and SEQUENCE (36).
const MIN_REQUEST: u32 = 88;
/// Smallest size of its replies: an RPC header (24), the header of a COMPOUND (12), and SEQUENCE (44).
const MIN_RESPONSE: u32 = 80;
/// Smallest size of requests and replies of the back channel: a callback with an AUTH_SYS credential.
const MIN_CALLBACK: u32 = 512;
/// Bytes that the shortest reply of a slot occupies.
pub const MIN_CACHED: u32 = 256;
/// Smallest number of operations of a callback: CB_SEQUENCE and one more.
const MIN_CALLBACK_OPERATIONS: u32 = 2;

/// `channel_attrs4`, without the parameters of RDMA, which a server may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelAttributes {
    /// Bytes before each RPC header.
    pub header_pad: u32,
    /// Size of the largest request in bytes.
    pub request_bytes: u32,
    /// Size of the largest reply in bytes.
    pub response_bytes: u32,
    /// Size of the largest reply that is kept for a retry, in bytes.
    pub cached_bytes: u32,
    /// Largest number of operations of a COMPOUND.
    pub operations: u32,
    /// Number of slots; in the attributes of a session, at its creation.
    pub slots: u32,
}

/// Room for the replies that the slots of a new session keep, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyRoom {
    /// What the replies of several slots may occupy.
    pub(crate) most: usize,
    /// What there is for the reply of the first slot.
    pub(crate) least: usize,
}

/// Bytes that a reply of up to `cached` bytes may occupy.
pub(crate) fn memory(cached: u32) -> usize {
    cached.max(MIN_CACHED) as usize
}

impl ChannelAttributes {
    fn check(&self, request: u32, response: u32, operations: u32) -> Result<(), Status> {
        if self.request_bytes < request || self.response_bytes < response || self.operations < operations {
            return Err(Status::TooSmall);
        }
        if self.slots == 0 {
            return Err(Status::Inval);
        }
        Ok(())
    }

    /// The fore channel that the server grants: no value exceeds the client's or the server's limit, and the replies of
    /// the slots have `room`. There is at least one slot.
    pub(crate) fn fore(&self, limits: &Limits, room: ReplyRoom) -> Result<Self, Status> {
        self.check(MIN_REQUEST, MIN_RESPONSE, 1)?;
        let cached = self.cached_bytes.min(limits.cached_bytes).min(self.response_bytes);
        if room.least < memory(cached) {
            return Err(Status::Delay); // There is no room until sessions of other clients end.
        }
        let slots = u32::try_from(room.most / memory(cached)).unwrap_or(u32::MAX);
        Ok(Self {
            header_pad: 0,
            request_bytes: self.request_bytes.min(limits.request_bytes),
            response_bytes: self.response_bytes.min(limits.response_bytes),
            cached_bytes: cached,
            operations: self.operations.min(limits.operations),
            slots: self.slots.min(limits.slots.max(1)).min(slots.max(1)),
        })
    }

    /// The back channel: as the client requested. (The Linux client refuses a session whose `response_bytes` is larger
    /// or whose `operations` are fewer than it requested.)
    pub(crate) fn back(&self) -> Result<Self, Status> {
        self.check(MIN_CALLBACK, MIN_CALLBACK, MIN_CALLBACK_OPERATIONS)?;
        Ok(Self { header_pad: 0, ..*self })
    }

    /// Bytes that the replies in `slots` may occupy.
    pub(crate) fn kept(&self, slots: u32) -> usize {
        memory(self.cached_bytes) * slots as usize
    }
}
