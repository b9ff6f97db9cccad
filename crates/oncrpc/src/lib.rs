//! ONC RPC version 2 (RFC 5531), transport-neutral: messages, credentials, dispatch, client calls; and the TCP
//! transport with record marking, and rpcbind registration.

mod message;
mod service;
mod transport;

pub use message::{AcceptError, AuthStat, AuthSys, CallHeader, Credential, RpcMismatch};
pub use runtime::MaybeReady;
pub use service::{Call, Fault, Outcome, Peer, Program, Service, TransportKind};
pub use transport::{CallId, PendingCall, Reply, ReplySpec, Request, RpcError, Transport};
pub use xdr::{Message, Payload};
