//! Looking after files that are open for reading.
//!
//! The kernel reads from its pages without asking us. So while a file is open for reading, the mount itself asks for its
//! attributes whenever they are no longer believed, and has the pages dropped when somebody else has changed the file.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use millrace_runtime::RuntimeExt;

use crate::{fs::Fs, inode::CacheUpdate, open::OpenFile};

/// How often it is looked which files are due.
const LOOK: Duration = Duration::from_millis(500);
/// How many files are asked about at a time.
const AT_A_TIME: usize = 16;

impl Fs {
    /// Goes on for ever.
    pub(crate) async fn look_after_readers(self: Arc<Self>) {
        loop {
            self.rt.sleep(LOOK).await;
            let now = self.rt.now();
            self.open.lock().iter().for_each(|(_, file)| file.read_ahead.drop_if_idle(now));
            let due = self.due();
            futures::stream::iter(due).for_each_concurrent(AT_A_TIME, |file| self.revalidate(file)).await;
        }
    }

    /// One description of each file that is open for reading and due.
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
                // The server says that it is gone, or the like: so shall who reads it.
                if e.status().is_some() { inode.invalidate_pages() } else { CacheUpdate::default() }
            }
        };
        self.apply_update(inode, update);
    }
}
