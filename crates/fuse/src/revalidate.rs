//! Revalidates files that are open for reading.
//!
//! The kernel reads cached pages without a request. While a file is open for reading, the mount therefore
//! requests its attributes whenever they expire, and invalidates the pages if another client has changed the
//! file.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use millrace_runtime::RuntimeExt;

use crate::{fs::Fs, inode::CacheUpdate, open_file::OpenFile};

/// Interval between checks for expired attributes.
const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of concurrent GETATTR calls.
const MAX_CONCURRENT: usize = 16;

impl Fs {
    /// Runs forever.
    pub(crate) async fn revalidate_readers(self: Arc<Self>) {
        loop {
            self.rt.sleep(INTERVAL).await;
            let now = self.rt.now();
            self.open.lock().iter().for_each(|(_, file)| file.read_ahead.drop_if_idle(now));
            let due = self.due();
            futures::stream::iter(due)
                .for_each_concurrent(MAX_CONCURRENT, |file| self.revalidate(file))
                .await;
        }
    }

    /// One open description of each file that is open for reading and has expired attributes.
    fn due(&self) -> Vec<Arc<OpenFile>> {
        let open = self.open.lock();
        let mut due: Vec<_> = open
            .iter()
            .filter(|(_, f)| f.readable && f.inode.needs_revalidation(&self.timeouts))
            .map(|(_, f)| Arc::clone(f))
            .collect();
        drop(open);
        due.sort_unstable_by_key(|file| file.inode.number);
        due.dedup_by_key(|file| file.inode.number);
        due
    }

    async fn revalidate(self: &Arc<Self>, file: Arc<OpenFile>) {
        let inode = &file.inode;
        self.write_back(inode).await;
        let issued = self.clock.tick();
        let update = match file.client.getattr(inode.handle).await {
            Ok(attributes) => inode.record_attributes(&self.timeouts, issued, attributes),
            Err(e) => {
                inode.expire_attributes(&self.timeouts);
                // NFS error such as STALE: readers must see it.
                if e.status().is_some() { inode.invalidate_pages() } else { CacheUpdate::default() }
            }
        };
        self.apply_update(inode, update);
    }
}
