//! Reading ahead of who reads one after the other.
//!
//! The kernel reads ahead itself, but by no more than 128 KiB where the mount may not say otherwise, which only root may:
//! two READs on their way at the most. There the mount fetches what follows, in pieces as large as the server likes them.
//!
//! A piece is as good as a READ made now, or it is not used: nothing of ours has changed the file since it was asked for,
//! nobody has opened it, and no change of another has been found. Who reads directly (`O_DIRECT`) gets nothing that was
//! fetched before.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    channel::oneshot::{self, Receiver},
    future::Shared,
};
use millrace_buffer::View;
use millrace_runtime::Instant;
use parking_lot::Mutex;

use crate::{fs::Fs, inode::DataVersion, open::OpenFile};

/// So much is fetched ahead of a reader at most.
const MAX_WINDOW: u64 = 4 << 20;
/// So much is held for all readers at most, and no more than a part of the client's memory.
const MAX_BUFFERED: usize = 64 << 20;
const ARENA_FRACTION: usize = 4;
/// The largest piece.
const MAX_BLOCK: u64 = 1 << 20;
/// Who has read so much one after the other goes on, it is supposed.
const SEQUENTIAL_THRESHOLD: u64 = 256 << 10;
/// The kernel's threads may bring two reads in the wrong order.
const REORDER_WINDOW: u64 = 256 << 10;
/// What nobody has asked for so long is let go.
const KEPT: Duration = Duration::from_secs(1);

/// What a READ gave, and whether the file ends with it; `None`: it failed.
type Fetched = Option<(View, bool)>;

/// Bytes that count as held until this is dropped.
struct Reservation {
    total: Arc<AtomicUsize>,
    len: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct PrefetchedBlock {
    start: u64,
    end: u64,
    /// Of the file, before it was asked for.
    version: DataVersion,
    data: Shared<Receiver<Fetched>>,
    _reservation: Arc<Reservation>,
}

#[derive(Default)]
struct ReadAheadState {
    /// Where the last read ended.
    end: u64,
    /// Bytes read one after the other.
    sequential: u64,
    /// One behind the other.
    blocks: VecDeque<PrefetchedBlock>,
    last_use: Option<Instant>,
}

/// What is fetched ahead for an open description.
#[derive(Default)]
pub(crate) struct ReadAhead(Mutex<ReadAheadState>);

impl ReadAhead {
    /// Lets go of what nobody has asked for in a while.
    pub(crate) fn drop_if_idle(&self, now: Instant) {
        let mut r = self.0.lock();
        if r.last_use.is_some_and(|used| now.duration_since(used) >= KEPT) {
            *r = ReadAheadState::default();
        }
    }

    fn clear(&self) {
        self.0.lock().blocks.clear();
    }
}

impl ReadAheadState {
    /// Notes a read.
    fn note_read(&mut self, start: u64, end: u64, now: Instant) {
        self.last_use = Some(now);
        if start.abs_diff(self.end) > REORDER_WINDOW {
            *self = Self { end, last_use: self.last_use, ..Self::default() };
            return;
        }
        self.sequential += end - start;
        self.end = self.end.max(end);
        while self.blocks.front().is_some_and(|p| p.end + REORDER_WINDOW <= start) {
            self.blocks.pop_front();
        }
    }

    /// The next piece to fetch, if the reader is to have more ahead. `size`: the file's.
    fn next(&self, size: u64, block: u64) -> Option<(u64, u64)> {
        if self.sequential < SEQUENTIAL_THRESHOLD {
            return None;
        }
        let start = self.blocks.back().map_or(self.end, |p| p.end).max(self.end);
        let wanted = self.end.saturating_add(self.sequential.min(MAX_WINDOW));
        // Up to a multiple of their size, so that few reads lie in two.
        (start < size && start < wanted).then(|| (start, (start / block + 1) * block))
    }
}

impl Fs {
    /// What a READ of the range would give, if it was fetched ahead; and fetches what follows.
    pub(crate) async fn read_prefetched(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        start: u64,
        len: usize,
    ) -> Option<View> {
        let end = start.checked_add(len as u64)?;
        let blocks: Vec<PrefetchedBlock> = {
            let mut r = file.read_ahead.0.lock();
            r.note_read(start, end, self.rt.now());
            let blocks = r.blocks.iter().filter(|p| p.start < end && start < p.end).cloned().collect();
            self.prefetch(file, &mut r);
            blocks
        };
        let mut found = Vec::with_capacity(blocks.len());
        for block in blocks {
            let data = block.data.await.ok().flatten();
            let Some((view, eof)) = data.filter(|_| file.inode.is_data_current(block.version)) else {
                file.read_ahead.clear();
                return None;
            };
            found.push((block.start, view, eof));
        }
        self.assemble(file, start, len, &found)
    }

    /// The range out of pieces that follow each other; no longer than the file.
    fn assemble(&self, file: &OpenFile, start: u64, len: usize, found: &[(u64, View, bool)]) -> Option<View> {
        let mut parts = Vec::with_capacity(found.len());
        let (mut done, mut ended) = (0, false);
        for (at, view, eof) in found {
            let skip = usize::try_from((start + done as u64).checked_sub(*at)?).ok()?;
            let part = view.len().checked_sub(skip)?.min(len - done);
            parts.push(view.slice(skip, part));
            done += part;
            ended = *eof;
            if skip + part < view.len() || ended {
                break;
            }
        }
        // Where less was fetched than there is, a READ says what comes next.
        if done < len && !ended || parts.is_empty() {
            return None;
        }
        if let [one] = parts.as_slice() {
            return Some(one.clone());
        }
        let mut whole = file.client.buffer(done.max(1)).ok()?;
        let mut at = 0;
        for part in &parts {
            millrace_buffer::copy(&mut whole[at..at + part.len()], part);
            at += part.len();
        }
        whole.set_len(done);
        Some(whole.freeze())
    }

    /// Asks for what the reader will want next.
    fn prefetch(self: &Arc<Self>, file: &Arc<OpenFile>, r: &mut ReadAheadState) {
        let block = MAX_BLOCK.min(file.client.rsize().into());
        let most = MAX_BUFFERED.min(file.client.options().arena_limit / ARENA_FRACTION);
        while let Some((start, end)) = r.next(file.inode.size(), block) {
            let len = (end - start) as usize;
            let reservation = Reservation { total: Arc::clone(&self.read_ahead_bytes), len };
            let before = self.read_ahead_bytes.fetch_add(len, Ordering::Relaxed);
            let Some(memory) = (before + len <= most).then(|| file.client.buffer(len).ok()).flatten() else {
                return;
            };
            let reservation = Arc::new(reservation);
            let version = file.inode.data_version(&self.clock);
            let (tx, data) = oneshot::channel();
            let (reader, holds) = (Arc::clone(file), Arc::clone(&reservation));
            let fetch = async move {
                let retains = reader.inode.writes.for_read().1;
                let got = reader.read_into(retains.as_ref(), start, memory).await.ok();
                let _ = tx.send(got.map(|r| (r.buffer.freeze(), r.eof)));
                drop(holds);
            };
            self.rt.spawn("mount read-ahead", Box::pin(fetch));
            r.blocks.push_back(PrefetchedBlock {
                start,
                end,
                version,
                data: data.shared(),
                _reservation: reservation,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_client::{Client, Options};
    use millrace_nfs::v3::{CreateHow, Sattr};
    use millrace_runtime::tokio_rt::TokioRuntime;
    use millrace_server::{Config, Running, Server};
    use rustix::fs::OFlags;

    use super::*;
    use crate::{MountOptions, inode::ROOT, write::WritePosition};

    /// What the kernel asks for at a time.
    const READ: usize = 128 << 10;
    /// Not whole pages.
    const SIZE: usize = (20 << 20) + 12_345;

    /// A file system without kernel, on a server with one file.
    struct Setup {
        fs: Arc<Fs>,
        /// Of the file system, and of another.
        me: Client,
        other: Client,
        data: Vec<u8>,
        _server: Running,
    }

    impl Setup {
        async fn new(options: Options) -> Self {
            let config = Config {
                exports: vec!["/data=memory:256MiB".parse().unwrap()],
                listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
                shards: Some(1),
                ..Config::default()
            };
            let server = Server::start(config).unwrap();
            let url = format!("nfs://{}/data?proto=tcp", server.tcp_addr().unwrap()).parse().unwrap();
            let rt = TokioRuntime::from_handle(tokio::runtime::Handle::current());
            let me = Client::connect(rt.clone(), &url, options).await.unwrap();
            let other = Client::connect(rt.clone(), &url, Options::default()).await.unwrap();
            let root = me.resolve("").await.unwrap();
            let made = me.create(root.0, "file", CreateHow::Unchecked(Sattr::default())).await.unwrap();
            let data: Vec<u8> = (0..SIZE).map(|i| (i >> 9) as u8 ^ (i >> 17) as u8).collect();
            me.write(made.handle, 0, &data, millrace_nfs::v3::StableHow::FileSync).await.unwrap();
            let fs = Fs::new((rt, 2), me.clone(), &MountOptions::default(), root, 255);
            fs.read_ahead_enabled.store(true, Ordering::Relaxed);
            Self { fs: Arc::new(fs), me, other, data, _server: server }
        }

        async fn open(&self) -> (u64, Arc<OpenFile>) {
            self.open_with(OFlags::RDWR).await
        }

        async fn open_with(&self, flags: OFlags) -> (u64, Arc<OpenFile>) {
            let Ok(entry) = self.fs.lookup(&self.me, ROOT, b"file", 0).await else { panic!("it is gone") };
            let (fh, _) = self.fs.open(self.me.clone(), entry.inode.number, flags.bits(), 0).await.unwrap();
            (fh, self.fs.open_file(fh).unwrap())
        }

        /// Reads as the kernel does; how many calls it took.
        async fn read(&self, file: &Arc<OpenFile>, at: &[usize]) -> u64 {
            self.read_as(file, at, false).await
        }

        async fn read_as(&self, file: &Arc<OpenFile>, at: &[usize], direct: bool) -> u64 {
            let before = self.me.stats().calls;
            for at in at {
                let got = self.fs.read(file, *at as u64, READ, direct).await.unwrap();
                let there = &self.data[*at..SIZE.min(at + READ)];
                assert!(&got[..] == there, "{} bytes at {at}, of {}", got.len(), there.len());
            }
            self.me.stats().calls - before
        }

        async fn close(&self, fh: u64) {
            self.fs.release(fh).await;
        }
    }

    /// Everything, from `start` on.
    fn rest(start: usize) -> Vec<usize> {
        (start..SIZE).step_by(READ).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_reads_on_is_given_what_was_fetched() {
        let setup = Setup::new(Options::default()).await;
        for start in [0, 5 * 4096] {
            let (fh, file) = setup.open().await;
            let calls = setup.read(&file, &rest(start)).await;
            assert!((21..32).contains(&calls), "{calls} calls for {} reads", rest(start).len());
            setup.close(fh).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_the_kernel_brings_in_another_order_is_found_too() {
        let setup = Setup::new(Options::default()).await;
        let (fh, file) = setup.open().await;
        let mut at = rest(0);
        at.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
        let calls = setup.read(&file, &at).await;
        assert!(calls < 32, "{calls} calls");
        setup.close(fh).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_fetched_for_who_reads_here_and_there() {
        let setup = Setup::new(Options::default()).await;
        let (fh, file) = setup.open().await;
        let at: Vec<usize> = (0..40).map(|i| (i * 7_919_000) % (SIZE - READ)).collect();
        assert_eq!(setup.read(&file, &at).await, 40);
        setup.close(fh).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_reads_directly_is_given_what_the_server_has_now() {
        let setup = Setup::new(Options::default()).await;
        let (fh, file) = setup.open_with(OFlags::RDONLY | OFlags::DIRECT).await;
        assert_eq!(setup.read_as(&file, &rest(0), true).await, rest(0).len() as u64);
        setup.close(fh).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_changed_meanwhile_is_read_as_it_is_now() {
        let mut setup = Setup::new(Options::default()).await;
        let (fh, file) = setup.open().await;
        let ahead = 2 << 20;
        for (round, by_us) in [true, false].into_iter().enumerate() {
            setup.read(&file, &rest(0)[..12]).await;
            assert!(file.read_ahead.0.lock().blocks.iter().any(|p| p.start <= ahead && ahead < p.end));
            let new = vec![round as u8 + 77; 4096];
            setup.data[ahead as usize..][..4096].copy_from_slice(&new);
            if by_us {
                setup.fs.write(&file.inode, &setup.me, WritePosition::Offset(ahead), &new).unwrap();
            } else {
                let how = millrace_nfs::v3::StableHow::FileSync;
                setup.other.write(file.inode.handle, ahead, &new, how).await.unwrap();
                // Who opens it afterwards drops the kernel's pages; what was fetched before may not take their place.
                let (fh, _) = setup.open().await;
                setup.close(fh).await;
            }
            setup.read(&file, &rest(12 * READ)).await;
        }
        setup.close(fh).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_fetched_is_bounded_and_let_go() {
        let limit = 32 << 20;
        let setup = Setup::new(Options { arena_limit: limit, ..Options::default() }).await;
        let mut open = Vec::new();
        for _ in 0..8 {
            let (fh, file) = setup.open().await;
            setup.read(&file, &rest(0)[..100]).await;
            let reservation = setup.fs.read_ahead_bytes.load(Ordering::Relaxed);
            assert!(reservation > 0 && reservation <= limit / ARENA_FRACTION, "{reservation} bytes");
            open.push((fh, file));
        }
        let (idle, closed) = open.split_at(1);
        for (fh, _) in closed {
            setup.close(*fh).await;
        }
        let idle = Arc::clone(&idle[0].1);
        drop(open);
        let started = std::time::Instant::now();
        while setup.fs.read_ahead_bytes.load(Ordering::Relaxed) > 0 {
            assert!(started.elapsed() < Duration::from_secs(60), "it is held for ever");
            tokio::time::sleep(Duration::from_millis(20)).await;
            idle.read_ahead.drop_if_idle(setup.fs.rt.now());
        }
    }
}
