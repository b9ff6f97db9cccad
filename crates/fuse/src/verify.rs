//! Revalidation of names at open(2) and link(2).
//!
//! The kernel resolves a cached name without a request until its lifetime has expired, and then sends OPEN or LINK with the
//! inode number: without a check these would act on the file that had the name before. So both look up the cached names of the
//! inode, and are answered with ESTALE if one of them leads elsewhere. The kernel then looks up each component of the path
//! and repeats the request once (`do_filp_open`, `do_linkat`). The repeated request is answered by the inode, whatever has
//! changed since, as in the Linux NFS client.
//!
//! A name that was looked up in the same system call is not looked up again. The request does not say so; it is derived from
//! the thread, the time, and the file's ctime, which a rename changes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use millrace_client::Client;
use millrace_nfs::v3::{Fattr, NfsTime, access};
use millrace_runtime::Instant;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    error::errno,
    fs::Fs,
    inode::{Epoch, Inode},
};

/// A request of a thread within this time of its LOOKUP is taken for part of the same system call.
const SAME_SYSCALL: Duration = Duration::from_millis(10);
/// The kernel repeats a request within this time, or not at all.
const RETRY_WINDOW: Duration = Duration::from_secs(60);
/// Threads that are recorded as about to repeat a request.
const MAX_RETRYING: usize = 1024;
/// The most names of one file that are looked up.
const MAX_NAMES: usize = 16;

/// A LOOKUP that led to an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastLookup {
    tid: u32,
    at: Instant,
    ctime: NfsTime,
}

/// Rights that the server has granted.
pub(crate) struct GrantedAccess {
    caller: Client,
    wanted: u32,
    granted: u32,
    /// Of the file then.
    ctime: NfsTime,
}

/// Threads whose request was answered with ESTALE and will be repeated: the inode number, and the time of the answer.
#[derive(Default)]
pub(crate) struct StaleRetries(Mutex<HashMap<u32, (u64, Instant)>>);

impl StaleRetries {
    /// The request of `tid` about the inode `number` is answered with ESTALE.
    fn insert(&self, tid: u32, number: u64, now: Instant) {
        let mut threads = self.0.lock();
        if threads.len() >= MAX_RETRYING {
            threads.clear();
        }
        threads.insert(tid, (number, now));
    }

    /// The call of `tid` has ended without being repeated.
    pub(crate) fn forget(&self, tid: u32) {
        let mut threads = self.0.lock();
        if !threads.is_empty() {
            threads.remove(&tid);
        }
    }

    /// Whether a request of `tid` about `inode` is a repeated one: about the same inode, or one that it has looked up since.
    fn take(&self, tid: u32, inode: &Inode, last_lookup: Option<LastLookup>, now: Instant) -> bool {
        let Some((number, since)) = self.0.lock().remove(&tid) else { return false };
        let found_since = last_lookup.is_some_and(|l| l.tid == tid && l.at >= since);
        now.duration_since(since) < RETRY_WINDOW && (number == inode.number || found_since)
    }
}

/// What the server says of a file that is opened.
pub(crate) struct OpenCheck {
    /// When it was asked.
    pub(crate) issued: Epoch,
    pub(crate) attributes: Fattr,
    /// Of the rights that were asked for.
    pub(crate) granted: u32,
    /// The request is a repeated one, so it cannot be repeated again.
    pub(crate) is_retry: bool,
}

/// Which of the names of a file were found to lead to it.
struct NameCheck {
    /// One leads elsewhere, or nowhere.
    moved: bool,
    /// The attributes that came with one that leads to the file.
    attributes: Option<Fattr>,
}

impl Fs {
    /// The kernel was told of `inode` in answer to a LOOKUP of `tid`.
    pub(crate) fn record_lookup(&self, inode: &Inode, tid: u32) {
        if tid != 0 {
            let mut s = inode.state.lock();
            s.last_lookup = Some(LastLookup { tid, at: self.rt.now(), ctime: s.attrs.attributes.ctime });
        }
    }

    /// Answers a request about `inode` with ESTALE, so that the kernel repeats it.
    pub(crate) fn stale_for_retry(&self, inode: &Inode, tid: u32) -> Errno {
        self.stale_retries.insert(tid, inode.number, self.rt.now());
        Errno::STALE
    }

    /// Asks what opening a file takes: whether its names still lead to it, the rights in `wanted`, if the server is to
    /// be asked, and the attributes. One call, or two at a time.
    ///
    /// # Errors
    /// [`Errno::STALE`] to look the path up again, and those of the calls.
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
            let answer = self.fetch_access(client, inode, wanted).await?;
            if answer.0.ctime != last_lookup.ctime && self.lookup_names(client, inode).await.moved {
                return Err(self.stale_for_retry(inode, tid));
            }
            return Ok(opening(answer));
        }
        let rights = self.cached_access(client, inode, wanted);
        let (found, answer) = match rights {
            Some(_) => (self.lookup_names(client, inode).await, None),
            None => {
                let (found, answer) = futures::join!(
                    self.lookup_names(client, inode),
                    self.fetch_access(client, inode, wanted)
                );
                (found, Some(answer))
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
        let answer = match answer {
            Some(answer) => answer?,
            None => self.fetch_access(client, inode, wanted).await?,
        };
        Ok(opening(answer))
    }

    /// Whether all names by which the kernel may have reached `inode`, to link it, still lead to it.
    ///
    /// # Errors
    /// [`Errno::STALE`] to look the path up again.
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

    /// Looks up the names of an inode. A LOOKUP that fails proves nothing: the caller may have no right to search.
    async fn lookup_names(self: &Arc<Self>, client: &Client, inode: &Arc<Inode>) -> NameCheck {
        let mut names = self.inodes.cached_names(inode.number);
        names.truncate(MAX_NAMES);
        let issued = self.clock.tick();
        let lookups = names.iter().map(|(dir, (_, text, _))| client.lookup(dir.handle, text));
        let answers = futures::future::join_all(lookups).await;
        let mut found = NameCheck { moved: false, attributes: None };
        for ((dir, name), answer) in names.into_iter().zip(answers) {
            match answer {
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

    /// The attributes, and the rights in `wanted` if the server is to be asked.
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

    /// The rights that need not be asked for, and the ctime of the file for which they hold.
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

/// The rights that reading and writing a file take: asked for at once, so that they need not be asked for again.
pub(crate) const FILE_ACCESS: u32 = access::READ | access::MODIFY | access::EXTEND | access::EXECUTE;
