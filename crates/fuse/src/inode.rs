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
    cache::{Cached, Times},
    dentries::{CachedName, Dentries, shrink},
    forgotten::{Forgotten, generation},
    pages::Pages,
    verify::{LookedUp, Rights},
    write::Writes,
};

/// The kernel's number of the root.
pub(crate) const ROOT: u64 = 1;
/// From here on numbers are ours: for files whose fileid another file has.
const SPARE: u64 = 1 << 63;

/// Bits of a mode.
const SET_ID: u32 = 0o6000;

/// A moment in the order of questions and changes; see [`Inode::learn`].
pub(crate) type Moment = u64;

/// What a file's data was asked under; see [`Inode::is_still`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version {
    asked: Moment,
    epoch: u64,
}

/// Counts questions and changes, so that answers to older questions are known.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    /// A moment after all others.
    pub(crate) fn tick(&self) -> Moment {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// What the kernel is told of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) attributes: Fattr,
    pub(crate) ttl: Duration,
    pub(crate) news: News,
}

/// What an answer of the server has shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// No change of ours has overtaken it.
    pub(crate) is_current: bool,
    /// The kernel is to be told to drop the pages.
    pub(crate) drops_pages: bool,
    /// The kernel is to be told to ask again for the names in the directory.
    pub(crate) drops_names: bool,
}

/// Attributes that the kernel was told last, or has made of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelHas {
    pub(crate) size: u64,
    pub(crate) ctime: NfsTime,
    /// Mode, user and group.
    pub(crate) rights: (u32, u32, u32),
}

impl KernelHas {
    pub(crate) fn of(a: &Fattr) -> Self {
        Self { size: a.size, ctime: a.ctime, rights: (a.mode & 0o7777, a.uid, a.gid) }
    }
}

pub(crate) struct State {
    pub(crate) cached: Cached,
    /// The last change of ours, and how many are under way.
    changed: Moment,
    changing: u32,
    /// When the attributes were asked for.
    learned: Moment,
    /// The size, with what is not yet with the server.
    size: u64,
    /// What the kernel has for it.
    pub(crate) kernel: KernelHas,
    /// Of its pages; of a directory, of the names in it.
    pub(crate) pages: Pages,
    /// Another client may have changed it while this client retained data for it.
    pub(crate) is_changed_elsewhere: bool,
    /// Names in this directory that were asked for before are not to be cached.
    names_dropped: Moment,
    /// The last LOOKUP that led here, until it is used.
    pub(crate) looked_up: Option<LookedUp>,
    /// What the last caller who opened it may do.
    pub(crate) rights: Option<Rights>,
    /// The last time that somebody began to open it.
    pub(crate) opened: Moment,
    /// Open descriptions, those of them that can read, and those that read through the kernel's pages.
    pub(crate) opens: u32,
    pub(crate) readers: u32,
    pub(crate) page_readers: u32,
    /// Its name on the server since it was removed while open: directory and name.
    pub(crate) silly: Option<(Arc<Inode>, Vec<u8>)>,
}

pub(crate) struct Inode {
    pub(crate) number: u64,
    /// Of the number: see [`generation`]. 0 for the root.
    pub(crate) generation: u64,
    pub(crate) handle: FileHandle,
    pub(crate) kind: FileType,
    pub(crate) state: Mutex<State>,
    pub(crate) writes: Writes,
    /// The kernel may have pages: it has read or written through them since it dropped all.
    has_pages: AtomicBool,
    dropping: Dropping,
}

/// How often the kernel dropped pages, and what it read since.
#[derive(Default)]
struct Dropping {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Of those that have ended, the number when the last WRITE of pages was taken.
    seen: AtomicU64,
    /// A page was read since.
    is_read_again: AtomicBool,
}

/// What has to be dropped after a direct write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drops {
    Nothing,
    Part,
    /// As soon as the kernel is told of [`News`].
    All(News),
}

impl Inode {
    fn new(number: u64, handle: FileHandle, attributes: Fattr, times: &Times) -> Self {
        let state = State {
            cached: Cached::new(attributes, times),
            changed: 0,
            changing: 0,
            learned: 0,
            size: attributes.size,
            kernel: KernelHas::of(&attributes),
            pages: Pages::default(),
            is_changed_elsewhere: false,
            names_dropped: 0,
            looked_up: None,
            rights: None,
            opened: 0,
            opens: 0,
            readers: 0,
            page_readers: 0,
            silly: None,
        };
        Self {
            number,
            generation: if number == ROOT { 0 } else { generation(&handle) },
            handle,
            kind: attributes.file_type,
            state: Mutex::new(state),
            writes: Writes::default(),
            has_pages: AtomicBool::new(false),
            dropping: Dropping::default(),
        }
    }

    fn fills_pages(&self) {
        if !self.has_pages.load(Ordering::Relaxed) {
            self.has_pages.store(true, Ordering::Relaxed);
        }
    }

    /// The kernel reads into its pages. To be called before data is fetched for it.
    pub(crate) fn reads_pages(&self) {
        self.fills_pages();
        let Dropping { begun, seen, is_read_again, .. } = &self.dropping;
        if begun.load(Ordering::Relaxed) != seen.load(Ordering::Relaxed) {
            is_read_again.store(true, Ordering::Relaxed);
        }
    }

    /// Data of the kernel's pages was taken. `true`: the kernel may have other pages for it, with the data of before.
    ///
    /// Linux copies the data of a write(2) to its pages, unlocks those that are up to date, and then sends the WRITE
    /// (`fuse_fill_write_pages`). If it drops such a page before the WRITE comes, a reader brings it back without the data.
    /// The writes of a file come one after the other: so pages must have been dropped and read since the last WRITE was
    /// taken. (A reader calls [`Self::reads_pages`] and then takes the lock under which data is taken.)
    pub(crate) fn wrote_pages(&self) -> bool {
        self.fills_pages();
        let Dropping { ended, seen, is_read_again, .. } = &self.dropping;
        seen.store(ended.load(Ordering::Relaxed), Ordering::Relaxed);
        is_read_again.load(Ordering::Relaxed) && is_read_again.swap(false, Ordering::Relaxed)
    }

    /// Runs `notify`, which has the kernel drop pages and returns when they are gone.
    pub(crate) fn drop_pages_by(&self, notify: impl FnOnce()) {
        self.begins_to_drop_pages();
        notify();
        self.has_dropped_pages();
    }

    /// The kernel is told to drop pages, or drops them since an open does not keep them.
    pub(crate) fn begins_to_drop_pages(&self) {
        self.dropping.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Once for each [`Self::begins_to_drop_pages`].
    pub(crate) fn has_dropped_pages(&self) {
        self.dropping.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel is now told to drop all pages; see [`Pages::unqueue`].
    pub(crate) fn unqueue_pages(&self) -> u64 {
        self.has_pages.store(false, Ordering::Relaxed);
        self.state.lock().pages.unqueue()
    }

    /// Data was taken that did not go through the kernel's pages.
    ///
    /// The kernel drops the pages in its way when such a write begins, and again when it has ended, but not if it is
    /// asynchronous (`generic_file_direct_write`): a page that was read in between stays, with the data of before. Pages that
    /// are read after the data was taken have it. (A reader calls [`Self::reads_pages`] and then takes the lock under which
    /// data is taken: so its call is seen here, or it finds the data.)
    pub(crate) fn wrote_directly(&self) -> Drops {
        if !self.has_pages.load(Ordering::Relaxed) {
            return Drops::Nothing;
        }
        if self.state.lock().page_readers > 0 {
            return Drops::Part;
        }
        Drops::All(self.spoil()) // They are left from before, and shall not cost each write that follows.
    }

    /// Takes attributes that the server gave to a call made at `asked`, and says what to tell the kernel.
    ///
    /// An answer that a change of ours may have overtaken is not kept, and does not change the size: the kernel knows
    /// better. The answer to an older question than the last one is not kept either.
    pub(crate) fn learn(&self, times: &Times, asked: Moment, attributes: Fattr) -> Told {
        let (mut s, news) = self.take(times, asked, attributes);
        Told { news, ..s.tell(times) }
    }

    /// As [`Self::learn`], where the kernel is told nothing.
    pub(crate) fn check(&self, times: &Times, asked: Moment, attributes: Fattr) -> News {
        self.take(times, asked, attributes).1
    }

    fn take(&self, times: &Times, asked: Moment, mut attributes: Fattr) -> (MutexGuard<'_, State>, News) {
        let (unwritten, retained) = self.writes.ends();
        let server_has = WccAttr::from(&attributes);
        let mut s = self.state.lock();
        let overtaken = s.changing > 0 || s.changed > asked || unwritten.is_some();
        let mut news = News { is_current: !overtaken, ..News::default() };
        if overtaken {
            if self.kind == FileType::Regular {
                attributes.size = s.size.max(unwritten.unwrap_or(0));
            }
            s.cached.doubt(attributes, times);
        } else if s.learned <= asked {
            // Reads return retained data also when the server has lost it.
            attributes.size = attributes.size.max(retained.unwrap_or(0));
            s.cached.update(attributes, times);
            s.size = attributes.size;
            s.learned = asked;
            let is_cached = matches!(self.kind, FileType::Regular | FileType::Directory);
            if is_cached && s.pages.compare(server_has) {
                s.is_changed_elsewhere |= retained.is_some();
                news = s.drop_cached(self.kind, asked, news);
            }
        }
        (s, news)
    }

    /// The server does not have what the kernel has of this file.
    pub(crate) fn spoil(&self) -> News {
        let mut s = self.state.lock();
        s.pages.spoil();
        News { drops_pages: s.drop_pages(), ..News::default() }
    }

    /// The server gives no attributes: it is asked again after the time for which they would have held.
    pub(crate) fn give_up(&self, times: &Times) {
        let mut s = self.state.lock();
        let last = s.cached.attributes;
        s.cached.doubt(last, times);
    }

    /// The size, with what is not yet with the server.
    pub(crate) fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// It was cut or extended, by the kernel.
    pub(crate) fn set_size(&self, size: u64) {
        let mut s = self.state.lock();
        (s.size, s.kernel.size) = (size, size);
    }

    /// Whether a user may read and write it, as far as the mode says that the kernel was told of.
    pub(crate) fn is_open_to(&self, uid: u32, gid: u32) -> bool {
        let s = self.state.lock();
        let a = &s.cached.attributes;
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
    pub(crate) fn version(&self, clock: &Clock) -> Version {
        let s = self.state.lock();
        Version { asked: clock.tick(), epoch: s.pages.epoch() }
    }

    /// Whether data that was asked for then is as good as data that is asked for now: we have not changed the file since,
    /// nobody has opened it, and nobody else is known to have changed it.
    pub(crate) fn is_still(&self, then: Version) -> bool {
        let is_clean = self.writes.is_clean();
        let s = self.state.lock();
        let is_unchanged = s.changing == 0 && s.changed < then.asked && s.pages.epoch() == then.epoch;
        is_clean && is_unchanged && s.opened < then.asked
    }

    /// Whether it is time to look whether the pages are still good.
    pub(crate) fn is_due(&self, times: &Times) -> bool {
        self.kind == FileType::Regular && self.state.lock().cached.is_due(times)
    }

    /// What is known without asking, if it holds; `renamed`: the last time that links of files we cannot name changed.
    pub(crate) fn known(&self, times: &Times, renamed: Moment) -> Option<Told> {
        if !self.writes.is_clean() {
            return None;
        }
        let mut s = self.state.lock();
        if s.changing > 0 || s.learned < renamed || s.cached.left(times).is_none() || !s.pages.are_dropped() {
            return None;
        }
        Some(s.tell(times))
    }

    /// A change of ours begins; it lasts until the guard is dropped.
    pub(crate) fn change<'c>(self: &Arc<Self>, clock: &'c Clock) -> Changing<'c> {
        let mut s = self.state.lock();
        s.changing += 1;
        s.cached.invalidate();
        Changing { inode: Arc::clone(self), clock }
    }

    /// We have taken data that ends at `end`, for the kernel at `kernel_end`. In one step: nobody sees the change without the
    /// size. `true`: the kernel has set-id bits for the file, which the server may take away.
    pub(crate) fn wrote(&self, clock: &Clock, end: u64, kernel_end: u64) -> bool {
        let mut s = self.state.lock();
        s.size = s.size.max(end);
        s.kernel.size = s.kernel.size.max(kernel_end);
        s.changed = clock.tick();
        s.cached.invalidate();
        s.cached.attributes.mode & SET_ID != 0
    }

    /// A change of ours has happened, from and to what `wcc` says.
    pub(crate) fn changed_by(&self, clock: &Clock, wcc: &WccData) {
        let mut s = self.state.lock();
        s.pages.changed(wcc);
        s.changed = clock.tick();
        s.cached.invalidate();
    }

    /// A change of ours has happened, of which the server does not say from and to what.
    pub(crate) fn changed(&self, clock: &Clock) {
        self.changed_by(clock, &WccData::default());
    }

    /// A change of ours in this directory has happened, from and to what `wcc` says; its [`Changing`] still lives.
    pub(crate) fn entries_changed(&self, clock: &Clock, wcc: &WccData) -> News {
        self.changed_by(clock, wcc);
        let mut s = self.state.lock();
        // With others under way, the last of them finds what is missing.
        let is_last = s.changing <= 1;
        if is_last
            && let Some(after) = &wcc.after
            && s.pages.has_gap(WccAttr::from(after))
        {
            return s.drop_cached(self.kind, clock.tick(), News::default());
        }
        News::default()
    }

    /// Whether nothing here was changed by us since `asked`.
    pub(crate) fn is_unchanged_since(&self, asked: Moment) -> bool {
        let s = self.state.lock();
        s.changing == 0 && s.changed <= asked
    }

    /// How long the kernel may use names in this directory that were asked for at `asked`, and that they are not there.
    pub(crate) fn name_times(&self, times: &Times, asked: Moment) -> (Duration, Duration) {
        let s = self.state.lock();
        if s.names_dropped > asked {
            return (Duration::ZERO, Duration::ZERO);
        }
        (times.name(&s.cached), times.absence(&s.cached))
    }
}

impl State {
    fn tell(&mut self, times: &Times) -> Told {
        let mut attributes = self.cached.attributes;
        self.kernel = KernelHas::of(&attributes);
        if self.silly.is_some() {
            attributes.nlink = attributes.nlink.saturating_sub(1);
        }
        Told { attributes, ttl: self.cached.left(times).unwrap_or_default(), news: News::default() }
    }

    /// What the kernel has was just found to be old, by the answer to a call made at `asked`.
    fn drop_cached(&mut self, kind: FileType, asked: Moment, news: News) -> News {
        if kind == FileType::Directory {
            self.names_dropped = self.names_dropped.max(asked);
            return News { drops_names: true, ..news };
        }
        News { drops_pages: self.drop_pages(), ..news }
    }

    /// The pages were just found to be old. Whether the kernel is to be told to drop them: where nobody reads, the next
    /// open sees to it.
    fn drop_pages(&mut self) -> bool {
        self.readers > 0 && self.pages.queue()
    }
}

/// Lookups that the kernel will know of if their answer reaches it; they are taken back when this is dropped.
pub(crate) struct Lookups<'t> {
    table: &'t Table,
    numbers: Vec<u64>,
}

impl<'t> Lookups<'t> {
    pub(crate) fn new(table: &'t Table) -> Self {
        Self { table, numbers: Vec::new() }
    }

    pub(crate) fn add(&mut self, number: u64) {
        self.numbers.push(number);
    }

    /// The answer goes to the kernel.
    pub(crate) fn keep(mut self) {
        self.numbers.clear();
    }
}

impl Drop for Lookups<'_> {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|number| self.table.forget(*number, 1));
    }
}

/// A change under way.
pub(crate) struct Changing<'c> {
    inode: Arc<Inode>,
    clock: &'c Clock,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut s = self.inode.state.lock();
        s.changing -= 1;
        s.changed = self.clock.tick();
        s.cached.invalidate();
    }
}

struct Known {
    inode: Arc<Inode>,
    lookups: u64,
}

#[derive(Default)]
struct Inner {
    by_number: HashMap<u64, Known>,
    by_handle: HashMap<FileHandle, u64>,
    dentries: Dentries,
    forgotten: Forgotten,
    spare: u64,
}

/// All inodes that the kernel knows.
#[derive(Default)]
pub(crate) struct Table(Mutex<Inner>);

impl Table {
    /// The inode of a handle that was found under `name` (a directory's number, and the name in it), made if need be; it
    /// is looked up once more.
    pub(crate) fn remember(
        &self,
        name: (u64, &[u8]),
        handle: FileHandle,
        attributes: &Fattr,
        times: &Times,
    ) -> Arc<Inode> {
        let mut t = self.0.lock();
        let inode = t.remember(handle, attributes, times);
        t.dentries.found(inode.number, name);
        inode
    }

    /// As [`Self::remember`], of an inode for which the kernel has no name.
    pub(crate) fn remember_unnamed(
        &self,
        handle: FileHandle,
        attributes: &Fattr,
        times: &Times,
    ) -> Arc<Inode> {
        self.0.lock().remember(handle, attributes, times)
    }

    /// The NFS handle of a number that the kernel knows or has known.
    pub(crate) fn handle(&self, number: u64) -> Option<FileHandle> {
        let t = self.0.lock();
        t.by_number.get(&number).map(|k| k.inode.handle).or_else(|| t.forgotten.get(number))
    }

    /// As [`Self::remember_unnamed`], of a number that the kernel has known; `None`: the number, or the handle that it had, is in
    /// use for something else.
    pub(crate) fn remember_number(
        &self,
        number: u64,
        handle: FileHandle,
        attributes: &Fattr,
        times: &Times,
    ) -> Option<Arc<Inode>> {
        let mut t = self.0.lock();
        match (t.by_handle.get(&handle), t.by_number.contains_key(&number)) {
            (Some(n), _) if *n == number => {}
            (None, false) => t.insert_as(number, handle, attributes, times),
            _ => return None,
        }
        Some(t.remember(handle, attributes, times))
    }

    pub(crate) fn set_root(&self, handle: FileHandle, attributes: &Fattr, times: &Times) {
        let inode = Arc::new(Inode::new(ROOT, handle, *attributes, times));
        let mut t = self.0.lock();
        t.by_handle.insert(handle, ROOT);
        t.by_number.insert(ROOT, Known { inode, lookups: 1 });
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Inode>> {
        self.0.lock().by_number.get(&number).map(|k| Arc::clone(&k.inode))
    }

    /// The inode of a handle, if the kernel knows it.
    pub(crate) fn find(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        let t = self.0.lock();
        let number = t.by_handle.get(handle)?;
        t.by_number.get(number).map(|k| Arc::clone(&k.inode))
    }

    /// The kernel is to be told that there is no such name; `false`: but not to cache it.
    pub(crate) fn absent(&self, name: (u64, &[u8]), now: Instant, life: Duration) -> bool {
        !life.is_zero() && self.0.lock().dentries.absent(name, now, life)
    }

    /// What had the name `from` has the name `to` now.
    pub(crate) fn renamed(&self, from: (u64, &[u8]), to: (u64, &[u8])) {
        self.0.lock().dentries.renamed(from, to);
    }

    /// The name leads nowhere any more.
    pub(crate) fn removed(&self, name: (u64, &[u8])) {
        self.0.lock().dentries.removed(name);
    }

    /// The names by which the kernel may reach an inode without asking, with their directories.
    pub(crate) fn cached_names(&self, number: u64) -> Vec<(Arc<Inode>, CachedName)> {
        let t = self.0.lock();
        let with_dir = |name: CachedName| Some((Arc::clone(&t.by_number.get(&name.0)?.inode), name));
        t.dentries.cached(number).into_iter().filter_map(with_dir).collect()
    }

    /// As [`Dentries::expire_name`].
    pub(crate) fn expire_name(&self, name: (u64, &[u8])) -> Option<CachedName> {
        self.0.lock().dentries.expire_name(name)
    }

    /// As [`Dentries::expired`].
    pub(crate) fn expired(&self, names: &[CachedName]) {
        let mut t = self.0.lock();
        names.iter().for_each(|name| t.dentries.expired(name));
    }

    /// As [`Dentries::expire`].
    pub(crate) fn expire(&self, dir: u64) -> Vec<CachedName> {
        self.0.lock().dentries.expire(dir)
    }

    /// Where a file was last seen, as far as that is known.
    pub(crate) fn path(&self, number: u64) -> Option<PathBuf> {
        self.0.lock().dentries.path(number)
    }

    /// The kernel gives up `lookups` of a number.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        let mut t = self.0.lock();
        if let Some(known) = t.by_number.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(lookups);
        }
        t.sweep(number);
    }

    /// Forgets an inode that is not needed any more, after its last use by us.
    pub(crate) fn sweep(&self, number: u64) {
        self.0.lock().sweep(number);
    }
}

impl Inner {
    /// The inode of a handle, made if need be; it is looked up once more.
    fn remember(&mut self, handle: FileHandle, attributes: &Fattr, times: &Times) -> Arc<Inode> {
        let number = match self.by_handle.get(&handle) {
            Some(n) => *n,
            None => self.insert(handle, attributes, times),
        };
        match self.by_number.get_mut(&number) {
            Some(known) => {
                known.lookups += 1;
                Arc::clone(&known.inode)
            }
            // Cannot be: both maps change together. A fresh inode that is not in the table does no harm.
            None => Arc::new(Inode::new(number, handle, *attributes, times)),
        }
    }

    fn insert(&mut self, handle: FileHandle, attributes: &Fattr, times: &Times) -> u64 {
        let mut number = attributes.fileid;
        if number <= ROOT || number >= SPARE || self.by_number.contains_key(&number) {
            number = SPARE + self.spare;
            self.spare += 1;
        }
        self.insert_as(number, handle, attributes, times);
        number
    }

    fn insert_as(&mut self, number: u64, handle: FileHandle, attributes: &Fattr, times: &Times) {
        let inode = Arc::new(Inode::new(number, handle, *attributes, times));
        self.by_number.insert(number, Known { inode, lookups: 0 });
        self.by_handle.insert(handle, number);
        self.forgotten.remove(number);
    }

    fn sweep(&mut self, number: u64) {
        let Some(known) = self.by_number.get(&number) else { return };
        let used = known.lookups > 0 || known.inode.state.lock().opens > 0 || !known.inode.writes.is_idle();
        if number == ROOT || used {
            return;
        }
        let handle = known.inode.handle;
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

    fn times() -> Times {
        Times::new(VirtualTime::new(0).runtime(), &MountOptions::default())
    }

    #[test]
    fn lookups_whose_answer_is_not_sent_are_taken_back() {
        let table = Table::default();
        let look_up = |lookups: &mut Lookups<'_>, n: u64| {
            let handle = FileHandle::new(&n.to_be_bytes()).unwrap();
            lookups.add(table.remember((ROOT, b"file"), handle, &file(n, 0), &times()).number);
        };
        let mut sent = Lookups::new(&table);
        look_up(&mut sent, 7);
        sent.keep();
        let mut not_sent = Lookups::new(&table);
        look_up(&mut not_sent, 7);
        look_up(&mut not_sent, 8);
        drop(not_sent);
        assert!(table.get(7).is_some() && table.get(8).is_none());
        table.forget(7, 1);
        assert!(table.get(7).is_none());
    }

    #[test]
    fn late_answers_to_early_questions_do_not_replace_newer_ones() {
        let (clock, times) = (Clock::default(), times());
        let inode = Inode::new(7, FileHandle::new(b"7").unwrap(), file(7, 0), &times);
        let (early, late) = (clock.tick(), clock.tick());
        assert_eq!(inode.learn(&times, late, file(7, 20)).attributes.size, 20);
        assert_eq!(inode.learn(&times, early, file(7, 10)).attributes.size, 20);
        // Nor is the size believed of one that was asked before a write of ours.
        let asked = clock.tick();
        inode.wrote(&clock, 30, 30);
        let told = inode.learn(&times, asked, file(7, 20));
        assert_eq!((told.attributes.size, told.ttl), (30, Duration::ZERO));
    }

    #[test]
    fn data_that_was_asked_for_before_a_change_or_an_open_is_old() {
        let clock = Clock::default();
        let inode = Inode::new(7, FileHandle::new(b"7").unwrap(), file(7, 0), &times());
        let happens: [fn(&Inode, &Clock); 3] = [
            |inode, clock| inode.state.lock().opened = clock.tick(),
            |inode, clock| inode.changed(clock),
            |inode, _| {
                inode.spoil();
            },
        ];
        for (i, what) in happens.iter().enumerate() {
            let then = inode.version(&clock);
            assert!(inode.is_still(then));
            what(&inode, &clock);
            assert!(!inode.is_still(then), "{i}");
        }
    }
}
