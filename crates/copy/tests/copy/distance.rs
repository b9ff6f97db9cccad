//! The time of a copy over a link with latency. Tokio's clock is paused: it advances to the next timer when all tasks wait,
//! so that only the link takes time.

use std::{
    collections::VecDeque,
    fs, future,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use millrace_client::{Options as ClientOptions, TokioRuntime, Version, handles::Client};
use millrace_copy::{Item, LocalTree, Options, RemoteTree, TreeCopy};
use millrace_runtime::{BoxFuture, ByteStream, LocalPort, StreamListener, StreamProvider};
use millrace_server::{Config, Hosted};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, Sleep, sleep_until},
};

/// Time from one end of the link to the other one; the resolution of Tokio's timers.
const ONE_WAY: Duration = Duration::from_millis(1);
const ADDR: ([u8; 4], u16) = ([10, 0, 0, 1], 2049);

/// Bytes in flight in one direction.
#[derive(Default)]
struct Pipe {
    /// Bytes with the time of their arrival.
    sent: VecDeque<(Instant, Vec<u8>)>,
    closed: bool,
    reader: Option<Waker>,
}

/// One end of a connection.
struct End {
    rx: Arc<Mutex<Pipe>>,
    tx: Arc<Mutex<Pipe>>,
    arrival: Pin<Box<Sleep>>,
    addrs: [SocketAddr; 2],
}

impl End {
    fn pair() -> (Self, Self) {
        let (a, b) = (Arc::<Mutex<Pipe>>::default(), Arc::<Mutex<Pipe>>::default());
        let [client, server] = [([10, 0, 0, 2], 1000).into(), ADDR.into()];
        let end = |rx: &Arc<_>, tx: &Arc<_>, addrs| Self {
            rx: Arc::clone(rx),
            tx: Arc::clone(tx),
            arrival: Box::pin(sleep_until(Instant::now())),
            addrs,
        };
        (end(&a, &b, [client, server]), end(&b, &a, [server, client]))
    }
}

impl ByteStream for End {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        let mut pipe = self.rx.lock().unwrap();
        pipe.reader = Some(cx.waker().clone());
        let at = match pipe.sent.front() {
            Some((at, _)) => *at,
            None if pipe.closed => return Poll::Ready(Ok(0)),
            None => return Poll::Pending,
        };
        if at > Instant::now() {
            self.arrival.as_mut().reset(at);
            ready!(self.arrival.as_mut().poll(cx));
        }
        let (_, bytes) = pipe.sent.front_mut().unwrap();
        let mut read = 0;
        for buffer in bufs {
            let len = buffer.len().min(bytes.len() - read);
            buffer[..len].copy_from_slice(&bytes[read..read + len]);
            read += len;
        }
        bytes.drain(..read);
        if bytes.is_empty() {
            pipe.sent.pop_front();
        }
        Poll::Ready(Ok(read))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut pipe = self.tx.lock().unwrap();
        if pipe.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let bytes: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        let len = bytes.len();
        if len > 0 {
            pipe.sent.push_back((Instant::now() + ONE_WAY, bytes));
        }
        pipe.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(len))
    }

    fn shutdown(&mut self) {
        let mut pipe = self.tx.lock().unwrap();
        pipe.closed = true;
        pipe.reader.take().into_iter().for_each(Waker::wake);
    }

    fn abort(&mut self) {
        self.shutdown();
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addrs[0])
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addrs[1])
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The client's end of the link.
struct Link(UnboundedSender<End>);

impl StreamProvider for Link {
    fn connect(&self, _: LocalPort, _: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let (client, server) = End::pair();
        self.0.send(server).unwrap();
        Box::pin(future::ready(Ok(Box::new(client) as Box<dyn ByteStream>)))
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn StreamListener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The server's end of the link.
struct Accepted(UnboundedReceiver<End>);

impl StreamListener for Accepted {
    fn local_addr(&self) -> SocketAddr {
        ADDR.into()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async {
            match self.0.recv().await {
                Some(end) => Ok(Box::new(end) as Box<dyn ByteStream>),
                None => future::pending().await,
            }
        })
    }
}

/// Copies the directory `from` to an export in memory. Returns the time that it takes.
fn copied(from: &Path, version: Version, files: u64) -> Duration {
    let tokio =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    tokio.block_on(async {
        let rt = TokioRuntime::current();
        let config = Config { exports: vec!["/data=memory:256MiB".parse().unwrap()], ..Config::default() };
        let server = Hosted::start(config, rt.clone(), millrace_server::open).unwrap();
        let (connected, accepted) = unbounded_channel();
        server.serve_tcp(Box::new(Accepted(accepted)));
        let options = ClientOptions::default().vers(Some(version));
        let link = Arc::new(Link(connected));
        let client = Client::connect_over_tcp(rt, link, ADDR.into(), "/data", options).await.unwrap();
        let (local, remote) = (LocalTree::new(client.arena().clone()), RemoteTree::new(client.clone()));
        let start = Instant::now();
        let item = Item::local(from, "copy").unwrap();
        let report = TreeCopy::new(&local, &remote, Options::default()).run(vec![item], client.root()).await;
        let took = start.elapsed();
        assert!(report.failed.is_empty() && report.files == files, "{report:?}");
        client.shutdown().await;
        took
    })
}

/// Directories of `files` small files each.
fn tree(at: &Path, directories: u64, files: u64) {
    for d in 0..directories {
        let dir = at.join(format!("d{d}"));
        fs::create_dir(&dir).unwrap();
        for f in 0..files {
            fs::write(dir.join(format!("f{f}")), vec![f as u8; 1000 + f as usize]).unwrap();
        }
    }
}

/// Copies of trees with small files take less than half the time of NFSv3, which has four calls for each.
#[test]
fn small_files_take_less_than_half_the_time_of_nfsv3_on_a_link_of_1_ms() {
    for (directories, files) in [(2, 160), (20, 16), (80, 4)] {
        let dir = tempfile::tempdir().unwrap();
        tree(dir.path(), directories, files);
        let [v3, v4] = [Version::V3, Version::V4_2].map(|v| copied(dir.path(), v, directories * files));
        println!("{directories} directories of {files} files: NFSv3 {v3:?}, NFSv4.2 {v4:?}");
        assert!(v4 * 2 < v3, "{directories} directories of {files} files: NFSv3 {v3:?}, NFSv4.2 {v4:?}");
    }
}
