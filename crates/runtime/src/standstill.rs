//! Noticing that something does not go on.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use crate::{RuntimeExt, RuntimeRef, Sleep};

/// Notices that a count does not change for some time. Its timer is left to run when the count changes, and looks again
/// when it fires, so that a timer is made once in that time and not at each change; it is noticed after one to two
/// times as long.
#[derive(Default)]
pub struct Standstill(Option<(Sleep, u64)>);

impl Standstill {
    /// Ready when `count` has not changed for `limit` while this was polled. Not polled for a while (since nothing was to
    /// be waited for), it begins anew if the count is another one.
    pub fn poll(&mut self, cx: &mut Context<'_>, rt: &RuntimeRef, limit: Duration, count: u64) -> Poll<()> {
        loop {
            let (sleep, at) = self.0.get_or_insert_with(|| (rt.sleep(limit), count));
            ready!(Pin::new(sleep).poll(cx));
            if *at == count {
                return Poll::Ready(());
            }
            self.0 = None;
        }
    }
}
