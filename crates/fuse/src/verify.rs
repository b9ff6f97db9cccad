//! Revalidation of names at open(2) and link(2).
//!
//! The kernel resolves a cached name without a request until its timeout, and then sends OPEN or LINK with
//! the inode number. Without a check these would act on the file that had the name earlier. Both therefore
//! look up the cached names of the inode, and fail with ESTALE if one of them refers to another file. The
//! kernel then looks up each component of the path and retries the request once (`do_filp_open`,
//! `do_linkat`). The retry is served for the unchanged inode, as in the Linux NFS client. It is also a retry if another
//! request of the system call has failed with ESTALE, such as a LOOKUP in a removed directory.
//!
//! The kernel retries only system calls. Its own threads open files by handle or dentry (`dentry_open`), and
//! would pass ESTALE to their clients. nfsd is one of them. Their requests act on the inode, and so do those of
//! threads in other PID namespaces, whose retries cannot be recognized.
//!
//! A name that was looked up in the same system call is not looked up again. The request does not show this;
//! it is inferred from the thread, the time, and the file's ctime, which a rename changes.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_client::{
    handles::Client,
    ops::{Attributes, NfsTime},
};
use millrace_fuse_session::caller::is_kernel_thread;
use rustix::io::Errno;

use crate::{
    access::GrantedAccess,
    clock::Epoch,
    error::errno,
    fs::Fs,
    inode::Inode,
    retries::{LastLookup, StaleCall},
};

/// A request of a thread within this time after its LOOKUP counts as part of the same system call.
const SAME_SYSCALL: Duration = Duration::from_millis(10);
/// Maximum number of names of one file that are looked up.
const MAX_NAMES: usize = 16;

/// Result of the check at open.
pub(crate) struct OpenCheck {
    /// When the attributes were requested.
    pub(crate) issued: Epoch,
    pub(crate) attributes: Attributes,
    /// Granted subset of the requested rights.
    pub(crate) granted: u32,
    /// The request is a retry, so it must not fail with ESTALE again.
    pub(crate) is_retry: bool,
}

/// Result of looking up the names of a file.
pub(crate) struct NameCheck {
    /// A name refers to another file, or no longer exists.
    moved: bool,
    /// Attributes of the file from one of the lookups.
    attributes: Option<Attributes>,
}

impl Fs {
    /// Records that a LOOKUP of `tid` returned `inode`.
    pub(crate) fn record_lookup(&self, inode: &Inode, tid: u32) {
        let mut s = inode.state.lock();
        s.last_lookup = Some(LastLookup { tid, at: self.rt.now(), ctime: s.attrs.attributes.ctime });
    }

    /// Records the error of a request of `tid` for the inode `number`, with which the kernel looks up a path
    /// or opens a file.
    pub(crate) fn note_error(&self, tid: u32, number: u64, e: Errno) {
        if e == Errno::STALE {
            self.stale_retries.insert(tid, number, self.rt.now());
        }
    }

    /// Whether the caller of a request for `inode` retries it after ESTALE, and the retry will be recognized.
    pub(crate) async fn will_retry(&self, inode: &Inode, tid: u32) -> bool {
        !is_kernel_thread(&self.rt, tid).await && self.stale_retries.insert(tid, inode.number, self.rt.now())
    }

    /// Returns the last LOOKUP of an inode that is opened or linked, and the recorded system call of `tid` if
    /// the request belongs to its retry.
    fn begin_check(&self, inode: &Inode, tid: u32) -> (Option<LastLookup>, Option<StaleCall>) {
        let last = {
            let mut s = inode.state.lock();
            s.last_lookup
                .as_mut()
                .map(|lookup| LastLookup { tid: std::mem::take(&mut lookup.tid), ..*lookup })
        };
        (last, self.stale_retries.take(tid, inode.number, last, self.rt.now()))
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
        let (last_lookup, retried) = self.begin_check(inode, tid);
        let is_retry = retried.is_some_and(|call| !call.not_found);
        let issued = self.clock.tick();
        let opening = |(attributes, granted)| OpenCheck { issued, attributes, granted, is_retry };
        let is_same =
            |l: &LastLookup| l.tid == tid && tid != 0 && self.rt.now().duration_since(l.at) < SAME_SYSCALL;
        if is_retry {
            return Ok(opening(self.fetch_access(client, inode, wanted).await?));
        }
        if let Some(known) = self.delegated_open(client, inode, wanted) {
            return Ok(opening(known));
        }
        if let Some(last_lookup) = last_lookup.filter(is_same) {
            let access = self.fetch_access(client, inode, wanted).await?;
            if access.0.ctime != last_lookup.ctime
                && self.lookup_names(client, inode).await.moved
                && self.will_retry(inode, tid).await
            {
                return Err(Errno::STALE);
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
        if found.moved && self.will_retry(inode, tid).await {
            return Err(Errno::STALE);
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
        let (_, retried) = self.begin_check(inode, tid);
        if retried.is_none()
            && self.lookup_names(client, inode).await.moved
            && self.will_retry(inode, tid).await
        {
            return Err(Errno::STALE);
        }
        Ok(())
    }

    /// Looks up the cached names of an inode. A failed LOOKUP proves nothing: the caller may lack search
    /// permission. If all names still refer to the inode, opens need not look them up while it is delegated.
    pub(crate) async fn lookup_names(self: &Arc<Self>, client: &Client, inode: &Arc<Inode>) -> NameCheck {
        let version = inode.state.lock().delegation.names_version();
        let mut names = self.inodes.cached_names(inode.number);
        let mut are_confirmed = names.len() <= MAX_NAMES;
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
                Err(_) => {
                    are_confirmed = false;
                    continue;
                }
            }
            found.moved = true;
            drop(self.expire_names(dir.number, vec![name]));
        }
        if are_confirmed && !found.moved {
            inode.state.lock().delegation.include_names(version);
        }
        found
    }

    /// Fetches the attributes, and the rights in `wanted` if the server decides about access.
    async fn fetch_access(
        &self,
        client: &Client,
        inode: &Inode,
        wanted: u32,
    ) -> Result<(Attributes, u32), Errno> {
        if !self.checks_access {
            return Ok((client.getattr(inode.handle).await.map_err(|e| errno(&e))?, wanted));
        }
        let (granted, attributes) =
            client.access_and_attributes(inode.handle, wanted).await.map_err(|e| errno(&e))?;
        let rights = GrantedAccess { caller: client.clone(), wanted, granted, ctime: attributes.ctime };
        inode.state.lock().granted = Some(rights);
        Ok((attributes, granted))
    }

    /// Returns the attributes and the rights in `wanted` under a delegation, with which the names of the file are unchanged
    /// as well, if the rights are cached.
    fn delegated_open(&self, client: &Client, inode: &Inode, wanted: u32) -> Option<(Attributes, u32)> {
        let renamed = self.last_relink.load(Ordering::Acquire);
        let attributes = inode.delegated_attributes(&self.timeouts, renamed)?;
        let (granted, ctime) = self.cached_access(client, inode, wanted)?;
        ctime.is_none_or(|ctime| ctime == attributes.ctime).then_some((attributes, granted))
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
