//! Lookups that may block, of which the results are kept.

use std::{collections::HashMap, fmt, hash::Hash, io, sync::Arc, time::Duration};

use futures::{FutureExt, channel::oneshot, future::Shared};
use millrace_runtime::{Instant, MaybeReady, RuntimeRef, sync::Mutex};
use tokio::sync::Semaphore;

/// Time for which the result of a lookup is kept.
const TTL: Duration = Duration::from_mins(5);
/// Time after which a failed lookup is repeated.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum number of kept results: a peer can state any user.
const MAX_KEPT: usize = 4096;
/// Maximum number of lookups at a time. Each occupies a thread, and may wait for a directory service.
const MAX_LOOKUPS: usize = 8;

/// Looks up a key. May block.
type LookUp<K, V> = dyn Fn(&K) -> io::Result<Option<V>> + Send + Sync;

/// What a database has for keys. Results are kept for five minutes, failures for ten seconds, 4096 of both. Lookups run on
/// threads for work that blocks, eight at a time.
pub struct Lookups<K, V> {
    rt: RuntimeRef,
    look_up: Arc<LookUp<K, V>>,
    permits: Arc<Semaphore>,
    kept: Mutex<HashMap<K, Entry<V>>>,
}

struct Entry<V> {
    until: Instant,
    /// An error if the lookup has failed.
    found: Shared<oneshot::Receiver<Option<V>>>,
}

impl<K, V> fmt::Debug for Lookups<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookups").finish_non_exhaustive()
    }
}

impl<K, V> Lookups<K, V>
where
    K: Clone + Eq + Hash + fmt::Debug + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// `look_up` looks up a key, and may block. An error counts as nothing, and is logged.
    pub fn new(
        rt: &RuntimeRef,
        look_up: impl Fn(&K) -> io::Result<Option<V>> + Send + Sync + 'static,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_LOOKUPS));
        Self { rt: Arc::clone(rt), look_up: Arc::new(look_up), permits, kept: Mutex::default() }
    }

    /// Looks up everything again.
    pub fn clear(&self) {
        self.kept.lock().clear();
    }

    /// Number of kept results.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.kept.lock().len()
    }

    /// What the database has for `key`, which is looked up if necessary. A failure counts as nothing.
    pub fn of(&self, key: K) -> MaybeReady<'static, Option<V>> {
        let now = self.rt.now();
        let mut all = self.kept.lock();
        let kept = all.get(&key).filter(|entry| entry.until > now).filter(|entry| {
            entry.found.peek().is_none_or(|found| found.is_ok() || entry.until > now + (TTL - RETRY))
        });
        let found = match kept {
            Some(entry) => match entry.found.peek() {
                Some(found) => return MaybeReady::Ready(found.clone().unwrap_or_default()),
                None => entry.found.clone(),
            },
            None => {
                if all.len() >= MAX_KEPT {
                    all.retain(|_, entry| entry.until > now);
                }
                if all.len() >= MAX_KEPT
                    && let Some(oldest) =
                        all.iter().min_by_key(|(_, entry)| entry.until).map(|(key, _)| key.clone())
                {
                    all.remove(&oldest);
                }
                let found = self.start(key.clone()).shared();
                all.insert(key, Entry { until: now + TTL, found: found.clone() });
                found
            }
        };
        MaybeReady::wait(async move { found.await.unwrap_or_default() })
    }

    /// Looks up `key` as blocking work, also if nothing waits for the result.
    fn start(&self, key: K) -> oneshot::Receiver<Option<V>> {
        let (done, found) = oneshot::channel();
        let (rt, look_up, permits) =
            (Arc::clone(&self.rt), Arc::clone(&self.look_up), Arc::clone(&self.permits));
        let task = async move {
            let Ok(permit) = permits.acquire_owned().await else { return };
            rt.spawn_blocking(Box::new(move || {
                match look_up(&key) {
                    Ok(result) => drop(done.send(result)),
                    Err(e) => tracing::warn!("cannot look up {key:?} in the user database: {e}"),
                }
                drop(permit);
            }));
        };
        self.rt.spawn("look up a user", Box::pin(task));
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use millrace_runtime::{RuntimeExt, virtual_time::VirtualTime};

    use super::*;

    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

    /// User 1 has 100 groups; 2 fails; others do not exist.
    fn scripted(uid: &u32) -> io::Result<Option<Arc<[u32]>>> {
        LOOKUPS.fetch_add(1, Ordering::Relaxed);
        match uid {
            1 => Ok(Some((0..100).collect())),
            2 => Err(io::Error::other("no directory service")),
            _ => Ok(None),
        }
    }

    #[test]
    fn a_key_is_looked_up_once_and_again_after_a_while() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let groups = Lookups::new(&rt, scripted);
            let lookups = || LOOKUPS.swap(0, Ordering::Relaxed);
            let both = futures::join!(groups.of(1).into_future(), groups.of(1).into_future());
            assert_eq!(
                (both.0.map(|g| g.len()), both.1.map(|g| g.len()), lookups()),
                (Some(100), Some(100), 1)
            );
            assert!(matches!(groups.of(1), MaybeReady::Ready(Some(_))));
            rt.sleep(TTL).await;
            assert_eq!((groups.of(1).await.map(|g| g.len()), lookups()), (Some(100), 1));
            groups.clear();
            assert_eq!((groups.of(1).await.map(|g| g.len()), lookups()), (Some(100), 1));
            assert_eq!((groups.of(2).await, groups.of(2).await, lookups()), (None, None, 1));
            rt.sleep(RETRY).await;
            assert_eq!((groups.of(2).await, lookups()), (None, 1));
            for uid in 10..10 + 2 * MAX_KEPT as u32 {
                assert_eq!(groups.of(uid).await, None);
            }
            assert_eq!((groups.len(), lookups()), (MAX_KEPT, 2 * MAX_KEPT));
        })
        .unwrap();
    }
}
