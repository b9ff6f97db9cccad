//! iSCSI (RFC 7143) for both roles: PDUs, text negotiation, login and the state of sessions, without I/O; and PDUs on byte
//! streams ([`stream`]).

pub mod chap;
pub mod discovery;
pub mod iser;
pub mod login;
pub mod name;
pub mod negotiation;
pub mod pdu;
pub mod session;
pub mod stream;
pub mod text;
