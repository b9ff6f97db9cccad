//! Times of the operations of a COMPOUND.

use std::time::Duration;

use millrace_nfs::v4::Operation;
use millrace_runtime::{Instant, RuntimeRef, yield_now};

/// Measures a COMPOUND and its operations. It reads the clock at the end of each measured operation, and at the end of
/// the COMPOUND only if another operation is the last one: SEQUENCE, PUTFH, READ reads it no more often than a READ of
/// NFSv3.
pub(super) struct Timer {
    started: Instant,
    /// The end of the last measured operation.
    measured: Instant,
    /// Whether no operation has followed the last measured one.
    is_last: bool,
    /// The end of the last pause.
    resumed: Instant,
}

/// Time after which a COMPOUND lets others run between two operations. Those of a memory export do not wait.
const MAX_TIME: Duration = Duration::from_millis(1);

impl Timer {
    /// Starts with the first operation.
    pub(super) fn start(rt: &RuntimeRef) -> Self {
        let now = rt.now();
        Self { started: now, measured: now, is_last: false, resumed: now }
    }

    /// The time of the start.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// The time since the last measured operation, after `operation`; `None` if it is not measured.
    pub(super) fn executed(&mut self, operation: Operation, rt: &RuntimeRef) -> Option<Duration> {
        self.is_last = is_measured(operation);
        self.is_last.then(|| {
            let now = rt.now();
            now.duration_since(std::mem::replace(&mut self.measured, now))
        })
    }

    /// Lets others run if the operations up to the last measured one have taken [`MAX_TIME`] since the last pause.
    pub(super) async fn pause_if_late(&mut self, rt: &RuntimeRef) {
        if self.measured.duration_since(self.resumed) >= MAX_TIME {
            yield_now().await;
            self.resumed = rt.now();
        }
    }

    /// The time since the start, after the last operation.
    pub(super) fn total(&self, rt: &RuntimeRef) -> Duration {
        let end = if self.is_last { self.measured } else { rt.now() };
        end.duration_since(self.started)
    }
}

/// Whether the operation is measured. The others only select a session or a file handle, which takes less time than the
/// measurement; the next operation includes their time.
const fn is_measured(operation: Operation) -> bool {
    use Operation as Op;
    !matches!(
        operation,
        Op::Sequence | Op::Putfh | Op::Putpubfh | Op::Putrootfh | Op::Getfh | Op::Savefh | Op::RestoreFh
    )
}

#[cfg(test)]
mod tests {
    use millrace_runtime::{RuntimeExt, virtual_time::VirtualTime};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_compound_pauses_after_a_millisecond() {
        use futures::FutureExt;
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let mut timer = Timer::start(&rt);
            let mut pauses = Vec::new();
            for micros in [400, 599, 1, 999, 1, 3000, 10] {
                rt.sleep(Duration::from_micros(micros)).await;
                timer.executed(Operation::Copy, &rt);
                let mut pause = Box::pin(timer.pause_if_late(&rt));
                let paused = pause.as_mut().now_or_never().is_none();
                if paused {
                    pause.await;
                }
                pauses.push(paused);
            }
            assert_eq!(pauses, [false, false, true, false, true, true, false]);
        })
        .unwrap();
    }

    #[test]
    fn an_operation_includes_the_time_of_those_before_it_that_are_not_measured() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let mut timer = Timer::start(&rt);
            let mut found = Vec::new();
            for operation in [Operation::Sequence, Operation::Putfh, Operation::Read, Operation::Getattr] {
                rt.sleep(SECOND).await;
                found.push(timer.executed(operation, &rt));
            }
            assert_eq!(found, [None, None, Some(3 * SECOND), Some(SECOND)]);
            rt.sleep(SECOND).await;
            assert_eq!(timer.total(&rt), 4 * SECOND, "the end of the last operation");
            timer.executed(Operation::Getfh, &rt);
            assert_eq!(timer.total(&rt), 5 * SECOND, "GETFH is not measured, so that now is the end");
        })
        .unwrap();
    }
}
