//! ONC RPC version 2 (RFC 5531) for all transports: messages, credentials, dispatch and client calls; the TCP
//! transport with record marking; RPCSEC_GSS ([`gss`]); registration with rpcbind; and the latency breakdown of calls ([`stages`]).

#[cfg(feature = "call-counts")]
pub mod call_counts;
mod callbacks;
mod calling;
mod dispatch;
pub mod gss;
mod identity;
mod message;
mod plan;
mod received;
mod request;
pub mod rpcbind;
mod sender;
mod service;
pub mod serving;
pub mod stages;
pub mod tcp;

pub use callbacks::{CallbackQueue, Callbacks};
pub use calling::{
    CallbackHandler, CallbackHandlerRef, Calls, Connection, ConnectionDriver, InFlight, Outgoing,
    PendingCall, Submissions, Transport, Waiter,
};
pub use dispatch::Dispatcher;
pub use identity::{GssCaller, GssIdentity, Protection, SecurityFlavor, UserIds};
pub use message::{
    AcceptError, AuthStat, AuthSys, CallHeader, CallHeaderError, Credential, EncodedCredential,
    MAX_AUTH_BODY, MSG_CALL, MSG_REPLY, RPC_VERSION, ReplyHeader, ReplyStatus, RpcMismatch,
    SUCCESS_HEADER_BYTES, call_header,
};
pub use millrace_runtime::MaybeReady;
pub use millrace_tls::TransportSecurity;
pub use millrace_xdr::{Message, Payload};
pub use plan::{Operations, Plan, SMALL_CALL, SMALL_REPLY};
pub use received::ReceivedCall;
pub use request::{Reply, ReplySpec, Request, RpcError, parse_reply};
pub use sender::{LastSender, Peer, Sender, TransportKind};
pub use service::{CallContext, Fault, Outcome, Program, REPLY_HEAD, Results, Service};
pub use stages::{CallClass, Sampler, Stage, Stages};
