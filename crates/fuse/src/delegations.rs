//! Read delegations (NFSv4). The mount requests one for a file that is opened for reading again. While it is valid, the
//! file's attributes and the pages that the kernel keeps do not expire, and an open needs no request: no other client has
//! changed the file or its names. Names and access rights are cached as without a delegation.
//!
//! This concerns names that were looked up under the delegation. A reply to an earlier request may contain a name that another
//! client has changed before the grant, so after such a reply the next open looks up all names of the file.
//!
//! When the server recalls it, the attributes expire here and in the kernel before the delegation is returned. From then on
//! close-to-open consistency applies: the next open revalidates, and files that are open for reading are polled.

use std::{sync::Arc, time::Duration};

use millrace_client::{Version, handles::Client};

use crate::{fs::Fs, inode::Inode};

/// Interval between requests for the delegation of a file.
const INTERVAL: Duration = Duration::from_secs(30);

impl Fs {
    /// Requests the delegation of a file that was opened before, in the background.
    pub(crate) fn request_delegation(self: &Arc<Self>, client: &Client, inode: &Arc<Inode>) {
        let now = self.rt.now();
        let asks = client.version() != Version::V3
            && self.timeouts.caches_file_attrs()
            && inode.state.lock().delegation.may_ask(now, now + INTERVAL);
        if !asks {
            return;
        }
        let (fs, client, inode) = (Arc::downgrade(self), client.clone(), Arc::clone(inode));
        let issued = self.clock.tick();
        let request = async move {
            let handle = inode.handle;
            let Ok(Some(granted)) = client.delegate(handle).await else { return };
            let Some(this) = fs.upgrade() else { return };
            let update =
                inode.delegate((&this.timeouts, &this.clock), issued, granted.attributes, granted.delegation);
            this.apply_update(&inode, update);
            this.lookup_names(&client, &inode).await;
            // Neither the mount nor the kernel's use of the file depends on this task.
            let inode = Arc::downgrade(&{ inode });
            drop((this, client));
            granted.recalled.await;
            if let (Some(fs), Some(inode)) = (fs.upgrade(), inode.upgrade()) {
                fs.return_delegation(&inode).await;
            }
        };
        self.rt.spawn("mount delegation", Box::pin(request));
    }

    /// Returns the delegation of a file, if it has one.
    pub(crate) async fn return_delegation(&self, inode: &Inode) {
        let Some(delegation) = inode.end_delegation() else { return };
        if let Some(invalidator) = self.invalidator.get() {
            invalidator.invalidate_attributes(inode.number);
        }
        delegation.give_back().await;
    }

    /// Returns the delegation of the file `name`, which is removed or replaced: afterwards the server does not find it.
    pub(crate) async fn return_delegation_of(&self, name: (u64, &[u8])) {
        if let Some(inode) = self.inodes.find_by_name(name) {
            self.return_delegation(&inode).await;
        }
    }
}
