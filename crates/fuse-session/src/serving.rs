//! A mount whose session is served by its own threads or on an executor, and its end.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread::JoinHandle,
    time::Duration,
};

use millrace_runtime::RuntimeRef;
use tokio::sync::{oneshot, watch};

use crate::{
    MountError,
    channel::{Handler, Session},
    mountpoint,
};

/// Time limit for the kernel to complete an unmount.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// A mounted file system. Dropping it detaches the mount.
pub struct Serving {
    path: PathBuf,
    /// `None` on an executor.
    thread: Option<JoinHandle<()>>,
    ended: watch::Receiver<bool>,
    /// The mount may no longer be unmounted by its path: there may be another one.
    detached: AtomicBool,
}

impl Serving {
    /// Serves `session`, which is mounted on `path`, until it is unmounted.
    ///
    /// # Errors
    /// The operating system refuses the thread; the mount is detached then.
    pub fn start<H: Handler>(session: Session<H>, path: PathBuf) -> Result<Self, MountError> {
        let (ended_tx, ended) = watch::channel(false);
        let serve = move || note_end(session.run(), &ended_tx);
        let mut serving = Self { path, thread: None, ended, detached: AtomicBool::new(false) };
        let thread = std::thread::Builder::new().name("millrace-mount".into()).spawn(serve);
        serving.thread = Some(thread.map_err(|e| MountError::Local(format!("cannot start a thread: {e}")))?);
        Ok(serving)
    }

    /// Like [`Self::start`], on the executor of `rt`: the session's handler must not block.
    ///
    /// # Errors
    /// The runtime cannot watch the device; the mount is detached then.
    pub fn start_on<H: Handler>(
        rt: &RuntimeRef,
        session: Session<H>,
        path: PathBuf,
    ) -> Result<Self, MountError> {
        let (ended_tx, ended) = watch::channel(false);
        let serving = Self { path, thread: None, ended, detached: AtomicBool::new(false) };
        let served = session.run_on(rt);
        let served = served.map_err(|e| MountError::Local(format!("cannot wait for requests: {e}")))?;
        let serve = async move { note_end(served.await, &ended_tx) };
        rt.spawn("mount session", Box::pin(serve));
        Ok(serving)
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the mount has ended, by this process or by umount(8).
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Completes when the mount has ended, by this process or by umount(8).
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        let _ = ended.wait_for(|e| *e).await;
    }

    /// Unmounts, within `limit` if the mount is idle. Otherwise, the mount is detached and files that are still open
    /// become unusable when this process exits.
    pub async fn unmount(&self, limit: Duration) {
        if !self.has_ended() && !self.unmount_idle(limit.max(UNMOUNT_TIMEOUT)).await {
            tracing::warn!("{} is in use; open files become unusable", self.path.display());
            self.detach();
        }
        self.wait().await;
    }

    /// Unmounts if no file is open. The kernel may have to write back pages first, which is uninterruptible;
    /// hence a separate thread.
    async fn unmount_idle(&self, limit: Duration) -> bool {
        let (tx, done) = oneshot::channel();
        let path = self.path.clone();
        std::thread::spawn(move || tx.send(mountpoint::unmount_idle(&path).is_ok()));
        matches!(tokio::time::timeout(limit, done).await, Ok(Ok(true)))
    }

    /// Removes the mount from the directory tree.
    pub fn detach(&self) {
        if !self.detached.swap(true, Ordering::Relaxed) {
            let _ = mountpoint::detach(&self.path);
        }
    }

    /// Waits until the kernel has completed the unmount, for a limited time.
    pub async fn wait(&self) {
        let _ = tokio::time::timeout(UNMOUNT_TIMEOUT, self.ended()).await;
    }
}

fn note_end(served: io::Result<()>, ended: &watch::Sender<bool>) {
    if let Err(e) = served {
        tracing::warn!("the kernel ended the mount: {e}");
    }
    let _ = ended.send(true); // The receiver may be gone.
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.detach();
        } else if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
