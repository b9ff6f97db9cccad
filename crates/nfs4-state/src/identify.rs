//! Arguments and results of EXCHANGE_ID and CREATE_SESSION.

use std::net::IpAddr;

use millrace_nfs::v4::{Bitmap, ClientId, SessionId, Verifier};

use crate::channel::ChannelAttributes;

/// Arguments of EXCHANGE_ID that concern the client record.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeId<'a> {
    /// `co_ownerid`.
    pub owner: &'a [u8],
    /// `co_verifier`: another value than before means that the client has restarted.
    pub verifier: Verifier,
    /// EXCHGID4_FLAG_UPD_CONFIRMED_REC_A.
    pub update: bool,
    /// Identifies the caller's credential. It is compared only.
    pub principal: &'a [u8],
    /// Whether the call is protected by the integrity or privacy of RPCSEC_GSS.
    pub is_protected: bool,
    /// For SP4_MACH_CRED: the operations with which this caller may end what others have opened (`spo_must_allow`).
    pub machine: Option<Bitmap>,
    /// Address of the caller.
    pub address: IpAddr,
}

/// Result of EXCHANGE_ID that concerns the client record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientIdentified {
    /// `eir_clientid`.
    pub client: ClientId,
    /// `eir_sequenceid`: `csa_sequence` of the next CREATE_SESSION.
    pub sequence: u32,
    /// EXCHGID4_FLAG_CONFIRMED_R.
    pub confirmed: bool,
    /// As in [`ExchangeId`], of the record.
    pub machine: Option<Bitmap>,
}

/// Arguments of CREATE_SESSION, except those for callbacks.
#[derive(Debug, Clone, Copy)]
pub struct CreateSession<'a> {
    /// `csa_clientid`.
    pub client: ClientId,
    /// `csa_sequence`.
    pub sequence: u32,
    /// CREATE_SESSION4_FLAG_CONN_BACK_CHAN.
    pub back_channel: bool,
    /// `csa_fore_chan_attrs`.
    pub fore: ChannelAttributes,
    /// `csa_back_chan_attrs`.
    pub back: ChannelAttributes,
    /// Identifies the caller's credential, as in EXCHANGE_ID.
    pub principal: &'a [u8],
}

/// Result of CREATE_SESSION.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionCreated {
    /// `csr_sessionid`.
    pub session: SessionId,
    /// `csr_sequence`.
    pub sequence: u32,
    /// CREATE_SESSION4_FLAG_CONN_BACK_CHAN: the connection is the back channel.
    pub back_channel: bool,
    /// `csr_fore_chan_attrs`.
    pub fore: ChannelAttributes,
    /// `csr_back_chan_attrs`.
    pub back: ChannelAttributes,
}
