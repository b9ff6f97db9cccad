//! The server's side: the interfaces of services and programs.

use std::{ops::RangeInclusive, sync::Arc};

use millrace_runtime::MaybeReady;
use millrace_xdr::{Decode, Decoder, Encoder, Message};

use crate::{AuthStat, CallHeader, CallHeaderError, LastSender, Plan, Sender, callbacks::Callbacks};

/// Bytes that suffice for the header and the results of nearly all procedures, without payload.
pub const REPLY_HEAD: usize = 256;

/// A call during its execution: the decoded RPC header and the sender. It is created once, when the call
/// arrives, and passed to all functions that process the call.
pub struct CallContext {
    /// The RPC header.
    pub header: CallHeader,
    /// The sender.
    pub sender: Arc<Sender>,
    /// What the service has found in the arguments ([`Service::plan`]); before, that of a call with a small reply.
    pub plan: Plan,
    message: Message,
    args_at: usize,
}

impl CallContext {
    /// Decodes the RPC header of `message`. `last` is the sender of the connection's last call, and becomes that
    /// of this one.
    ///
    /// # Errors
    /// [`CallHeaderError`] if the message is not a call, or its header is invalid.
    pub fn parse(message: Message, last: &mut LastSender) -> Result<Self, CallHeaderError> {
        let mut d = Decoder::new(&message);
        let (header, sender) =
            CallHeader::decode_with(&mut d, |flavor, body, at| last.of_call(flavor, body, at))?;
        let args_at = d.position();
        Ok(Self { header, sender, plan: Plan::default(), message, args_at })
    }

    /// The whole received message, including the RPC header.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The whole received message without the other parts.
    pub fn into_message(self) -> Message {
        self.message
    }

    /// Replaces the message by what `open` makes of it, and the arguments by those at the positions that it returns.
    pub(crate) fn open<E>(
        &mut self,
        open: impl FnOnce(&mut Message) -> Result<std::ops::Range<usize>, E>,
    ) -> Result<(), E> {
        let args = open(&mut self.message)?;
        self.args_at = args.start;
        self.message.head.truncate(args.end);
        Ok(())
    }

    /// A decoder at the start of the arguments.
    pub fn args(&self) -> Decoder<'_> {
        let mut d = Decoder::new(&self.message);
        // The header was decoded from these bytes, so the message is long enough.
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
            tracing::debug!(peer = %self.sender.peer.addr, prog, proc, "malformed arguments: {e}");
            Fault::GarbageArgs
        })
    }
}

/// The reason why a program returns no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The procedure does not exist.
    ProcUnavail,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// An error of the server, such as lack of memory.
    SystemErr,
    /// The caller lacks permission.
    Auth(AuthStat),
    /// The call is not answered (a retransmission of a call in progress).
    Drop,
}

/// The results of a call, after the header of a successful reply.
pub enum Results {
    /// Appended to the encoder that was passed with the call.
    Encoded(Encoder),
    /// A finished message; the program shares its memory.
    Finished(Message),
}

impl From<Encoder> for Results {
    fn from(reply: Encoder) -> Self {
        Self::Encoded(reply)
    }
}

/// The outcome of a call: its results, or the reason for their absence.
pub type Outcome = Result<Results, Fault>;

/// An RPC program, in one or more of its versions.
pub trait Program: Send + Sync + 'static {
    /// Program number.
    fn number(&self) -> u32;

    /// Supported versions.
    fn versions(&self) -> RangeInclusive<u32>;

    /// Looks at the arguments of a call once, before memory for it is reserved. `args` is at their start, and `length` is
    /// the size of the whole call in bytes. Of a large call, `args` may have only a part, for the position of its data: what
    /// follows this position is received in other memory than what precedes, so that the program can keep the data
    /// without a copy. The default is that of a call with a small reply.
    fn plan(&self, header: &CallHeader, args: &mut Decoder<'_>, length: usize) -> Plan {
        let _ = (header, args, length);
        Plan::default()
    }

    /// Executes `call`, which has this program's number and a supported version. `reply` contains the header
    /// of a successful reply, to which the results are appended.
    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome>;
}

/// Executes the calls of connections.
pub trait Service: Send + Sync + 'static {
    /// Looks at the arguments of `call` once, before memory for it is reserved. The default is that of a call with a
    /// small reply.
    fn plan(&self, call: &CallContext) -> Plan {
        let _ = call;
        Plan::default()
    }

    /// As [`Self::plan`], for a call of `length` bytes that is still arriving, from its first bytes.
    fn plan_of_prefix(&self, start: &[u8], length: usize) -> Plan {
        let _ = (start, length);
        Plan::default()
    }

    /// Executes `call` and returns the whole reply, or `None` if none is sent. The reply is encoded in
    /// `reply`, which is empty and has memory for [`REPLY_HEAD`] bytes.
    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Option<Message>>;

    /// The calls to the client, for a service of one connection that makes some. The transport sends them. The
    /// default is none.
    fn callbacks(&self) -> Option<&Callbacks> {
        None
    }
}
