//! How much each export and each client uses the server, and how long calls take.
//!
//! Each shard has counters of its own for each of them, which only it writes; they are summed when somebody asks.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_oncrpc::serving::ClientAddr;
use parking_lot::Mutex;

/// Buckets of [`LatencyStats`].
pub const LATENCY_BUCKETS: usize = 22;
/// Clients that a shard counts one by one; of more, some that have no connection are counted together.
const MAX_CLIENTS: usize = 1024;

/// Adds to a counter that only the calling shard writes: no locked instruction is needed.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

pub(crate) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// How long calls took.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    buckets: [AtomicU64; LATENCY_BUCKETS],
    nanos: AtomicU64,
}

/// How long one call took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    nanos: u64,
    bucket: usize,
}

impl From<Duration> for Took {
    fn from(took: Duration) -> Self {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        Self { nanos, bucket: bucket(nanos) }
    }
}

impl Latency {
    pub(crate) fn record(&self, took: Took) {
        if let Some(b) = self.buckets.get(took.bucket) {
            add(b, 1);
        }
        add(&self.nanos, took.nanos);
    }

    pub(crate) fn add_to(&self, sum: &mut LatencyStats) {
        for (sum, b) in sum.buckets.iter_mut().zip(&self.buckets) {
            *sum += value(b);
        }
        sum.nanos = sum.nanos.wrapping_add(value(&self.nanos));
    }
}

/// The bucket whose bound is the least that is not below `nanos`.
fn bucket(nanos: u64) -> usize {
    let micros = nanos.saturating_sub(1) / 1000;
    ((u64::BITS - micros.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

/// How long calls took at the server: from the decoded call to the reply that is ready to be sent. The network, and
/// the RDMA Reads of a WRITE's data, are not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencyStats {
    /// Calls by how long they took: bucket i those of at most 2^i microseconds (and more than bucket i-1); the last,
    /// all longer ones.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// Nanoseconds of all of them together.
    pub nanos: u64,
}

impl LatencyStats {
    /// Calls.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The bound of a bucket in seconds; `None` for the last one and beyond.
    pub fn bound(bucket: usize) -> Option<f64> {
        (bucket + 1 < LATENCY_BUCKETS).then(|| (1_u64 << bucket) as f64 / 1e6)
    }

    fn plus(&mut self, other: &Self) {
        for (sum, b) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += b;
        }
        self.nanos = self.nanos.wrapping_add(other.nanos);
    }
}

/// The use that one export or client makes of one shard, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Usage {
    latency: Latency,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Usage {
    pub(crate) fn call(&self, took: Took) {
        self.latency.record(took);
    }

    pub(crate) fn read(&self, bytes: u64) {
        add(&self.bytes_read, bytes);
    }

    pub(crate) fn written(&self, bytes: u64) {
        add(&self.bytes_written, bytes);
    }

    pub(crate) fn add_to(&self, sum: &mut UsageStats) {
        self.latency.add_to(&mut sum.latency);
        sum.bytes_read += value(&self.bytes_read);
        sum.bytes_written += value(&self.bytes_written);
    }

    /// Counts what `other`, of which nobody writes any more, has counted.
    fn absorb(&self, other: &Self) {
        let mut stats = UsageStats::default();
        other.add_to(&mut stats);
        for (sum, n) in self.latency.buckets.iter().zip(stats.latency.buckets) {
            add(sum, n);
        }
        add(&self.latency.nanos, stats.latency.nanos);
        self.read(stats.bytes_read);
        self.written(stats.bytes_written);
    }
}

/// How much an export or a client has used the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageStats {
    /// NFS calls (without NULL), and how long they took.
    pub latency: LatencyStats,
    /// Bytes given by READ.
    pub bytes_read: u64,
    /// Bytes taken by WRITE.
    pub bytes_written: u64,
}

impl UsageStats {
    /// Adds the counts of `other`.
    pub fn plus(&mut self, other: &Self) {
        self.latency.plus(&other.latency);
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

/// The clients of one shard, by address.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    known: Mutex<HashMap<ClientAddr, Arc<Usage>>>,
    /// All that are not in `known`.
    rest: Arc<Usage>,
}

impl Clients {
    /// Where a connection from `addr` is counted; asked once for each connection.
    pub(crate) fn usage(&self, addr: ClientAddr) -> Arc<Usage> {
        let mut known = self.known.lock();
        if let Some(usage) = known.get(&addr) {
            return Arc::clone(usage);
        }
        if known.len() >= MAX_CLIENTS {
            // Whoever has no connection any more makes room.
            let gone = known.iter().find(|(_, u)| Arc::strong_count(u) == 1).map(|(a, _)| *a);
            match gone.and_then(|a| known.remove(&a)) {
                Some(usage) => self.rest.absorb(&usage),
                None => return Arc::clone(&self.rest),
            }
        }
        Arc::clone(known.entry(addr).or_default())
    }

    /// Adds what is counted here by address, and the rest.
    pub(crate) fn add_to(&self, sums: &mut HashMap<ClientAddr, UsageStats>, rest: &mut UsageStats) {
        for (addr, usage) in self.known.lock().iter() {
            usage.add_to(sums.entry(*addr).or_default());
        }
        self.rest.add_to(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_in_the_bucket_whose_bound_it_does_not_exceed() {
        let cases = [
            (0, 0),
            (1_000, 0),
            (1_001, 1),
            (2_000, 1),
            (2_001, 2),
            (4_000, 2),
            (4_001, 3),
            (1_048_576_000, 20),
            (1_048_576_001, 21),
            (u64::MAX, 21),
        ];
        for (nanos, expected) in cases {
            let b = bucket(nanos);
            assert_eq!(b, expected, "{nanos}");
            let seconds = nanos as f64 / 1e9;
            assert!(LatencyStats::bound(b).is_none_or(|bound| seconds <= bound), "{nanos}");
            assert!(b == 0 || LatencyStats::bound(b - 1).is_some_and(|bound| seconds > bound), "{nanos}");
        }
    }

    #[test]
    fn clients_that_left_make_room_and_stay_in_the_sum() {
        let clients = Clients::default();
        let addr = |i: usize| ClientAddr::from(std::net::IpAddr::from([10, 0, (i >> 8) as u8, i as u8]));
        let stays = clients.usage(addr(0));
        for i in 1..3 * MAX_CLIENTS {
            let usage = clients.usage(addr(i));
            usage.call(Duration::from_micros(i as u64).into());
            usage.read(1);
        }
        stays.read(100);
        let (mut sums, mut rest) = (HashMap::new(), UsageStats::default());
        clients.add_to(&mut sums, &mut rest);
        assert_eq!(sums.len(), MAX_CLIENTS);
        assert_eq!(sums[&addr(0)].bytes_read, 100);
        sums.values().for_each(|u| rest.plus(u));
        assert_eq!(rest.bytes_read, 100 + 3 * MAX_CLIENTS as u64 - 1);
        assert_eq!(rest.latency.count(), 3 * MAX_CLIENTS as u64 - 1);
    }
}
