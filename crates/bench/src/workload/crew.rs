//! Running the members of a workload, and letting them wait for each other.

use std::{
    future::poll_fn,
    path::PathBuf,
    sync::Arc,
    task::{Poll, Waker},
    thread,
};

use futures::future::join_all;
use millrace_buffer::{Arena, ArenaConfig};
use millrace_client::{Options, Url, nfs3::Client};
use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};
use parking_lot::Mutex;

use super::{CpuMeter, Directory, Workload, tally::Tally};
use crate::{BenchError, Figure};

/// Memory for the data of a member in a local directory.
const LOCAL_MEMORY: usize = 512 << 20;

/// Where a workload runs.
#[derive(Debug, Clone)]
pub enum Target {
    /// A directory on a server.
    Server {
        /// Where.
        url: Box<Url>,
        /// How clients connect; what the URL states wins.
        options: Box<Options>,
    },
    /// A directory of this machine.
    Directory(PathBuf),
}

impl Target {
    /// Opens the directory, for the current runtime.
    async fn open(&self) -> Result<Directory, BenchError> {
        match self {
            Self::Server { url, options } => {
                let failed = |e: millrace_client::Error| BenchError::Client(e.to_string());
                let rt = TokioRuntime::current();
                let client = Client::connect(rt, url, (**options).clone()).await.map_err(failed)?;
                let (dir, _) = client.resolve(client.path_in_export()).await.map_err(failed)?;
                Ok(Directory::Mount { client, dir })
            }
            Self::Directory(dir) => {
                let arena = Arena::new(ArenaConfig { limit: LOCAL_MEMORY, huge_pages: false });
                Ok(Directory::Local { arena, dir: dir.clone() })
            }
        }
    }

    /// What is the same in all lines about `workload` in it.
    fn line(&self, workload: &impl Workload, provider: Option<&'static str>) -> Figure {
        let mut f = line(workload, Figure { workload: workload.name().into(), ..Figure::default() });
        f.provider = provider.map(Into::into);
        match self {
            Self::Server { url, options } => {
                let proto = url.proto.unwrap_or(options.proto);
                f.proto = proto.to_string();
                if proto == millrace_client::Proto::Rdma {
                    f.design = Some(options.design.to_string());
                    f.registration = Some(url.registration.unwrap_or(options.registration).to_string());
                }
            }
            Self::Directory(_) => f.proto = "local".into(),
        }
        f
    }
}

/// Runs `workload` in a new directory of `target`, which is removed afterwards. Each member is a thread with a
/// runtime and, on a server, a connection of its own. Gives a line for each kind of operation.
///
/// # Errors
/// The first failure of a member; when the directory cannot be made or removed.
pub fn run(workload: &impl Workload, target: &Target) -> Result<Vec<Figure>, BenchError> {
    let rt = runtime()?;
    let top = rt.block_on(target.open())?;
    let name = format!("millrace-{}-{}", workload.name(), std::process::id());
    rt.block_on(top.mkdir(&name))?;
    let outcome = members(workload, target, &name);
    let removed = rt.block_on(top.remove_tree(&name));
    let tally = outcome?;
    removed?;
    Ok(tally.figures(&target.line(workload, top.provider())))
}

fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build();
    rt.map_err(BenchError::io("make a runtime"))
}

fn members(workload: &impl Workload, target: &Target, name: &str) -> Result<Tally, BenchError> {
    let barrier = Arc::new(Barrier::new(workload.members()));
    let outcomes: Vec<_> = thread::scope(|scope| {
        let start = |rank| {
            let part = Part::new(rank, &barrier);
            scope.spawn(move || {
                runtime()?.block_on(async {
                    let directory = target.open().await?.enter(name).await?;
                    member(workload, &directory, part, Tally::new(TokioRuntime::current())).await
                })
            })
        };
        let threads: Vec<_> = (0..workload.members()).map(start).collect();
        let ended = || BenchError::Client("a member of the workload ended early".into());
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(ended()))).collect()
    });
    together(outcomes)
}

/// Runs `workload` as concurrent futures of the current task, with the time of `clock`. `open` gives each member, by
/// its number, the directory that all share. Returns `line`, completed, for each kind of operation; with a `meter`, what
/// is timed as a whole has the processor time of the hosts.
///
/// # Errors
/// The first failure of a member, or of `open`.
pub async fn run_concurrently<F: Future<Output = Result<Directory, BenchError>>>(
    workload: &impl Workload,
    clock: &RuntimeRef,
    meter: Option<Arc<dyn CpuMeter>>,
    of: Figure,
    open: impl Fn(usize) -> F,
) -> Result<Vec<Figure>, BenchError> {
    let barrier = Arc::new(Barrier::new(workload.members()));
    let one = |rank| {
        let (part, open, meter) = (Part::new(rank, &barrier), open(rank), meter.clone());
        async move {
            let directory = open.await?;
            member(workload, &directory, part, Tally::new(RuntimeRef::clone(clock)).metered(meter)).await
        }
    };
    let tally = together(join_all((0..workload.members()).map(one)).await)?;
    Ok(tally.figures(&line(workload, of)))
}

/// `of` with the members of `workload` and their operations in flight.
fn line(workload: &impl Workload, of: Figure) -> Figure {
    Figure { threads: workload.members(), outstanding: workload.outstanding(), ..of }
}

/// What all members did.
fn together(outcomes: Vec<Result<Tally, BenchError>>) -> Result<Tally, BenchError> {
    let mut all: Option<Tally> = None;
    for outcome in outcomes {
        let tally = outcome?;
        match &mut all {
            Some(all) => all.merge(&tally),
            None => all = Some(tally),
        }
    }
    all.ok_or_else(|| BenchError::Parameter("a workload needs at least one member".into()))
}

/// Carries out one member's part.
async fn member(
    workload: &impl Workload,
    directory: &Directory,
    part: Part,
    mut tally: Tally,
) -> Result<Tally, BenchError> {
    part.together().await?;
    workload.member(directory, &part, &mut tally).await?;
    Ok(tally)
}

/// One member among those that run a workload together.
pub struct Part {
    /// Its number, from 0.
    pub rank: usize,
    barrier: Arc<Barrier>,
}

impl Part {
    fn new(rank: usize, barrier: &Arc<Barrier>) -> Self {
        Self { rank, barrier: Arc::clone(barrier) }
    }

    /// Waits until all members have called it.
    ///
    /// # Errors
    /// When one of them has ended.
    pub async fn together(&self) -> Result<(), BenchError> {
        self.barrier.wait().await
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.barrier.leave();
    }
}

/// Where members wait for each other: on whatever thread and runtime they are.
struct Barrier {
    members: usize,
    state: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    here: usize,
    round: u64,
    left: bool,
    wakers: Vec<Waker>,
}

impl Waiting {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Barrier {
    fn new(members: usize) -> Self {
        Self { members, state: Mutex::default() }
    }

    async fn wait(&self) -> Result<(), BenchError> {
        let mut came_in = None;
        poll_fn(|cx| {
            let mut s = self.state.lock();
            let round = *came_in.get_or_insert_with(|| {
                let round = s.round;
                s.here += 1;
                if s.here == self.members {
                    (s.here, s.round) = (0, s.round + 1);
                    s.wake();
                }
                round
            });
            if s.round > round {
                return Poll::Ready(Ok(()));
            }
            if s.left {
                return Poll::Ready(Err(BenchError::Client("another member of the workload ended".into())));
            }
            s.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whoever waits from now on waits for nobody.
    fn leave(&self) {
        let mut s = self.state.lock();
        s.left = true;
        s.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(f: impl Future<Output = T>) -> T {
        runtime().unwrap().block_on(f)
    }

    #[test]
    fn members_go_on_when_all_are_there_round_after_round() {
        let barrier = Barrier::new(3);
        let count = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 1..=100 {
                        *count.lock() += 1;
                        block_on(barrier.wait()).unwrap();
                        assert!(*count.lock() >= round * 3);
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 300);
    }

    #[test]
    fn nobody_waits_for_one_that_has_left() {
        let barrier = Arc::new(Barrier::new(2));
        let [part, other] = [0, 1].map(|rank| Part::new(rank, &barrier));
        thread::scope(|scope| {
            let waits = scope.spawn(|| block_on(part.together()));
            drop(other);
            assert!(waits.join().unwrap().is_err());
        });
    }
}
