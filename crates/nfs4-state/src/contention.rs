//! Conditions under which a file is not delegated: changes in progress, and recent recalls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use siphasher::sip::SipHasher13;

/// Number of buckets. Files of one bucket keep each other from being delegated.
const BUCKETS: usize = 1024;

/// Files with the same hash.
#[derive(Debug, Default)]
struct Bucket {
    /// Number of changes in progress.
    changes: AtomicUsize,
    /// Time in milliseconds until which no file is delegated.
    paused_until: AtomicU64,
}

/// All files, in a fixed amount of memory.
#[derive(Debug)]
pub(crate) struct Contention {
    hash: SipHasher13,
    buckets: Box<[Bucket]>,
}

impl Contention {
    /// With the `secret` of the server instance, clients cannot choose files of one bucket; and a seed of a simulation, from
    /// which the secret follows, determines the files that share one.
    pub(crate) fn new(secret: &[u8; 16]) -> Self {
        Self {
            hash: SipHasher13::new_with_key(secret),
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
        }
    }

    pub(crate) fn index(&self, file: &[u8]) -> usize {
        self.hash.hash(file) as usize % BUCKETS
    }

    /// Counts a change in progress. The caller then looks for delegations, and the caller of
    /// [`is_changing`](Self::is_changing) has added one before: at least one of them reads the change by the
    /// other.
    pub(crate) fn begin(self: &Arc<Self>, file: &[u8]) -> Changing {
        let index = self.index(file);
        self.buckets[index].changes.fetch_add(1, Ordering::SeqCst);
        Changing(Some((Arc::clone(self), index)))
    }

    pub(crate) fn is_changing(&self, file: &[u8]) -> bool {
        self.buckets[self.index(file)].changes.load(Ordering::SeqCst) != 0
    }

    /// Prevents delegations of the file until `end`.
    pub(crate) fn pause(&self, file: &[u8], end: Duration) {
        let end = u64::try_from(end.as_millis()).unwrap_or(u64::MAX);
        self.buckets[self.index(file)].paused_until.fetch_max(end, Ordering::Relaxed);
    }

    pub(crate) fn is_paused(&self, file: &[u8], now: Duration) -> bool {
        let end = self.buckets[self.index(file)].paused_until.load(Ordering::Relaxed);
        now.as_millis() < u128::from(end)
    }
}

/// A change of a file by a caller without an open. While it exists, the file is not delegated.
#[derive(Debug, Default)]
#[must_use = "the file may be delegated when this is dropped"]
pub struct Changing(Option<(Arc<Contention>, usize)>);

impl Drop for Changing {
    fn drop(&mut self) {
        if let Some((contention, index)) = &self.0 {
            contention.buckets[*index].changes.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_change_counts_until_it_ends() {
        let contention = Arc::new(Contention::new(&[0; 16]));
        let (first, second) = (contention.begin(b"f"), contention.begin(b"f"));
        drop(first);
        assert!(contention.is_changing(b"f"));
        drop(second);
        assert!(!contention.is_changing(b"f"));
        drop(Changing::default());
    }

    #[test]
    fn the_secret_alone_determines_the_bucket() {
        let indices = |secret| (0..=u8::MAX).map(|n| Contention::new(secret).index(&[n])).collect::<Vec<_>>();
        assert_eq!(indices(&[1; 16]), indices(&[1; 16]));
        assert_ne!(indices(&[1; 16]), indices(&[2; 16]));
    }

    #[test]
    fn a_pause_is_never_shortened() {
        let contention = Contention::new(&[0; 16]);
        contention.pause(b"f", S(30));
        contention.pause(b"f", S(10));
        assert!(contention.is_paused(b"f", S(29)) && !contention.is_paused(b"f", S(30)));
    }
}
