//! The server's side: what transports call, and what programs implement.

use std::{net::SocketAddr, ops::RangeInclusive};

use runtime::MaybeReady;
use xdr::{Arena, Decode, Decoder, Encoder, Message};

use crate::{AuthStat, CallHeader, Stages};

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

    /// Executes `call`, whose program and version are this one's. `reply` holds the header of a successful reply;
    /// results are appended.
    fn call(&self, call: Call, reply: Encoder) -> MaybeReady<'static, Outcome>;
}

/// What a transport hands calls to.
pub trait Service: Send + Sync + 'static {
    /// Executes the call in `message` and gives the whole reply message, or `None` when there is none to send.
    /// The reply is built in `arena`. What the call does is stamped on `stages`.
    fn call(
        &self,
        peer: &Peer,
        message: Message,
        arena: &Arena,
        stages: &Stages,
    ) -> MaybeReady<'static, Option<Message>>;
}
