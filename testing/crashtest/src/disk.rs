//! A file system that loses UNSTABLE data in a crash.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_runtime::{RuntimeExt, RuntimeRef};
use millrace_vfs::{
    Access, Attr, Copied, CreateHow, Created, DirEntry, DirPage, FileKind, FileSystem, FsError, FsInfo,
    FsResult, FsStat, Handle, Identity, Op, Read, ReadDirLimits, SetAttr, SetTime, Stability, Time, Views,
    Wcc, WccAttr, Written,
};
use parking_lot::Mutex;

use crate::Random;

/// Granularity of torn writes in bytes.
const SECTOR: u64 = 512;
const ROOT: u64 = 1;
const MAX_FILE: u64 = 1 << 32;

/// Configuration of a [`Disk`].
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Maximum duration of a call; each takes a random time up to it, half before and half after its effect.
    pub latency: Duration,
    /// Whether WRITE and COMMIT return the attributes before the call (`wcc_data.before`).
    pub wcc_before: bool,
    /// Seed of losses and durations.
    pub seed: u64,
}

/// A write that is not stable.
#[derive(Debug)]
struct Unstable {
    offset: u64,
    data: Vec<u8>,
}

impl Unstable {
    const fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

#[derive(Debug)]
struct Inode {
    kind: FileKind,
    mode: u32,
    owner: (u32, u32),
    times: [Time; 3],
    /// Content after a crash without unstable data.
    stable: Vec<u8>,
    /// Unstable writes, in order; a crash loses a random part of them.
    unstable: Vec<Unstable>,
    verifier: Option<[u8; 8]>,
}

/// Writes `data` at `offset`, after a hole if necessary.
fn put(content: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + data.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(data);
}

impl Inode {
    fn size(&self) -> u64 {
        self.unstable.iter().map(|w| w.range().end).fold(self.stable.len() as u64, u64::max)
    }

    /// The current content.
    fn content(&self) -> Vec<u8> {
        let mut content = self.stable.clone();
        self.unstable.iter().for_each(|w| put(&mut content, w.offset, &w.data));
        content
    }

    /// Makes all data stable.
    fn commit(&mut self) {
        for w in std::mem::take(&mut self.unstable) {
            put(&mut self.stable, w.offset, &w.data);
        }
    }

    /// Changes the size, which is stable immediately; remaining unstable data stays unstable.
    fn truncate(&mut self, size: u64) {
        for w in &mut self.unstable {
            w.data.truncate(size.saturating_sub(w.offset) as usize);
        }
        self.unstable.retain(|w| !w.data.is_empty());
        self.stable.resize(size as usize, 0);
    }

    /// Loses unstable data: of each sector, the writes up to a random one are kept.
    fn lose(&mut self, random: &mut Random) {
        let unstable = std::mem::take(&mut self.unstable);
        let sectors = unstable.iter().flat_map(|w| w.range().start / SECTOR..w.range().end.div_ceil(SECTOR));
        let sectors: std::collections::BTreeSet<u64> = sectors.collect();
        for sector in sectors.into_iter().map(|s| s * SECTOR..(s + 1) * SECTOR) {
            let of_sector =
                unstable.iter().filter(|w| w.range().start < sector.end && sector.start < w.range().end);
            let of_sector: Vec<_> = of_sector.collect();
            let kept = random.below(of_sector.len() as u64 + 1) as usize;
            for w in &of_sector[..kept] {
                let (start, end) = (w.offset.max(sector.start), w.range().end.min(sector.end));
                put(&mut self.stable, start, &w.data[(start - w.offset) as usize..(end - w.offset) as usize]);
            }
        }
    }

    fn attr(&self, number: u64) -> Attr {
        Attr {
            kind: self.kind,
            mode: self.mode,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            size: self.size(),
            used: self.size(),
            rdev: (0, 0),
            fsid: 1,
            fileid: number,
            atime: self.times[0],
            mtime: self.times[1],
            ctime: self.times[2],
            change: self.times[2].change(),
        }
    }

    fn set(&mut self, set: &SetAttr, now: Time) {
        self.mode = set.mode.unwrap_or(self.mode);
        self.owner = (set.uid.unwrap_or(self.owner.0), set.gid.unwrap_or(self.owner.1));
        if let Some(size) = set.size {
            self.truncate(size);
            self.times[1] = now;
        }
        for (time, set) in self.times.iter_mut().zip([set.atime, set.mtime]) {
            match set {
                SetTime::Keep => {}
                SetTime::Now => *time = now,
                SetTime::To(t) => *time = t,
            }
        }
        self.times[2] = now;
    }
}

struct State {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<Vec<u8>, u64>,
    next: u64,
    verifier: u64,
    /// Makes timestamps unique.
    changes: u32,
    random: Random,
    lookup_delay: Duration,
}

impl State {
    fn get(&mut self, file: &Handle) -> FsResult<(u64, &mut Inode)> {
        let number =
            file.as_bytes().first_chunk().map(|b| u64::from_be_bytes(*b)).ok_or(FsError::BadHandle)?;
        self.inodes.get_mut(&number).map(|inode| (number, inode)).ok_or(FsError::Stale)
    }

    fn attr(&mut self, file: &Handle) -> FsResult<Attr> {
        self.get(file).map(|(number, inode)| inode.attr(number))
    }
}

/// A flat directory of files in memory. UNSTABLE data, and that of copies, is kept in the order of the writes until a COMMIT of
/// its file; a [`loss`](Self::lose) keeps a random part of the writes of each sector. All other changes are
/// stable when their call has taken effect. Calls are atomic, and take time before and after their effect.
pub struct Disk {
    rt: RuntimeRef,
    config: DiskConfig,
    arena: Arena,
    state: Mutex<State>,
    me: Weak<Self>,
}

impl Disk {
    /// Creates an empty disk; `rt` provides the time.
    pub fn new(rt: RuntimeRef, config: DiskConfig) -> Arc<Self> {
        let inode = Inode::new(FileKind::Directory, 0o1777, (0, 0), Time::default());
        let state = State {
            inodes: BTreeMap::from([(ROOT, inode)]),
            names: BTreeMap::new(),
            next: ROOT + 1,
            verifier: 1,
            changes: 0,
            random: Random::new(config.seed),
            lookup_delay: Duration::ZERO,
        };
        let arena = Arena::new(ArenaConfig { limit: 256 << 20, huge_pages: false });
        Arc::new_cyclic(|me| Self { rt, config, arena, state: Mutex::new(state), me: me.clone() })
    }

    /// Loses unstable data of all files, as in a crash, and changes the write verifier.
    pub fn lose(&self) {
        let mut st = self.state.lock();
        let State { inodes, random, verifier, .. } = &mut *st;
        inodes.values_mut().for_each(|inode| inode.lose(random));
        *verifier += 1;
    }

    /// Changes the write verifier without a loss.
    pub fn change_verifier(&self) {
        self.state.lock().verifier += 1;
    }

    /// Delays the replies of later LOOKUPs by this time after their effect.
    pub fn delay_lookups(&self, delay: Duration) {
        self.state.lock().lookup_delay = delay;
    }

    /// The content of the file `name` after a loss of all unstable data.
    pub fn stable(&self, name: &str) -> Option<Vec<u8>> {
        let st = self.state.lock();
        Some(st.inodes.get(st.names.get(name.as_bytes())?)?.stable.clone())
    }

    /// A call with the delays before and after its effect.
    fn call<T: Send + 'static>(
        &self,
        effect: impl FnOnce(&Self, &mut State, Time) -> FsResult<T> + Send + 'static,
    ) -> Op<T> {
        let Some(me) = self.me.upgrade() else { return Op::Ready(Err(FsError::ServerFault)) };
        let longest = self.config.latency.as_nanos() as u64 / 2;
        let mut st = self.state.lock();
        let (before, after) = (st.random.below(longest), st.random.below(longest));
        drop(st);
        Op::wait(async move {
            me.rt.sleep(Duration::from_nanos(before)).await;
            let out = {
                let mut st = me.state.lock();
                st.changes += 1;
                let wall = me.rt.wall_clock();
                let now = Time { seconds: wall.as_secs() as i64, nanos: st.changes };
                effect(&me, &mut st, now)
            };
            me.rt.sleep(Duration::from_nanos(after)).await;
            out
        })
    }

    /// Like [`Self::call`], for a change of a file; also returns the attributes before and after.
    fn change<T: Send + 'static>(
        &self,
        file: &Handle,
        effect: impl FnOnce(&mut Inode, Time) -> FsResult<T> + Send + 'static,
    ) -> Op<(T, Wcc)> {
        let file = *file;
        self.call(move |me, st, now| {
            let before = st.attr(&file)?;
            let (number, inode) = st.get(&file)?;
            let out = effect(inode, now)?;
            let before = me.config.wcc_before.then(|| WccAttr::from(&before));
            Ok((out, Wcc { before, after: Some(inode.attr(number)) }))
        })
    }
}

impl Inode {
    const fn new(kind: FileKind, mode: u32, owner: (u32, u32), now: Time) -> Self {
        Self { kind, mode, owner, times: [now; 3], stable: Vec::new(), unstable: Vec::new(), verifier: None }
    }
}

fn handle(number: u64) -> Handle {
    Handle::from_array(number.to_be_bytes())
}

impl FileSystem for Disk {
    fn root(&self) -> Handle {
        handle(ROOT)
    }

    fn info(&self) -> FsInfo {
        FsInfo { max_file_size: MAX_FILE, writable: true, verifier_in_times: false, ..FsInfo::default() }
    }

    fn stat(&self) -> Op<FsStat> {
        Op::Ready(Ok(FsStat {
            total_bytes: MAX_FILE,
            free_bytes: MAX_FILE,
            available_bytes: MAX_FILE,
            total_files: 1000,
            free_files: 1000,
            available_files: 1000,
        }))
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        let file = *file;
        self.call(move |_, st, _| st.attr(&file))
    }

    fn setattr(&self, _: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc> {
        let set = *set;
        let changed = self.change(file, move |inode, now| {
            if guard.is_some_and(|ctime| ctime != inode.times[2]) {
                return Err(FsError::NotSync);
            }
            inode.set(&set, now);
            Ok(())
        });
        changed.map(|r| r.map(|((), wcc)| wcc))
    }

    fn lookup(&self, _: &Identity, _: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        let (name, rt, delay) = (name.to_vec(), self.rt.clone(), self.state.lock().lookup_delay);
        let found = self.call(move |_, st, _| {
            let number =
                if name == b"." || name == b".." { Some(ROOT) } else { st.names.get(&name).copied() };
            let found = handle(number.ok_or(FsError::NoEnt)?);
            Ok((found, st.attr(&found)?))
        });
        if delay.is_zero() {
            return found;
        }
        Op::wait(async move {
            let found = found.await;
            rt.sleep(delay).await;
            found
        })
    }

    fn access(&self, _: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        let file = *file;
        self.call(move |_, st, _| Ok((wanted, st.attr(&file)?)))
    }

    fn read(&self, _: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let file = *file;
        self.call(move |me, st, _| {
            let (number, inode) = st.get(&file)?;
            let content = inode.content();
            let start = (offset as usize).min(content.len());
            let end = start.saturating_add(count as usize).min(content.len());
            let data = me.arena.copy_from(&content[start..end]).map_err(|_| FsError::Jukebox)?;
            Ok(Read { data: data.into(), eof: end == content.len(), attr: inode.attr(number) })
        })
    }

    fn write(&self, _: &Identity, file: &Handle, offset: u64, data: Views, stable: Stability) -> Op<Written> {
        let written = self.change(file, move |inode, now| {
            let data = data.to_vec();
            let count = data.len() as u32;
            if !data.is_empty() {
                inode.unstable.push(Unstable { offset, data });
            }
            if stable != Stability::Unstable {
                inode.commit();
            }
            inode.times[1..].fill(now);
            Ok(count)
        });
        written.map(move |r| r.map(|(count, wcc)| Written { count, committed: stable, wcc }))
    }

    /// Copies the range or a random beginning of it, UNSTABLE.
    fn copy(
        &self,
        _: &Identity,
        source: &Handle,
        from: u64,
        destination: &Handle,
        to: u64,
        length: u64,
    ) -> Op<Copied> {
        let (source, destination) = (*source, *destination);
        self.call(move |_, st, now| {
            let is_short = length > 1 && st.random.below(4) == 0;
            let length = if is_short { 1 + st.random.below(length) } else { length };
            let content = st.get(&source)?.1.content();
            let start = (from as usize).min(content.len());
            let end = start.saturating_add(length as usize).min(content.len());
            let (data, count) = (content[start..end].to_vec(), (end - start) as u64);
            let (_, inode) = st.get(&destination)?;
            inode.unstable.push(Unstable { offset: to, data });
            inode.times[1..].fill(now);
            Ok(Copied { count, committed: Stability::Unstable })
        })
    }

    fn commit(&self, _: &Identity, file: &Handle, _: u64, _: u32) -> Op<Wcc> {
        let committed = self.change(file, |inode, _| {
            inode.commit();
            Ok(())
        });
        committed.map(|r| r.map(|((), wcc)| wcc))
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.state.lock().verifier.to_be_bytes()
    }

    fn create(&self, who: &Identity, _: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        let (name, how, owner) = (name.to_vec(), *how, (who.uid, who.gid));
        self.call(move |_, st, now| {
            let (set, is_guarded, verifier) = match how {
                CreateHow::Unchecked(set) => (set, false, None),
                CreateHow::Guarded(set) => (set, true, None),
                CreateHow::Exclusive(v, set) => (set, true, Some(v)),
            };
            let number = match st.names.get(&name).copied() {
                Some(number) => {
                    let (_, inode) = st.get(&handle(number))?;
                    if is_guarded && (verifier.is_none() || inode.verifier != verifier) {
                        return Err(FsError::Exist);
                    }
                    if !is_guarded {
                        inode.set(&SetAttr { size: set.size, ..SetAttr::default() }, now);
                    }
                    number
                }
                None => {
                    let number = st.next;
                    st.next += 1;
                    let mut inode = Inode::new(FileKind::Regular, 0o600, owner, now);
                    inode.verifier = verifier;
                    inode.set(&set, now);
                    st.inodes.insert(number, inode);
                    st.names.insert(name, number);
                    number
                }
            };
            let attr = st.attr(&handle(number))?;
            Ok(Created { handle: handle(number), attr, dir: Wcc::default() })
        })
    }

    fn remove(&self, _: &Identity, _: &Handle, name: &[u8]) -> Op<Wcc> {
        let name = name.to_vec();
        self.call(move |_, st, _| {
            let number = st.names.remove(&name).ok_or(FsError::NoEnt)?;
            st.inodes.remove(&number);
            Ok(Wcc::default())
        })
    }

    fn rmdir(&self, _: &Identity, _: &Handle, _: &[u8]) -> Op<Wcc> {
        Op::Ready(Err(FsError::NotSupp))
    }

    fn rename(&self, _: &Identity, _: &Handle, from: &[u8], _: &Handle, to: &[u8]) -> Op<(Wcc, Wcc)> {
        let (from, to) = (from.to_vec(), to.to_vec());
        self.call(move |_, st, _| {
            let number = st.names.remove(&from).ok_or(FsError::NoEnt)?;
            if let Some(replaced) = st.names.insert(to, number).filter(|r| *r != number) {
                st.inodes.remove(&replaced);
            }
            Ok((Wcc::default(), Wcc::default()))
        })
    }

    fn readdir(
        &self,
        _: &Identity,
        dir: &Handle,
        cookie: u64,
        _: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        let dir = *dir;
        self.call(move |_, st, _| {
            let mut all: Vec<_> = st.names.iter().map(|(name, number)| (*number, name.clone())).collect();
            all.sort_unstable();
            let mut rest = all.into_iter().filter(|(number, _)| *number > cookie).peekable();
            let mut entries = Vec::new();
            for (number, name) in rest.by_ref().take(limits.max_entries.max(1)) {
                let plus = if limits.plus { Some((handle(number), st.attr(&handle(number))?)) } else { None };
                entries.push(DirEntry { fileid: number, name, cookie: number, plus });
            }
            Ok(DirPage { entries, eof: rest.peek().is_none(), verifier: [0; 8], attr: st.attr(&dir)? })
        })
    }
}
