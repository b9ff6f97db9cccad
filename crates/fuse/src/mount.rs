//! The life cycle of a mount: connect, mount, serve, unmount.

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_client::{Options, Url, Version, handles::Client, ops::FileType};
use millrace_fuse_session::{
    MountError as SystemError,
    mountpoint::{self, SOURCE},
    protocol::InitFlags,
    serving::Serving,
    settings::{self, raise_kernel_read_ahead},
};
use millrace_runtime::tokio_rt::TokioRuntime;
use tokio::runtime::Runtime;

use crate::{
    MountError, MountOptions, fs::Fs, handler::FuseHandler, invalidation::Invalidator,
    options::invalid_option,
};

/// Maximum name length if the server does not report one.
const NAME_MAX: u32 = 255;
/// Time limit for the kernel to complete an unmount.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of progress messages while unmounting.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// A mounted export. Dropping it detaches the mount at once; [`Self::unmount`] writes all data first.
pub struct Mount {
    fs: Arc<Fs>,
    serving: Serving,
    io_uring_is_used: Arc<AtomicBool>,
    runtime: Option<Runtime>,
    /// The lock of the mount point, released at last.
    _held: Option<File>,
}

impl Mount {
    /// Mounts the export, or a directory in it, given by `url` on `dir`. `options` are those of `-o`;
    /// `client` holds the remaining client settings.
    ///
    /// # Errors
    /// [`MountError`]. An unreachable server is reported within [`Options::connect_timeout`], even with
    /// `hard`.
    pub fn new(url: &Url, dir: &Path, options: &MountOptions, client: Options) -> Result<Self, MountError> {
        let path = mountpoint::check(dir)?;
        let held = mountpoint::hold(&path);
        let (url, client_options) = options.apply(url, client)?;
        let connections = url.nconnect.unwrap_or(client_options.nconnect);
        let runtime = executor(connections)?;
        let polls = url.busy_poll.is_some_and(|limit| !limit.is_zero());
        if polls && runtime.metrics().num_workers() > 1 {
            return Err(invalid_option("busy_poll", "requires nconnect=1"));
        }
        let (fs, client) = runtime.block_on(connect(&url, options, client_options, &runtime))?;
        let fs = Arc::new(fs);
        let source = format!("{SOURCE}{}{}", client.server(), url.path.display());
        let kernel = FuseHandler::new(Arc::clone(&fs), options.writeback, server_locks(&client, options));
        // With one connection, the thread that serves it also reads the requests. Otherwise each would be handed over.
        let on_executor = runtime.metrics().num_workers() == 1;
        let threads = if on_executor { 1 } else { settings::threads() };
        let io_uring = options.io_uring && on_executor;
        if options.io_uring && !on_executor {
            tracing::warn!(
                "mount option \"io_uring\" has no effect with nconnect={connections}: use nconnect=1"
            );
        }
        let session = settings::start(kernel, &options.request(source), &path, threads, io_uring)
            .map_err(|source| SystemError::Kernel { path: path.clone(), source })?;
        let _ = fs.invalidator.set(Invalidator::new(fs.rt.clone(), session.notifier()));
        let io_uring_is_used = session.io_uring_is_used();
        let serving = if on_executor {
            Serving::start_on(&fs.rt, session, path)
        } else {
            Serving::start(session, path)
        }?;
        let kernel_reads_ahead = raise_kernel_read_ahead(serving.path()); // The mount must be serving by now.
        fs.read_ahead_enabled
            .store(fs.timeouts.caches_file_attrs() && !kernel_reads_ahead, Ordering::Relaxed);
        fs.start_tasks();
        let channel = if io_uring_is_used.load(Ordering::Relaxed) { "io_uring" } else { "/dev/fuse" };
        tracing::info!(server = client.server(), path = %serving.path().display(), channel, "mounted");
        Ok(Self { fs, serving, io_uring_is_used, runtime: Some(runtime), _held: held })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.serving.path()
    }

    /// Whether requests arrive over io_uring ([`MountOptions::io_uring`]); otherwise they are read from `/dev/fuse`.
    pub fn uses_io_uring(&self) -> bool {
        self.io_uring_is_used.load(Ordering::Relaxed)
    }

    /// Number of write(2) whose reply a time limit has ended the wait for pages of: none, unless the kernel drops and reads
    /// the last page while it copies the data (`page_invalidations.rs`).
    #[doc(hidden)]
    pub fn page_drop_timeouts(&self) -> u64 {
        self.fs.page_drop_timeouts.load(Ordering::Relaxed)
    }

    /// Completes when the mount has ended, by this process or by umount(8).
    pub async fn ended(&self) {
        self.serving.ended().await;
    }

    /// Writes all data, removes silly-renamed files, and unmounts. Files that are still open become unusable.
    /// Data not written within `write_timeout` is lost and logged.
    ///
    /// # Errors
    /// [`MountError::Lost`] if data was lost that no fsync or close has reported, because writing timed out
    /// or the server rejected it, now or after the last close of the file.
    pub fn unmount(self, write_timeout: Duration) -> Result<(), MountError> {
        let deadline = Instant::now() + write_timeout;
        // Write now, while fsync and close can still report errors.
        self.write_all(deadline);
        if let Some(runtime) = &self.runtime {
            let left = deadline.saturating_duration_since(Instant::now());
            runtime.block_on(self.serving.unmount(left));
        }
        self.write_all(deadline);
        self.remove_silly_name();
        let files = self.fs.losses();
        if files.is_empty() { Ok(()) } else { Err(MountError::Lost { path: self.path().to_owned(), files }) }
    }

    /// Commits all data until the deadline, and logs progress.
    fn write_all(&self, deadline: Instant) {
        let Some(runtime) = &self.runtime else { return };
        let mut written = std::pin::pin!(self.fs.commit_all());
        runtime.block_on(async {
            loop {
                let now = Instant::now();
                let look = deadline.min(now + PROGRESS_INTERVAL).saturating_duration_since(now);
                if tokio::time::timeout(look, &mut written).await.is_ok() {
                    return;
                }
                let (files, bytes) = self.fs.pending();
                tracing::warn!(
                    "{}: {bytes} bytes of {files} files are not yet written",
                    self.path().display()
                );
                if Instant::now() >= deadline {
                    return;
                }
            }
        });
    }

    /// Removes silly-renamed files whose last close will not arrive.
    fn remove_silly_name(&self) {
        let Some(runtime) = &self.runtime else { return };
        let open: Vec<_> = self.fs.open.lock().iter().map(|(_, f)| Arc::clone(f)).collect();
        let removed = open.iter().map(|file| {
            file.inode.state.lock().open_count = 0;
            self.fs.remove_silly_name(&file.client, &file.inode)
        });
        let removed = futures::future::join_all(removed);
        let _ = runtime.block_on(async { tokio::time::timeout(UNMOUNT_TIMEOUT, removed).await });
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.serving.has_ended() {
            self.serving.detach();
            if let Some(runtime) = &self.runtime {
                runtime.block_on(self.serving.wait());
            }
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(self.fs.credentials.default_client().shutdown());
            runtime.shutdown_background();
        }
    }
}

/// One thread for each connection, limited by the number of processors.
fn executor(connections: usize) -> Result<Runtime, MountError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(connections.clamp(1, processors))
        .thread_name("millrace-nfs")
        .enable_all()
        .build()
        .map_err(|e| SystemError::Local(format!("cannot start the async runtime: {e}")).into())
}

/// The capabilities for locks at the server.
fn server_locks(client: &Client, options: &MountOptions) -> InitFlags {
    let at_server = client.version() != Version::V3;
    let mut locks = InitFlags::empty();
    locks.set(InitFlags::POSIX_LOCKS, at_server && !options.local_posix);
    locks.set(InitFlags::FLOCK_LOCKS, at_server && !options.local_flock);
    locks
}

async fn connect(
    url: &Url,
    options: &MountOptions,
    client_options: Options,
    runtime: &Runtime,
) -> Result<(Fs, Client), MountError> {
    let limit = client_options.connect_timeout + Duration::from_secs(5);
    let rt = TokioRuntime::from_handle(runtime.handle().clone());
    let connected = tokio::time::timeout(limit, Client::connect(rt.clone(), url, client_options));
    let client = connected
        .await
        .map_err(|_| SystemError::Local(format!("{} did not reply within {limit:?}", url.host)))??;
    if options.requires_locks && client.version() == Version::V3 {
        return Err(invalid_option("lock", "NFSv3 has only local locks here: use vers=4.2, or nolock"));
    }
    let root = client.resolve(client.path_in_export()).await?;
    if root.1.file_type != FileType::Directory {
        return Err(SystemError::Local(format!("{url} is not a directory")).into());
    }
    let name_max = client.pathconf(root.0).await.map_or(NAME_MAX, |p| p.name_max);
    let fs = Fs::new((rt, runtime.metrics().num_workers()), client.clone(), options, root, name_max);
    Ok((fs, client))
}
