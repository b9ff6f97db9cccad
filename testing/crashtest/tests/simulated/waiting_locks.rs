//! Locks that wait for another client.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt,
    future::{join, join_all, join3},
};
use millrace_client::{LockKind, Proto, Strategy, Version, handles::File};
use millrace_crashtest::cluster::{Cluster, mount, options};
use millrace_nfs::v4::Operation;
use millrace_rdma_sim::Profile;
use millrace_runtime::{
    BoxFuture, Instant, Runtime, RuntimeExt, RuntimeRef, Sleep, timeout, virtual_time::VirtualTime,
};

/// The time for which a lock is held, in which the other client has reached the longest interval of its attempts.
const HELD: Duration = Duration::from_millis(10_500);

/// One owner locks, another one waits, and the first one unlocks. Returns the time between the unlock and the lock.
async fn passed_on(rt: &RuntimeRef, from: &File, to: &File) -> Duration {
    from.lock(1, 0..10, LockKind::Exclusive).await.unwrap();
    let unlocked = async {
        rt.sleep(HELD).await;
        from.unlock(1, 0..10).await.unwrap();
        rt.now()
    };
    let locked = async {
        rt.sleep(Duration::from_millis(1)).await;
        to.lock(2, 5..20, LockKind::Exclusive).await.unwrap();
        rt.now()
    };
    let (unlocked, locked) = futures::join!(unlocked, locked);
    to.unlock(2, 5..20).await.unwrap();
    locked.duration_since(unlocked)
}

/// A new file, as two clients have it.
async fn file_of_two_clients(rt: &RuntimeRef, cluster: &Cluster, proto: Proto) -> [File; 2] {
    let options = || options(Strategy::Cache).vers(Some(Version::V4_2));
    let a = mount(&cluster.world, rt, 0, proto, options()).await.expect("cannot mount");
    let b = mount(&cluster.world, rt, 1, proto, options()).await.expect("cannot mount");
    let one = a.create_file("f", 0o600).await.unwrap();
    let two = File::new(b, one.handle());
    [one, two]
}

fn with_two_clients(proto: Proto, idle_timeout: u64, test: impl AsyncFn(&RuntimeRef, &Cluster, [File; 2])) {
    let time = VirtualTime::new(7);
    let profile = Profile::named("gige-2003").expect("unknown profile");
    let mut cluster = Cluster::new(&time, profile);
    cluster.config.limits.idle_timeout = idle_timeout;
    cluster.start(&time);
    let rt = time.runtime();
    let done = time.block_on(async {
        let files = file_of_two_clients(&rt, &cluster, proto).await;
        test(&rt, &cluster, files).await;
    });
    done.expect("the run made no progress");
}

#[test]
fn a_notification_of_the_server_ends_the_wait_for_a_lock() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        with_two_clients(proto, 3600, async |rt, cluster, [one, two]| {
            for n in 1..=3 {
                let attempts = cluster.stats().operations_of(Operation::Lock);
                let took = passed_on(rt, &one, &two).await;
                let attempts = cluster.stats().operations_of(Operation::Lock) - attempts;
                assert!(took < Duration::from_millis(5), "{proto}: {took:?}");
                assert_eq!(cluster.stats().nfs4_locks_notified, n);
                // Two locks, and the attempts after 10, 20, ..., 640 ms and each second.
                assert!(attempts < 24, "{proto}: {attempts}");
            }
        });
    }
}

/// The server closes the idle connection, which was the one for callbacks.
#[test]
fn callbacks_use_the_next_connection_after_the_loss_of_one() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        with_two_clients(proto, 5, async |rt, cluster, [one, two]| {
            let opened = || cluster.stats().tcp.opened + cluster.stats().rdma.opened;
            let before = opened();
            rt.sleep(Duration::from_secs(300)).await;
            let took = passed_on(rt, &one, &two).await;
            assert!(opened() >= before + 2, "{proto}: the clients have other connections");
            assert!(took < Duration::from_millis(5), "{proto}: {took:?}");
            assert_eq!(cluster.stats().nfs4_locks_notified, 1);
        });
    }
}

/// Owners of a client that the server notifies.
const NOTIFIED: u64 = 256;

/// The server notifies a limited number of the waiting owners of a client. The attempts of the others find their lock.
#[test]
fn a_lock_is_found_without_notifications() {
    with_two_clients(Proto::Rdma, 3600, async |rt, cluster, [one, two]| {
        one.lock(3, 100..101, LockKind::Exclusive).await.unwrap();
        let others = join_all((0..NOTIFIED).map(|n| two.lock(100 + n, 100..101, LockKind::Shared)));
        let last = async {
            rt.sleep(Duration::from_secs(1)).await;
            let took = passed_on(rt, &one, &two).await;
            assert!(took <= Duration::from_millis(1010), "{took:?}");
            assert_eq!(cluster.stats().nfs4_locks_notified, 0);
            one.unlock(3, 100..101).await.unwrap();
        };
        let (others, ()) = join(others, last).await;
        others.into_iter().for_each(|lock| lock.unwrap());
        assert!(cluster.stats().nfs4_locks_notified > 0);
    });
}

/// A runtime whose tasks may run before `spawn` returns, as on another processor.
struct Eager(RuntimeRef);

impl Runtime for Eager {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn wall_clock(&self) -> Duration {
        self.0.wall_clock()
    }

    fn is_virtual(&self) -> bool {
        self.0.is_virtual()
    }

    fn sleep_until(&self, at: Instant) -> Sleep {
        self.0.sleep_until(at)
    }

    fn spawn(&self, name: &'static str, mut task: BoxFuture<'static, ()>) {
        if (&mut task).now_or_never().is_none() {
            self.0.spawn(name, task);
        }
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.0.spawn_blocking(work);
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.0.fill_random(bytes);
    }
}

/// The caller gives up a lock when the reply has arrived and it has not seen it.
#[test]
fn a_granted_lock_that_is_given_up_is_not_held() {
    for waits in [false, true] {
        let time = VirtualTime::new(7);
        let mut cluster = Cluster::new(&time, Profile::named("gige-2003").unwrap());
        cluster.start(&time);
        let rt = time.runtime();
        let done = time.block_on(async {
            let options = || options(Strategy::Cache).vers(Some(Version::V4_2));
            let eager: RuntimeRef = Arc::new(Eager(rt.clone()));
            let a = mount(&cluster.world, &eager, 0, Proto::Tcp, options()).await.unwrap();
            let b = mount(&cluster.world, &rt, 1, Proto::Tcp, options()).await.unwrap();
            let one = a.create_file("f", 0o600).await.unwrap();
            let two = File::new(b, one.handle());
            let mut locking = Box::pin(async {
                match waits {
                    true => one.lock(1, 0..10, LockKind::Exclusive).await,
                    false => one.try_lock(1, 0..10, LockKind::Exclusive).await.map(drop),
                }
            });
            while cluster.stats().operations_of(Operation::Lock) == 0 {
                assert!((&mut locking).now_or_never().is_none(), "the lock is granted later");
                rt.sleep(Duration::from_micros(20)).await;
            }
            rt.sleep(Duration::from_secs(1)).await;
            drop(locking);
            rt.sleep(Duration::from_secs(1)).await;
            let conflict = two.test_lock(2, 0..10, LockKind::Exclusive).await.unwrap();
            assert!(conflict.is_none(), "waits: {waits}");
        });
        done.expect("the run made no progress");
    }
}

/// Runs `test` over each transport, with a server that keeps its list of clients, and a file that two of them have open.
fn with_listed_clients(test: impl AsyncFn(&VirtualTime, &mut Cluster, [File; 2], Proto)) {
    for proto in [Proto::Tcp, Proto::Rdma] {
        let (time, dir) = (VirtualTime::new(7), tempfile::tempdir().unwrap());
        let mut cluster = Cluster::new(&time, Profile::named("gige-2003").unwrap());
        cluster.config.state_dir = Some(dir.path().into());
        cluster.start(&time);
        let done = time.block_on(async {
            let files = file_of_two_clients(&time.runtime(), &cluster, proto).await;
            test(&time, &mut cluster, files, proto).await;
        });
        done.expect("the run made no progress");
    }
}

/// The server crashes when it has executed an unlock, and the next holder has the lock, but the reply to the unlock has not
/// arrived. The first holder, which is back before the second one, does not claim the lock.
#[test]
fn a_lock_whose_unlock_has_no_reply_is_not_claimed() {
    with_listed_clients(async |time, cluster, [one, two], proto| {
        let rt = time.runtime();
        let [host_of_one, host_of_two] = [0, 1].map(|n| [10, 0, 1, n].into());
        one.lock(1, 0..10, LockKind::Exclusive).await.unwrap();
        let unlock = async {
            one.write(0, b"one").await.unwrap();
            one.unlock(1, 0..10).await.unwrap();
        };
        let lock = two.lock(2, 0..10, LockKind::Exclusive);
        let crash = async {
            while cluster.stats().operations_of(Operation::Locku) == 0 {
                rt.sleep(Duration::from_micros(1)).await;
            }
            cluster.world.crash(host_of_one); // The reply is lost.
            cluster.world.stall(host_of_one, Duration::from_secs(4));
            lock.await.unwrap();
            two.write(0, b"two").await.unwrap();
            cluster.world.stall(host_of_two, Duration::from_secs(8));
            cluster.crash();
            cluster.start(time);
            rt.sleep(Duration::from_secs(6)).await;
            let [locks, unlocks] =
                [Operation::Lock, Operation::Locku].map(|name| cluster.stats().operations_of(name));
            assert!(locks == 0 && unlocks > 0, "{proto}: {locks} locks, {unlocks} unlocks");
            two.unlock(2, 0..10).await.unwrap();
        };
        join(unlock, crash).await;
        let mut read = [0; 3];
        one.read(0, &mut read).await.unwrap();
        assert_eq!(&read, b"two", "{proto}");
        one.lock(1, 0..10, LockKind::Exclusive).await.unwrap();
    });
}

/// More than a grace period.
const LIMIT: Duration = Duration::from_secs(200);

/// Moments of the unlock after the restart: the recovery claims the lock in about 12 ms.
const DELAYS: u32 = 160;
const STEP: Duration = Duration::from_micros(100);

/// An unlock at any moment of the recovery from a restart of the server. The claim of the lock may be in flight.
#[test]
fn a_lock_is_free_after_an_unlock_during_a_recovery() {
    with_listed_clients(async |time, cluster, [one, two], proto| {
        let rt = time.runtime();
        let mut claims = 0;
        for delay in (0..DELAYS).map(|n| STEP * n) {
            one.lock(1, 0..10, LockKind::Exclusive).await.unwrap();
            cluster.crash();
            cluster.start(time);
            // Recovers: it is a call without the lock.
            let recovery = async { one.test_lock(2, 20..30, LockKind::Shared).await.unwrap() };
            let unlock = async {
                rt.sleep(delay).await;
                one.unlock(1, 0..10).await.unwrap();
            };
            join(recovery, unlock).await;
            claims += cluster.stats().operations_of(Operation::Lock);
            let lock = timeout(&*rt, LIMIT, two.lock(2, 0..10, LockKind::Exclusive)).await;
            lock.unwrap_or_else(|| panic!("{proto}: not unlocked after {delay:?}")).unwrap();
            two.unlock(2, 0..10).await.unwrap();
        }
        assert!((1..u64::from(DELAYS)).contains(&claims), "{proto}: the lock was claimed {claims} times");
    });
}

/// Number of crashes of the server.
const CRASHES: u32 = 12;
/// Number of locks of each client, which take longer than the crashes.
const LOCKS: u32 = 40;

/// Two clients increment a number under a lock. `holder` is the client that has the lock.
async fn count(rt: &RuntimeRef, file: &File, owner: u64, holder: &Cell<Option<u64>>) {
    for _ in 0..LOCKS {
        file.lock(owner, 0..8, LockKind::Exclusive).await.unwrap();
        assert_eq!(holder.replace(Some(owner)), None, "both clients have the lock");
        let mut number = [0; 8];
        file.read(0, &mut number).await.unwrap();
        rt.sleep(Duration::from_micros(rt.random_u64() % 2_000_000)).await;
        file.write(0, &(u64::from_be_bytes(number) + 1).to_be_bytes()).await.unwrap();
        assert_eq!(holder.replace(None), Some(owner));
        file.unlock(owner, 0..8).await.unwrap();
    }
}

/// The clients claim their locks again after each crash, and no other client gets them before.
#[test]
fn a_lock_has_one_holder_through_crashes_of_the_server() {
    for (seed, proto) in [(1, Proto::Tcp), (2, Proto::Rdma), (3, Proto::Tcp), (4, Proto::Rdma)] {
        let dir = tempfile::tempdir().unwrap();
        let time = VirtualTime::new(seed);
        let profile = Profile::named("gige-2003").expect("unknown profile");
        let mut cluster = Cluster::new(&time, profile);
        cluster.config.state_dir = Some(dir.path().into());
        cluster.config.nfs4.lease = 20;
        cluster.start(&time);
        let rt = time.runtime();
        let done = time.block_on(async {
            let [one, two] = file_of_two_clients(&rt, &cluster, proto).await;
            one.write(0, &[0; 8]).await.unwrap();
            let (holder, cluster) = (Cell::new(None), RefCell::new(&mut cluster));
            let crashes = async {
                for _ in 0..CRASHES {
                    rt.sleep(Duration::from_micros(rt.random_u64() % 4_000_000)).await;
                    cluster.borrow_mut().crash();
                    rt.sleep(Duration::from_micros(rt.random_u64() % 1_000_000)).await;
                    cluster.borrow_mut().start(&time);
                }
                rt.now()
            };
            let counts = (count(&rt, &one, 1, &holder), count(&rt, &two, 2, &holder));
            let ends = async { (counts.0.await, rt.now()) };
            let (((), ended), (), crashed) = join3(ends, counts.1, crashes).await;
            assert!(crashed < ended, "the last crash was after the end of a client");
            let mut number = [0; 8];
            one.read(0, &mut number).await.unwrap();
            assert_eq!(u64::from_be_bytes(number), u64::from(2 * LOCKS), "{proto}, seed {seed}");
        });
        done.expect("the run made no progress");
    }
}
