//! The settings of a side, and the negotiated parameters.

use super::keys::{Id, Key};

/// When a side uses a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestPolicy {
    /// Never.
    Refuse,
    /// If the other side requires it.
    #[default]
    Accept,
    /// Always: a connection without it fails.
    Require,
}

impl DigestPolicy {
    /// The supported values, the preferred one first.
    pub(super) const fn supported(self) -> &'static [&'static str] {
        match self {
            Self::Refuse => &["None"],
            Self::Accept => &["None", "CRC32C"],
            Self::Require => &["CRC32C"],
        }
    }
}

/// The settings of one side for a connection. Numbers outside of their range are brought into it.
///
/// The values of the other keys are fixed: one connection per session, error recovery level 0, data in order,
/// no markers, no wait before a reconnect, and the default time of 20 seconds after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// HeaderDigest; none with iSER.
    pub header_digest: DigestPolicy,
    /// DataDigest; none with iSER.
    pub data_digest: DigestPolicy,
    /// Maximum data segment that this side receives, in bytes, 512 to 16777215: `MaxRecvDataSegmentLength`, or
    /// with iSER the `RecvDataSegmentLength` of its role.
    pub max_receive_data: u32,
    /// InitialR2T: whether this side insists that writes begin with an R2T, without unsolicited Data-Out PDUs.
    pub initial_r2t: bool,
    /// ImmediateData: whether this side permits data in commands.
    pub immediate_data: bool,
    /// MaxBurstLength in bytes, 512 to 16777215.
    pub max_burst: u32,
    /// FirstBurstLength in bytes, 512 to `max_burst`.
    pub first_burst: u32,
    /// MaxOutstandingR2T, at least 1.
    pub max_outstanding_r2t: u16,
    /// The connection uses RDMA.
    pub iser: Option<IserSettings>,
}

/// The settings of one side for a connection with iSER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IserSettings {
    /// Maximum data segment that this side sends, in bytes, 512 to 16777215.
    pub max_send_data: u32,
    /// MaxOutstandingUnexpectedPDUs: how many unexpected PDUs this side has receives for, at least 2; 0 if there
    /// is no limit.
    pub max_unexpected_pdus: u32,
}

impl Default for Settings {
    /// The defaults of RFC 7143, except for 262144 bytes of received data.
    fn default() -> Self {
        Self {
            header_digest: DigestPolicy::default(),
            data_digest: DigestPolicy::default(),
            max_receive_data: 262_144,
            initial_r2t: true,
            immediate_data: true,
            max_burst: 262_144,
            first_burst: 65536,
            max_outstanding_r2t: 1,
            iser: None,
        }
    }
}

impl Settings {
    /// The values of the list `key` that this side supports, the preferred one first.
    pub(super) const fn supported(&self, key: &Key) -> &'static [&'static str] {
        let policy = match key.id {
            Id::HeaderDigest => self.header_digest,
            Id::DataDigest => self.data_digest,
            _ => return &["RFC3720"], // TaskReporting.
        };
        if self.iser.is_some() { DigestPolicy::Refuse.supported() } else { policy.supported() }
    }

    /// The value of `key` that this side offers or selects.
    pub(super) fn wish(&self, key: &Key, initiator: bool) -> u32 {
        let send = self.iser.map_or(key.default, |i| i.max_send_data);
        let number = match key.id {
            Id::RdmaExtensions => u32::from(self.iser.is_some()),
            Id::InitialR2T => u32::from(self.initial_r2t),
            Id::ImmediateData => u32::from(self.immediate_data),
            Id::MaxRecvDataSegmentLength => self.max_receive_data,
            Id::InitiatorRecvDataSegmentLength if initiator => self.max_receive_data,
            Id::TargetRecvDataSegmentLength if !initiator => self.max_receive_data,
            Id::InitiatorRecvDataSegmentLength | Id::TargetRecvDataSegmentLength => send,
            Id::MaxBurstLength => self.max_burst,
            Id::FirstBurstLength => self.first_burst.min(self.max_burst),
            Id::DefaultTime2Wait => 0,
            Id::MaxOutstandingR2T => self.max_outstanding_r2t.into(),
            Id::MaxOutstandingUnexpectedPdus => self.iser.map_or(0, |i| i.max_unexpected_pdus),
            _ => key.default,
        };
        if key.permits(number) { number } else { number.clamp(key.min, key.max) }
    }
}

/// The negotiated parameters of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// PDUs have header digests.
    pub header_digest: bool,
    /// Data segments have digests.
    pub data_digest: bool,
    /// Maximum data segment that this side sends, in bytes.
    pub max_send_data: u32,
    /// Maximum data segment that this side receives, in bytes.
    pub max_receive_data: u32,
    /// Unsolicited Data-Out PDUs are forbidden.
    pub initial_r2t: bool,
    /// Commands may have immediate data.
    pub immediate_data: bool,
    /// Maximum length of a sequence of Data-In or solicited Data-Out PDUs, in bytes.
    pub max_burst: u32,
    /// Maximum length of the unsolicited data of a command, in bytes; at most `max_burst`.
    pub first_burst: u32,
    /// Maximum number of open R2Ts of a task.
    pub max_outstanding_r2t: u16,
    /// Minimum time before a reconnect, in seconds.
    pub time2wait: u16,
    /// Time after it during which tasks are retained, in seconds.
    pub time2retain: u16,
    /// The connection uses iSER.
    pub iser: Option<IserParameters>,
}

/// The negotiated parameters of a connection with iSER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IserParameters {
    /// How many unexpected PDUs the peer has receives for; 0 if it has no limit.
    pub max_unexpected_pdus: u32,
    /// The initiator sends a Hello. Set only at targets.
    pub hello_required: bool,
    /// The buffers that the initiator advertises begin with the solicited data. Set only at targets.
    pub solicited_only: bool,
}
