//! The inode table and the cached state of each inode.

use std::{
    collections::HashMap,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_client::{
    Delegation,
    ops::{Attributes, FileHandle, FileType, NfsTime, Wcc},
};
use millrace_runtime::Instant;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::{
    access::GrantedAccess,
    clock::{Epoch, LogicalClock},
    delegated::DelegationState,
    dentries::{CacheStamp, CachedName, Dentries, Directory, ROOT, shrink},
    forgotten::{ForgottenChanges, ForgottenInodes, generation},
    lock_owners::LockOwners,
    page_invalidations::{PageInvalidations, PageRead},
    pages::{PageState, Version},
    retries::LastLookup,
    timeouts::{CacheTimeouts, CachedAttrs},
    write_queue::WriteQueue,
};

/// First synthetic inode number, for files whose fileid is already in use for another file.
const FIRST_SYNTHETIC_INO: u64 = 1 << 63;

/// Set-user-ID and set-group-ID bits.
const SET_ID_BITS: u32 = 0o6000;

/// Identifies the state of a file's data when a READ was issued; see [`Inode::is_data_current`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataVersion {
    issued: Epoch,
    invalidations: u64,
}

/// Attributes for a reply to the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttrReply {
    pub(crate) attributes: Attributes,
    pub(crate) ttl: Duration,
    pub(crate) update: CacheUpdate,
}

/// Consequences of a server reply for the kernel's caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheUpdate {
    /// No local change has overtaken the reply.
    pub(crate) is_current: bool,
    /// The kernel's pages are stale and must be invalidated now.
    pub(crate) invalidates_pages: bool,
    /// The kernel's names in this directory are stale and must be expired now.
    pub(crate) invalidates_names: bool,
    /// The kernel's pages are stale, and it drops them by itself when it gets the reply with another size.
    pub(crate) is_resized: bool,
}

/// Attributes that the kernel has: those last sent, updated by its own writes and truncations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelAttrs {
    pub(crate) size: u64,
    pub(crate) ctime: NfsTime,
    /// Mode, owner and group.
    pub(crate) permissions: (u32, u32, u32),
}

impl KernelAttrs {
    pub(crate) fn of(a: &Attributes) -> Self {
        Self { size: a.size, ctime: a.ctime, permissions: (a.mode & 0o7777, a.uid, a.gid) }
    }
}

pub(crate) struct InodeState {
    pub(crate) attrs: CachedAttrs,
    /// Epoch of the last local change; number of local changes in progress.
    last_change: Epoch,
    changes_in_progress: u32,
    /// Epoch at which the cached attributes were requested.
    attrs_epoch: Epoch,
    /// File size, including data that is not yet written to the server.
    size: u64,
    /// The attributes that the kernel has.
    pub(crate) kernel_attrs: KernelAttrs,
    /// The kernel has at least this size. A reply does not raise it, because the kernel ignores attributes that a
    /// notification has overtaken (`fuse_change_attributes`, `attr_version`).
    kernel_size: u64,
    /// Whether the kernel may use attributes from an earlier reply.
    pub(crate) kernel_has_attributes: bool,
    /// Validity of the kernel's pages; for a directory, of its cached names.
    pub(crate) pages: PageState,
    /// Another client may have changed the file while this client retained uncommitted data for it.
    pub(crate) changed_by_others: bool,
    /// Names requested before this epoch must not be cached.
    names_invalidated: Epoch,
    /// The last LOOKUP that returned this inode; taken by the next open.
    pub(crate) last_lookup: Option<LastLookup>,
    /// Access rights of the last caller that opened it.
    pub(crate) granted: Option<GrantedAccess>,
    pub(crate) delegation: DelegationState,
    /// Epoch of the last OPEN request.
    pub(crate) last_open: Epoch,
    /// Open file descriptions: all, those open for reading, and those that read through the page cache.
    pub(crate) open_count: u32,
    pub(crate) readers: u32,
    pub(crate) cached_readers: u32,
    /// Directory and name of the file on the server after it was removed while open (silly rename).
    pub(crate) silly_name: Option<(Arc<Inode>, Vec<u8>)>,
}

pub(crate) struct Inode {
    pub(crate) number: u64,
    /// Inode generation, see [`generation`]; 0 for the root.
    pub(crate) generation: u64,
    pub(crate) handle: FileHandle,
    pub(crate) kind: FileType,
    pub(crate) state: Mutex<InodeState>,
    pub(crate) writes: WriteQueue,
    /// The locks of the file at the server.
    pub(crate) locks: Arc<LockOwners>,
    /// The kernel may have cached pages: it has read or written through the page cache since the last full
    /// invalidation.
    may_have_pages: AtomicBool,
    pub(crate) page_invalidations: PageInvalidations,
}

/// The invalidation that a direct write requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageInvalidation {
    None,
    Range,
    /// All pages are dropped, as [`CacheUpdate`] requests.
    All(CacheUpdate),
}

impl Inode {
    fn new(
        number: u64,
        handle: FileHandle,
        attributes: Attributes,
        last_change: Epoch,
        timeouts: &CacheTimeouts,
    ) -> Self {
        let state = InodeState {
            attrs: CachedAttrs::new(attributes, timeouts),
            last_change,
            changes_in_progress: 0,
            attrs_epoch: 0,
            size: attributes.size,
            kernel_attrs: KernelAttrs::of(&attributes),
            kernel_size: attributes.size,
            kernel_has_attributes: true,
            pages: PageState::default(),
            changed_by_others: false,
            names_invalidated: 0,
            last_lookup: None,
            granted: None,
            delegation: DelegationState::default(),
            last_open: 0,
            open_count: 0,
            readers: 0,
            cached_readers: 0,
            silly_name: None,
        };
        Self {
            number,
            generation: if number == ROOT { 0 } else { generation(&handle) },
            handle,
            kind: attributes.file_type,
            state: Mutex::new(state),
            writes: WriteQueue::default(),
            locks: Arc::default(),
            may_have_pages: AtomicBool::new(false),
            page_invalidations: PageInvalidations::default(),
        }
    }

    fn mark_pages_cached(&self) {
        if !self.may_have_pages.load(Ordering::Relaxed) {
            self.may_have_pages.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the kernel reads a range into its page cache for a thread, or 0. Must be called before the data is
    /// fetched.
    pub(crate) fn note_page_read(&self, range: Range<u64>, tid: u32) {
        self.mark_pages_cached();
        self.page_invalidations.note_read(range, tid);
    }

    /// Records the WRITE of a write(2) by a thread. Returns the pages that may have the old data; see [`PageInvalidations`].
    /// (A reader calls [`Self::note_page_read`] before it takes the lock under which write data is taken.)
    pub(crate) fn note_page_write(&self, range: Range<u64>, tid: u32) -> Vec<PageRead> {
        self.mark_pages_cached();
        self.page_invalidations.note_write(range, tid)
    }

    /// Called before the reply to a request that a thread waits for; see [`PageInvalidations::note_caller`]. Without effect
    /// while the kernel has another size: it drops the pages by itself when it gets the new one.
    pub(crate) fn note_caller(&self, tid: u32) {
        let has_size = {
            let s = self.state.lock();
            s.kernel_attrs.size == s.size
        };
        if has_size {
            self.page_invalidations.note_caller(tid);
        }
    }

    /// Records the WRITE of pages that were dirty: they are locked or marked until the reply, so that the kernel does not
    /// read them meanwhile.
    pub(crate) fn note_page_write_back(&self) {
        self.mark_pages_cached();
    }

    /// Called before the kernel is notified to drop all pages; see [`PageState::take_queued_drop`].
    pub(crate) fn take_queued_invalidation(&self) -> u64 {
        self.may_have_pages.store(false, Ordering::Relaxed);
        self.state.lock().pages.take_queued_drop()
    }

    /// Records a direct WRITE (O_DIRECT), which bypasses the page cache, and returns the invalidation it
    /// requires.
    ///
    /// The kernel drops the overlapping pages before such a write and again after it, but not after an
    /// asynchronous one (`generic_file_direct_write`): a page that was read in between keeps the old data.
    /// Pages read after the data was taken are correct. (A reader calls [`Self::note_page_read`] before it
    /// takes the lock under which write data is taken, so either its call is visible here, or it reads the
    /// new data.)
    pub(crate) fn note_direct_write(&self) -> PageInvalidation {
        if !self.may_have_pages.load(Ordering::Relaxed) {
            return PageInvalidation::None;
        }
        if self.state.lock().cached_readers > 0 {
            return PageInvalidation::Range;
        }
        PageInvalidation::All(self.invalidate_pages()) // Drops leftover pages once, so that later direct writes need no invalidation.
    }

    /// Updates the cache from attributes that the server returned for a request issued at `issued`, and
    /// returns the reply for the kernel.
    ///
    /// Attributes that may predate a local change are not cached and do not change the size, since the
    /// kernel's is newer. Attributes from a request older than the cached ones are not cached either.
    ///
    /// `takes_size`: the kernel drops the pages by itself if the size differs from its own.
    pub(crate) fn update_from_server(
        &self,
        timeouts: &CacheTimeouts,
        issued: Epoch,
        attributes: Attributes,
        takes_size: bool,
    ) -> AttrReply {
        let (mut s, update) = self.apply_attributes(timeouts, issued, attributes, takes_size);
        AttrReply { update, ..s.attr_reply(timeouts) }
    }

    /// Like [`Self::update_from_server`], for attributes that are not sent to the kernel.
    pub(crate) fn record_attributes(
        &self,
        timeouts: &CacheTimeouts,
        issued: Epoch,
        attributes: Attributes,
    ) -> CacheUpdate {
        self.apply_attributes(timeouts, issued, attributes, false).1
    }

    /// Returns the reply for the kernel with attributes that are too old to be cached.
    pub(crate) fn outdated_reply(&self, timeouts: &CacheTimeouts, attributes: Attributes) -> AttrReply {
        let unwritten = self.writes.ends().0;
        let mut s = self.state.lock();
        s.set_outdated(timeouts, (self.kind, unwritten), attributes);
        s.attr_reply(timeouts)
    }

    fn apply_attributes(
        &self,
        timeouts: &CacheTimeouts,
        issued: Epoch,
        mut attributes: Attributes,
        takes_size: bool,
    ) -> (MutexGuard<'_, InodeState>, CacheUpdate) {
        let (unwritten, retained) = self.writes.ends();
        let server_has = Version::from(&attributes);
        let mut s = self.state.lock();
        let overtaken = s.changes_in_progress > 0 || s.last_change > issued || unwritten.is_some();
        let mut update = CacheUpdate { is_current: !overtaken, ..CacheUpdate::default() };
        if overtaken {
            s.set_outdated(timeouts, (self.kind, unwritten), attributes);
        } else if s.attrs_epoch <= issued {
            // Reads return retained data even if the server has lost it.
            attributes.size = attributes.size.max(retained.unwrap_or(0));
            s.attrs.update(attributes, timeouts);
            s.size = attributes.size;
            s.attrs_epoch = issued;
            let is_cached = matches!(self.kind, FileType::Regular | FileType::Directory);
            if is_cached && s.pages.compare(server_has) {
                s.changed_by_others |= retained.is_some();
                update.is_resized =
                    takes_size && self.kind == FileType::Regular && s.size != s.kernel_attrs.size;
                if !update.is_resized {
                    update = s.invalidate_cache(self.kind, issued, update);
                }
            }
        }
        (s, update)
    }

    /// Marks the kernel's pages as stale: the server does not have their content.
    pub(crate) fn invalidate_pages(&self) -> CacheUpdate {
        let mut s = self.state.lock();
        s.pages.invalidate();
        CacheUpdate { invalidates_pages: s.queue_page_invalidation(), ..CacheUpdate::default() }
    }

    /// Requests that the kernel drops its pages now if they are stale.
    pub(crate) fn drop_stale_pages(&self) -> CacheUpdate {
        let mut s = self.state.lock();
        let invalidates_pages = !s.pages.are_valid() && s.queue_page_invalidation();
        CacheUpdate { invalidates_pages, ..CacheUpdate::default() }
    }

    /// Expires the attributes after a failed GETATTR; the next attempt is due after one timeout.
    pub(crate) fn expire_attributes(&self, timeouts: &CacheTimeouts) {
        let mut s = self.state.lock();
        let last = s.attrs.attributes;
        s.attrs.update_stale(last, timeouts);
    }

    /// The cached attributes, which may be out of date.
    pub(crate) fn attributes(&self) -> Attributes {
        self.state.lock().attrs.attributes
    }

    /// File size, including data that is not yet written to the server.
    pub(crate) fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// Records a truncation or extension by the kernel.
    pub(crate) fn set_size(&self, size: u64) {
        let mut s = self.state.lock();
        (s.size, s.kernel_attrs.size, s.kernel_size) = (size, size, size);
    }

    /// Records that the file was extended to at least `end`.
    pub(crate) fn note_extension(&self, end: u64) {
        let mut s = self.state.lock();
        s.size = s.size.max(end);
        s.kernel_has_size(end);
    }

    /// Records that the kernel has got data up to `end`.
    pub(crate) fn note_stored(&self, end: u64) {
        self.mark_pages_cached();
        self.state.lock().kernel_has_size(end);
    }

    /// Records that a read ended at `end`, to which the kernel may shorten the file.
    pub(crate) fn note_end(&self, end: u64) {
        let mut s = self.state.lock();
        s.kernel_size = s.kernel_size.min(end);
    }

    /// The position of the last byte, if reads through the kernel's cache may end before it.
    pub(crate) fn last_beyond_kernel(&self) -> Option<u64> {
        let s = self.state.lock();
        (s.cached_readers > 0 && s.size > s.kernel_size).then(|| s.size - 1)
    }

    /// Whether the mode that the kernel has cached allows a user to read and write.
    pub(crate) fn mode_allows_access(&self, uid: u32, gid: u32) -> bool {
        let s = self.state.lock();
        let a = &s.attrs.attributes;
        let class = if uid == a.uid {
            6
        } else if gid == a.gid {
            3
        } else {
            0
        };
        uid == 0 || (a.mode >> class) & 0o6 == 0o6
    }

    /// Returns the version for a READ that is issued now.
    pub(crate) fn data_version(&self, clock: &LogicalClock) -> DataVersion {
        let s = self.state.lock();
        DataVersion { issued: clock.tick(), invalidations: s.pages.invalidations() }
    }

    /// Whether data read at `then` equals what a READ issued now would return, as far as known: no local
    /// change, no open and no detected remote change since then.
    pub(crate) fn is_data_current(&self, then: DataVersion) -> bool {
        let is_clean = self.writes.is_clean();
        let s = self.state.lock();
        let is_unchanged = s.changes_in_progress == 0
            && s.last_change < then.issued
            && s.pages.invalidations() == then.invalidations;
        is_clean && is_unchanged && s.last_open < then.issued
    }

    /// Whether the attributes of a regular file have expired, so that its pages must be revalidated.
    pub(crate) fn needs_revalidation(&self, timeouts: &CacheTimeouts) -> bool {
        if self.kind != FileType::Regular {
            return false;
        }
        let mut s = self.state.lock();
        !s.renew(timeouts) && s.attrs.is_expired(timeouts)
    }

    /// Takes a delegation, whose request at `issued` has returned these attributes, unless they may predate a local change
    /// or other attributes.
    pub(crate) fn delegate(
        &self,
        (timeouts, clock): (&CacheTimeouts, &LogicalClock),
        issued: Epoch,
        attributes: Attributes,
        delegation: Delegation,
    ) -> CacheUpdate {
        let (mut s, update) = self.apply_attributes(timeouts, issued, attributes, false);
        let refused = if update.is_current && s.attrs_epoch == issued {
            // The server may have executed requests of before now without the delegation.
            s.attrs_epoch = clock.tick();
            let granted = s.attrs_epoch;
            s.delegation.hold(delegation, granted)
        } else {
            Some(delegation)
        };
        drop((s, refused));
        update
    }

    /// Ends the use of the delegation, which the caller returns.
    pub(crate) fn end_delegation(&self) -> Option<Delegation> {
        let mut s = self.state.lock();
        let delegation = s.delegation.take()?;
        s.attrs.expire();
        Some(delegation)
    }

    /// Returns the attributes under a delegation, if they and the names are known. `renamed`: as in [`Self::cached_reply`].
    pub(crate) fn delegated_attributes(
        &self,
        timeouts: &CacheTimeouts,
        renamed: Epoch,
    ) -> Option<Attributes> {
        if !self.writes.is_clean() {
            return None;
        }
        let mut s = self.state.lock();
        let is_known = s.delegation.includes_names()
            && s.attrs.renew(timeouts)
            && s.changes_in_progress == 0
            && s.attrs_epoch >= renamed
            && s.pages.urgent_drops_done();
        is_known.then_some(s.attrs.attributes)
    }

    /// Returns the cached attributes if they are valid. `renamed`: epoch of the last change to the link count
    /// of a file that could not be identified.
    pub(crate) fn cached_reply(&self, timeouts: &CacheTimeouts, renamed: Epoch) -> Option<AttrReply> {
        if !self.writes.is_clean() {
            return None;
        }
        let mut s = self.state.lock();
        s.renew(timeouts);
        if s.changes_in_progress > 0
            || s.attrs_epoch < renamed
            || s.attrs.remaining(timeouts).is_none()
            || !s.pages.urgent_drops_done()
        {
            return None;
        }
        Some(s.attr_reply(timeouts))
    }

    /// Starts a local change, which lasts until the guard is dropped.
    pub(crate) fn begin_change<'c>(self: &Arc<Self>, clock: &'c LogicalClock) -> ChangeGuard<'c> {
        let mut s = self.state.lock();
        s.changes_in_progress += 1;
        s.attrs.invalidate();
        ChangeGuard { inode: Arc::clone(self), clock }
    }

    /// Records write data that ends at `end` on the server and at `kernel_end` in the kernel's view. Size and
    /// epoch change together, so that no reader sees the change without the new size. Returns whether the
    /// file has set-ID bits, which the server may clear.
    pub(crate) fn note_write(&self, clock: &LogicalClock, end: u64, kernel_end: u64) -> bool {
        let mut s = self.state.lock();
        s.size = s.size.max(end);
        s.kernel_has_size(kernel_end);
        s.last_change = clock.tick();
        s.attrs.invalidate();
        s.attrs.attributes.mode & SET_ID_BITS != 0
    }

    /// Records a local change with the attributes before and after it.
    pub(crate) fn note_change(&self, clock: &LogicalClock, wcc: &Wcc) {
        let mut s = self.state.lock();
        s.pages.note_change(wcc);
        s.last_change = clock.tick();
        s.attrs.invalidate();
    }

    /// Records a local change without attributes.
    pub(crate) fn note_unknown_change(&self, clock: &LogicalClock) {
        self.note_change(clock, &Wcc::default());
    }

    /// Records a local change of this directory's entries; its [`ChangeGuard`] must still exist.
    pub(crate) fn note_entries_changed(&self, clock: &LogicalClock, wcc: &Wcc) -> CacheUpdate {
        self.note_change(clock, wcc);
        let mut s = self.state.lock();
        // With several changes in progress, the last one detects a missing attribute change.
        let is_last = s.changes_in_progress <= 1;
        if is_last && s.pages.has_gap(Version::after(wcc)) {
            return s.invalidate_cache(self.kind, clock.tick(), CacheUpdate::default());
        }
        CacheUpdate::default()
    }

    /// Whether no local change has happened since `issued`.
    pub(crate) fn unchanged_since(&self, issued: Epoch) -> bool {
        let s = self.state.lock();
        s.changes_in_progress == 0 && s.last_change <= issued
    }

    /// Timeouts for positive and negative names in this directory that were requested at `issued`.
    pub(crate) fn name_timeouts(&self, timeouts: &CacheTimeouts, issued: Epoch) -> (Duration, Duration) {
        let s = self.state.lock();
        if s.names_invalidated > issued {
            return (Duration::ZERO, Duration::ZERO);
        }
        (timeouts.name_timeout(&s.attrs), timeouts.negative_timeout(&s.attrs))
    }
}

impl InodeState {
    /// Stores attributes that may predate a local change. The size of a regular file is known, including data
    /// up to `unwritten` that is not yet written to the server.
    fn set_outdated(
        &mut self,
        timeouts: &CacheTimeouts,
        (kind, unwritten): (FileType, Option<u64>),
        mut attributes: Attributes,
    ) {
        if kind == FileType::Regular {
            attributes.size = self.size.max(unwritten.unwrap_or(0));
        }
        self.attrs.update_stale(attributes, timeouts);
    }

    /// Under a delegation, the attributes are as new as those of a reply. Returns whether they are.
    fn renew(&mut self, timeouts: &CacheTimeouts) -> bool {
        self.delegation.is_valid() && self.attrs.renew(timeouts)
    }

    /// Records that the kernel has extended the file to at least `end`.
    fn kernel_has_size(&mut self, end: u64) {
        self.kernel_attrs.size = self.kernel_attrs.size.max(end);
        self.kernel_size = self.kernel_size.max(end);
    }

    fn attr_reply(&mut self, timeouts: &CacheTimeouts) -> AttrReply {
        let mut attributes = self.attrs.attributes;
        self.kernel_attrs = KernelAttrs::of(&attributes);
        self.kernel_size = self.kernel_size.min(attributes.size);
        self.kernel_has_attributes = true;
        if self.silly_name.is_some() {
            attributes.nlink = attributes.nlink.saturating_sub(1);
        }
        AttrReply {
            attributes,
            ttl: self.attrs.remaining(timeouts).unwrap_or_default(),
            update: CacheUpdate::default(),
        }
    }

    /// Marks pages or names as stale after a reply to a request issued at `issued`.
    fn invalidate_cache(&mut self, kind: FileType, issued: Epoch, update: CacheUpdate) -> CacheUpdate {
        if kind == FileType::Directory {
            self.names_invalidated = self.names_invalidated.max(issued);
            return CacheUpdate { invalidates_names: true, ..update };
        }
        CacheUpdate { invalidates_pages: self.queue_page_invalidation(), ..update }
    }

    /// Returns whether the kernel must be notified to drop the pages now. Without readers the next open drops
    /// them.
    fn queue_page_invalidation(&mut self) -> bool {
        self.readers > 0 && self.pages.queue_drop()
    }
}

/// Lookup counts of a reply that is being built; reverted on drop unless committed.
pub(crate) struct PendingLookups<'t> {
    table: &'t InodeTable,
    numbers: Vec<u64>,
}

impl<'t> PendingLookups<'t> {
    pub(crate) fn new(table: &'t InodeTable) -> Self {
        Self { table, numbers: Vec::new() }
    }

    pub(crate) fn add(&mut self, number: u64) {
        self.numbers.push(number);
    }

    /// Keeps the counts: the reply is sent to the kernel.
    pub(crate) fn commit(mut self) {
        self.numbers.clear();
    }
}

impl Drop for PendingLookups<'_> {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|number| self.table.forget(*number, 1));
    }
}

/// A local change in progress.
pub(crate) struct ChangeGuard<'c> {
    inode: Arc<Inode>,
    clock: &'c LogicalClock,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        let mut s = self.inode.state.lock();
        s.changes_in_progress -= 1;
        s.last_change = self.clock.tick();
        s.attrs.invalidate();
    }
}

struct TableEntry {
    inode: Arc<Inode>,
    lookups: u64,
}

#[derive(Default)]
struct Inner {
    by_number: HashMap<u64, TableEntry>,
    by_handle: HashMap<FileHandle, u64>,
    dentries: Dentries,
    forgotten: ForgottenInodes,
    changes: ForgottenChanges,
    synthetic_inodes: u64,
}

/// Handle and attributes of a file from the reply to a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundFile {
    pub(crate) handle: FileHandle,
    pub(crate) attributes: Attributes,
    /// Epoch at which the attributes were requested.
    pub(crate) issued: Epoch,
}

/// All inodes that the kernel refers to.
#[derive(Default)]
pub(crate) struct InodeTable(Mutex<Inner>);

impl InodeTable {
    /// Returns the inode of a file, creating it if necessary, and increments its lookup count. `name` is the
    /// directory's inode number and the name in it. `None`: there is no inode, and the attributes must be
    /// requested again, because they may predate a local change.
    pub(crate) fn get_or_insert(
        &self,
        name: (u64, &[u8]),
        file: &FoundFile,
        timeouts: &CacheTimeouts,
    ) -> Option<Arc<Inode>> {
        let mut t = self.0.lock();
        let inode = t.get_or_insert(file, timeouts)?;
        t.dentries.insert(inode.number, name);
        Some(inode)
    }

    /// Like [`Self::get_or_insert`], for an inode that the kernel refers to without a name.
    pub(crate) fn get_or_insert_unnamed(
        &self,
        file: &FoundFile,
        timeouts: &CacheTimeouts,
    ) -> Option<Arc<Inode>> {
        self.0.lock().get_or_insert(file, timeouts)
    }

    /// NFS file handle of an inode that the kernel refers to or has forgotten.
    pub(crate) fn handle(&self, number: u64) -> Option<FileHandle> {
        let t = self.0.lock();
        t.by_number.get(&number).map(|k| k.inode.handle).or_else(|| t.forgotten.get(number))
    }

    /// Like [`Self::get_or_insert_unnamed`], under a given number that the kernel has known.
    ///
    /// # Errors
    /// [`Errno::STALE`] if the number or the handle is in use for another file.
    pub(crate) fn reinsert(
        &self,
        number: u64,
        file: &FoundFile,
        timeouts: &CacheTimeouts,
    ) -> Result<Option<Arc<Inode>>, Errno> {
        let mut t = self.0.lock();
        match (t.by_handle.get(&file.handle), t.by_number.contains_key(&number)) {
            (Some(n), _) if *n == number => {}
            (None, false) if t.is_outdated(file) => return Ok(None),
            (None, false) => t.insert_as(number, file, timeouts),
            _ => return Err(Errno::STALE),
        }
        Ok(t.get_or_insert(file, timeouts))
    }

    pub(crate) fn set_root(&self, handle: FileHandle, attributes: &Attributes, timeouts: &CacheTimeouts) {
        let inode = Arc::new(Inode::new(ROOT, handle, *attributes, 0, timeouts));
        let mut t = self.0.lock();
        t.by_handle.insert(handle, ROOT);
        t.by_number.insert(ROOT, TableEntry { inode, lookups: 1 });
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Inode>> {
        self.0.lock().by_number.get(&number).map(|k| Arc::clone(&k.inode))
    }

    /// Returns the inode of a handle if the kernel refers to it.
    pub(crate) fn find_by_handle(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        let t = self.0.lock();
        let number = t.by_handle.get(handle)?;
        t.by_number.get(number).map(|k| Arc::clone(&k.inode))
    }

    /// Returns the inode that `name` refers to, if the kernel has looked it up.
    pub(crate) fn find_by_name(&self, name: (u64, &[u8])) -> Option<Arc<Inode>> {
        let t = self.0.lock();
        t.by_number.get(&t.dentries.number(name)?).map(|k| Arc::clone(&k.inode))
    }

    /// Records a negative entry. `false`: the kernel must not cache it.
    pub(crate) fn insert_negative(&self, name: (u64, &[u8]), now: Instant, ttl: Duration) -> bool {
        !ttl.is_zero() && self.0.lock().dentries.insert_negative(name, now, ttl)
    }

    /// Records a rename.
    pub(crate) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) {
        self.0.lock().dentries.rename(from, to);
    }

    /// Removes a name.
    pub(crate) fn remove(&self, name: (u64, &[u8])) {
        self.0.lock().dentries.remove(name);
    }

    /// Names by which the kernel can reach an inode without a request, with their directories.
    pub(crate) fn cached_names(&self, number: u64) -> Vec<(Arc<Inode>, CachedName)> {
        let t = self.0.lock();
        let with_dir = |name: CachedName| Some((Arc::clone(&t.by_number.get(&name.0)?.inode), name));
        t.dentries.cached_names(number).into_iter().filter_map(with_dir).collect()
    }

    /// See [`Dentries::begin_name_expiry`].
    pub(crate) fn begin_name_expiry(&self, name: (u64, &[u8])) -> Option<CachedName> {
        self.0.lock().dentries.begin_name_expiry(name)
    }

    /// See [`Dentries::finish_expiry`].
    pub(crate) fn finish_expiry(&self, names: &[CachedName]) {
        let mut t = self.0.lock();
        names.iter().for_each(|name| t.dentries.finish_expiry(name));
    }

    /// See [`Dentries::begin_expiry`].
    pub(crate) fn begin_expiry(&self, dir: u64, last: CacheStamp) -> Vec<CachedName> {
        self.0.lock().dentries.begin_expiry(dir, last)
    }

    /// See [`Dentries::last_stamp`].
    pub(crate) fn last_stamp(&self) -> CacheStamp {
        self.0.lock().dentries.last_stamp()
    }

    /// The directory in which the kernel has looked up a directory.
    pub(crate) fn parent(&self, number: u64) -> Option<u64> {
        self.0.lock().dentries.parent(number)
    }

    /// Last known path of an inode.
    pub(crate) fn path(&self, number: u64) -> Option<PathBuf> {
        self.0.lock().dentries.path(number)
    }

    /// Handles FORGET: decrements the lookup count.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        let mut t = self.0.lock();
        if let Some(entry) = t.by_number.get_mut(&number) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
        }
        let names = t.remove_if_unused(number);
        drop(t);
        drop(names);
    }

    /// Removes an inode that neither the kernel nor the mount uses any longer.
    pub(crate) fn remove_if_unused(&self, number: u64) {
        let names = self.0.lock().remove_if_unused(number);
        drop(names); // After the lock is released.
    }
}

impl Inner {
    /// Whether the attributes of a file without an inode may predate a local change.
    fn is_outdated(&self, file: &FoundFile) -> bool {
        self.changes.last_change(&file.handle) > file.issued
    }

    /// See [`InodeTable::get_or_insert`].
    fn get_or_insert(&mut self, file: &FoundFile, timeouts: &CacheTimeouts) -> Option<Arc<Inode>> {
        let number = match self.by_handle.get(&file.handle) {
            Some(n) => *n,
            None if self.is_outdated(file) => return None,
            None => self.insert(file, timeouts),
        };
        let entry = self.by_number.get_mut(&number)?; // Both maps change together.
        entry.lookups += 1;
        Some(Arc::clone(&entry.inode))
    }

    fn insert(&mut self, file: &FoundFile, timeouts: &CacheTimeouts) -> u64 {
        let fileid = file.attributes.fileid;
        let is_usable =
            fileid > ROOT && fileid < FIRST_SYNTHETIC_INO && !self.by_number.contains_key(&fileid);
        let number = match self.forgotten.synthetic_number(&file.handle) {
            Some(number) => number,
            None if is_usable => fileid,
            None => {
                self.synthetic_inodes += 1;
                FIRST_SYNTHETIC_INO + self.synthetic_inodes - 1
            }
        };
        self.insert_as(number, file, timeouts);
        number
    }

    fn insert_as(&mut self, number: u64, file: &FoundFile, timeouts: &CacheTimeouts) {
        let last_change = self.changes.last_change(&file.handle);
        let inode = Arc::new(Inode::new(number, file.handle, file.attributes, last_change, timeouts));
        self.by_number.insert(number, TableEntry { inode, lookups: 0 });
        self.by_handle.insert(file.handle, number);
        self.forgotten.remove(number);
    }

    /// See [`InodeTable::remove_if_unused`] and [`Dentries::forget`].
    fn remove_if_unused(&mut self, number: u64) -> Option<Directory> {
        let entry = self.by_number.get(&number)?;
        let (open_count, last_change) = {
            let s = entry.inode.state.lock();
            (s.open_count, s.last_change)
        };
        if number == ROOT || entry.lookups > 0 || open_count > 0 || !entry.inode.writes.is_idle() {
            return None;
        }
        let handle = entry.inode.handle;
        self.by_number.remove(&number);
        self.by_handle.remove(&handle);
        let names = self.dentries.forget(number);
        self.forgotten.insert(number, handle, number >= FIRST_SYNTHETIC_INO);
        self.changes.insert(handle, last_change);
        shrink(&mut self.by_number);
        shrink(&mut self.by_handle);
        names
    }
}

#[cfg(test)]
mod tests {
    use millrace_client::ops::SpecData;
    use millrace_runtime::virtual_time::VirtualTime;

    use super::*;
    use crate::MountOptions;

    fn found(fileid: u64, size: u64, issued: Epoch) -> FoundFile {
        let handle = FileHandle::new(&fileid.to_be_bytes()).unwrap();
        FoundFile { handle, attributes: file(fileid, size), issued }
    }

    fn file(fileid: u64, size: u64) -> Attributes {
        Attributes {
            file_type: FileType::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size,
            used: size,
            rdev: SpecData::default(),
            fsid: 1,
            fileid,
            atime: NfsTime::default(),
            mtime: NfsTime::default(),
            ctime: NfsTime::default(),
            change: None,
        }
    }

    fn timeouts() -> CacheTimeouts {
        CacheTimeouts::new(VirtualTime::new(0).runtime(), &MountOptions::default())
    }

    #[test]
    fn uncommitted_lookups_are_reverted() {
        let table = InodeTable::default();
        let look_up = |lookups: &mut PendingLookups<'_>, n: u64| {
            let inode = table.get_or_insert((ROOT, b"file"), &found(n, 0, 0), &timeouts()).unwrap();
            lookups.add(inode.number);
        };
        let mut sent = PendingLookups::new(&table);
        look_up(&mut sent, 7);
        sent.commit();
        let mut not_sent = PendingLookups::new(&table);
        look_up(&mut not_sent, 7);
        look_up(&mut not_sent, 8);
        drop(not_sent);
        assert!(table.get(7).is_some() && table.get(8).is_none());
        table.forget(7, 1);
        assert!(table.get(7).is_none());
    }

    #[test]
    fn outdated_replies_do_not_replace_newer_attributes() {
        let (clock, timeouts) = (LogicalClock::default(), timeouts());
        let inode = Inode::new(7, FileHandle::new(b"7").unwrap(), file(7, 0), 0, &timeouts);
        let (early, late) = (clock.tick(), clock.tick());
        assert_eq!(inode.update_from_server(&timeouts, late, file(7, 20), false).attributes.size, 20);
        assert_eq!(inode.update_from_server(&timeouts, early, file(7, 10), false).attributes.size, 20);
        // Nor is a size that was requested before a local write.
        let issued = clock.tick();
        inode.note_write(&clock, 30, 30);
        let reply = inode.update_from_server(&timeouts, issued, file(7, 20), false);
        assert_eq!((reply.attributes.size, reply.ttl), (30, Duration::ZERO));
    }

    #[test]
    fn attributes_older_than_a_forgotten_change_give_no_new_inode() {
        let (table, clock, timeouts) = (InodeTable::default(), LogicalClock::default(), timeouts());
        let look_up = |file: &FoundFile| table.get_or_insert((ROOT, b"file"), file, &timeouts);
        let old = found(7, 10, clock.tick());
        let inode = look_up(&old).unwrap();
        inode.note_write(&clock, 30, 30);
        assert!(look_up(&old).is_some(), "the inode has the new size");
        table.forget(7, 2);
        assert!(look_up(&old).is_none() && table.get_or_insert_unnamed(&old, &timeouts).is_none());
        assert!(table.reinsert(7, &old, &timeouts).unwrap().is_none() && table.get(7).is_none());
        assert!(look_up(&found(8, 10, old.issued)).is_some(), "another file");
        // The new inode does not take the older attributes either.
        let new = found(7, 30, clock.tick());
        let inode = look_up(&new).unwrap();
        let reply = inode.update_from_server(&timeouts, old.issued, old.attributes, false);
        assert_eq!((reply.attributes.size, reply.ttl), (30, Duration::ZERO));
    }

    #[test]
    fn handles_with_synthetic_numbers_survive_forget() {
        let (table, timeouts) = (InodeTable::default(), timeouts());
        let look_up =
            |file: &FoundFile| table.get_or_insert((ROOT, b"file"), file, &timeouts).unwrap().number;
        let first = found(7, 0, 0);
        let second = FoundFile { handle: FileHandle::new(b"another file system").unwrap(), ..first };
        let large = found(u64::MAX, 0, 0);
        let numbers = [first, second, large].map(|file| look_up(&file));
        assert_eq!(numbers, [7, FIRST_SYNTHETIC_INO, FIRST_SYNTHETIC_INO + 1]);
        numbers.iter().for_each(|number| table.forget(*number, 1));
        // Found by name in another order, and then by the numbers that file handles contain.
        assert_eq!([second, large, first].map(|file| look_up(&file)), [numbers[1], numbers[2], numbers[0]]);
        for (number, file) in numbers.into_iter().zip([first, second, large]) {
            assert_eq!(table.handle(number), Some(file.handle));
            assert_eq!(table.reinsert(number, &file, &timeouts).unwrap().unwrap().number, number);
        }
    }

    #[test]
    fn data_read_before_a_change_or_open_is_not_current() {
        let clock = LogicalClock::default();
        let inode = Inode::new(7, FileHandle::new(b"7").unwrap(), file(7, 0), 0, &timeouts());
        let happens: [fn(&Inode, &LogicalClock); 3] = [
            |inode, clock| inode.state.lock().last_open = clock.tick(),
            |inode, clock| inode.note_unknown_change(clock),
            |inode, _| {
                inode.invalidate_pages();
            },
        ];
        for (i, what) in happens.iter().enumerate() {
            let then = inode.data_version(&clock);
            assert!(inode.is_data_current(then));
            what(&inode, &clock);
            assert!(!inode.is_data_current(then), "{i}");
        }
    }
}
