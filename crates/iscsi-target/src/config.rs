//! Configuration of targets and limits of their connections.

use std::{sync::Arc, time::Duration};

use millrace_iscsi::{
    chap::Mutual,
    name::{IscsiName, TargetAddress},
    negotiation::Settings,
};
use millrace_scsi::Target;
use millrace_tls::TransportSecurity;

/// A target that initiators log in to.
#[derive(Clone)]
pub struct TargetConfig {
    /// Name of the target.
    pub name: IscsiName,
    /// The disks.
    pub device: Arc<Target>,
    /// Names of the initiators that may log in; all if empty. Only CHAP authenticates a name.
    pub initiators: Vec<IscsiName>,
    /// Credentials; `None` if initiators need not authenticate.
    pub chap: Option<Mutual>,
    /// The weakest protection of connections over which initiators discover the target and may log in.
    pub xprtsec: TransportSecurity,
    /// Addresses that discovery reports; if empty, the address of the discovery.
    pub addresses: Vec<TargetAddress>,
}

impl TargetConfig {
    /// Whether an initiator with this name may log in over a connection with this protection, and discovers the target.
    pub(crate) fn permits(&self, initiator: &IscsiName, security: TransportSecurity) -> bool {
        self.xprtsec <= security && (self.initiators.is_empty() || self.initiators.contains(initiator))
    }
}

/// Limits of a [`TargetTable`](crate::TargetTable).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLimits {
    /// Maximum number of sessions without discovery sessions, which are divided among the clients
    /// ([`ClientQuota`](millrace_admission::ClientQuota)).
    pub sessions: u16,
    /// Maximum number of connections in the login phase and of discovery sessions, which are divided likewise.
    pub logins: u16,
}

impl Default for TableLimits {
    fn default() -> Self {
        Self { sessions: 4096, logins: 256 }
    }
}

/// Limits of one connection.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// The parameters that the target negotiates.
    pub settings: Settings,
    /// Maximum number of commands in progress, at least 1.
    pub max_tasks: u32,
    /// Maximum bytes of immediate and unsolicited data of the commands of a window. A session holds memory for them from
    /// its login on; if that exceeds the share of its client, it has a smaller window, or no such data.
    pub max_unsolicited: u64,
    /// Bytes of responses above which no further response is encoded until the peer receives some.
    pub max_queued: usize,
    /// Time limit for the login, and for a discovery session with its login.
    pub login_timeout: Duration,
    /// Tolerated delay of a transfer: a peer that sends requested data, the rest of a PDU, or receives responses
    /// more slowly than [`MIN_RATE`](millrace_admission::MIN_RATE), with this tolerance, is disconnected.
    pub stall_timeout: Duration,
    /// After one to two times this time without data from the initiator, a NOP-In requires an answer within the same
    /// time.
    pub ping_interval: Duration,
    /// Time that initiators have for their logout when the target ends a session.
    pub logout_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            settings: Settings { initial_r2t: false, max_burst: 1 << 20, ..Settings::default() },
            max_tasks: 128,
            max_unsolicited: 4 << 20,
            max_queued: 1 << 20,
            login_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            ping_interval: Duration::from_secs(30),
            logout_timeout: Duration::from_secs(5),
        }
    }
}
