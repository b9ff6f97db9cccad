//! Injected faults, drawn from the seed.

use std::time::Duration;

use millrace_runtime::virtual_time::Clock;

/// Kinds of faults and their frequency. A fault is drawn for each message that leaves an adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// One message in N causes the loss of its connection; 0: none.
    pub lose_one_in: u64,
    /// One message in N is delayed, with all later messages of its connection; 0: none.
    pub delay_one_in: u64,
    /// Maximum delay.
    pub longest_delay: Duration,
    /// One message in N stops the processors of its host; 0: none.
    pub stall_one_in: u64,
    /// Maximum duration of a stop.
    pub longest_stall: Duration,
}

/// Effect of the faults on a message.
pub(super) enum FaultOutcome {
    Sent,
    Lost,
    Held(u64),
    Stalled(u64),
}

impl Faults {
    /// Draws the outcome for a message. No random number is drawn for faults that are disabled.
    pub(super) fn draw(&self, clock: &Clock) -> FaultOutcome {
        let hit = |one_in: u64| one_in > 0 && clock.random().is_multiple_of(one_in);
        let up_to = |longest: Duration| clock.random() % (longest.as_nanos() as u64).max(1);
        if hit(self.lose_one_in) {
            FaultOutcome::Lost
        } else if hit(self.delay_one_in) {
            FaultOutcome::Held(up_to(self.longest_delay))
        } else if hit(self.stall_one_in) {
            FaultOutcome::Stalled(up_to(self.longest_stall))
        } else {
            FaultOutcome::Sent
        }
    }
}
