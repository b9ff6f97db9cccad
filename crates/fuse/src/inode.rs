//! Inodes: what the kernel's numbers stand for.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nfs::v3::{Fattr, FileHandle, FileType, WccAttr};
use parking_lot::Mutex;

use crate::{
    cache::{Cached, Times},
    write::Writes,
};

/// The kernel's number of the root.
pub(crate) const ROOT: u64 = 1;
/// From here on numbers are ours: for files whose fileid another file has.
const SPARE: u64 = 1 << 63;

/// A moment in the order of changes; see [`Inode::learn`].
pub(crate) type Moment = u64;

/// Counts changes, so that answers to older questions are known.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn now(&self) -> Moment {
        self.0.load(Ordering::Acquire)
    }

    fn tick(&self) -> Moment {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// What the kernel is told of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) attributes: Fattr,
    pub(crate) ttl: Duration,
}

pub(crate) struct State {
    pub(crate) cached: Cached,
    /// The last change of ours, and how many are under way.
    changed: Moment,
    changing: u32,
    /// When the attributes were asked for.
    learned: Moment,
    /// The size that the kernel believes in.
    pub(crate) kernel_size: u64,
    /// The ctime that it was told last.
    pub(crate) kernel_ctime: nfs::v3::NfsTime,
    /// What the kernel's pages were read under.
    pub(crate) pages: Option<WccAttr>,
    /// Open descriptions.
    pub(crate) opens: u32,
    /// Its name on the server since it was removed while open: directory and name.
    pub(crate) silly: Option<(Arc<Inode>, Vec<u8>)>,
}

pub(crate) struct Inode {
    pub(crate) number: u64,
    pub(crate) handle: FileHandle,
    pub(crate) kind: FileType,
    pub(crate) state: Mutex<State>,
    pub(crate) writes: Writes,
}

impl Inode {
    fn new(number: u64, handle: FileHandle, attributes: Fattr, times: &Times) -> Self {
        let state = State {
            cached: Cached::new(attributes, times),
            changed: 0,
            changing: 0,
            learned: 0,
            kernel_size: attributes.size,
            kernel_ctime: attributes.ctime,
            pages: None,
            opens: 0,
            silly: None,
        };
        Self {
            number,
            handle,
            kind: attributes.file_type,
            state: Mutex::new(state),
            writes: Writes::default(),
        }
    }

    /// Takes attributes that the server gave to a call made at `asked`, and says what to tell the kernel.
    ///
    /// An answer that a change of ours may have overtaken is not kept, and does not change the size: the kernel knows
    /// better.
    pub(crate) fn learn(&self, times: &Times, asked: Moment, mut attributes: Fattr) -> Told {
        let unwritten = self.writes.end();
        let mut s = self.state.lock();
        let overtaken = s.changing > 0 || s.changed > asked || unwritten.is_some();
        if overtaken {
            if self.kind == FileType::Regular {
                attributes.size = s.kernel_size.max(unwritten.unwrap_or(0));
            }
            s.cached.attributes = attributes;
            s.cached.invalidate();
        } else {
            s.cached.update(attributes, times);
            s.learned = asked;
        }
        s.tell()
    }

    /// What is known without asking, if it holds; `renamed`: the last time that links of files we cannot name changed.
    pub(crate) fn known(&self, renamed: Moment) -> Option<Told> {
        if !self.writes.is_clean() {
            return None;
        }
        let mut s = self.state.lock();
        if s.changing > 0 || s.learned < renamed || s.cached.left().is_none() {
            return None;
        }
        Some(s.tell())
    }

    /// A change of ours begins; it lasts until the guard is dropped.
    pub(crate) fn change<'c>(self: &Arc<Self>, clock: &'c Clock) -> Changing<'c> {
        let mut s = self.state.lock();
        s.changing += 1;
        s.cached.invalidate();
        Changing { inode: Arc::clone(self), clock }
    }

    /// A change of ours has happened.
    pub(crate) fn changed(&self, clock: &Clock) {
        let mut s = self.state.lock();
        s.changed = clock.tick();
        s.cached.invalidate();
    }

    /// How long names in this directory are believed, and that they are not there.
    pub(crate) fn name_times(&self, times: &Times) -> (Duration, Duration) {
        let s = self.state.lock();
        (times.name(&s.cached), times.absence(&s.cached))
    }
}

impl State {
    fn tell(&mut self) -> Told {
        let mut attributes = self.cached.attributes;
        self.kernel_size = attributes.size;
        self.kernel_ctime = attributes.ctime;
        if self.silly.is_some() {
            attributes.nlink = attributes.nlink.saturating_sub(1);
        }
        Told { attributes, ttl: self.cached.left().unwrap_or_default() }
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
    spare: u64,
}

/// All inodes that the kernel knows.
#[derive(Default)]
pub(crate) struct Table(Mutex<Inner>);

impl Table {
    /// The inode of a handle, made if need be; it is looked up once more.
    pub(crate) fn remember(&self, handle: FileHandle, attributes: &Fattr, times: &Times) -> Arc<Inode> {
        let mut t = self.0.lock();
        let number = match t.by_handle.get(&handle) {
            Some(n) => *n,
            None => t.insert(handle, attributes, times),
        };
        match t.by_number.get_mut(&number) {
            Some(known) => {
                known.lookups += 1;
                Arc::clone(&known.inode)
            }
            // Cannot be: both maps change together. A fresh inode that is not in the table does no harm.
            None => Arc::new(Inode::new(number, handle, *attributes, times)),
        }
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
    fn insert(&mut self, handle: FileHandle, attributes: &Fattr, times: &Times) -> u64 {
        let mut number = attributes.fileid;
        if number <= ROOT || number >= SPARE || self.by_number.contains_key(&number) {
            number = SPARE + self.spare;
            self.spare += 1;
        }
        let inode = Arc::new(Inode::new(number, handle, *attributes, times));
        self.by_number.insert(number, Known { inode, lookups: 0 });
        self.by_handle.insert(handle, number);
        number
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
    }
}
