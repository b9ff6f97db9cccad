//! The server's side: what transports call, and what programs implement.

use std::{net::SocketAddr, ops::RangeInclusive};

use millrace_runtime::MaybeReady;
use millrace_xdr::{Decode, Decoder, Encoder, Message};

use crate::{AuthStat, CallHeader, Stages};

/// Room for the header and the results of nearly every procedure, payload apart.
pub const REPLY_HEAD: usize = 256;
/// Bytes of memory for a reply without bulk data.
pub const SMALL_REPLY: usize = 512;

/// How a call came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// TCP with record marking.
    Tcp,
    /// RPC-over-RDMA.
    Rdma,
}

/// Where a call came from. One per connection; cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The peer's address.
    pub addr: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// The transport.
    pub transport: TransportKind,
    /// A number that no other connection of this process has.
    pub connection: u64,
}

/// A call with its header decoded.
pub struct Call {
    /// The header.
    pub header: CallHeader,
    /// The whole message as it came.
    pub message: Message,
    /// Where in the head the arguments begin.
    pub args_at: usize,
    /// Who sent it.
    pub peer: Peer,
    /// Its stamps.
    pub stages: Stages,
}

impl Call {
    /// A decoder at the start of the arguments.
    pub fn args(&self) -> Decoder<'_> {
        let mut d = Decoder::new(&self.message);
        // The header was decoded from these bytes, so they are there.
        let skipped = d.raw(self.args_at);
        debug_assert!(skipped.is_ok());
        d
    }

    /// The arguments, decoded.
    ///
    /// # Errors
    /// [`Fault::GarbageArgs`] when they are not of this type; what is wrong with them is logged.
    pub fn arguments<'a, T: Decode<'a>>(&'a self) -> Result<T, Fault> {
        self.args().get().map_err(|e| {
            let CallHeader { prog, proc, .. } = self.header;
            tracing::debug!(peer = %self.peer.addr, prog, proc, "malformed arguments: {e}");
            Fault::GarbageArgs
        })
    }
}

/// Why a program does not give results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No such procedure.
    ProcUnavail,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The server failed.
    SystemErr,
    /// The caller may not.
    Auth(AuthStat),
    /// No answer at all (a retransmission of a call that is still in progress).
    Drop,
}

/// A program's answer: the encoder with the results appended, or why there are none.
pub type Outcome = Result<Encoder, Fault>;

/// One RPC program (all its versions).
pub trait Program: Send + Sync + 'static {
    /// Its number.
    fn number(&self) -> u32;

    /// The versions it has.
    fn versions(&self) -> RangeInclusive<u32>;

    /// The most bytes that the reply to `call` takes, whose procedure is `proc` and whose arguments are at `args`. Room for
    /// them is made before the call is executed. `None`: its arguments cannot be right, and it is not executed. (A call that
    /// is long itself and waits for room for a long reply might wait for another one that does the same.) By default, that
    /// of a small reply.
    fn reply_bytes(&self, call: &Message, proc: u32, args: Decoder<'_>) -> Option<usize> {
        let _ = (call, proc, args);
        Some(SMALL_REPLY)
    }

    /// Executes `call`, whose program and version are this one's. `reply` holds the header of a successful reply;
    /// results are appended.
    fn call(&self, call: Call, reply: Encoder) -> MaybeReady<'static, Outcome>;
}

/// What a transport hands calls to.
pub trait Service: Send + Sync + 'static {
    /// The most bytes that the reply to the call in `message` takes. Room for them is made before the call is executed.
    /// `None`: its arguments cannot be right, and it is not executed. By default, that of a small reply.
    fn reply_bytes(&self, message: &Message) -> Option<usize> {
        let _ = message;
        Some(SMALL_REPLY)
    }

    /// Executes the call in `message` and gives the whole reply message, or `None` when there is none to send. The reply
    /// is built in `reply`, which is empty and has room for [`REPLY_HEAD`] bytes: a call is begun only when there is memory
    /// for its answer. What the call does is stamped on `stages`.
    fn call(
        &self,
        peer: &Peer,
        message: Message,
        reply: Encoder,
        stages: &Stages,
    ) -> MaybeReady<'static, Option<Message>>;
}
