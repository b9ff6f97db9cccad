//! Groups of callers from the user database of the server's host (`manage_groups`), as by `rpc.mountd --manage-gids` of
//! Linux: AUTH_SYS carries at most 16.

use std::{collections::HashMap, io, ops::RangeInclusive, sync::Arc, time::Duration};

use futures::{FutureExt, channel::oneshot, future::Shared};
use millrace_oncrpc::{CallContext, CallHeader, Credential, MaybeReady, Outcome, Plan, Program, Sender};
use millrace_runtime::{Instant, RuntimeRef, sync::Mutex};
use millrace_xdr::{Decoder, Encoder};
use nix::unistd::{Uid, User, getgrouplist};
use tokio::sync::Semaphore;

/// Time for which the groups of a user are kept.
const TTL: Duration = Duration::from_mins(5);
/// Time after which a failed lookup is repeated.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum number of users whose groups are kept: a caller can state any user.
const MAX_USERS: usize = 4096;
/// Maximum number of lookups at a time. Each occupies a thread, and may wait for a directory service.
const MAX_LOOKUPS: usize = 8;

/// The groups of a user; `None` if the database does not have it.
type Found = Option<Arc<[u32]>>;
/// Looks up the groups of a user ID.
type LookUp = fn(u32) -> io::Result<Option<Vec<u32>>>;

/// The groups of users, kept for a while.
pub(crate) struct Groups {
    rt: RuntimeRef,
    look_up: LookUp,
    lookups: Arc<Semaphore>,
    users: Mutex<HashMap<u32, Entry>>,
}

struct Entry {
    until: Instant,
    /// An error if the lookup has failed.
    found: Shared<oneshot::Receiver<Found>>,
}

/// Looks up the groups of a user in the databases of nsswitch.conf(5).
fn look_up(uid: u32) -> io::Result<Option<Vec<u32>>> {
    let Some(user) = User::from_uid(Uid::from_raw(uid))? else { return Ok(None) };
    let name = std::ffi::CString::new(user.name)?;
    Ok(Some(getgrouplist(&name, user.gid)?.into_iter().map(|gid| gid.as_raw()).collect()))
}

impl Groups {
    pub(crate) fn new(rt: &RuntimeRef) -> Arc<Self> {
        Self::with(rt, look_up)
    }

    fn with(rt: &RuntimeRef, look_up: LookUp) -> Arc<Self> {
        let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS));
        Arc::new(Self { rt: Arc::clone(rt), look_up, lookups, users: Mutex::default() })
    }

    /// Looks up all users again.
    pub(crate) fn clear(&self) {
        self.users.lock().clear();
    }

    /// The groups of `uid`, which is looked up if necessary. A failure counts as a user that the database does not have.
    fn of(&self, uid: u32) -> MaybeReady<'static, Found> {
        let now = self.rt.now();
        let mut users = self.users.lock();
        let kept = users.get(&uid).filter(|entry| entry.until > now).filter(|entry| {
            entry.found.peek().is_none_or(|found| found.is_ok() || entry.until > now + (TTL - RETRY))
        });
        let found = match kept {
            Some(entry) => match entry.found.peek() {
                Some(found) => return MaybeReady::Ready(found.clone().unwrap_or_default()),
                None => entry.found.clone(),
            },
            None => {
                if users.len() >= MAX_USERS {
                    users.retain(|_, entry| entry.until > now);
                }
                if users.len() >= MAX_USERS
                    && let Some(oldest) =
                        users.iter().min_by_key(|(_, entry)| entry.until).map(|(uid, _)| *uid)
                {
                    users.remove(&oldest);
                }
                let found = self.start(uid).shared();
                users.insert(uid, Entry { until: now + TTL, found: found.clone() });
                found
            }
        };
        MaybeReady::wait(async move { found.await.unwrap_or_default() })
    }

    /// Looks up `uid` as blocking work, also if nothing waits for the result.
    fn start(&self, uid: u32) -> oneshot::Receiver<Found> {
        let (done, found) = oneshot::channel();
        let (rt, look_up, lookups) = (Arc::clone(&self.rt), self.look_up, Arc::clone(&self.lookups));
        let task = async move {
            let Ok(permit) = lookups.acquire_owned().await else { return };
            rt.spawn_blocking(Box::new(move || {
                match look_up(uid) {
                    Ok(groups) => drop(done.send(groups.map(Arc::from))),
                    Err(e) => {
                        tracing::warn!(
                            uid,
                            "cannot look up the groups of a user; those of its calls apply: {e}"
                        );
                    }
                }
                drop(permit);
            }));
        };
        self.rt.spawn("look up groups", Box::pin(task));
        found
    }
}

/// A program whose callers have the groups of the database. Users that it does not have keep those of their calls.
pub(crate) struct Managed<P> {
    pub(crate) program: Arc<P>,
    pub(crate) groups: Arc<Groups>,
}

/// `call` with `groups` of its caller.
fn with_groups(mut call: CallContext, groups: &[u32]) -> CallContext {
    let Credential::Sys(sys) = &call.sender.credential else { return call };
    if sys.gids[..] != *groups {
        let mut sys = sys.clone();
        sys.gids = groups.into();
        let certificate = call.sender.certificate.clone();
        call.sender =
            Arc::new(Sender { peer: call.sender.peer, credential: Credential::Sys(sys), certificate });
    }
    call
}

impl<P: Program> Program for Managed<P> {
    fn number(&self) -> u32 {
        self.program.number()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.program.versions()
    }

    fn plan(&self, header: &CallHeader, args: &mut Decoder<'_>, length: usize) -> Plan {
        self.program.plan(header, args, length)
    }

    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome> {
        let Credential::Sys(sys) = &call.sender.credential else { return self.program.call(call, reply) };
        match self.groups.of(sys.uid) {
            MaybeReady::Ready(None) => self.program.call(call, reply),
            MaybeReady::Ready(Some(groups)) => self.program.call(with_groups(call, &groups), reply),
            MaybeReady::Pending(groups) => {
                let program = Arc::clone(&self.program);
                MaybeReady::wait(async move {
                    let call = match groups.await {
                        Some(groups) => with_groups(call, &groups),
                        None => call,
                    };
                    program.call(call, reply).await
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use millrace_runtime::{RuntimeExt, virtual_time::VirtualTime};

    use super::*;

    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

    /// User 1 has 100 groups; 2 fails; others do not exist.
    fn scripted(uid: u32) -> io::Result<Option<Vec<u32>>> {
        LOOKUPS.fetch_add(1, Ordering::Relaxed);
        match uid {
            1 => Ok(Some((0..100).collect())),
            2 => Err(io::Error::other("no directory service")),
            _ => Ok(None),
        }
    }

    #[test]
    fn groups_are_looked_up_once_and_again_after_a_while() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let groups = Groups::with(&rt, scripted);
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
            for uid in 10..10 + 2 * MAX_USERS as u32 {
                assert_eq!(groups.of(uid).await, None);
            }
            assert_eq!((groups.users.lock().len(), lookups()), (MAX_USERS, 2 * MAX_USERS));
        })
        .unwrap();
    }

    #[test]
    fn the_database_of_the_host_has_root() {
        assert_eq!(look_up(0).unwrap().map(|groups| groups.contains(&0)), Some(true));
        assert_eq!(look_up(4_000_000_000).unwrap(), None);
    }
}
