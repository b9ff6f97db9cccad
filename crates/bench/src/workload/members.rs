//! Execution of the members of a workload, and their barrier.

use std::{
    future::poll_fn,
    path::PathBuf,
    sync::Arc,
    task::{Poll, Waker},
    thread,
};

use futures::future::join_all;
use millrace_buffer::{Arena, ArenaConfig};
use millrace_client::{Options, Proto, Url, handles::Client};
use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};
use parking_lot::Mutex;

use super::{CpuMeter, Directory, Workload, tally::Tally};
use crate::{BenchError, Figure, VERSION, no_halt};

/// Memory for the data of a member in a local directory, in bytes.
const LOCAL_MEMORY: usize = 512 << 20;

/// The directory of a workload.
#[derive(Debug, Clone)]
pub enum Target {
    /// A directory on a server.
    Server {
        /// URL of the directory.
        url: Box<Url>,
        /// Client options; settings in the URL take precedence.
        options: Box<Options>,
    },
    /// A local directory.
    Directory(PathBuf),
}

impl Target {
    /// Opens the directory for the current runtime.
    async fn open(&self) -> Result<Directory, BenchError> {
        match self {
            Self::Server { url, options } => {
                let failed = |e: millrace_client::Error| BenchError::Client(e.to_string());
                let rt = TokioRuntime::current();
                let mut options = (**options).clone();
                options.vers.get_or_insert(VERSION);
                let client = Client::connect(rt, url, options).await.map_err(failed)?;
                let (dir, _) = client.resolve(client.path_in_export()).await.map_err(failed)?;
                Ok(Directory::Mount { client, dir })
            }
            Self::Directory(dir) => {
                let arena = Arena::new(ArenaConfig { limit: LOCAL_MEMORY, huge_pages: false });
                Ok(Directory::Local { arena, dir: dir.clone() })
            }
        }
    }

    /// The fields that are equal in all figures of `workload`.
    fn line(&self, workload: &impl Workload, provider: Option<&'static str>) -> Figure {
        let of =
            Figure { workload: workload.name().into(), no_halt: Some(no_halt::held()), ..Figure::default() };
        let mut f = line(workload, of);
        f.provider = provider.map(Into::into);
        match self {
            Self::Server { url, options } => {
                let proto = proto_of(url, options, provider);
                f.proto = proto.to_string();
                if proto == Proto::Rdma {
                    f.design = Some(options.rdma_protocol.name().to_owned());
                    f.registration = Some(url.registration.unwrap_or(options.registration).to_string());
                }
            }
            Self::Directory(_) => f.proto = "local".into(),
        }
        f
    }
}

/// The transport of clients of `url`, whose connections have `provider` over RDMA.
pub(crate) fn proto_of(url: &Url, options: &Options, provider: Option<&str>) -> Proto {
    let used = if provider.is_some() { Proto::Rdma } else { Proto::Tcp };
    url.proto.or(options.proto).unwrap_or(used)
}

/// Runs `workload` in a new directory of `target`, which is removed afterwards. Each member is a thread with
/// its own runtime and, on a server, its own connection. Returns a figure for each kind of operation.
///
/// # Errors
/// The first error of a member; the directory cannot be created or removed.
pub fn run(workload: &impl Workload, target: &Target) -> Result<Vec<Figure>, BenchError> {
    let rt = runtime()?;
    let top = rt.block_on(target.open())?;
    let name = format!("millrace-{}-{}", workload.name(), std::process::id());
    rt.block_on(top.mkdir(&name))?;
    let outcome = members(workload, target, &name);
    let removed = rt.block_on(top.remove_tree(&name));
    rt.block_on(top.shutdown());
    let tally = outcome?;
    removed?;
    Ok(tally.figures(&target.line(workload, top.provider())))
}

fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build();
    rt.map_err(BenchError::io("create a runtime"))
}

fn members(workload: &impl Workload, target: &Target, name: &str) -> Result<Tally, BenchError> {
    let barrier = Arc::new(Barrier::new(workload.members()));
    let outcomes: Vec<_> = thread::scope(|scope| {
        let start = |rank| {
            let part = Part::new(rank, &barrier);
            scope.spawn(move || {
                runtime()?.block_on(async {
                    let directory = target.open().await?.enter(name).await?;
                    let result =
                        member(workload, &directory, part, Tally::new(TokioRuntime::current())).await;
                    directory.shutdown().await;
                    result
                })
            })
        };
        let threads: Vec<_> = (0..workload.members()).map(start).collect();
        let ended = || BenchError::Client("a member of the workload ended early".into());
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(ended()))).collect()
    });
    together(outcomes)
}

/// Runs `workload` as concurrent futures of the current task, with the time of `clock`. `open` returns, for
/// the number of a member, the directory that all members share. Returns `of`, completed, for each kind of
/// operation. With a `meter`, figures of operations that are timed as a whole include the processor time of
/// the hosts.
///
/// # Errors
/// The first error of a member or of `open`.
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

/// `of` with the number of members and their operations in flight.
fn line(workload: &impl Workload, of: Figure) -> Figure {
    Figure { threads: workload.members(), outstanding: workload.outstanding(), ..of }
}

/// Sums the results of all members.
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

/// Runs the part of one member.
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

/// One member of a workload.
pub struct Part {
    /// Number of the member, from 0.
    pub rank: usize,
    barrier: Arc<Barrier>,
}

impl Part {
    fn new(rank: usize, barrier: &Arc<Barrier>) -> Self {
        Self { rank, barrier: Arc::clone(barrier) }
    }

    /// Waits until all members have called this function.
    ///
    /// # Errors
    /// A member has ended.
    pub async fn together(&self) -> Result<(), BenchError> {
        self.barrier.wait().await
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.barrier.leave();
    }
}

/// A barrier of members on any threads and runtimes.
struct Barrier {
    members: usize,
    state: Mutex<BarrierState>,
}

#[derive(Default)]
struct BarrierState {
    arrived: usize,
    round: u64,
    left: bool,
    wakers: Vec<Waker>,
}

impl BarrierState {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Barrier {
    fn new(members: usize) -> Self {
        Self { members, state: Mutex::default() }
    }

    async fn wait(&self) -> Result<(), BenchError> {
        let mut entered = None;
        poll_fn(|cx| {
            let mut s = self.state.lock();
            let round = *entered.get_or_insert_with(|| {
                let round = s.round;
                s.arrived += 1;
                if s.arrived == self.members {
                    (s.arrived, s.round) = (0, s.round + 1);
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

    /// Makes all further waits fail, because a member has ended.
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
    fn the_barrier_releases_all_members_in_each_round() {
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
    fn waiting_fails_after_a_member_has_left() {
        let barrier = Arc::new(Barrier::new(2));
        let [part, other] = [0, 1].map(|rank| Part::new(rank, &barrier));
        thread::scope(|scope| {
            let waits = scope.spawn(|| block_on(part.together()));
            drop(other);
            assert!(waits.join().unwrap().is_err());
        });
    }
}
