//! Processing of the peer's messages by an adapter: rights, bounds, memory.

use millrace_rdma::{Completion, stag::AccessError};

use crate::{
    access::RemoteAccess,
    end::{End, Message},
};

/// Outcome of a message of the peer.
pub(super) enum Outcome {
    Nothing,
    /// The message waits for a receive.
    NoReceive,
    Placed,
    Received(Completion),
    /// A read of the peer.
    ReadRequested,
    /// The response to the read of this end with this number.
    ReadCompleted(u64),
    Fin,
    /// A protocol violation.
    Violation(&'static str),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "gone",
            Self::NoReceive => "waits",
            Self::Placed => "placed",
            Self::Received(_) => "received",
            Self::ReadRequested => "asked",
            Self::ReadCompleted(_) => "answered",
            Self::Fin => "fin",
            Self::Violation(why) => why,
        })
    }
}

pub(super) const fn describe(denied: AccessError) -> &'static str {
    match denied {
        AccessError::Stag | AccessError::Released => "invalid steering tag",
        AccessError::Rights => "steering tag without the access right",
        AccessError::Bounds | AccessError::Wrap => "access outside of a region",
    }
}

impl End {
    /// Processes a message of the peer. `receive_queue` is the size of the adapter's receive queue.
    pub(super) fn take(&mut self, message: &Message, theirs: &RemoteAccess, receive_queue: u32) -> Outcome {
        let bytes = message.payload();
        match message {
            Message::Send { data, invalidate, .. } => {
                if self.used_receives >= receive_queue {
                    return Outcome::NoReceive;
                }
                let Some(mut buffer) = self.receives.pop_front() else { return Outcome::NoReceive };
                if data.len() > buffer.len() {
                    return Outcome::Violation("the message is longer than its receive");
                }
                let tag = *invalidate;
                if tag.is_some_and(|tag| !self.access.invalidate(tag.0)) {
                    return Outcome::Violation("invalidation of a protected or unknown steering tag");
                }
                buffer.set_len(data.len());
                let mut at = 0;
                for v in data.iter() {
                    buffer[at..at + v.len()].copy_from_slice(v);
                    at += v.len();
                }
                self.counters.receives += 1;
                self.used_receives += 1;
                Outcome::Received(Completion::Received { buffer, invalidated: tag })
            }
            Message::Write(request) => match self.access.place(&request.to, &request.data) {
                Ok(()) => {
                    self.counters.peer_writes += 1;
                    self.counters.tagged_bytes_in += bytes;
                    self.counters.placed_directly += bytes;
                    Outcome::Placed
                }
                Err(denied) => Outcome::Violation(describe(denied)),
            },
            Message::Read(_) => Outcome::ReadRequested,
            Message::Response { read, from } => {
                let Some(Message::Read(request)) = self.messages.get_mut(read) else {
                    return Outcome::Nothing;
                };
                match theirs.fill(from, &mut request.sink) {
                    Ok(()) => {
                        self.counters.tagged_bytes_in += bytes;
                        self.counters.placed_directly += bytes;
                        Outcome::ReadCompleted(*read)
                    }
                    // The owner has revoked the memory meanwhile.
                    Err(denied) => Outcome::Violation(describe(denied)),
                }
            }
            Message::Fin => Outcome::Fin,
        }
    }
}
