//! The server's side: what transports call, and what programs implement.

use std::{net::SocketAddr, ops::RangeInclusive};

use millrace_runtime::MaybeReady;
use millrace_xdr::{Decode, Decoder, Encoder, Message};

use crate::{AuthStat, CallHeader, CallRefusal, Stages};

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

/// One call during its execution: the decoded RPC header and where the call came from. It is made once, when the call
/// arrives, and passed to everything that works on the call.
pub struct CallContext {
    /// The RPC header, with the caller's credential.
    pub header: CallHeader,
    /// The sender and the transport.
    pub peer: Peer,
    /// Where the stages of the call are recorded.
    pub stages: Stages,
    message: Message,
    args_at: usize,
}

impl CallContext {
    /// Decodes the RPC header of `message`, which `peer` has sent. No stages are recorded.
    ///
    /// # Errors
    /// [`CallRefusal`] if the message is not a call, or its header is invalid.
    pub fn parse(message: Message, peer: &Peer) -> Result<Self, CallRefusal> {
        let mut d = Decoder::new(&message);
        let header = CallHeader::decode(&mut d)?;
        let args_at = d.position();
        Ok(Self { header, peer: *peer, stages: Stages::NONE, message, args_at })
    }

    /// The whole message as it was received, RPC header included.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// A decoder at the start of the arguments.
    pub fn args(&self) -> Decoder<'_> {
        let mut d = Decoder::new(&self.message);
        // The header was decoded from these bytes, so they are there.
        let skipped = d.raw(self.args_at);
        debug_assert!(skipped.is_ok());
        d
    }

    /// The decoded arguments.
    ///
    /// # Errors
    /// [`Fault::GarbageArgs`] if they are not of this type; the reason is logged.
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

/// The results of a call, behind the header of a successful reply.
pub enum Results {
    /// Appended to the encoder that was passed with the call.
    Encoded(Encoder),
    /// The same, finished: the program shares the memory of the message.
    Finished(Message),
}

impl From<Encoder> for Results {
    fn from(reply: Encoder) -> Self {
        Self::Encoded(reply)
    }
}

/// The outcome of a call: its results, or why there are none.
pub type Outcome = Result<Results, Fault>;

/// One RPC program (all its versions).
pub trait Program: Send + Sync + 'static {
    /// Its number.
    fn number(&self) -> u32;

    /// The versions it has.
    fn versions(&self) -> RangeInclusive<u32>;

    /// The maximum size in bytes of the reply to `call`. Memory for it is reserved before the call is executed. `None`: the
    /// arguments are invalid, and the call is not executed. (A long call that waits for the memory of a long reply could
    /// wait for another call that does the same.) By default, the size of a small reply.
    fn reply_bytes(&self, call: &CallContext) -> Option<usize> {
        let _ = call;
        Some(SMALL_REPLY)
    }

    /// Executes `call`, whose program and version are this one's. `reply` holds the header of a successful reply;
    /// results are appended.
    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome>;
}

/// What a connection passes calls to.
pub trait Service: Send + Sync + 'static {
    /// The maximum size in bytes of the reply to `call`. Memory for it is reserved before the call is executed. `None`: the
    /// arguments are invalid, and the call is not executed. By default, the size of a small reply.
    fn reply_bytes(&self, call: &CallContext) -> Option<usize> {
        let _ = call;
        Some(SMALL_REPLY)
    }

    /// Executes `call` and returns the whole reply message, or `None` if there is none to send. The reply is built in
    /// `reply`, which is empty and has room for [`REPLY_HEAD`] bytes.
    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Option<Message>>;
}
