//! iSCSI and iSER: PDUs, text, logins and sessions of both roles, and whole connections of a target.

pub(super) mod connection;
mod honest;
pub(super) mod iser;
pub(super) mod login;
pub(super) mod pdu;
pub(super) mod session;
pub(super) mod text;
