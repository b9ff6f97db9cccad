//! Revalidation of names at open(2) and link(2).
//!
//! The kernel resolves a cached name without a request until its timeout, and then sends OPEN or LINK with
//! the inode number. Without a check these would act on the file that had the name earlier. Both therefore
//! look up the cached names of the inode, and fail with ESTALE if one of them refers to another file. The
//! kernel then looks up each component of the path and retries the request once (`do_filp_open`,
//! `do_linkat`). The retry is served for the inode as it is, as in the Linux NFS client.
//!
//! A name that was looked up in the same system call is not looked up again. The request does not show this;
//! it is inferred from the thread, the time, and the file's ctime, which a rename changes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use millrace_client::nfs3::Client;
use millrace_nfs::v3::{Fattr, NfsTime, access};
use millrace_runtime::Instant;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{clock::Epoch, error::errno, fs::Fs, inode::Inode};

/// A request of a thread within this time after its LOOKUP counts as part of the same system call.
const SAME_SYSCALL: Duration = Duration::from_millis(10);
/// Time within which the kernel retries a request.
const RETRY_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of threads recorded in [`StaleRetries`].
const MAX_RETRYING: usize = 1024;
/// Maximum number of names of one file that are looked up.
const MAX_NAMES: usize = 16;

/// A LOOKUP that returned an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastLookup {
    tid: u32,
    at: Instant,
    ctime: NfsTime,
}

/// Access rights granted by the server.
pub(crate) struct GrantedAccess {
    caller: Client,
    wanted: u32,
    granted: u32,
    /// ctime of the file when they were granted.
    ctime: NfsTime,
}

/// Threads whose request failed with ESTALE and will be retried, with inode number and time.
#[derive(Default)]
pub(crate) struct StaleRetries(Mutex<HashMap<u32, (u64, Instant)>>);

impl StaleRetries {
    /// Records that a request of `tid` for the inode `number` fails with ESTALE.
    fn insert(&self, tid: u32, number: u64, now: Instant) {
        let mut threads = self.0.lock();
        if threads.len() >= MAX_RETRYING {
            threads.clear();
        }
        threads.insert(tid, (number, now));
    }

    /// Records that the system call of `tid` has ended without a retry.
    pub(crate) fn forget(&self, tid: u32) {
        let mut threads = self.0.lock();
        if !threads.is_empty() {
            threads.remove(&tid);
        }
    }

    /// Whether a request of `tid` for `inode` is a retry: for the same inode, or for one looked up since.
    fn take(&self, tid: u32, inode: &Inode, last_lookup: Option<LastLookup>, now: Instant) -> bool {
        let Some((number, since)) = self.0.lock().remove(&tid) else { return false };
        let found_since = last_lookup.is_some_and(|l| l.tid == tid && l.at >= since);
        now.duration_since(since) < RETRY_WINDOW && (number == inode.number || found_since)
    }
}

/// Result of the check at open.
pub(crate) struct OpenCheck {
    /// When the attributes were requested.
    pub(crate) issued: Epoch,
    pub(crate) attributes: Fattr,
    /// Granted subset of the requested rights.
    pub(crate) granted: u32,
    /// The request is a retry, so it must not fail with ESTALE again.
    pub(crate) is_retry: bool,
}

/// Result of looking up the names of a file.
struct NameCheck {
    /// A name refers to another file, or no longer exists.
    moved: bool,
    /// Attributes of the file from one of the lookups.
    attributes: Option<Fattr>,
}

impl Fs {
    /// Records that a LOOKUP of `tid` returned `inode`.
    pub(crate) fn record_lookup(&self, inode: &Inode, tid: u32) {
        if tid != 0 {
            let mut s = inode.state.lock();
            s.last_lookup = Some(LastLookup { tid, at: self.rt.now(), ctime: s.attrs.attributes.ctime });
        }
    }

    /// Records that the kernel will retry a request for `inode`, and returns ESTALE.
    pub(crate) fn stale_for_retry(&self, inode: &Inode, tid: u32) -> Errno {
        self.stale_retries.insert(tid, inode.number, self.rt.now());
        Errno::STALE
    }

    /// Checks that the names of a file still refer to it, and gets its attributes and the rights in `wanted`
    /// (if the server decides about access). One call, or two in parallel.
    ///
    /// # Errors
    /// [`Errno::STALE`] if the kernel must look up the path again, and those of the calls.
    pub(crate) async fn check_open(
        self: &Arc<Self>,
        client: &Client,
        inode: &Arc<Inode>,
        wanted: u32,
        tid: u32,
    ) -> Result<OpenCheck, Errno> {
        let last_lookup = inode.state.lock().last_lookup.take();
        let is_retry = self.stale_retries.take(tid, inode, last_lookup, self.rt.now());
        let issued = self.clock.tick();
        let opening = |(attributes, granted)| OpenCheck { issued, attributes, granted, is_retry };
        let same_syscall =
            last_lookup.filter(|l| l.tid == tid && self.rt.now().duration_since(l.at) < SAME_SYSCALL);
        if is_retry {
            return Ok(opening(self.fetch_access(client, inode, wanted).await?));
        }
        if let Some(last_lookup) = same_syscall {
            let access = self.fetch_access(client, inode, wanted).await?;
            if access.0.ctime != last_lookup.ctime && self.lookup_names(client, inode).await.moved {
                return Err(self.stale_for_retry(inode, tid));
            }
            return Ok(opening(access));
        }
        let rights = self.cached_access(client, inode, wanted);
        let (found, access) = match rights {
            Some(_) => (self.lookup_names(client, inode).await, None),
            None => {
                let (found, access) = futures::join!(
                    self.lookup_names(client, inode),
                    self.fetch_access(client, inode, wanted)
                );
                (found, Some(access))
            }
        };
        if found.moved {
            return Err(self.stale_for_retry(inode, tid));
        }
        if let (Some((granted, ctime)), Some(attributes)) = (rights, found.attributes)
            && ctime.is_none_or(|ctime| ctime == attributes.ctime)
        {
            return Ok(opening((attributes, granted)));
        }
        let access = match access {
            Some(access) => access?,
            None => self.fetch_access(client, inode, wanted).await?,
        };
        Ok(opening(access))
    }

    /// Checks for LINK that the cached names of `inode` still refer to it.
    ///
    /// # Errors
    /// [`Errno::STALE`] if the kernel must look up the path again.
    pub(crate) async fn check_names(
        self: &Arc<Self>,
        client: &Client,
        inode: &Arc<Inode>,
        tid: u32,
    ) -> Result<(), Errno> {
        let last_lookup = inode.state.lock().last_lookup.take();
        let is_retry = self.stale_retries.take(tid, inode, last_lookup, self.rt.now());
        if !is_retry && self.lookup_names(client, inode).await.moved {
            return Err(self.stale_for_retry(inode, tid));
        }
        Ok(())
    }

    /// Looks up the cached names of an inode. A failed LOOKUP proves nothing: the caller may lack search
    /// permission.
    async fn lookup_names(self: &Arc<Self>, client: &Client, inode: &Arc<Inode>) -> NameCheck {
        let mut names = self.inodes.cached_names(inode.number);
        names.truncate(MAX_NAMES);
        let issued = self.clock.tick();
        let lookups = names.iter().map(|(dir, (_, text, _))| client.lookup(dir.handle, text));
        let replies = futures::future::join_all(lookups).await;
        let mut found = NameCheck { moved: false, attributes: None };
        for ((dir, name), reply) in names.into_iter().zip(replies) {
            match reply {
                Ok(object) => {
                    drop(self.update_directory(&dir, issued, object.dir.after));
                    if object.handle == inode.handle {
                        found.attributes = Some(object.attributes);
                        continue;
                    }
                }
                Err(e) if e.is_not_found() => {}
                Err(_) => continue,
            }
            found.moved = true;
            drop(self.expire_names(dir.number, vec![name]));
        }
        found
    }

    /// Fetches the attributes, and the rights in `wanted` if the server decides about access.
    async fn fetch_access(&self, client: &Client, inode: &Inode, wanted: u32) -> Result<(Fattr, u32), Errno> {
        if !self.checks_access {
            return Ok((client.getattr(inode.handle).await.map_err(|e| errno(&e))?, wanted));
        }
        let (granted, attributes) =
            client.access_and_attributes(inode.handle, wanted).await.map_err(|e| errno(&e))?;
        let rights = GrantedAccess { caller: client.clone(), wanted, granted, ctime: attributes.ctime };
        inode.state.lock().granted = Some(rights);
        Ok((attributes, granted))
    }

    /// Returns rights that are cached, and the ctime of the file for which they are valid.
    fn cached_access(&self, client: &Client, inode: &Inode, wanted: u32) -> Option<(u32, Option<NfsTime>)> {
        if !self.checks_access {
            return Some((wanted, None));
        }
        let s = inode.state.lock();
        let rights =
            s.granted.as_ref().filter(|r| r.wanted & wanted == wanted && r.caller.is_same_caller(client))?;
        Some((rights.granted & wanted, Some(rights.ctime)))
    }
}

/// Access rights for files. All are requested at once, so that later opens need not ask again.
pub(crate) const FILE_ACCESS: u32 = access::READ | access::MODIFY | access::EXTEND | access::EXECUTE;
