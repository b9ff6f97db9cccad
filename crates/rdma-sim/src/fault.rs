//! What goes wrong, as the seed has it.

use std::time::Duration;

use millrace_runtime::virtual_time::Clock;

/// Which faults happen, and how often. Whether one happens is drawn for each message that leaves an adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// One message in so many takes its connection with it; 0: none.
    pub lose_one_in: u64,
    /// One message in so many, and all behind it on its connection, is held up; 0: none.
    pub delay_one_in: u64,
    /// For at most so long.
    pub longest_delay: Duration,
    /// At one message in so many the processors of its host stand still; 0: never.
    pub stall_one_in: u64,
    /// For at most so long.
    pub longest_stall: Duration,
}

/// What happens to a message.
pub(super) enum FaultOutcome {
    Sent,
    Lost,
    Held(u64),
    Stalled(u64),
}

impl Faults {
    /// Draws. Nothing is drawn for faults that never happen.
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
