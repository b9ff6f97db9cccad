//! Use of a host's cores by programs.

use std::{net::IpAddr, sync::Arc, time::Duration};

use millrace_runtime::Instant;

use super::Inner;
use crate::host::HostUse;

/// Time slice of a program in nanoseconds, which limits the delay of interrupts.
const SLICE: u64 = 100_000;
/// Time slice of a copy, in bytes.
pub(crate) const COPY_SLICE: u64 = 64 << 10;

impl Inner {
    /// Occupies a core of this host, and waits for the end.
    pub(crate) async fn work(self: Arc<Self>, host: usize, time: Duration) {
        let mut left = time.as_nanos() as u64;
        while left > 0 {
            let slice = left.min(SLICE);
            left -= slice;
            let done = self.net.lock().hosts[host].work(self.now(), slice);
            self.clock.sleep_until(Instant::from_nanos(done)).await;
        }
    }

    /// Copies on a core of this host, and waits for the end.
    pub(crate) async fn copy(self: Arc<Self>, host: usize, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let slice = left.min(COPY_SLICE);
            left -= slice;
            let now = self.now();
            let done = self.net.lock().hosts[host].copy(now, now, 0, slice);
            self.clock.sleep_until(Instant::from_nanos(done)).await;
        }
    }

    /// Holds the lock of this host's kernel while a core copies `bytes` bytes and then works for `time`, and waits
    /// for the end.
    pub(crate) async fn locked(self: Arc<Self>, host: usize, bytes: u64, time: Duration) {
        let (now, cost) = (self.now(), time.as_nanos() as u64);
        let done = self.net.lock().hosts[host].under_lock(now, |h, at| h.copy(now, at, cost, bytes));
        self.clock.sleep_until(Instant::from_nanos(done)).await;
    }

    pub(crate) fn stall(&self, host: usize, time: Duration) {
        let until = self.now() + time.as_nanos() as u64;
        self.net.lock().hosts[host].stall(until);
    }

    pub(crate) fn host_use(&self, ip: IpAddr) -> Option<HostUse> {
        let net = self.net.lock();
        net.host_of(ip).map(|h| net.hosts[h].used)
    }
}
