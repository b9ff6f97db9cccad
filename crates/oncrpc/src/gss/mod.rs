//! RPCSEC_GSS version 1 (RFC 2203) with Kerberos 5: calls and replies that a security context signs, or encrypts.
//!
//! A client establishes a context with NULL calls that carry the tokens of GSS-API, and then names it in the credentials of
//! its calls. Per-message tokens are those of the crate `krb5`; contexts are established by an [`Acceptor`], because it
//! blocks and loads a library.
//!
//! At a server, `GssServer::receive` turns a received call into one as from AUTH_SYS: its credential is the user of the
//! context, and its arguments are in the clear. `Seal` does the reverse with the reply. Programs see neither. At a client,
//! [`GssClient`] has the context of a user, and a transport applies the [`CallSeal`] of a call.

mod body;
mod client;
mod client_context;
mod contexts;
mod numbers;
mod queue;
mod seal;
mod server;
mod window;
mod wire;

use millrace_krb5::Context;

pub use self::{
    client::{Begun, Finish, GssClient, GssError, Initiator, InitiatorThreads, NoContext},
    client_context::{CallSeal, ContextRef, ReplyCheck},
    server::{GssServer, GssStats},
};
pub(crate) use self::{
    server::{GssCall, LastContext},
    wire::GssCredential,
};
use crate::GssCaller;

/// Establishes contexts at a server.
pub trait Acceptor: Send + Sync + 'static {
    /// Takes the token of a client, of which Kerberos 5 needs one. May block: it is called on a thread for that.
    ///
    /// # Errors
    /// [`Refused`].
    fn accept(&self, token: &[u8]) -> Result<Accepted, Refused>;
}

/// A context that a server has accepted.
#[derive(Debug)]
pub struct Accepted {
    /// For the client; may be empty.
    pub token: Vec<u8>,
    /// The context, in the role of the acceptor.
    pub context: Box<Context>,
    /// Its user.
    pub caller: GssCaller,
}

/// A context that a server has refused.
#[derive(Debug)]
pub struct Refused {
    /// For the client, to which it states the reason; may be empty.
    pub token: Vec<u8>,
    /// `major_status` (RFC 2744 section 3.9.1).
    pub major: u32,
    /// `minor_status`.
    pub minor: u32,
    /// For the log.
    pub reason: String,
}
