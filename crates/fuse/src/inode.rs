//! Inodes: what the kernel's numbers stand for.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_nfs::v3::{Fattr, FileHandle, FileType, NfsTime, WccAttr, WccData};
use millrace_runtime::Instant;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    dentries::{CachedName, Dentries, shrink},
    forgotten::{ForgottenInodes, generation},
    pages::PageState,
    timeouts::{CacheTimeouts, CachedAttrs},
    verify::{GrantedAccess, LastLookup},
    write::WriteQueue,
};

/// The kernel's number of the root.
pub(crate) const ROOT: u64 = 1;
/// From here on numbers are ours: for files whose fileid another file has.
const FIRST_SYNTHETIC_INO: u64 = 1 << 63;

/// Bits of a mode.
const SET_ID_BITS: u32 = 0o6000;

/// A moment in the order of questions and changes; see [`Inode::learn`].
pub(crate) type Epoch = u64;

/// What a file's data was asked under; see [`Inode::is_data_current`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataVersion {
    issued: Epoch,
    invalidations: u64,
}

/// Counts questions and changes, so that answers to older questions are known.
#[derive(Debug, Default)]
pub(crate) struct LogicalClock(AtomicU64);

impl LogicalClock {
    /// A moment after all others.
    pub(crate) fn tick(&self) -> Epoch {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// What the kernel is told of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttrReply {
    pub(crate) attributes: Fattr,
    pub(crate) ttl: Duration,
    pub(crate) update: CacheUpdate,
}

/// What an answer of the server has shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheUpdate {
    /// No change of ours has overtaken it.
    pub(crate) is_current: bool,
    /// The kernel is to be told to drop the pages.
    pub(crate) invalidates_pages: bool,
    /// The kernel is to be told to ask again for the names in the directory.
    pub(crate) invalidates_names: bool,
}

/// Attributes that the kernel was told last, or has made of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelAttrs {
    pub(crate) size: u64,
    pub(crate) ctime: NfsTime,
    /// Mode, user and group.
    pub(crate) permissions: (u32, u32, u32),
}

impl KernelAttrs {
    pub(crate) fn of(a: &Fattr) -> Self {
        Self { size: a.size, ctime: a.ctime, permissions: (a.mode & 0o7777, a.uid, a.gid) }
    }
}

pub(crate) struct InodeState {
    pub(crate) attrs: CachedAttrs,
    /// The last change of ours, and how many are under way.
    last_change: Epoch,
    changes_in_progress: u32,
    /// When the attributes were asked for.
    attrs_epoch: Epoch,
    /// The size, with what is not yet with the server.
    size: u64,
    /// What the kernel has for it.
    pub(crate) kernel_attrs: KernelAttrs,
    /// Of its pages; of a directory, of the names in it.
    pub(crate) pages: PageState,
    /// Another client may have changed it while this client retained data for it.
    pub(crate) changed_by_others: bool,
    /// Names in this directory that were asked for before are not to be cached.
    names_invalidated: Epoch,
    /// The last LOOKUP that led here, until it is used.
    pub(crate) last_lookup: Option<LastLookup>,
    /// What the last caller who opened it may do.
    pub(crate) granted: Option<GrantedAccess>,
    /// The last time that somebody began to open it.
    pub(crate) last_open: Epoch,
    /// Open descriptions, those of them that can read, and those that read through the kernel's pages.
    pub(crate) open_count: u32,
    pub(crate) readers: u32,
    pub(crate) cached_readers: u32,
    /// Its name on the server since it was removed while open: directory and name.
    pub(crate) silly_name: Option<(Arc<Inode>, Vec<u8>)>,
}

pub(crate) struct Inode {
    pub(crate) number: u64,
    /// Of the number: see [`generation`]. 0 for the root.
    pub(crate) generation: u64,
    pub(crate) handle: FileHandle,
    pub(crate) kind: FileType,
    pub(crate) state: Mutex<InodeState>,
    pub(crate) writes: WriteQueue,
    /// The kernel may have pages: it has read or written through them since it dropped all.
    may_have_pages: AtomicBool,
    page_invalidations: PageInvalidations,
}

/// How often the kernel dropped pages, and what it read since.
#[derive(Default)]
struct PageInvalidations {
    started: AtomicU64,
    finished: AtomicU64,
    /// Of those that have ended, the number when the last WRITE of pages was taken.
    seen: AtomicU64,
    /// A page was read since.
    read_since: AtomicBool,
}

/// What has to be dropped after a direct write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageInvalidation {
    None,
    Range,
    /// As soon as the kernel is told of [`CacheUpdate`].
    All(CacheUpdate),
}

impl Inode {
    fn new(number: u64, handle: FileHandle, attributes: Fattr, timeouts: &CacheTimeouts) -> Self {
        let state = InodeState {
            attrs: CachedAttrs::new(attributes, timeouts),
            last_change: 0,
            changes_in_progress: 0,
            attrs_epoch: 0,
            size: attributes.size,
            kernel_attrs: KernelAttrs::of(&attributes),
            pages: PageState::default(),
            changed_by_others: false,
            names_invalidated: 0,
            last_lookup: None,
            granted: None,
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
            may_have_pages: AtomicBool::new(false),
            page_invalidations: PageInvalidations::default(),
        }
    }

    fn mark_pages_cached(&self) {
        if !self.may_have_pages.load(Ordering::Relaxed) {
            self.may_have_pages.store(true, Ordering::Relaxed);
        }
    }

    /// The kernel reads into its pages. To be called before data is fetched for it.
    pub(crate) fn note_page_read(&self) {
        self.mark_pages_cached();
        let PageInvalidations { started, seen, read_since, .. } = &self.page_invalidations;
        if started.load(Ordering::Relaxed) != seen.load(Ordering::Relaxed) {
            read_since.store(true, Ordering::Relaxed);
        }
    }

    /// Data of the kernel's pages was taken. `true`: the kernel may have other pages for it, with the data of before.
    ///
    /// Linux copies the data of a write(2) to its pages, unlocks those that are up to date, and then sends the WRITE
    /// (`fuse_fill_write_pages`). If it drops such a page before the WRITE comes, a reader brings it back without the data.
    /// The writes of a file come one after the other: so pages must have been dropped and read since the last WRITE was
    /// taken. (A reader calls [`Self::note_page_read`] and then takes the lock under which data is taken.)
    pub(crate) fn note_page_write(&self) -> bool {
        self.mark_pages_cached();
        let PageInvalidations { finished, seen, read_since, .. } = &self.page_invalidations;
        seen.store(finished.load(Ordering::Relaxed), Ordering::Relaxed);
        read_since.load(Ordering::Relaxed) && read_since.swap(false, Ordering::Relaxed)
    }

    /// Runs `notify`, which has the kernel drop pages and returns when they are gone.
    pub(crate) fn invalidate_pages_with(&self, notify: impl FnOnce()) {
        self.begin_page_invalidation();
        notify();
        self.finish_page_invalidation();
    }

    /// The kernel is told to drop pages, or drops them since an open does not keep them.
    pub(crate) fn begin_page_invalidation(&self) {
        self.page_invalidations.started.fetch_add(1, Ordering::Relaxed);
    }

    /// Once for each [`Self::begin_page_invalidation`].
    pub(crate) fn finish_page_invalidation(&self) {
        self.page_invalidations.finished.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel is now told to drop all pages; see [`PageState::unqueue`].
    pub(crate) fn take_queued_invalidation(&self) -> u64 {
        self.may_have_pages.store(false, Ordering::Relaxed);
        self.state.lock().pages.take_queued_drop()
    }

    /// Data was taken that did not go through the kernel's pages.
    ///
    /// The kernel drops the pages in its way when such a write begins, and again when it has ended, but not if it is
    /// asynchronous (`generic_file_direct_write`): a page that was read in between stays, with the data of before. Pages that
    /// are read after the data was taken have it. (A reader calls [`Self::note_page_read`] and then takes the lock under which
    /// data is taken: so its call is seen here, or it finds the data.)
    pub(crate) fn note_direct_write(&self) -> PageInvalidation {
        if !self.may_have_pages.load(Ordering::Relaxed) {
            return PageInvalidation::None;
        }
        if self.state.lock().cached_readers > 0 {
            return PageInvalidation::Range;
        }
        PageInvalidation::All(self.invalidate_pages()) // They are left from before, and shall not cost each write that follows.
    }

    /// Takes attributes that the server gave to a call made at `issued`, and says what to tell the kernel.
    ///
    /// An answer that a change of ours may have overtaken is not kept, and does not change the size: the kernel knows
    /// better. The answer to an older question than the last one is not kept either.
    pub(crate) fn update_from_server(
        &self,
        timeouts: &CacheTimeouts,
        issued: Epoch,
        attributes: Fattr,
    ) -> AttrReply {
        let (mut s, update) = self.apply_attributes(timeouts, issued, attributes);
        AttrReply { update, ..s.attr_reply(timeouts) }
    }

    /// As [`Self::learn`], where the kernel is told nothing.
    pub(crate) fn record_attributes(
        &self,
        timeouts: &CacheTimeouts,
        issued: Epoch,
        attributes: Fattr,
    ) -> CacheUpdate {
        self.apply_attributes(timeouts, issued, attributes).1
    }

    fn apply_attributes(
        &self,
        timeouts: &CacheTimeouts,
        issued: Epoch,
        mut attributes: Fattr,
    ) -> (MutexGuard<'_, InodeState>, CacheUpdate) {
        let (unwritten, retained) = self.writes.ends();
        let server_has = WccAttr::from(&attributes);
        let mut s = self.state.lock();
        let overtaken = s.changes_in_progress > 0 || s.last_change > issued || unwritten.is_some();
        let mut update = CacheUpdate { is_current: !overtaken, ..CacheUpdate::default() };
        if overtaken {
            if self.kind == FileType::Regular {
                attributes.size = s.size.max(unwritten.unwrap_or(0));
            }
            s.attrs.update_stale(attributes, timeouts);
        } else if s.attrs_epoch <= issued {
            // Reads return retained data also when the server has lost it.
            attributes.size = attributes.size.max(retained.unwrap_or(0));
            s.attrs.update(attributes, timeouts);
            s.size = attributes.size;
            s.attrs_epoch = issued;
            let is_cached = matches!(self.kind, FileType::Regular | FileType::Directory);
            if is_cached && s.pages.compare(server_has) {
                s.changed_by_others |= retained.is_some();
                update = s.invalidate_cache(self.kind, issued, update);
            }
        }
        (s, update)
    }

    /// The server does not have what the kernel has of this file.
    pub(crate) fn invalidate_pages(&self) -> CacheUpdate {
        let mut s = self.state.lock();
        s.pages.invalidate();
        CacheUpdate { invalidates_pages: s.queue_page_invalidation(), ..CacheUpdate::default() }
    }

    /// The server gives no attributes: it is asked again after the time for which they would have held.
    pub(crate) fn expire_attributes(&self, timeouts: &CacheTimeouts) {
        let mut s = self.state.lock();
        let last = s.attrs.attributes;
        s.attrs.update_stale(last, timeouts);
    }

    /// The size, with what is not yet with the server.
    pub(crate) fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// It was cut or extended, by the kernel.
    pub(crate) fn set_size(&self, size: u64) {
        let mut s = self.state.lock();
        (s.size, s.kernel_attrs.size) = (size, size);
    }

    /// Whether a user may read and write it, as far as the mode says that the kernel was told of.
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

    /// For data that is asked for now.
    pub(crate) fn data_version(&self, clock: &LogicalClock) -> DataVersion {
        let s = self.state.lock();
        DataVersion { issued: clock.tick(), invalidations: s.pages.invalidations() }
    }

    /// Whether data that was asked for then is as good as data that is asked for now: we have not changed the file since,
    /// nobody has opened it, and nobody else is known to have changed it.
    pub(crate) fn is_data_current(&self, then: DataVersion) -> bool {
        let is_clean = self.writes.is_clean();
        let s = self.state.lock();
        let is_unchanged = s.changes_in_progress == 0
            && s.last_change < then.issued
            && s.pages.invalidations() == then.invalidations;
        is_clean && is_unchanged && s.last_open < then.issued
    }

    /// Whether it is time to look whether the pages are still good.
    pub(crate) fn needs_revalidation(&self, timeouts: &CacheTimeouts) -> bool {
        self.kind == FileType::Regular && self.state.lock().attrs.is_expired(timeouts)
    }

    /// What is known without asking, if it holds; `renamed`: the last time that links of files we cannot name changed.
    pub(crate) fn cached_reply(&self, timeouts: &CacheTimeouts, renamed: Epoch) -> Option<AttrReply> {
        if !self.writes.is_clean() {
            return None;
        }
        let mut s = self.state.lock();
        if s.changes_in_progress > 0
            || s.attrs_epoch < renamed
            || s.attrs.remaining(timeouts).is_none()
            || !s.pages.urgent_drops_done()
        {
            return None;
        }
        Some(s.attr_reply(timeouts))
    }

    /// A change of ours begins; it lasts until the guard is dropped.
    pub(crate) fn begin_change<'c>(self: &Arc<Self>, clock: &'c LogicalClock) -> ChangeGuard<'c> {
        let mut s = self.state.lock();
        s.changes_in_progress += 1;
        s.attrs.invalidate();
        ChangeGuard { inode: Arc::clone(self), clock }
    }

    /// We have taken data that ends at `end`, for the kernel at `kernel_end`. In one step: nobody sees the change without the
    /// size. `true`: the kernel has set-id bits for the file, which the server may take away.
    pub(crate) fn note_write(&self, clock: &LogicalClock, end: u64, kernel_end: u64) -> bool {
        let mut s = self.state.lock();
        s.size = s.size.max(end);
        s.kernel_attrs.size = s.kernel_attrs.size.max(kernel_end);
        s.last_change = clock.tick();
        s.attrs.invalidate();
        s.attrs.attributes.mode & SET_ID_BITS != 0
    }

    /// A change of ours has happened, from and to what `wcc` says.
    pub(crate) fn note_change(&self, clock: &LogicalClock, wcc: &WccData) {
        let mut s = self.state.lock();
        s.pages.note_change(wcc);
        s.last_change = clock.tick();
        s.attrs.invalidate();
    }

    /// A change of ours has happened, of which the server does not say from and to what.
    pub(crate) fn note_unknown_change(&self, clock: &LogicalClock) {
        self.note_change(clock, &WccData::default());
    }

    /// A change of ours in this directory has happened, from and to what `wcc` says; its [`ChangeGuard`] still lives.
    pub(crate) fn note_entries_changed(&self, clock: &LogicalClock, wcc: &WccData) -> CacheUpdate {
        self.note_change(clock, wcc);
        let mut s = self.state.lock();
        // With others under way, the last of them finds what is missing.
        let is_last = s.changes_in_progress <= 1;
        if is_last
            && let Some(after) = &wcc.after
            && s.pages.has_gap(WccAttr::from(after))
        {
            return s.invalidate_cache(self.kind, clock.tick(), CacheUpdate::default());
        }
        CacheUpdate::default()
    }

    /// Whether nothing here was changed by us since `issued`.
    pub(crate) fn unchanged_since(&self, issued: Epoch) -> bool {
        let s = self.state.lock();
        s.changes_in_progress == 0 && s.last_change <= issued
    }

    /// How long the kernel may use names in this directory that were asked for at `issued`, and that they are not there.
    pub(crate) fn name_timeouts(&self, timeouts: &CacheTimeouts, issued: Epoch) -> (Duration, Duration) {
        let s = self.state.lock();
        if s.names_invalidated > issued {
            return (Duration::ZERO, Duration::ZERO);
        }
        (timeouts.name_timeout(&s.attrs), timeouts.negative_timeout(&s.attrs))
    }
}

impl InodeState {
    fn attr_reply(&mut self, timeouts: &CacheTimeouts) -> AttrReply {
        let mut attributes = self.attrs.attributes;
        self.kernel_attrs = KernelAttrs::of(&attributes);
        if self.silly_name.is_some() {
            attributes.nlink = attributes.nlink.saturating_sub(1);
        }
        AttrReply {
            attributes,
            ttl: self.attrs.remaining(timeouts).unwrap_or_default(),
            update: CacheUpdate::default(),
        }
    }

    /// What the kernel has was just found to be old, by the answer to a call made at `issued`.
    fn invalidate_cache(&mut self, kind: FileType, issued: Epoch, update: CacheUpdate) -> CacheUpdate {
        if kind == FileType::Directory {
            self.names_invalidated = self.names_invalidated.max(issued);
            return CacheUpdate { invalidates_names: true, ..update };
        }
        CacheUpdate { invalidates_pages: self.queue_page_invalidation(), ..update }
    }

    /// The pages were just found to be old. Whether the kernel is to be told to drop them: where nobody reads, the next
    /// open sees to it.
    fn queue_page_invalidation(&mut self) -> bool {
        self.readers > 0 && self.pages.queue_drop()
    }
}

/// Lookups that the kernel will know of if their answer reaches it; they are taken back when this is dropped.
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

    /// The answer goes to the kernel.
    pub(crate) fn commit(mut self) {
        self.numbers.clear();
    }
}

impl Drop for PendingLookups<'_> {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|number| self.table.forget(*number, 1));
    }
}

/// A change under way.
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
    synthetic_inodes: u64,
}

/// All inodes that the kernel knows.
#[derive(Default)]
pub(crate) struct InodeTable(Mutex<Inner>);

impl InodeTable {
    /// The inode of a handle that was found under `name` (a directory's number, and the name in it), made if need be; it
    /// is looked up once more.
    pub(crate) fn get_or_insert(
        &self,
        name: (u64, &[u8]),
        handle: FileHandle,
        attributes: &Fattr,
        timeouts: &CacheTimeouts,
    ) -> Arc<Inode> {
        let mut t = self.0.lock();
        let inode = t.get_or_insert(handle, attributes, timeouts);
        t.dentries.insert(inode.number, name);
        inode
    }

    /// As [`Self::remember`], of an inode for which the kernel has no name.
    pub(crate) fn get_or_insert_unnamed(
        &self,
        handle: FileHandle,
        attributes: &Fattr,
        timeouts: &CacheTimeouts,
    ) -> Arc<Inode> {
        self.0.lock().get_or_insert(handle, attributes, timeouts)
    }

    /// The NFS handle of a number that the kernel knows or has known.
    pub(crate) fn handle(&self, number: u64) -> Option<FileHandle> {
        let t = self.0.lock();
        t.by_number.get(&number).map(|k| k.inode.handle).or_else(|| t.forgotten.get(number))
    }

    /// As [`Self::get_or_insert_unnamed`], of a number that the kernel has known; `None`: the number, or the handle that it had, is in
    /// use for something else.
    pub(crate) fn reinsert(
        &self,
        number: u64,
        handle: FileHandle,
        attributes: &Fattr,
        timeouts: &CacheTimeouts,
    ) -> Option<Arc<Inode>> {
        let mut t = self.0.lock();
        match (t.by_handle.get(&handle), t.by_number.contains_key(&number)) {
            (Some(n), _) if *n == number => {}
            (None, false) => t.insert_as(number, handle, attributes, timeouts),
            _ => return None,
        }
        Some(t.get_or_insert(handle, attributes, timeouts))
    }

    pub(crate) fn set_root(&self, handle: FileHandle, attributes: &Fattr, timeouts: &CacheTimeouts) {
        let inode = Arc::new(Inode::new(ROOT, handle, *attributes, timeouts));
        let mut t = self.0.lock();
        t.by_handle.insert(handle, ROOT);
        t.by_number.insert(ROOT, TableEntry { inode, lookups: 1 });
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Inode>> {
        self.0.lock().by_number.get(&number).map(|k| Arc::clone(&k.inode))
    }

    /// The inode of a handle, if the kernel knows it.
    pub(crate) fn find_by_handle(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        let t = self.0.lock();
        let number = t.by_handle.get(handle)?;
        t.by_number.get(number).map(|k| Arc::clone(&k.inode))
    }

    /// The kernel is to be told that there is no such name; `false`: but not to cache it.
    pub(crate) fn insert_negative(&self, name: (u64, &[u8]), now: Instant, ttl: Duration) -> bool {
        !ttl.is_zero() && self.0.lock().dentries.insert_negative(name, now, ttl)
    }

    /// What had the name `from` has the name `to` now.
    pub(crate) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) {
        self.0.lock().dentries.rename(from, to);
    }

    /// The name leads nowhere any more.
    pub(crate) fn remove(&self, name: (u64, &[u8])) {
        self.0.lock().dentries.remove(name);
    }

    /// The names by which the kernel may reach an inode without asking, with their directories.
    pub(crate) fn cached_names(&self, number: u64) -> Vec<(Arc<Inode>, CachedName)> {
        let t = self.0.lock();
        let with_dir = |name: CachedName| Some((Arc::clone(&t.by_number.get(&name.0)?.inode), name));
        t.dentries.cached_names(number).into_iter().filter_map(with_dir).collect()
    }

    /// As [`Dentries::begin_name_expiry`].
    pub(crate) fn begin_name_expiry(&self, name: (u64, &[u8])) -> Option<CachedName> {
        self.0.lock().dentries.begin_name_expiry(name)
    }

    /// As [`Dentries::expired`].
    pub(crate) fn finish_expiry(&self, names: &[CachedName]) {
        let mut t = self.0.lock();
        names.iter().for_each(|name| t.dentries.finish_expiry(name));
    }

    /// As [`Dentries::expire`].
    pub(crate) fn begin_expiry(&self, dir: u64) -> Vec<CachedName> {
        self.0.lock().dentries.begin_expiry(dir)
    }

    /// Where a file was last seen, as far as that is known.
    pub(crate) fn path(&self, number: u64) -> Option<PathBuf> {
        self.0.lock().dentries.path(number)
    }

    /// The kernel gives up `lookups` of a number.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        let mut t = self.0.lock();
        if let Some(entry) = t.by_number.get_mut(&number) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
        }
        t.remove_if_unused(number);
    }

    /// Forgets an inode that is not needed any more, after its last use by us.
    pub(crate) fn remove_if_unused(&self, number: u64) {
        self.0.lock().remove_if_unused(number);
    }
}

impl Inner {
    /// The inode of a handle, made if need be; it is looked up once more.
    fn get_or_insert(
        &mut self,
        handle: FileHandle,
        attributes: &Fattr,
        timeouts: &CacheTimeouts,
    ) -> Arc<Inode> {
        let number = match self.by_handle.get(&handle) {
            Some(n) => *n,
            None => self.insert(handle, attributes, timeouts),
        };
        match self.by_number.get_mut(&number) {
            Some(entry) => {
                entry.lookups += 1;
                Arc::clone(&entry.inode)
            }
            // Cannot be: both maps change together. A fresh inode that is not in the table does no harm.
            None => Arc::new(Inode::new(number, handle, *attributes, timeouts)),
        }
    }

    fn insert(&mut self, handle: FileHandle, attributes: &Fattr, timeouts: &CacheTimeouts) -> u64 {
        let mut number = attributes.fileid;
        if number <= ROOT || number >= FIRST_SYNTHETIC_INO || self.by_number.contains_key(&number) {
            number = FIRST_SYNTHETIC_INO + self.synthetic_inodes;
            self.synthetic_inodes += 1;
        }
        self.insert_as(number, handle, attributes, timeouts);
        number
    }

    fn insert_as(&mut self, number: u64, handle: FileHandle, attributes: &Fattr, timeouts: &CacheTimeouts) {
        let inode = Arc::new(Inode::new(number, handle, *attributes, timeouts));
        self.by_number.insert(number, TableEntry { inode, lookups: 0 });
        self.by_handle.insert(handle, number);
        self.forgotten.remove(number);
    }

    fn remove_if_unused(&mut self, number: u64) {
        let Some(entry) = self.by_number.get(&number) else { return };
        let used =
            entry.lookups > 0 || entry.inode.state.lock().open_count > 0 || !entry.inode.writes.is_idle();
        if number == ROOT || used {
            return;
        }
        let handle = entry.inode.handle;
        self.by_number.remove(&number);
        self.by_handle.remove(&handle);
        self.dentries.forget(number);
        self.forgotten.insert(number, handle);
        shrink(&mut self.by_number);
        shrink(&mut self.by_handle);
    }
}

#[cfg(test)]
mod tests {
    use millrace_nfs::v3::SpecData;
    use millrace_runtime::virtual_time::VirtualTime;

    use super::*;
    use crate::MountOptions;

    fn file(fileid: u64, size: u64) -> Fattr {
        Fattr {
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
        }
    }

    fn timeouts() -> CacheTimeouts {
        CacheTimeouts::new(VirtualTime::new(0).runtime(), &MountOptions::default())
    }

    #[test]
    fn lookups_whose_answer_is_not_sent_are_taken_back() {
        let table = InodeTable::default();
        let look_up = |lookups: &mut PendingLookups<'_>, n: u64| {
            let handle = FileHandle::new(&n.to_be_bytes()).unwrap();
            lookups.add(table.get_or_insert((ROOT, b"file"), handle, &file(n, 0), &timeouts()).number);
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
    fn late_answers_to_early_questions_do_not_replace_newer_ones() {
        let (clock, timeouts) = (LogicalClock::default(), timeouts());
        let inode = Inode::new(7, FileHandle::new(b"7").unwrap(), file(7, 0), &timeouts);
        let (early, late) = (clock.tick(), clock.tick());
        assert_eq!(inode.update_from_server(&timeouts, late, file(7, 20)).attributes.size, 20);
        assert_eq!(inode.update_from_server(&timeouts, early, file(7, 10)).attributes.size, 20);
        // Nor is the size believed of one that was asked before a write of ours.
        let issued = clock.tick();
        inode.note_write(&clock, 30, 30);
        let reply = inode.update_from_server(&timeouts, issued, file(7, 20));
        assert_eq!((reply.attributes.size, reply.ttl), (30, Duration::ZERO));
    }

    #[test]
    fn data_that_was_asked_for_before_a_change_or_an_open_is_old() {
        let clock = LogicalClock::default();
        let inode = Inode::new(7, FileHandle::new(b"7").unwrap(), file(7, 0), &timeouts());
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
