//! iSCSI (RFC 7143) without I/O: PDUs, text negotiation, login and the state of sessions, for both roles.

pub mod chap;
pub mod discovery;
pub mod iser;
pub mod login;
pub mod name;
pub mod negotiation;
pub mod pdu;
pub mod session;
pub mod text;
