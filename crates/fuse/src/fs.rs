//! State of the mounted file system, and the operations that do not modify it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_client::{
    Version,
    handles::{Client, Object},
    ops::{Attributes, FileHandle, FileType, FsStat, NfsTime, SetAttributes, SetTime, Wcc, access},
};
use millrace_fuse_session::dispatch::Dispatcher;
use millrace_runtime::RuntimeRef;
use parking_lot::Mutex;
use rustix::io::Errno;
use slab::Slab;
use tokio::sync::{Notify, oneshot};

use crate::{
    LostFile,
    clock::{Epoch, LogicalClock},
    credentials::CredentialCache,
    dentries::{CacheStamp, CachedName, ROOT},
    dir_stream::{CallTime, DirStream},
    error::errno,
    inode::{AttrReply, CacheUpdate, FoundFile, Inode, InodeTable},
    invalidation::Invalidator,
    lock_owners::OwnerNumbers,
    open_file::OpenFile,
    options::MountOptions,
    retries::StaleRetries,
    timeouts::CacheTimeouts,
};

/// Maximum age of a READDIRPLUS entry that is treated like a LOOKUP result.
const LISTING_MAX_AGE: Duration = Duration::from_secs(1);

/// The result of LOOKUP or of an operation that creates a name.
pub(crate) struct Entry {
    pub(crate) inode: Arc<Inode>,
    pub(crate) attrs: AttrReply,
    /// How long the kernel may cache the name.
    pub(crate) ttl: Duration,
}

pub(crate) struct Fs {
    pub(crate) rt: RuntimeRef,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) credentials: CredentialCache,
    pub(crate) inodes: InodeTable,
    pub(crate) timeouts: CacheTimeouts,
    pub(crate) clock: LogicalClock,
    /// Access rights are checked by the server when a file is opened; otherwise by the kernel according to
    /// the mode.
    pub(crate) checks_access: bool,
    /// Each write is sent at once and synchronously (`noac`, `sync`).
    pub(crate) write_through: bool,
    /// Epoch of the last change to the link count of a file that could not be identified.
    pub(crate) last_relink: AtomicU64,
    pub(crate) open: Mutex<Slab<Arc<OpenFile>>>,
    pub(crate) directories: Mutex<Slab<Arc<DirStream>>>,
    /// Files with unstable data.
    pub(crate) dirty: Mutex<BTreeMap<u64, Arc<Inode>>>,
    /// Closed files whose data was lost without a program having been informed, by inode number.
    pub(crate) lost: Mutex<BTreeMap<u64, LostFile>>,
    /// Bytes of WRITE calls in flight.
    pub(crate) in_flight_bytes: AtomicUsize,
    /// The mount reads ahead, because the kernel's read-ahead is small.
    pub(crate) read_ahead_enabled: AtomicBool,
    /// Bytes in read-ahead buffers, including those in flight.
    pub(crate) read_ahead_bytes: Arc<AtomicUsize>,
    /// Files that were removed while open, and therefore renamed ("silly rename"): the inode number of the directory,
    /// and the new name.
    pub(crate) silly_names: Mutex<HashSet<(u64, Vec<u8>)>>,
    pub(crate) lock_numbers: OwnerNumbers,
    /// WRITEs whose reply did not wait any longer until pages were dropped.
    pub(crate) page_drop_timeouts: AtomicU64,
    /// The log names times that NFSv3 does not have.
    are_times_noted: AtomicBool,
    pub(crate) invalidator: OnceLock<Invalidator>,
    pub(crate) stale_retries: StaleRetries,
    /// Notified every half second by [`Self::run_timer`].
    pub(crate) ticks: Notify,
    name_max: u32,
}

impl Fs {
    /// Logs, once for a mount, that a time to set is one that NFSv3 does not have, so that the nearest is set.
    pub(crate) fn note_times(&self, client: &Client, set: &SetAttributes) {
        let is_other = |time| matches!(time, SetTime::ClientTime(time) if !NfsTime::is_in_v3(&time));
        if client.version() == Version::V3
            && [set.atime, set.mtime].into_iter().any(is_other)
            && !self.are_times_noted.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "NFSv3 has times of 1970 to 2106 only, and the nearest is set: vers=4.2 has others"
            );
        }
    }

    /// Creates the file system below `root` with `workers` dispatcher tasks.
    pub(crate) fn new(
        (rt, workers): (RuntimeRef, usize),
        client: Client,
        options: &MountOptions,
        root: (FileHandle, Attributes),
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
            lock_numbers: OwnerNumbers::default(),
            page_drop_timeouts: AtomicU64::new(0),
            are_times_noted: AtomicBool::new(false),
            invalidator: OnceLock::new(),
            stale_retries: StaleRetries::default(),
            ticks: Notify::new(),
            name_max,
        }
    }

    /// Starts the background tasks.
    pub(crate) fn start_tasks(self: &Arc<Self>) {
        self.rt.spawn("mount timer", Box::pin(Arc::clone(self).run_timer()));
        if self.timeouts.caches_file_attrs() {
            self.rt.spawn("mount revalidation", Box::pin(Arc::clone(self).revalidate_readers()));
        }
    }

    /// Returns the inode of a number that the kernel sent.
    ///
    /// # Errors
    /// [`Errno::STALE`] if the inode has been forgotten.
    pub(crate) fn inode(&self, number: u64) -> Result<Arc<Inode>, Errno> {
        self.inodes.get(number).ok_or(Errno::STALE)
    }

    /// Like [`Inode::note_caller`].
    pub(crate) fn note_caller(&self, number: u64, tid: u32) {
        if let Some(inode) = self.inodes.get(number) {
            inode.note_caller(tid);
        }
    }

    /// Records a change of a link count: the affected file is not known here.
    pub(crate) fn note_relink(&self) {
        self.last_relink.store(self.clock.tick(), Ordering::Release);
    }

    /// Like [`Inode::update_from_server`]; also invalidates stale data in the kernel.
    pub(crate) fn update_from_server(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        issued: Epoch,
        attributes: Attributes,
    ) -> AttrReply {
        let attrs = inode.update_from_server(&self.timeouts, issued, attributes, false);
        self.apply_update(inode, attrs.update);
        attrs
    }

    /// Updates a directory from attributes returned by a call issued at `issued`. The receiver completes when
    /// the kernel has expired names found stale: see [`Invalidator::expire_names`].
    pub(crate) fn update_directory(
        self: &Arc<Self>,
        dir: &Arc<Inode>,
        issued: Epoch,
        attributes: Option<Attributes>,
    ) -> Option<oneshot::Receiver<()>> {
        let update = dir.record_attributes(&self.timeouts, issued, attributes?);
        if update.invalidates_names { self.expire_all_names(dir) } else { None }
    }

    /// Like [`Inode::note_entries_changed`]; also expires names found stale.
    pub(crate) fn note_entries_changed(self: &Arc<Self>, dir: &Arc<Inode>, wcc: &Wcc) {
        self.apply_update(dir, dir.note_entries_changed(&self.clock, wcc));
    }

    /// Invalidates stale data in the kernel.
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

    /// Expires the names in a directory that the kernel has cached until now. The receiver completes when that
    /// is done.
    fn expire_all_names(self: &Arc<Self>, dir: &Inode) -> Option<oneshot::Receiver<()>> {
        self.invalidator.get().filter(|invalidator| invalidator.can_expire_names())?;
        let last = self.inodes.last_stamp();
        self.expire_in_batches(dir.number, self.inodes.begin_expiry(dir.number, last), Some(last))
    }

    /// Expires names in a directory in the kernel. The receiver completes when that is done.
    pub(crate) fn expire_names(
        self: &Arc<Self>,
        dir: u64,
        names: Vec<CachedName>,
    ) -> Option<oneshot::Receiver<()>> {
        self.expire_in_batches(dir, names, None)
    }

    /// Like [`Self::expire_names`]; then expires all other names cached no later than `rest`, in batches, so
    /// that neither the time under a lock nor the memory depends on the size of the directory.
    fn expire_in_batches(
        self: &Arc<Self>,
        dir: u64,
        mut names: Vec<CachedName>,
        rest: Option<CacheStamp>,
    ) -> Option<oneshot::Receiver<()>> {
        let mut known = self.notify_expiry(dir, &names)?;
        let (done, all_done) = oneshot::channel();
        let fs = Arc::clone(self);
        let expiry = async move {
            loop {
                let _ = known.await; // The sender is dropped without sending.
                fs.inodes.finish_expiry(&names);
                names = rest.map(|last| fs.inodes.begin_expiry(dir, last)).unwrap_or_default();
                match fs.notify_expiry(dir, &names) {
                    Some(next) => known = next,
                    None => break,
                }
            }
            drop::<oneshot::Sender<()>>(done);
        };
        self.rt.spawn("mount expiry", Box::pin(expiry));
        Some(all_done)
    }

    /// Notifies the kernel to expire names in a directory; see [`Invalidator::expire_names`]. `None`: there are none,
    /// or the kernel cannot.
    fn notify_expiry(&self, dir: u64, names: &[CachedName]) -> Option<oneshot::Receiver<()>> {
        let texts: Vec<_> = names.iter().map(|(_, text, _)| Arc::clone(text)).collect();
        if texts.is_empty() { None } else { self.invalidator.get()?.expire_names(dir, texts) }
    }

    /// Gets an inode from `insert`, and returns it with the attributes that it was called with: those of
    /// `file`, or newer ones as long as it returns `None` because they may predate a local change.
    async fn insert_current(
        &self,
        client: &Client,
        mut file: FoundFile,
        insert: impl Fn(&FoundFile) -> Result<Option<Arc<Inode>>, Errno>,
    ) -> Result<(Arc<Inode>, FoundFile), Errno> {
        loop {
            if let Some(inode) = insert(&file)? {
                return Ok((inode, file));
            }
            file.issued = self.clock.tick();
            file.attributes = client.getattr(file.handle).await.map_err(|e| errno(&e))?;
        }
    }

    /// Returns the inode that `name` in `dir` refers to, and increments its lookup count.
    async fn insert_named(
        &self,
        client: &Client,
        (dir, name): (&Inode, &[u8]),
        file: FoundFile,
    ) -> Result<(Arc<Inode>, FoundFile), Errno> {
        let insert =
            |file: &FoundFile| Ok(self.inodes.get_or_insert((dir.number, name), file, &self.timeouts));
        let issued = file.issued;
        let (inode, file) = self.insert_current(client, file, insert).await?;
        inode.state.lock().delegation.add_name(issued);
        Ok((inode, file))
    }

    /// Builds the entry that a reply returns for `name` in `dir`, from the reply to a call issued at `issued`.
    ///
    /// # Errors
    /// Those of GETATTR, if the attributes may predate a local change.
    pub(crate) async fn make_entry(
        self: &Arc<Self>,
        client: &Client,
        (dir, name): (&Inode, &[u8]),
        issued: Epoch,
        object: Object,
    ) -> Result<Entry, Errno> {
        let Object { handle, attributes, .. } = object;
        let file = FoundFile { handle, attributes, issued };
        let (inode, file) = self.insert_named(client, (dir, name), file).await?;
        let attrs = self.update_from_server(&inode, file.issued, file.attributes);
        Ok(Entry { inode, attrs, ttl: dir.name_timeouts(&self.timeouts, issued).0 })
    }

    /// Like [`Self::make_entry`], for a name that this call has created, and which is newer than the call.
    pub(crate) async fn make_created_entry(
        self: &Arc<Self>,
        client: &Client,
        (dir, name): (&Inode, &[u8]),
        issued: Epoch,
        object: Object,
    ) -> Result<Entry, Errno> {
        let created = self.clock.tick();
        let entry = self.make_entry(client, (dir, name), issued, object).await?;
        Ok(Entry { ttl: dir.name_timeouts(&self.timeouts, created).0, ..entry })
    }

    /// Like [`Self::make_entry`], for a directory listing, which may be read long after it was requested. If
    /// the directory has changed locally since, or the listing is too old, neither name nor attributes may be
    /// cached.
    pub(crate) async fn make_listed_entry(
        self: &Arc<Self>,
        client: &Client,
        (dir, name): (&Inode, &[u8]),
        issued: CallTime,
        object: Object,
    ) -> Result<Entry, Errno> {
        let is_fresh =
            self.rt.now().duration_since(issued.at) < LISTING_MAX_AGE && dir.unchanged_since(issued.epoch);
        if is_fresh {
            return self.make_entry(client, (dir, name), issued.epoch, object).await;
        }
        let Object { handle, attributes, .. } = object;
        let file = FoundFile { handle, attributes, issued: issued.epoch };
        let (inode, file) = self.insert_named(client, (dir, name), file).await?;
        let attrs = inode.outdated_reply(&self.timeouts, file.attributes);
        Ok(Entry { inode, attrs, ttl: Duration::ZERO })
    }

    /// Looks up a name. If it does not exist, returns the time for which the kernel may cache the negative
    /// entry.
    pub(crate) async fn lookup(
        self: &Arc<Self>,
        client: &Client,
        dir: u64,
        name: &[u8],
        tid: u32,
    ) -> Result<Result<Entry, Duration>, Errno> {
        let dir = self.inode(dir)?;
        let issued = self.clock.tick();
        match client.lookup(dir.handle, name).await {
            Ok(object) => {
                drop(self.update_directory(&dir, issued, object.dir.after));
                let entry = self.make_entry(client, (&dir, name), issued, object).await?;
                self.record_lookup(&entry.inode, tid);
                Ok(Ok(entry))
            }
            Err(e) if e.is_not_found() => {
                self.stale_retries.note_not_found(tid);
                let ttl = dir.name_timeouts(&self.timeouts, issued).1;
                let is_cached = self.inodes.insert_negative((dir.number, name), self.rt.now(), ttl);
                Ok(Err(if is_cached { ttl } else { Duration::ZERO }))
            }
            Err(e) => Err(errno(&e)),
        }
    }

    /// Returns the inode of a number from a file handle; the kernel may have forgotten it.
    ///
    /// # Errors
    /// [`Errno::STALE`] if the file no longer exists, or the inode was forgotten too long ago.
    pub(crate) async fn lookup_by_number(
        self: &Arc<Self>,
        client: &Client,
        number: u64,
    ) -> Result<Entry, Errno> {
        let handle = self.inodes.handle(number).ok_or(Errno::STALE)?;
        let issued = self.clock.tick();
        let attributes = client.getattr(handle).await.map_err(|e| errno(&e))?;
        let insert = |file: &FoundFile| self.inodes.reinsert(number, file, &self.timeouts);
        let found = FoundFile { handle, attributes, issued };
        let (inode, found) = self.insert_current(client, found, insert).await?;
        let attrs = self.update_from_server(&inode, found.issued, found.attributes);
        Ok(Entry { inode, attrs, ttl: Duration::ZERO })
    }

    /// Returns the parent of a directory, to reconnect a file handle.
    ///
    /// # Errors
    /// [`Errno::STALE`] if the parent is outside the mount.
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
        // The root of an export is its own parent.
        if parent.handle == dir.handle {
            return Err(Errno::STALE);
        }
        let insert = |file: &FoundFile| Ok(self.inodes.get_or_insert_unnamed(file, &self.timeouts));
        let found = FoundFile { handle: parent.handle, attributes: parent.attributes, issued };
        let (inode, found) = self.insert_current(client, found, insert).await?;
        let attrs = self.update_from_server(&inode, found.issued, found.attributes);
        Ok(Entry { inode, attrs, ttl: Duration::ZERO })
    }

    /// Returns cached attributes.
    ///
    /// Where the kernel checks modes, it requests attributes again before it denies access
    /// (`fuse_permission`). A caller without full access by mode therefore gets fresh attributes from the
    /// server.
    pub(crate) fn cached_attributes(&self, number: u64, (uid, gid): (u32, u32)) -> Option<AttrReply> {
        let inode = self.inodes.get(number)?;
        if !self.checks_access && !inode.mode_allows_access(uid, gid) {
            return None;
        }
        inode.cached_reply(&self.timeouts, self.last_relink.load(Ordering::Acquire))
    }

    /// Fetches attributes from the server. If they show a remote change, waits until the kernel has dropped
    /// its stale pages, so that later reads return the new data.
    ///
    /// The kernel ignores the attributes of a reply if an invalidation has arrived before it uses them: a read that has
    /// asked for the size would end at the old one. If it takes another size from the reply (`takes_size`), it drops the
    /// pages by itself (`fuse_change_attributes`), and the reply is sent with [`Self::reply_resized`].
    pub(crate) async fn getattr(
        self: &Arc<Self>,
        client: &Client,
        number: u64,
        takes_size: bool,
    ) -> Result<AttrReply, Errno> {
        let inode = self.inode(number)?;
        self.write_back(&inode).await;
        let issued = self.clock.tick();
        let attributes = client.getattr(inode.handle).await.map_err(|e| errno(&e))?;
        let attrs = inode.update_from_server(&self.timeouts, issued, attributes, takes_size);
        if !attrs.update.is_resized {
            self.apply_update(&inode, attrs.update);
            if let Some(invalidator) = self.invalidator.get() {
                invalidator.wait_until_dropped(&inode).await;
            }
        }
        Ok(attrs)
    }

    /// Sends a reply with which the kernel drops all pages of a file in the thread `tid`, after it has got another size.
    /// When it has certainly done so, stale pages are dropped in case it has ignored the size because of another change. (If
    /// it does not cache attributes, it asks for the size again.)
    pub(crate) fn reply_resized(self: &Arc<Self>, number: u64, tid: u32, reply: impl FnOnce()) {
        let Some(inode) = self.inodes.get(number) else { return reply() };
        let dropping = inode.page_invalidations.begin(tid);
        reply();
        let fs = Arc::clone(self);
        let dropped = async move {
            for _ in 0..2 {
                fs.ticks.notified().await; // Half a second, at least.
            }
            if fs.timeouts.caches_file_attrs() {
                fs.apply_update(&inode, inode.drop_stale_pages());
            }
            inode.page_invalidations.end_in_doubt(dropping);
        };
        self.rt.spawn("mount pages", Box::pin(dropped));
    }

    /// Opens a directory for listing. If the reply shows a remote change, waits until the kernel has expired
    /// its names.
    pub(crate) async fn opendir(self: &Arc<Self>, client: Client, number: u64) -> Result<u64, Errno> {
        let dir = self.inode(number)?;
        if self.checks_access {
            let issued = self.clock.tick();
            let wanted = access::READ | access::LOOKUP;
            let (granted, attributes) =
                client.access_and_attributes(dir.handle, wanted).await.map_err(|e| errno(&e))?;
            if let Some(known) = self.update_directory(&dir, issued, Some(attributes)) {
                let _ = known.await; // The sender is dropped without sending.
            }
            if granted & access::READ == 0 {
                return Err(Errno::ACCESS);
            }
        }
        Ok(self.directories.lock().insert(Arc::new(DirStream::new(dir, client))) as u64)
    }

    /// Checks whether the caller has the access rights in `mask` (access(2)).
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

    /// File system statistics and the maximum name length.
    pub(crate) async fn statfs(&self, client: &Client) -> Result<(FsStat, u32), Errno> {
        let root = self.inode(ROOT)?;
        Ok((client.fsstat(root.handle).await.map_err(|e| errno(&e))?, self.name_max))
    }
}
