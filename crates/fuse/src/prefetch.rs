//! Sequential read-ahead.
//!
//! The kernel reads ahead at most 128 KiB unless root has raised the limit: two READs in flight. In that case
//! the mount itself prefetches, in blocks of the server's preferred size.
//!
//! A prefetched block is used only if a READ issued now would return the same data, as far as known: since it
//! was requested there was no local change, no open, and no detected remote change. Direct reads (`O_DIRECT`)
//! do not use prefetched data.

use std::sync::{Arc, atomic::Ordering};

use futures::{FutureExt, channel::oneshot};
use millrace_buffer::View;

use crate::{
    fs::Fs,
    open_file::OpenFile,
    read_ahead::{PrefetchedBlock, ReadAheadState, Reservation},
};

/// Maximum read-ahead of all open files, further limited to a fraction of the client's arena.
const MAX_BUFFERED: usize = 64 << 20;
const ARENA_FRACTION: usize = 4;
/// Maximum block size.
const MAX_BLOCK: u64 = 1 << 20;

impl Fs {
    /// Returns the data of a READ if it was prefetched, and continues to prefetch.
    pub(crate) async fn read_prefetched(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        start: u64,
        len: usize,
    ) -> Option<View> {
        let end = start.checked_add(len as u64)?;
        let blocks: Vec<PrefetchedBlock> = {
            let mut r = file.read_ahead.lock();
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

    /// Assembles the range from contiguous blocks, up to the end of the file.
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
        // A block was short without EOF: fall back to a READ.
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

    /// Prefetches the next blocks.
    fn prefetch(self: &Arc<Self>, file: &Arc<OpenFile>, r: &mut ReadAheadState) {
        let block = MAX_BLOCK.min(file.client.rsize().into());
        let max_buffered = MAX_BUFFERED.min(file.client.options().arena_limit / ARENA_FRACTION);
        while let Some((start, end)) = r.next(file.inode.size(), block) {
            let len = (end - start) as usize;
            let reservation = Reservation { total: Arc::clone(&self.read_ahead_bytes), len };
            let before = self.read_ahead_bytes.fetch_add(len, Ordering::Relaxed);
            let Some(memory) = (before + len <= max_buffered).then(|| file.client.buffer(len).ok()).flatten()
            else {
                return;
            };
            let reservation = Arc::new(reservation);
            let version = file.inode.data_version(&self.clock);
            let (tx, data) = oneshot::channel();
            let (reader, holds) = (Arc::clone(file), Arc::clone(&reservation));
            let fetch = async move {
                let uncommitted = reader.inode.writes.for_read().1;
                let result = reader.read_into(uncommitted.as_deref(), start, memory).await.ok();
                let _ = tx.send(result.map(|r| (r.buffer.freeze(), r.eof)));
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
    use std::time::Duration;

    use millrace_client::ops::{CreateHow, SetAttributes};
    use millrace_client::{Options, handles::Client};
    use millrace_fuse_session::channel::WriteData;
    use millrace_runtime::tokio_rt::TokioRuntime;
    use millrace_server::{Config, Running, Server};
    use rustix::fs::OFlags;

    use super::*;
    use crate::{MountOptions, dentries::ROOT, write::WritePosition};

    /// READ size of the kernel.
    const READ: usize = 128 << 10;
    /// Not a multiple of the page size.
    const SIZE: usize = (20 << 20) + 12_345;

    /// A mounted file system without the kernel, and a server with one file.
    struct Setup {
        fs: Arc<Fs>,
        /// Client of the mount, and another client.
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
            let created =
                me.create(root.0, "file", CreateHow::Unchecked(SetAttributes::default())).await.unwrap();
            let data: Vec<u8> = (0..SIZE).map(|i| (i >> 9) as u8 ^ (i >> 17) as u8).collect();
            me.write(created.handle, 0, &data, millrace_client::ops::StableHow::FileSync).await.unwrap();
            let fs = Fs::new((rt, 2), me.clone(), &MountOptions::default(), root, 255);
            fs.read_ahead_enabled.store(true, Ordering::Relaxed);
            Self { fs: Arc::new(fs), me, other, data, _server: server }
        }

        async fn open(&self) -> (u64, Arc<OpenFile>) {
            self.open_with(OFlags::RDWR).await
        }

        async fn open_with(&self, flags: OFlags) -> (u64, Arc<OpenFile>) {
            let Ok(Ok(entry)) = self.fs.lookup(&self.me, ROOT, b"file", 0).await else {
                panic!("the file does not exist")
            };
            let (fh, _) = self.fs.open(self.me.clone(), entry.inode.number, flags.bits(), 0).await.unwrap();
            (fh, self.fs.open_file(fh).unwrap())
        }

        /// Reads in the kernel's block size. Returns the number of calls.
        async fn read(&self, file: &Arc<OpenFile>, at: &[usize]) -> u64 {
            self.read_as(file, at, false).await
        }

        async fn read_as(&self, file: &Arc<OpenFile>, at: &[usize], direct: bool) -> u64 {
            let before = self.me.stats().calls;
            for at in at {
                let data = self.fs.read(file, *at as u64, READ, (!direct).then_some(0)).await.unwrap();
                let expected = &self.data[*at..SIZE.min(at + READ)];
                assert!(&data[..] == expected, "{} bytes at {at}, of {}", data.len(), expected.len());
            }
            self.me.stats().calls - before
        }

        async fn close(&self, fh: u64) {
            self.fs.release(fh).await;
        }
    }

    /// Offsets from `start` to the end of the file.
    fn rest(start: usize) -> Vec<usize> {
        (start..SIZE).step_by(READ).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sequential_reads_use_prefetched_data() {
        let setup = Setup::new(Options::default()).await;
        for start in [0, 5 * 4096] {
            let (fh, file) = setup.open().await;
            let calls = setup.read(&file, &rest(start)).await;
            assert!((21..32).contains(&calls), "{calls} calls for {} reads", rest(start).len());
            setup.close(fh).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn reordered_reads_use_prefetched_data() {
        let setup = Setup::new(Options::default()).await;
        let (fh, file) = setup.open().await;
        let mut at = rest(0);
        at.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
        let calls = setup.read(&file, &at).await;
        assert!(calls < 32, "{calls} calls");
        setup.close(fh).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn random_reads_do_not_prefetch() {
        let setup = Setup::new(Options::default()).await;
        let (fh, file) = setup.open().await;
        let at: Vec<usize> = (0..40).map(|i| (i * 7_919_000) % (SIZE - READ)).collect();
        assert_eq!(setup.read(&file, &at).await, 40);
        setup.close(fh).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn direct_reads_bypass_prefetched_data() {
        let setup = Setup::new(Options::default()).await;
        let (fh, file) = setup.open_with(OFlags::RDONLY | OFlags::DIRECT).await;
        assert_eq!(setup.read_as(&file, &rest(0), true).await, rest(0).len() as u64);
        setup.close(fh).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn prefetched_data_is_dropped_after_a_change() {
        let mut setup = Setup::new(Options::default()).await;
        let (fh, file) = setup.open().await;
        let ahead = 2 << 20;
        for (round, by_us) in [true, false].into_iter().enumerate() {
            setup.read(&file, &rest(0)[..12]).await;
            assert!(file.read_ahead.lock().blocks.iter().any(|p| p.start <= ahead && ahead < p.end));
            let new = vec![round as u8 + 77; 4096];
            setup.data[ahead as usize..][..4096].copy_from_slice(&new);
            if by_us {
                let (at, new) = (WritePosition::Offset(ahead), &mut WriteData::Borrowed(&new));
                setup.fs.write(&file.inode, &setup.me, at, new).unwrap();
            } else {
                let how = millrace_client::ops::StableHow::FileSync;
                setup.other.write(file.inode.handle, ahead, &new, how).await.unwrap();
                // The open drops the kernel's pages; data prefetched earlier must not replace them.
                let (fh, _) = setup.open().await;
                setup.close(fh).await;
            }
            setup.read(&file, &rest(12 * READ)).await;
        }
        setup.close(fh).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn prefetched_data_is_bounded_and_released() {
        let limit = 32 << 20;
        let setup = Setup::new(Options::default().arena_limit(limit)).await;
        let mut open = Vec::new();
        for _ in 0..8 {
            let (fh, file) = setup.open().await;
            setup.read(&file, &rest(0)[..100]).await;
            let buffered = setup.fs.read_ahead_bytes.load(Ordering::Relaxed);
            assert!(buffered > 0 && buffered <= limit / ARENA_FRACTION, "{buffered} bytes");
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
            assert!(started.elapsed() < Duration::from_secs(60), "prefetched data is not released");
            tokio::time::sleep(Duration::from_millis(20)).await;
            idle.read_ahead.drop_if_idle(setup.fs.rt.now());
        }
    }
}
