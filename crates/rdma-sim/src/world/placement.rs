//! What an adapter does with a message of the peer: rights, bounds, memory.

use millrace_rdma::{Completion, stag::AccessError};

use crate::{
    access::RemoteAccess,
    end::{End, Message},
};

/// What became of a message of the peer.
pub(super) enum Handled {
    Nothing,
    /// It waits for a receive.
    NoReceive,
    Placed,
    Received(Completion),
    /// A read.
    Asked,
    /// The response to our read of this number.
    Answered(u64),
    Fin,
    /// The peer may not do this.
    Broken(&'static str),
}

impl std::fmt::Display for Handled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "gone",
            Self::NoReceive => "waits",
            Self::Placed => "placed",
            Self::Received(_) => "received",
            Self::Asked => "asked",
            Self::Answered(_) => "answered",
            Self::Fin => "fin",
            Self::Broken(why) => why,
        })
    }
}

pub(super) const fn why(denied: AccessError) -> &'static str {
    match denied {
        AccessError::Stag | AccessError::Released => "it used a steering tag that is not valid",
        AccessError::Rights => "it used a steering tag without the right to do so",
        AccessError::Bounds | AccessError::Wrap => "it reached beyond the bounds of a region",
    }
}

impl End {
    /// Takes a message of the peer; the adapter holds so many receives.
    pub(super) fn take(&mut self, message: &Message, theirs: &RemoteAccess, receive_queue: u32) -> Handled {
        let bytes = message.payload();
        match message {
            Message::Send { data, invalidate, .. } => {
                if self.used_receives >= receive_queue {
                    return Handled::NoReceive;
                }
                let Some(mut buffer) = self.receives.pop_front() else { return Handled::NoReceive };
                if data.len() > buffer.len() {
                    return Handled::Broken("its message is longer than the receive for it");
                }
                let tag = *invalidate;
                if tag.is_some_and(|tag| !self.access.invalidate(tag.0)) {
                    return Handled::Broken("it invalidated a steering tag that is not ours to lose");
                }
                buffer.set_len(data.len());
                let mut at = 0;
                for v in data.iter() {
                    buffer[at..at + v.len()].copy_from_slice(v);
                    at += v.len();
                }
                self.counters.receives += 1;
                self.used_receives += 1;
                Handled::Received(Completion::Received { buffer, invalidated: tag })
            }
            Message::Write(request) => match self.access.place(&request.to, &request.data) {
                Ok(()) => {
                    self.counters.peer_writes += 1;
                    self.counters.tagged_bytes_in += bytes;
                    self.counters.placed_directly += bytes;
                    Handled::Placed
                }
                Err(denied) => Handled::Broken(why(denied)),
            },
            Message::Read(_) => Handled::Asked,
            Message::Response { read, from } => {
                let Some(Message::Read(request)) = self.messages.get_mut(read) else {
                    return Handled::Nothing;
                };
                match theirs.fill(from, &mut request.sink) {
                    Ok(()) => {
                        self.counters.tagged_bytes_in += bytes;
                        self.counters.placed_directly += bytes;
                        Handled::Answered(*read)
                    }
                    // Its owner has revoked it while it was on its way.
                    Err(denied) => Handled::Broken(why(denied)),
                }
            }
            Message::Fin => Handled::Fin,
        }
    }
}
