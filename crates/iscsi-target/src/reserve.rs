//! Memory that a session holds from its login to its end.
//!
//! Receives must be posted before their messages arrive. Immediate and unsolicited data arrives without a request, and
//! the data of earlier commands, which the target has requested and for which it has memory, arrives after it on the same
//! connection: a session that waited for memory for the former could not receive the latter, and would wait for itself.
//! Thus the command window of a session has as many commands as there is memory for, which counts as receives of its
//! client. If that memory does not suffice for a useful window, all data is requested (`InitialR2T=Yes`,
//! `ImmediateData=No`), and gets memory when the client's share permits.

use millrace_admission::Account;
use millrace_buffer::BufferLengths;
use millrace_iscsi::{
    login::Status,
    negotiation::{Parameters, Settings},
    session::MAX_IMMEDIATE,
};

use crate::{
    config::ConnectionLimits,
    task::{CHUNK, memory_of},
};

/// The smallest window with unsolicited data, unless [`ConnectionLimits::max_unsolicited`] allows less: with fewer
/// commands in progress, requesting the data costs less time than waiting for the window.
const MIN_WINDOW: u32 = 16;

/// Bytes of the receives that a transport posts for a session.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Receives {
    /// Indispensable ones, with that of one command.
    pub(crate) fixed: usize,
    /// For each further command of the window.
    pub(crate) command: usize,
}

/// The memory of the windows that a session may have.
struct Reserve {
    receives: Receives,
    /// Bytes of unsolicited data of a command.
    unsolicited: usize,
    /// The largest window.
    most: u32,
}

impl Reserve {
    fn new(limits: &ConnectionLimits, receives: Receives, settings: (bool, bool, u32)) -> Self {
        let (initial_r2t, immediate_data, first_burst) = settings;
        let none = initial_r2t && !immediate_data;
        let unsolicited = if none { 0 } else { memory_of(BufferLengths::new(first_burst as usize, CHUNK)) };
        let commands = limits.max_unsolicited.checked_div(unsolicited as u64);
        let commands = commands.map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX));
        Self { receives, unsolicited, most: commands.min(limits.max_tasks).max(1) }
    }

    fn bytes(&self, window: u32) -> usize {
        let immediate = MAX_IMMEDIATE * self.unsolicited;
        (window as usize - 1) * self.receives.command + window as usize * self.unsolicited + immediate
    }

    fn least(&self) -> u32 {
        if self.unsolicited == 0 { 1 } else { MIN_WINDOW.min(self.most) }
    }
}

/// The settings for a login: with unsolicited data only if there is memory for it, which the account is charged for.
/// Returns the charge.
pub(crate) fn settings(
    limits: &ConnectionLimits,
    receives: Receives,
    account: &mut Account,
) -> (Settings, usize) {
    let mut settings = limits.settings.clone();
    let wish = (settings.initial_r2t, settings.immediate_data, settings.first_burst);
    let reserve = Reserve::new(limits, receives, wish);
    let bytes = reserve.bytes(reserve.least());
    if account.take_receives(bytes) {
        return (settings, bytes);
    }
    (settings.initial_r2t, settings.immediate_data) = (true, false);
    (settings, 0)
}

/// Charges the receives and the unsolicited data of a session to `account`, which was charged `held` bytes for them
/// already, and returns its command window.
///
/// # Errors
/// The initiator has negotiated parameters that need more than what was charged, and the client's share does not permit
/// it.
pub(crate) fn window(
    limits: &ConnectionLimits,
    receives: Receives,
    parameters: &Parameters,
    account: &mut Account,
    held: usize,
) -> Result<u32, Status> {
    let Parameters { initial_r2t, immediate_data, first_burst, .. } = *parameters;
    let reserve = Reserve::new(limits, receives, (initial_r2t, immediate_data, first_burst));
    let mut window = reserve.most;
    loop {
        let bytes = reserve.bytes(window);
        if bytes <= held {
            account.give_receives(held - bytes);
            return Ok(window);
        }
        if account.take_receives(bytes - held) {
            return Ok(window);
        }
        if window <= reserve.least() {
            return Err(Status::OUT_OF_RESOURCES);
        }
        window = (window / 2).max(reserve.least());
    }
}
