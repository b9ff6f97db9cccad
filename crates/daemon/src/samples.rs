//! The work of the last minutes, for the status page.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use futures::future::{Either, select};
use millrace_runtime::sync::Mutex;
use millrace_server::{Stats, StatsReader, UsageStats};

/// Time between two samples.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);
/// Number of samples.
const KEPT: usize = 121;
/// Number of [`Rates`] of the samples.
pub(crate) const RATES: usize = KEPT - 1;

/// Counters since the start of a server: NFS calls and SCSI commands, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Work {
    calls: u64,
    read: u64,
    written: u64,
}

impl From<&Stats> for Work {
    fn from(stats: &Stats) -> Self {
        let mut nfs: UsageStats = stats.other_clients;
        stats.clients.iter().for_each(|(_, usage)| nfs.plus(usage));
        let iscsi = &stats.iscsi;
        Self {
            calls: nfs.latency.count() + iscsi.reads + iscsi.writes + iscsi.others,
            read: stats.bytes_read + iscsi.bytes_read,
            written: stats.bytes_written + iscsi.bytes_written,
        }
    }
}

/// Work per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) calls: f64,
    pub(crate) read: f64,
    pub(crate) written: f64,
}

/// The last samples, the oldest first.
#[derive(Default)]
pub(crate) struct Samples(Mutex<VecDeque<(Instant, Work)>>);

impl Samples {
    /// Takes samples until `stopping` completes.
    pub(crate) async fn record(&self, reader: &StatsReader, stopping: impl Future<Output = ()>) {
        let mut stop = Box::pin(stopping);
        loop {
            self.add(Instant::now(), Work::from(&reader.stats()));
            match select(Box::pin(tokio::time::sleep(INTERVAL)), stop).await {
                Either::Left(((), rest)) => stop = rest,
                Either::Right(_) => return,
            }
        }
    }

    fn add(&self, at: Instant, work: Work) {
        let mut samples = self.0.lock();
        if samples.len() == KEPT {
            samples.pop_front();
        }
        samples.push_back((at, work));
    }

    /// The rates between two samples each, the oldest first; at most [`RATES`].
    pub(crate) fn rates(&self) -> Vec<Rates> {
        let samples = self.0.lock();
        let pairs = samples.iter().zip(samples.iter().skip(1));
        let rates = pairs.map(|((start, old), (end, new))| {
            let seconds = end.duration_since(*start).as_secs_f64().max(f64::EPSILON);
            let per_second = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
            Rates {
                calls: per_second(old.calls, new.calls),
                read: per_second(old.read, new.read),
                written: per_second(old.written, new.written),
            }
        });
        rates.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_samples() {
        let (samples, start) = (Samples::default(), Instant::now());
        for n in 0..KEPT as u64 + 50 {
            // The calls of every interval are one more than those of the one before.
            let work = Work { calls: n * (n + 1) / 2, read: 10 * n, written: 1000 - n };
            samples.add(start + 2 * INTERVAL * n as u32, work);
        }
        let rates = samples.rates();
        assert_eq!(rates.len(), RATES);
        let seconds = 2.0 * INTERVAL.as_secs_f64();
        let expected = Rates { calls: 51.0 / seconds, read: 10.0 / seconds, written: 0.0 };
        assert_eq!((rates[0], rates.last().unwrap().calls), (expected, 170.0 / seconds));
        assert!(Samples::default().rates().is_empty());
    }
}
