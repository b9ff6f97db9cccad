//! Virtual time: an executor whose clock advances only when no task is ready.
//!
//! It is single-threaded. Ready tasks run in the order of their wake-ups; when none is ready, the clock
//! advances to the next timer. Timers of the same instant fire in the order of their creation. Random bytes
//! come from a seed. So a program that uses time, tasks and randomness only through [`Runtime`] behaves
//! identically with the same seed, to the nanosecond. (The resolution of Tokio's paused clock is a
//! millisecond, which is too coarse for a fabric.)

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use crate::{BoxFuture, Instant, Runtime, RuntimeRef, Sleep};

/// Simulated wall-clock time at the origin of virtual time: 2001-09-09 01:46:40 UTC.
const WALL_CLOCK: Duration = Duration::from_secs(1_000_000_000);
/// Number of polls without progress of the clock after which a run is considered an endless loop.
const MAX_POLLS: u64 = 10_000_000;
/// Id of the future passed to [`VirtualTime::block_on`].
const MAIN: u64 = 0;

/// Why a run cannot make progress.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// All tasks wait, and no timer is pending.
    #[error("at {at:?} of virtual time all tasks wait and no timer is pending; tasks: {}", tasks.join(", "))]
    Deadlock {
        /// Virtual time since the start.
        at: Duration,
        /// Names of the waiting tasks.
        tasks: Vec<&'static str>,
    },
    /// Tasks wake each other endlessly, and the clock does not advance.
    #[error("at {at:?} of virtual time tasks were polled {polls} times without progress of the clock")]
    Busy {
        /// Virtual time since the start.
        at: Duration,
        /// Number of polls.
        polls: u64,
    },
}

/// An executor in virtual time. Dropping it drops all its tasks.
pub struct VirtualTime {
    shared: Arc<Shared>,
}

/// Tasks that can be ended together, such as the processes of one simulated machine.
pub struct TaskGroup {
    handle: Arc<Handle>,
}

/// A scheduled event.
enum Due {
    /// The end of a sleep.
    Wake(Waker),
    /// A scheduled call.
    Call(Box<dyn FnOnce() + Send>),
}

struct Task {
    name: &'static str,
    group: u64,
    /// `None` while it is polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Arc<TaskWaker>,
}

struct State {
    now: u64,
    ready: VecDeque<Arc<TaskWaker>>,
    tasks: BTreeMap<u64, Task>,
    /// Scheduled events by time and sequence number.
    due: BTreeMap<(u64, u64), Due>,
    /// The last number assigned to a task, group or event.
    next: u64,
    random: SplitMix64,
    /// Groups that were ended; they accept no more tasks.
    ended: Vec<u64>,
    closed: bool,
}

impl State {
    fn new(seed: u64) -> Self {
        Self {
            now: 0,
            ready: VecDeque::new(),
            tasks: BTreeMap::new(),
            due: BTreeMap::new(),
            next: 0,
            random: SplitMix64::seed_from_u64(seed),
            ended: Vec::new(),
            closed: false,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waker of a task. It refers to the task by id, so it keeps no task alive.
struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    shared: Weak<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().ready.push_back(self);
        }
    }
}

/// The executor's next step.
enum Step {
    Poll(u64),
    Fire(Due),
    Stuck(Stuck),
}

impl VirtualTime {
    /// Creates an executor at time zero, whose random bytes come from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { shared: Arc::new(Shared(Mutex::new(State::new(seed)))) }
    }

    /// The runtime for code in this virtual time.
    pub fn runtime(&self) -> RuntimeRef {
        Arc::new(Handle { shared: Arc::clone(&self.shared), group: MAIN })
    }

    /// Creates a group of tasks in the same virtual time.
    pub fn group(&self) -> TaskGroup {
        let group = self.shared.lock().number();
        TaskGroup { handle: Arc::new(Handle { shared: Arc::clone(&self.shared), group }) }
    }

    /// A clock to schedule events with.
    pub fn clock(&self) -> Clock {
        Clock(Arc::clone(&self.shared))
    }

    /// Runs all tasks until `main` completes. Other tasks remain, and continue in the next call.
    ///
    /// # Errors
    /// [`Stuck`] if `main` cannot complete.
    pub fn block_on<F: Future>(&self, main: F) -> Result<F::Output, Stuck> {
        let mut main = pin!(main);
        let waker = self.waker(MAIN);
        Arc::clone(&waker).wake();
        let main_waker = Waker::from(Arc::clone(&waker));
        let mut polls = 0;
        loop {
            match self.next_step(&mut polls) {
                Step::Poll(MAIN) => {
                    if let Poll::Ready(out) = main.as_mut().poll(&mut Context::from_waker(&main_waker)) {
                        return Ok(out);
                    }
                }
                Step::Poll(id) => self.poll_task(id),
                Step::Fire(Due::Wake(waker)) => waker.wake(),
                Step::Fire(Due::Call(call)) => call(),
                Step::Stuck(why) => return Err(why),
            }
        }
    }

    fn waker(&self, id: u64) -> Arc<TaskWaker> {
        new_waker(&self.shared, id)
    }

    fn next_step(&self, polls: &mut u64) -> Step {
        let mut state = self.shared.lock();
        let at = Duration::from_nanos(state.now);
        if let Some(ready) = state.ready.pop_front() {
            *polls += 1;
            if *polls > MAX_POLLS {
                return Step::Stuck(Stuck::Busy { at, polls: MAX_POLLS });
            }
            // A wake-up from here on causes another poll.
            ready.queued.store(false, Ordering::Relaxed);
            return Step::Poll(ready.id);
        }
        match state.due.pop_first() {
            Some(((time, _), due)) => {
                if time > state.now {
                    (state.now, *polls) = (time, 0);
                }
                Step::Fire(due)
            }
            None => {
                Step::Stuck(Stuck::Deadlock { at, tasks: state.tasks.values().map(|t| t.name).collect() })
            }
        }
    }

    fn poll_task(&self, id: u64) {
        let taken = {
            let mut state = self.shared.lock();
            // An ended task may be woken once more.
            state.tasks.get_mut(&id).and_then(|t| Some((t.future.take()?, Arc::clone(&t.waker))))
        };
        let Some((mut future, waker)) = taken else { return };
        let waker = Waker::from(waker);
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut state = self.shared.lock();
        if done {
            state.tasks.remove(&id);
        } else if let Some(task) = state.tasks.get_mut(&id) {
            task.future = Some(future);
            return;
        }
        drop(state);
        // Dropping the future may use the runtime, so the lock is not held.
        drop(future);
    }
}

fn new_waker(shared: &Arc<Shared>, id: u64) -> Arc<TaskWaker> {
    Arc::new(TaskWaker { id, queued: AtomicBool::new(false), shared: Arc::downgrade(shared) })
}

impl fmt::Debug for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("VirtualTime").field("now", &state.now).field("tasks", &state.tasks.len()).finish()
    }
}

/// Breaks the reference cycle between tasks and their runtime.
impl Drop for VirtualTime {
    fn drop(&mut self) {
        loop {
            let mut state = self.shared.lock();
            state.closed = true;
            let (tasks, due) = (std::mem::take(&mut state.tasks), std::mem::take(&mut state.due));
            drop(state);
            if tasks.is_empty() && due.is_empty() {
                return;
            }
        }
    }
}

impl TaskGroup {
    /// The runtime whose tasks belong to this group.
    pub fn runtime(&self) -> RuntimeRef {
        Arc::clone(&self.handle) as RuntimeRef
    }

    /// Drops all tasks of the group immediately, as at the end of a process; no more tasks can be spawned in
    /// it.
    pub fn end(&self) {
        let mut state = self.handle.shared.lock();
        let group = self.handle.group;
        state.ended.push(group);
        let ids: Vec<u64> = state.tasks.iter().filter(|(_, t)| t.group == group).map(|(id, _)| *id).collect();
        let tasks: Vec<Task> = ids.iter().filter_map(|id| state.tasks.remove(id)).collect();
        drop(state);
        drop(tasks);
    }
}

/// Schedules calls in virtual time, for events of simulated machines.
#[derive(Clone)]
pub struct Clock(Arc<Shared>);

impl Clock {
    /// The current time.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.0.lock().now)
    }

    /// Schedules `call` at `at` (or, if `at` has passed, after all ready tasks), after earlier calls for the
    /// same instant.
    pub fn call_at(&self, at: Instant, call: Box<dyn FnOnce() + Send>) {
        let mut state = self.0.lock();
        if state.closed {
            drop(state); // Dropping the call may use the clock.
            return;
        }
        let key = (at.as_nanos().max(state.now), state.number());
        state.due.insert(key, Due::Call(call));
    }

    /// Returns a future that completes at `at`, like [`Runtime::sleep_until`].
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        let key = (at.as_nanos(), self.0.lock().number());
        Box::pin(Timer { shared: Arc::clone(&self.0), key, set: false })
    }

    /// Returns a random number from the seed.
    pub fn random(&self) -> u64 {
        self.0.lock().random.next_u64()
    }
}

/// The runtime of a group.
struct Handle {
    shared: Arc<Shared>,
    group: u64,
}

impl Runtime for Handle {
    fn is_virtual(&self) -> bool {
        true
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.shared.lock().now)
    }

    fn wall_clock(&self) -> Duration {
        WALL_CLOCK + Duration::from_nanos(self.shared.lock().now)
    }

    fn sleep_until(&self, at: Instant) -> Sleep {
        Clock(Arc::clone(&self.shared)).sleep_until(at)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let mut state = self.shared.lock();
        if state.closed || state.ended.contains(&self.group) {
            drop(state);
            drop(task);
            return;
        }
        let id = state.number();
        let waker = new_waker(&self.shared, id);
        let entry = Task { name, group: self.group, future: Some(task), waker: Arc::clone(&waker) };
        state.tasks.insert(id, entry);
        drop(state);
        waker.wake();
    }

    /// There are no threads: the work runs as a task, and takes no virtual time.
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.spawn("blocking", Box::pin(async move { work() }));
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.shared.lock().random.fill_bytes(bytes);
    }
}

/// A future of [`Clock::sleep_until`].
struct Timer {
    shared: Arc<Shared>,
    /// Time and sequence number.
    key: (u64, u64),
    set: bool,
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        if state.now >= self.key.0 {
            return Poll::Ready(());
        }
        state.due.insert(self.key, Due::Wake(cx.waker().clone()));
        drop(state);
        self.set = true;
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.set {
            let due = self.shared.lock().due.remove(&self.key);
            drop(due);
        }
    }
}
