//! The file system's state, and the calls that change nothing.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_client::{Client, Object};
use millrace_nfs::v3::{Fattr, FileHandle, FileType, FsstatOk, WccData, access};
use millrace_runtime::RuntimeRef;
use parking_lot::Mutex;
use rustix::io::Errno;
use slab::Slab;
use tokio::sync::{Notify, oneshot};

use crate::{
    LostFile,
    credentials::CredentialCache,
    dentries::CachedName,
    directory::{CallTime, DirStream},
    dispatch::Dispatcher,
    error::errno,
    inode::{AttrReply, CacheUpdate, Epoch, Inode, InodeTable, LogicalClock, ROOT},
    invalidation::Invalidator,
    open::OpenFile,
    options::MountOptions,
    timeouts::CacheTimeouts,
    verify::StaleRetries,
};

/// How long the entries of a listing are as good as looked up.
const LISTING_MAX_AGE: Duration = Duration::from_secs(1);

/// A name that was found or made.
pub(crate) struct Entry {
    pub(crate) inode: Arc<Inode>,
    pub(crate) attrs: AttrReply,
    /// How long the name is believed.
    pub(crate) ttl: Duration,
}

pub(crate) struct Fs {
    pub(crate) rt: RuntimeRef,
    /// Where requests are answered.
    pub(crate) dispatcher: Dispatcher,
    pub(crate) credentials: CredentialCache,
    pub(crate) inodes: InodeTable,
    pub(crate) timeouts: CacheTimeouts,
    pub(crate) clock: LogicalClock,
    /// Rights are asked of the server when a file is opened; else the kernel judges by mode.
    pub(crate) checks_access: bool,
    /// Every write is sent at once and waited for (`noac`, `sync`).
    pub(crate) write_through: bool,
    /// When links of files changed that we cannot name.
    pub(crate) last_relink: AtomicU64,
    pub(crate) open: Mutex<Slab<Arc<OpenFile>>>,
    pub(crate) directories: Mutex<Slab<Arc<DirStream>>>,
    /// Files with data that is not stable.
    pub(crate) dirty: Mutex<BTreeMap<u64, Arc<Inode>>>,
    /// Closed files, by number, whose data was lost without a program being told.
    pub(crate) lost: Mutex<BTreeMap<u64, LostFile>>,
    /// Bytes on their way.
    pub(crate) in_flight_bytes: AtomicUsize,
    /// The kernel reads too little ahead.
    pub(crate) read_ahead_enabled: AtomicBool,
    /// Bytes that are fetched ahead, or being fetched.
    pub(crate) read_ahead_bytes: Arc<AtomicUsize>,
    /// Names that removed files have while they are open: directory's number and name.
    pub(crate) silly_names: Mutex<HashSet<(u64, Vec<u8>)>>,
    pub(crate) invalidator: OnceLock<Invalidator>,
    pub(crate) stale_retries: StaleRetries,
    /// Notified every half second: see [`Self::run_timer`].
    pub(crate) ticks: Notify,
    /// The kernel supports expiry of names (FUSE 7.38, Linux 6.2). Without it, names are used until their lifetime has expired.
    pub(crate) can_expire_names: AtomicBool,
    name_max: u32,
}

impl Fs {
    /// The file system below `root`, whose requests so many lanes answer.
    pub(crate) fn new(
        (rt, workers): (RuntimeRef, usize),
        client: Client,
        options: &MountOptions,
        root: (FileHandle, Fattr),
        name_max: u32,
    ) -> Self {
        let timeouts = CacheTimeouts::new(rt.clone(), options);
        let table = InodeTable::default();
        table.set_root(root.0, &root.1, &timeouts);
        let own = client.options().credential.clone();
        Self {
            dispatcher: Dispatcher::new(&rt, workers),
            rt,
            credentials: CredentialCache::new(client, own),
            inodes: table,
            timeouts,
            clock: LogicalClock::default(),
            checks_access: !options.checks_modes(),
            write_through: options.sync,
            last_relink: AtomicU64::new(0),
            open: Mutex::default(),
            directories: Mutex::default(),
            dirty: Mutex::default(),
            lost: Mutex::default(),
            in_flight_bytes: AtomicUsize::new(0),
            read_ahead_enabled: AtomicBool::new(false),
            read_ahead_bytes: Arc::default(),
            silly_names: Mutex::default(),
            invalidator: OnceLock::new(),
            stale_retries: StaleRetries::default(),
            ticks: Notify::new(),
            can_expire_names: AtomicBool::new(false),
            name_max,
        }
    }

    /// Starts what goes on beside requests.
    pub(crate) fn start_tasks(self: &Arc<Self>) {
        self.rt.spawn("mount timer", Box::pin(Arc::clone(self).run_timer()));
        if self.timeouts.caches_file_attrs() {
            self.rt.spawn("mount revalidation", Box::pin(Arc::clone(self).look_after_readers()));
        }
    }

    /// The inode of a number that the kernel gave.
    ///
    /// # Errors
    /// [`Errno::STALE`]: the kernel does not know it any more either.
    pub(crate) fn inode(&self, number: u64) -> Result<Arc<Inode>, Errno> {
        self.inodes.get(number).ok_or(Errno::STALE)
    }

    /// Something was linked or unlinked that may have other names.
    pub(crate) fn note_relink(&self) {
        self.last_relink.store(self.clock.tick(), Ordering::Release);
    }

    /// As [`Inode::learn`]; what the kernel has that is found to be old goes.
    pub(crate) fn update_from_server(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        issued: Epoch,
        attributes: Fattr,
    ) -> AttrReply {
        let attrs = inode.update_from_server(&self.timeouts, issued, attributes);
        self.apply_update(inode, attrs.update);
        attrs
    }

    /// Takes a directory's attributes that came with the answer to a call made at `issued`. Completes when the kernel does not
    /// use names any more that are found to be old: see [`Invalidator::names`].
    pub(crate) fn update_directory(
        self: &Arc<Self>,
        dir: &Arc<Inode>,
        issued: Epoch,
        attributes: Option<Fattr>,
    ) -> Option<oneshot::Receiver<()>> {
        let update = dir.record_attributes(&self.timeouts, issued, attributes?);
        if update.invalidates_names { self.expire_all_names(dir) } else { None }
    }

    /// As [`Inode::entries_changed`]; names that are found to be old are not used any more.
    pub(crate) fn note_entries_changed(self: &Arc<Self>, dir: &Arc<Inode>, wcc: &WccData) {
        self.apply_update(dir, dir.note_entries_changed(&self.clock, wcc));
    }

    /// Tells the kernel to drop what was found to be old.
    pub(crate) fn apply_update(self: &Arc<Self>, inode: &Arc<Inode>, update: CacheUpdate) {
        if update.invalidates_pages
            && let Some(invalidator) = self.invalidator.get()
        {
            invalidator.invalidate_pages(inode);
        }
        if update.invalidates_names {
            drop(self.expire_all_names(inode));
        }
    }

    fn expire_all_names(self: &Arc<Self>, dir: &Inode) -> Option<oneshot::Receiver<()>> {
        self.invalidator.get().filter(|invalidator| invalidator.can_expire_names())?;
        self.expire_names(dir.number, self.inodes.begin_expiry(dir.number))
    }

    /// Has the kernel ask for names in a directory before it uses them again. The receiver completes when it knows.
    pub(crate) fn expire_names(
        self: &Arc<Self>,
        dir: u64,
        names: Vec<CachedName>,
    ) -> Option<oneshot::Receiver<()>> {
        if names.is_empty() {
            return None;
        }
        let texts = names.iter().map(|(_, text, _)| Arc::clone(text)).collect();
        let known = self.invalidator.get()?.expire_names(dir, texts)?;
        let (done, all_done) = oneshot::channel();
        let fs = Arc::clone(self);
        let expiry = async move {
            let _ = known.await; // Nothing is sent, here or below.
            fs.inodes.finish_expiry(&names);
            drop::<oneshot::Sender<()>>(done);
        };
        self.rt.spawn("mount expiry", Box::pin(expiry));
        Some(all_done)
    }

    /// An object that `name` in `dir` stands for, for the kernel.
    pub(crate) fn make_entry(
        self: &Arc<Self>,
        (dir, name): (&Inode, &[u8]),
        issued: Epoch,
        object: Object,
    ) -> Entry {
        let inode =
            self.inodes.get_or_insert((dir.number, name), object.handle, &object.attributes, &self.timeouts);
        let attrs = self.update_from_server(&inode, issued, object.attributes);
        Entry { inode, attrs, ttl: dir.name_timeouts(&self.timeouts, issued).0 }
    }

    /// As [`Self::entry`], of a listing, which may be read long after it was asked for: if we have changed the directory
    /// since, or much time has passed, neither name nor attributes are believed.
    pub(crate) fn make_listed_entry(
        self: &Arc<Self>,
        (dir, name): (&Inode, &[u8]),
        issued: CallTime,
        object: Object,
    ) -> Entry {
        let is_fresh =
            self.rt.now().duration_since(issued.at) < LISTING_MAX_AGE && dir.unchanged_since(issued.epoch);
        if is_fresh {
            return self.make_entry((dir, name), issued.epoch, object);
        }
        let inode =
            self.inodes.get_or_insert((dir.number, name), object.handle, &object.attributes, &self.timeouts);
        inode.note_unknown_change(&self.clock); // So that the answer counts as overtaken.
        let attrs = self.update_from_server(&inode, issued.epoch, object.attributes);
        Entry { inode, attrs, ttl: Duration::ZERO }
    }

    /// A name. `Err` holds how long the kernel may hold that it is not there, with [`Errno::NOENT`].
    pub(crate) async fn lookup(
        self: &Arc<Self>,
        client: &Client,
        dir: u64,
        name: &[u8],
        tid: u32,
    ) -> Result<Entry, (Errno, Duration)> {
        let fail = |e| (e, Duration::ZERO);
        let dir = self.inode(dir).map_err(fail)?;
        let issued = self.clock.tick();
        match client.lookup(dir.handle, name).await {
            Ok(object) => {
                drop(self.update_directory(&dir, issued, object.dir.after));
                let entry = self.make_entry((&dir, name), issued, object);
                self.record_lookup(&entry.inode, tid);
                Ok(entry)
            }
            Err(e) if e.is_not_found() => {
                self.stale_retries.forget(tid);
                let ttl = dir.name_timeouts(&self.timeouts, issued).1;
                let is_cached = self.inodes.insert_negative((dir.number, name), self.rt.now(), ttl);
                Err((Errno::NOENT, if is_cached { ttl } else { Duration::ZERO }))
            }
            Err(e) => Err(fail(errno(&e))),
        }
    }

    /// The inode of a number that the kernel has perhaps forgotten, and has from a file handle.
    ///
    /// # Errors
    /// [`Errno::STALE`]: the number does not stand for a file any more, or was forgotten too long ago.
    pub(crate) async fn lookup_by_number(
        self: &Arc<Self>,
        client: &Client,
        number: u64,
    ) -> Result<Entry, Errno> {
        let handle = self.inodes.handle(number).ok_or(Errno::STALE)?;
        let issued = self.clock.tick();
        let attributes = client.getattr(handle).await.map_err(|e| errno(&e))?;
        let found = self.inodes.reinsert(number, handle, &attributes, &self.timeouts);
        let inode = found.ok_or(Errno::STALE)?;
        let attrs = self.update_from_server(&inode, issued, attributes);
        Ok(Entry { inode, attrs, ttl: Duration::ZERO })
    }

    /// The directory in which a directory is, for a file handle.
    ///
    /// # Errors
    /// [`Errno::STALE`]: it lies outside of the mount.
    pub(crate) async fn lookup_parent(
        self: &Arc<Self>,
        client: &Client,
        number: u64,
    ) -> Result<Entry, Errno> {
        let dir = self.inode(number)?;
        let issued = self.clock.tick();
        if number == ROOT {
            return self.lookup_by_number(client, ROOT).await;
        }
        let parent = client.lookup(dir.handle, "..").await.map_err(|e| errno(&e))?;
        // The root of the export is its own parent.
        if parent.handle == dir.handle {
            return Err(Errno::STALE);
        }
        let inode = self.inodes.get_or_insert_unnamed(parent.handle, &parent.attributes, &self.timeouts);
        let attrs = self.update_from_server(&inode, issued, parent.attributes);
        Ok(Entry { inode, attrs, ttl: Duration::ZERO })
    }

    /// Attributes that hold without asking.
    ///
    /// Where the kernel checks modes it asks again before it refuses something (`fuse_permission`): so who may not do
    /// everything is told what the server has now.
    pub(crate) fn cached_attributes(&self, number: u64, (uid, gid): (u32, u32)) -> Option<AttrReply> {
        let inode = self.inodes.get(number)?;
        if !self.checks_access && !inode.mode_allows_access(uid, gid) {
            return None;
        }
        inode.cached_reply(&self.timeouts, self.last_relink.load(Ordering::Acquire))
    }

    /// Attributes, from the server. Who sees that somebody else has changed the file reads no old pages afterwards.
    pub(crate) async fn getattr(self: &Arc<Self>, client: &Client, number: u64) -> Result<AttrReply, Errno> {
        let inode = self.inode(number)?;
        self.write_back(&inode).await;
        let issued = self.clock.tick();
        let attributes = client.getattr(inode.handle).await.map_err(|e| errno(&e))?;
        let attrs = self.update_from_server(&inode, issued, attributes);
        if let Some(invalidator) = self.invalidator.get() {
            invalidator.wait_until_dropped(&inode).await;
        }
        Ok(attrs)
    }

    /// Opens a directory for listing: who has seen that others have changed it finds what is in it now.
    pub(crate) async fn opendir(self: &Arc<Self>, client: Client, number: u64) -> Result<u64, Errno> {
        let dir = self.inode(number)?;
        if self.checks_access {
            let issued = self.clock.tick();
            let wanted = access::READ | access::LOOKUP;
            let (granted, attributes) =
                client.access_and_attributes(dir.handle, wanted).await.map_err(|e| errno(&e))?;
            if let Some(known) = self.update_directory(&dir, issued, Some(attributes)) {
                let _ = known.await; // Nothing is sent.
            }
            if granted & access::READ == 0 {
                return Err(Errno::ACCESS);
            }
        }
        Ok(self.directories.lock().insert(Arc::new(DirStream::new(dir, client))) as u64)
    }

    /// Whether the caller may do what `mask` (of access(2)) says.
    pub(crate) async fn access(&self, client: &Client, number: u64, mask: u32) -> Result<(), Errno> {
        let inode = self.inode(number)?;
        let is_dir = inode.kind == FileType::Directory;
        let mut wanted = 0;
        if mask & 4 != 0 {
            wanted |= access::READ;
        }
        if mask & 2 != 0 {
            wanted |= access::MODIFY | access::EXTEND;
        }
        if mask & 1 != 0 {
            wanted |= if is_dir { access::LOOKUP } else { access::EXECUTE };
        }
        if wanted == 0 {
            return Ok(());
        }
        let granted = client.access(inode.handle, wanted).await.map_err(|e| errno(&e))?;
        if granted == wanted { Ok(()) } else { Err(Errno::ACCESS) }
    }

    pub(crate) async fn readlink(&self, client: &Client, number: u64) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(number)?;
        client.readlink(inode.handle).await.map_err(|e| errno(&e))
    }

    /// Sizes, and the longest name.
    pub(crate) async fn statfs(&self, client: &Client) -> Result<(FsstatOk, u32), Errno> {
        let root = self.inode(ROOT)?;
        Ok((client.fsstat(root.handle).await.map_err(|e| errno(&e))?, self.name_max))
    }
}
