//! Usage counters by export and client, and latency histograms of calls.
//!
//! Each shard has separate counters that only it writes; they are summed when they are read.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_runtime::sync::Mutex;

/// Number of buckets of [`LatencyStats`].
pub const LATENCY_BUCKETS: usize = 22;
/// Maximum number of clients with separate counters per shard; beyond it, clients without connections are
/// counted together.
const MAX_CLIENTS: usize = 1024;

/// Adds to a counter that only the calling shard writes, without a locked instruction.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

pub(crate) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Latency histogram.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    buckets: [AtomicU64; LATENCY_BUCKETS],
    nanos: AtomicU64,
}

/// Duration of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallDuration {
    nanos: u64,
    bucket: usize,
}

impl From<Duration> for CallDuration {
    fn from(duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { nanos, bucket: bucket(nanos) }
    }
}

impl Latency {
    pub(crate) fn record(&self, duration: CallDuration) {
        if let Some(b) = self.buckets.get(duration.bucket) {
            add(b, 1);
        }
        add(&self.nanos, duration.nanos);
    }

    pub(crate) fn add_to(&self, sum: &mut LatencyStats) {
        for (sum, b) in sum.buckets.iter_mut().zip(&self.buckets) {
            *sum += value(b);
        }
        sum.nanos = sum.nanos.wrapping_add(value(&self.nanos));
    }
}

/// The first bucket whose bound is at least `nanos`.
fn bucket(nanos: u64) -> usize {
    let micros = nanos.saturating_sub(1) / 1000;
    ((u64::BITS - micros.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

/// Latency of calls at the server: from the decoded call to the reply that is ready to be sent. Excludes the
/// network and the RDMA Reads of a WRITE's data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencyStats {
    /// Number of calls by latency: bucket i counts calls of at most 2^i microseconds and more than the bound
    /// of bucket i-1; the last one counts all longer calls.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// Total latency of all calls in nanoseconds.
    pub nanos: u64,
}

impl LatencyStats {
    /// Number of calls.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Bound of a bucket in seconds; `None` for the last one and beyond.
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

/// Usage by one export or client on one shard, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Usage {
    latency: Latency,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Usage {
    pub(crate) fn call(&self, duration: CallDuration) {
        self.latency.record(duration);
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

    /// Adds the counts of `other`, which has no writer any more.
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

/// Usage by an export or a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageStats {
    /// Number and latency of NFS calls (without NULL).
    pub latency: LatencyStats,
    /// Bytes returned by READ.
    pub bytes_read: u64,
    /// Bytes written by WRITE.
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

/// The clients of one shard by their names: addresses, or the owners of NFSv4 (`co_ownerid`).
#[derive(Debug)]
pub(crate) struct Clients<K> {
    known: Mutex<HashMap<K, Arc<Usage>>>,
    /// Counters of all clients that are not in `known`.
    rest: Arc<Usage>,
}

impl<K> Default for Clients<K> {
    fn default() -> Self {
        Self { known: Mutex::default(), rest: Arc::default() }
    }
}

impl<K: Hash + Eq + Clone> Clients<K> {
    /// The counters of a client; called once per connection, or when a connection uses another session.
    pub(crate) fn usage(&self, client: K) -> Arc<Usage> {
        let mut known = self.known.lock();
        if let Some(usage) = known.get(&client) {
            return Arc::clone(usage);
        }
        if known.len() >= MAX_CLIENTS {
            // A client without connections is moved to `rest`.
            let unused = known.iter().find(|(_, u)| Arc::strong_count(u) == 1).map(|(k, _)| k.clone());
            match unused.and_then(|a| known.remove(&a)) {
                Some(usage) => self.rest.absorb(&usage),
                None => return Arc::clone(&self.rest),
            }
        }
        Arc::clone(known.entry(client).or_default())
    }

    /// Adds the counts by client, and the rest.
    pub(crate) fn add_to(&self, sums: &mut HashMap<K, UsageStats>, rest: &mut UsageStats) {
        for (client, usage) in self.known.lock().iter() {
            usage.add_to(sums.entry(client.clone()).or_default());
        }
        self.rest.add_to(rest);
    }
}

#[cfg(test)]
mod tests {
    use millrace_admission::ClientAddr;

    use super::*;

    #[test]
    fn calls_are_counted_in_the_bucket_of_their_latency() {
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
    fn clients_without_connections_are_merged_into_the_rest() {
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
