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
    cache::Times,
    callers::Callers,
    dentries::CachedName,
    directory::{Asked, DirStream},
    error::errno,
    inode::{Clock, Inode, Moment, News, ROOT, Table, Told},
    lanes::Lanes,
    notices::Notices,
    open::OpenFile,
    options::MountOptions,
    verify::Repeats,
};

/// How long the entries of a listing are as good as looked up.
const LISTING_LIFE: Duration = Duration::from_secs(1);

/// A name that was found or made.
pub(crate) struct Entry {
    pub(crate) inode: Arc<Inode>,
    pub(crate) told: Told,
    /// How long the name is believed.
    pub(crate) ttl: Duration,
}

pub(crate) struct Fs {
    pub(crate) rt: RuntimeRef,
    /// Where requests are answered.
    pub(crate) lanes: Lanes,
    pub(crate) callers: Callers,
    pub(crate) table: Table,
    pub(crate) times: Times,
    pub(crate) clock: Clock,
    /// Rights are asked of the server when a file is opened; else the kernel judges by mode.
    pub(crate) asks_rights: bool,
    /// Every write is sent at once and waited for (`noac`, `sync`).
    pub(crate) write_through: bool,
    /// When links of files changed that we cannot name.
    pub(crate) relinked: AtomicU64,
    pub(crate) open: Mutex<Slab<Arc<OpenFile>>>,
    pub(crate) directories: Mutex<Slab<Arc<DirStream>>>,
    /// Files with data that is not stable.
    pub(crate) writing: Mutex<BTreeMap<u64, Arc<Inode>>>,
    /// Closed files, by number, whose data was lost without a program being told.
    pub(crate) lost: Mutex<BTreeMap<u64, LostFile>>,
    /// Bytes on their way.
    pub(crate) flying: AtomicUsize,
    /// The kernel reads too little ahead.
    pub(crate) reads_ahead: AtomicBool,
    /// Bytes that are fetched ahead, or being fetched.
    pub(crate) held_ahead: Arc<AtomicUsize>,
    /// Names that removed files have while they are open: directory's number and name.
    pub(crate) silly: Mutex<HashSet<(u64, Vec<u8>)>>,
    pub(crate) notices: OnceLock<Notices>,
    pub(crate) repeats: Repeats,
    /// Notified every half second: see [`Self::keep_time`].
    pub(crate) ticks: Notify,
    /// The kernel supports expiry of names (FUSE 7.38, Linux 6.2). Without it, names are used until their lifetime has expired.
    pub(crate) expires_names: AtomicBool,
    name_max: u32,
}

impl Fs {
    /// The file system below `root`, whose requests so many lanes answer.
    pub(crate) fn new(
        (rt, lanes): (RuntimeRef, usize),
        client: Client,
        options: &MountOptions,
        root: (FileHandle, Fattr),
        name_max: u32,
    ) -> Self {
        let times = Times::new(rt.clone(), options);
        let table = Table::default();
        table.set_root(root.0, &root.1, &times);
        let own = client.options().credential.clone();
        Self {
            lanes: Lanes::new(&rt, lanes),
            rt,
            callers: Callers::new(client, own),
            table,
            times,
            clock: Clock::default(),
            asks_rights: !options.checks_modes(),
            write_through: options.sync,
            relinked: AtomicU64::new(0),
            open: Mutex::default(),
            directories: Mutex::default(),
            writing: Mutex::default(),
            lost: Mutex::default(),
            flying: AtomicUsize::new(0),
            reads_ahead: AtomicBool::new(false),
            held_ahead: Arc::default(),
            silly: Mutex::default(),
            notices: OnceLock::new(),
            repeats: Repeats::default(),
            ticks: Notify::new(),
            expires_names: AtomicBool::new(false),
            name_max,
        }
    }

    /// Starts what goes on beside requests.
    pub(crate) fn start_tasks(self: &Arc<Self>) {
        self.rt.spawn("mount timer", Box::pin(Arc::clone(self).keep_time()));
        if self.times.believes_files() {
            self.rt.spawn("mount revalidation", Box::pin(Arc::clone(self).look_after_readers()));
        }
    }

    /// The inode of a number that the kernel gave.
    ///
    /// # Errors
    /// [`Errno::STALE`]: the kernel does not know it any more either.
    pub(crate) fn inode(&self, number: u64) -> Result<Arc<Inode>, Errno> {
        self.table.get(number).ok_or(Errno::STALE)
    }

    /// Something was linked or unlinked that may have other names.
    pub(crate) fn relink(&self) {
        self.relinked.store(self.clock.tick(), Ordering::Release);
    }

    /// As [`Inode::learn`]; what the kernel has that is found to be old goes.
    pub(crate) fn learn(self: &Arc<Self>, inode: &Arc<Inode>, asked: Moment, attributes: Fattr) -> Told {
        let told = inode.learn(&self.times, asked, attributes);
        self.drop_cached(inode, told.news);
        told
    }

    /// Takes a directory's attributes that came with the answer to a call made at `asked`. Completes when the kernel does not
    /// use names any more that are found to be old: see [`Notices::names`].
    pub(crate) fn learn_directory(
        self: &Arc<Self>,
        dir: &Arc<Inode>,
        asked: Moment,
        attributes: Option<Fattr>,
    ) -> Option<oneshot::Receiver<()>> {
        let news = dir.check(&self.times, asked, attributes?);
        if news.drops_names { self.drop_names(dir) } else { None }
    }

    /// As [`Inode::entries_changed`]; names that are found to be old are not used any more.
    pub(crate) fn entries_changed(self: &Arc<Self>, dir: &Arc<Inode>, wcc: &WccData) {
        self.drop_cached(dir, dir.entries_changed(&self.clock, wcc));
    }

    /// Tells the kernel to drop what was found to be old.
    pub(crate) fn drop_cached(self: &Arc<Self>, inode: &Arc<Inode>, news: News) {
        if news.drops_pages
            && let Some(notices) = self.notices.get()
        {
            notices.pages(inode);
        }
        if news.drops_names {
            drop(self.drop_names(inode));
        }
    }

    fn drop_names(self: &Arc<Self>, dir: &Inode) -> Option<oneshot::Receiver<()>> {
        self.notices.get().filter(|notices| notices.expires_names())?;
        self.expire(dir.number, self.table.expire(dir.number))
    }

    /// Has the kernel ask for names in a directory before it uses them again. The receiver completes when it knows.
    pub(crate) fn expire(
        self: &Arc<Self>,
        dir: u64,
        names: Vec<CachedName>,
    ) -> Option<oneshot::Receiver<()>> {
        if names.is_empty() {
            return None;
        }
        let texts = names.iter().map(|(_, text, _)| Arc::clone(text)).collect();
        let known = self.notices.get()?.names(dir, texts)?;
        let (done, all_done) = oneshot::channel();
        let fs = Arc::clone(self);
        let expiry = async move {
            let _ = known.await; // Nothing is sent, here or below.
            fs.table.expired(&names);
            drop::<oneshot::Sender<()>>(done);
        };
        self.rt.spawn("mount expiry", Box::pin(expiry));
        Some(all_done)
    }

    /// An object that `name` in `dir` stands for, for the kernel.
    pub(crate) fn entry(
        self: &Arc<Self>,
        (dir, name): (&Inode, &[u8]),
        asked: Moment,
        object: Object,
    ) -> Entry {
        let inode = self.table.remember((dir.number, name), object.handle, &object.attributes, &self.times);
        let told = self.learn(&inode, asked, object.attributes);
        Entry { inode, told, ttl: dir.name_times(&self.times, asked).0 }
    }

    /// As [`Self::entry`], of a listing, which may be read long after it was asked for: if we have changed the directory
    /// since, or much time has passed, neither name nor attributes are believed.
    pub(crate) fn listed(
        self: &Arc<Self>,
        (dir, name): (&Inode, &[u8]),
        asked: Asked,
        object: Object,
    ) -> Entry {
        let is_fresh =
            self.rt.now().duration_since(asked.at) < LISTING_LIFE && dir.is_unchanged_since(asked.moment);
        if is_fresh {
            return self.entry((dir, name), asked.moment, object);
        }
        let inode = self.table.remember((dir.number, name), object.handle, &object.attributes, &self.times);
        inode.changed(&self.clock); // So that the answer counts as overtaken.
        let told = self.learn(&inode, asked.moment, object.attributes);
        Entry { inode, told, ttl: Duration::ZERO }
    }

    /// A name. `Err` holds how long the kernel may hold that it is not there, with [`Errno::NOENT`].
    pub(crate) async fn lookup(
        self: &Arc<Self>,
        me: &Client,
        dir: u64,
        name: &[u8],
        tid: u32,
    ) -> Result<Entry, (Errno, Duration)> {
        let fail = |e| (e, Duration::ZERO);
        let dir = self.inode(dir).map_err(fail)?;
        let asked = self.clock.tick();
        match me.lookup(dir.handle, name).await {
            Ok(object) => {
                drop(self.learn_directory(&dir, asked, object.dir.after));
                let entry = self.entry((&dir, name), asked, object);
                self.looked_up(&entry.inode, tid);
                Ok(entry)
            }
            Err(e) if e.is_not_found() => {
                self.repeats.forget(tid);
                let life = dir.name_times(&self.times, asked).1;
                let is_cached = self.table.absent((dir.number, name), self.rt.now(), life);
                Err((Errno::NOENT, if is_cached { life } else { Duration::ZERO }))
            }
            Err(e) => Err(fail(errno(&e))),
        }
    }

    /// The inode of a number that the kernel has perhaps forgotten, and has from a file handle.
    ///
    /// # Errors
    /// [`Errno::STALE`]: the number does not stand for a file any more, or was forgotten too long ago.
    pub(crate) async fn lookup_number(self: &Arc<Self>, me: &Client, number: u64) -> Result<Entry, Errno> {
        let handle = self.table.handle(number).ok_or(Errno::STALE)?;
        let asked = self.clock.tick();
        let attributes = me.getattr(handle).await.map_err(|e| errno(&e))?;
        let found = self.table.remember_number(number, handle, &attributes, &self.times);
        let inode = found.ok_or(Errno::STALE)?;
        let told = self.learn(&inode, asked, attributes);
        Ok(Entry { inode, told, ttl: Duration::ZERO })
    }

    /// The directory in which a directory is, for a file handle.
    ///
    /// # Errors
    /// [`Errno::STALE`]: it lies outside of the mount.
    pub(crate) async fn lookup_parent(self: &Arc<Self>, me: &Client, number: u64) -> Result<Entry, Errno> {
        let dir = self.inode(number)?;
        let asked = self.clock.tick();
        if number == ROOT {
            return self.lookup_number(me, ROOT).await;
        }
        let parent = me.lookup(dir.handle, "..").await.map_err(|e| errno(&e))?;
        // The root of the export is its own parent.
        if parent.handle == dir.handle {
            return Err(Errno::STALE);
        }
        let inode = self.table.remember_unnamed(parent.handle, &parent.attributes, &self.times);
        let told = self.learn(&inode, asked, parent.attributes);
        Ok(Entry { inode, told, ttl: Duration::ZERO })
    }

    /// Attributes that hold without asking.
    ///
    /// Where the kernel checks modes it asks again before it refuses something (`fuse_permission`): so who may not do
    /// everything is told what the server has now.
    pub(crate) fn known_attributes(&self, number: u64, (uid, gid): (u32, u32)) -> Option<Told> {
        let inode = self.table.get(number)?;
        if !self.asks_rights && !inode.is_open_to(uid, gid) {
            return None;
        }
        inode.known(&self.times, self.relinked.load(Ordering::Acquire))
    }

    /// Attributes, from the server. Who sees that somebody else has changed the file reads no old pages afterwards.
    pub(crate) async fn getattr(self: &Arc<Self>, me: &Client, number: u64) -> Result<Told, Errno> {
        let inode = self.inode(number)?;
        self.settle(&inode).await;
        let asked = self.clock.tick();
        let attributes = me.getattr(inode.handle).await.map_err(|e| errno(&e))?;
        let told = self.learn(&inode, asked, attributes);
        if let Some(notices) = self.notices.get() {
            notices.dropped(&inode).await;
        }
        Ok(told)
    }

    /// Opens a directory for listing: who has seen that others have changed it finds what is in it now.
    pub(crate) async fn opendir(self: &Arc<Self>, me: Client, number: u64) -> Result<u64, Errno> {
        let dir = self.inode(number)?;
        if self.asks_rights {
            let asked = self.clock.tick();
            let wanted = access::READ | access::LOOKUP;
            let (granted, attributes) =
                me.access_and_attributes(dir.handle, wanted).await.map_err(|e| errno(&e))?;
            if let Some(known) = self.learn_directory(&dir, asked, Some(attributes)) {
                let _ = known.await; // Nothing is sent.
            }
            if granted & access::READ == 0 {
                return Err(Errno::ACCESS);
            }
        }
        Ok(self.directories.lock().insert(Arc::new(DirStream::new(dir, me))) as u64)
    }

    /// Whether the caller may do what `mask` (of access(2)) says.
    pub(crate) async fn access(&self, me: &Client, number: u64, mask: u32) -> Result<(), Errno> {
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
        let granted = me.access(inode.handle, wanted).await.map_err(|e| errno(&e))?;
        if granted == wanted { Ok(()) } else { Err(Errno::ACCESS) }
    }

    pub(crate) async fn readlink(&self, me: &Client, number: u64) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(number)?;
        me.readlink(inode.handle).await.map_err(|e| errno(&e))
    }

    /// Sizes, and the longest name.
    pub(crate) async fn statfs(&self, me: &Client) -> Result<(FsstatOk, u32), Errno> {
        let root = self.inode(ROOT)?;
        Ok((me.fsstat(root.handle).await.map_err(|e| errno(&e))?, self.name_max))
    }
}
