//! Making, removing and renaming.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use millrace_client::{Client, Object};
use millrace_nfs::v3::{CreateHow, FileType, MknodWhat, Sattr, SetTime, Status, WccData};
use rustix::{fs::OFlags, io::Errno};

use crate::{
    error::errno,
    fs::{Entry, Fs},
    inode::Inode,
};

/// How often a free `.nfs...` name is looked for.
const SILLY_TRIES: u32 = 16;

/// What mknod(2) and its kin make.
pub(crate) enum Make {
    Directory(Sattr),
    Symlink(Vec<u8>),
    File(Sattr),
    Node(MknodWhat),
}

impl Fs {
    /// Makes `name` in `dir`.
    pub(crate) async fn make(
        self: &Arc<Self>,
        me: &Client,
        dir: u64,
        name: &[u8],
        what: Make,
    ) -> Result<Entry, Errno> {
        let dir = self.inode(dir)?;
        let made = {
            let _change = dir.change(&self.clock);
            let made = match what {
                Make::Directory(set) => me.mkdir(dir.handle, name, set).await,
                Make::Symlink(text) => me.symlink(dir.handle, name, text, Sattr::default()).await,
                Make::File(set) => me.create(dir.handle, name, CreateHow::Guarded(set)).await,
                Make::Node(what) => me.mknod(dir.handle, name, what).await,
            };
            self.made(&dir, name, made)?
        };
        Ok(self.entry((&dir, name), self.clock.tick(), made))
    }

    /// Takes what the reply to a call that makes `name` says of the directory.
    fn made(
        self: &Arc<Self>,
        dir: &Arc<Inode>,
        name: &[u8],
        made: Result<Object, millrace_client::Error>,
    ) -> Result<Object, Errno> {
        match made {
            Ok(object) => {
                self.entries_changed(dir, &object.dir);
                Ok(object)
            }
            Err(e) => Err(self.failed(dir, name, &e)),
        }
    }

    /// The number for the failure of a change of `name`. If the kernel was wrong about whether it is there, it asks again.
    fn failed(self: &Arc<Self>, dir: &Inode, name: &[u8], e: &millrace_client::Error) -> Errno {
        if matches!(e.status(), Some(Status::NoEnt | Status::Exist)) {
            let name = self.table.expire_name((dir.number, name));
            drop(self.expire(dir.number, name.into_iter().collect()));
        }
        errno(e)
    }

    /// Makes and opens a regular file: the entry, the description's number, and whether pages are to be kept.
    pub(crate) async fn create(
        self: &Arc<Self>,
        me: Client,
        dir: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, u64, bool), Errno> {
        let dir = self.inode(dir)?;
        let flags = OFlags::from_bits_retain(flags);
        let object = {
            let _change = dir.change(&self.clock);
            if flags.contains(OFlags::EXCL) {
                self.create_exclusively(&me, &dir, name, mode).await?
            } else {
                let set = Sattr { mode: Some(mode), ..Sattr::default() };
                self.made(&dir, name, me.create(dir.handle, name, CreateHow::Unchecked(set)).await)?
            }
        };
        let mut entry = self.entry((&dir, name), self.clock.tick(), object);
        let has_data = entry.told.attributes.size > 0 || !entry.inode.writes.is_idle();
        if flags.contains(OFlags::TRUNC) && has_data {
            // The file was there. It is cut like any other: a size in CREATE would not wait for data of ours.
            let cut = Sattr { size: Some(0), ..Sattr::default() };
            let number = entry.inode.number;
            entry.told =
                self.setattr(&me, number, cut).await.inspect_err(|_| self.table.forget(number, 1))?;
        }
        let (number, keep) = self.add_open(me, Arc::clone(&entry.inode), entry.told.news, flags);
        Ok((entry, number, keep))
    }

    /// EXCLUSIVE: nobody else has made this file, even if the call had to be sent twice. Servers keep the verifier in
    /// its attributes, so they are set afterwards.
    async fn create_exclusively(
        self: &Arc<Self>,
        me: &Client,
        dir: &Arc<Inode>,
        name: &[u8],
        mode: u32,
    ) -> Result<Object, Errno> {
        let verifier = self.unique().to_ne_bytes();
        let made = me.create(dir.handle, name, CreateHow::Exclusive(verifier)).await;
        let made = self.made(dir, name, made)?;
        let now = SetTime::ServerTime;
        let set = Sattr { mode: Some(mode), atime: now, mtime: now, ..Sattr::default() };
        let changed = me.setattr(made.handle, set, None).await.map_err(|e| errno(&e))?;
        let attributes = match changed.after {
            Some(a) => a,
            None => me.getattr(made.handle).await.map_err(|e| errno(&e))?,
        };
        Ok(Object { attributes, ..made })
    }

    /// A further name for a file.
    ///
    /// # Errors
    /// [`Errno::STALE`] also when the kernel is to look the file's path up again, and to repeat this (`verify.rs`).
    pub(crate) async fn link(
        self: &Arc<Self>,
        me: &Client,
        file: u64,
        (dir, name): (u64, &[u8]),
        tid: u32,
    ) -> Result<Entry, Errno> {
        let (inode, dir) = (self.inode(file)?, self.inode(dir)?);
        self.check_names(me, &inode, tid).await?;
        {
            let _changes = (dir.change(&self.clock), inode.change(&self.clock));
            let linked = me.link(inode.handle, dir.handle, name).await;
            let linked = linked.map_err(|e| self.failed(&dir, name, &e))?;
            self.entries_changed(&dir, &linked.dir);
        }
        let asked = self.clock.tick();
        let attributes = me.getattr(inode.handle).await.map_err(|e| errno(&e))?;
        let object = Object { handle: inode.handle, attributes, dir: WccData::default() };
        Ok(self.entry((&dir, name), asked, object))
    }

    pub(crate) async fn unlink(self: &Arc<Self>, me: &Client, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let dir = self.inode(dir)?;
        let open = self.open_and_alone(me, &dir, name).await;
        let done = {
            let _change = dir.change(&self.clock);
            match &open {
                Some(inode) => self.hide(me, &dir, name, inode).await,
                None => self.removed(&dir, name, me.remove(dir.handle, name).await),
            }
        };
        self.relink();
        done
    }

    /// Takes what the reply to a call that removes `name` says of the directory.
    fn removed(
        self: &Arc<Self>,
        dir: &Arc<Inode>,
        name: &[u8],
        removed: Result<WccData, millrace_client::Error>,
    ) -> Result<(), Errno> {
        let wcc = removed.map_err(|e| self.failed(dir, name, &e))?;
        self.entries_changed(dir, &wcc);
        self.table.removed((dir.number, name));
        Ok(())
    }

    pub(crate) async fn rmdir(self: &Arc<Self>, me: &Client, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let dir = self.inode(dir)?;
        let _change = dir.change(&self.clock);
        self.removed(&dir, name, me.rmdir(dir.handle, name).await)
    }

    /// Renames; what has the new name is replaced, and lives on under another one while it is open.
    pub(crate) async fn rename(
        self: &Arc<Self>,
        me: &Client,
        (from, name): (u64, &[u8]),
        (to, new): (u64, &[u8]),
    ) -> Result<(), Errno> {
        let (from, to) = (self.inode(from)?, self.inode(to)?);
        let replaced = self.open_and_alone(me, &to, new).await;
        let done = {
            let other = (from.number != to.number).then(|| to.change(&self.clock));
            let _changes = (from.change(&self.clock), other);
            self.rename_over(me, (&from, name), (&to, new), replaced).await
        };
        self.relink();
        done
    }

    async fn rename_over(
        self: &Arc<Self>,
        me: &Client,
        (from, name): (&Arc<Inode>, &[u8]),
        (to, new): (&Arc<Inode>, &[u8]),
        replaced: Option<Arc<Inode>>,
    ) -> Result<(), Errno> {
        // A further name first, so that there is no moment without the new one.
        let kept = match &replaced {
            Some(inode) => {
                let silly = self.free_name(me, to, inode).await?;
                let linked = me.link(inode.handle, to.handle, &silly).await.map_err(|e| errno(&e))?;
                to.changed_by(&self.clock, &linked.dir);
                Some((inode, silly))
            }
            None => None,
        };
        let renamed = me.rename(from.handle, name, to.handle, new).await;
        let renamed = renamed.map_err(|e| self.failed(from, name, &e));
        if let Ok(wcc) = &renamed {
            if from.number != to.number {
                self.entries_changed(from, &wcc.from);
            }
            self.entries_changed(to, &wcc.to);
            self.table.renamed((from.number, name), (to.number, new));
        }
        if let Some((inode, silly)) = kept {
            let still_there =
                renamed.is_err() || me.lookup(to.handle, new).await.is_ok_and(|o| o.handle == inode.handle);
            if still_there {
                // Nothing was replaced: the rename failed, or both names were the same file.
                if let Ok(wcc) = me.remove(to.handle, &silly).await {
                    self.entries_changed(to, &wcc);
                }
            } else {
                self.keep_silly(me, to, inode, silly).await;
            }
        }
        renamed.map(drop)
    }

    /// The file that `name` stands for, if it is open here and this is its only name.
    async fn open_and_alone(&self, me: &Client, dir: &Inode, name: &[u8]) -> Option<Arc<Inode>> {
        if self.open.lock().is_empty() {
            return None;
        }
        let object = me.lookup(dir.handle, name).await.ok()?;
        let inode = self.table.find(&object.handle)?;
        let open = inode.state.lock().opens > 0;
        (open && object.attributes.file_type == FileType::Regular && object.attributes.nlink == 1)
            .then_some(inode)
    }

    /// Gives an open file the name under which it waits for its last close.
    async fn hide(
        self: &Arc<Self>,
        me: &Client,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
    ) -> Result<(), Errno> {
        let silly = self.free_name(me, dir, inode).await?;
        let renamed = me.rename(dir.handle, name, dir.handle, &silly).await;
        let renamed = renamed.map_err(|e| self.failed(dir, name, &e))?;
        self.entries_changed(dir, &renamed.to);
        self.table.removed((dir.number, name));
        self.keep_silly(me, dir, inode, silly).await;
        Ok(())
    }

    /// Remembers the name under which a removed file waits for its last close. If that has come meanwhile, the file goes.
    async fn keep_silly(self: &Arc<Self>, me: &Client, dir: &Arc<Inode>, inode: &Arc<Inode>, name: Vec<u8>) {
        self.silly.lock().insert((dir.number, name.clone()));
        inode.changed(&self.clock);
        inode.state.lock().silly = Some((Arc::clone(dir), name));
        self.remove_silly(me, inode).await;
    }

    /// A name as Linux gives it to removed files, which nothing has yet.
    async fn free_name(&self, me: &Client, dir: &Inode, inode: &Inode) -> Result<Vec<u8>, Errno> {
        for _ in 0..SILLY_TRIES {
            let name = format!(".nfs{:016x}{:08x}", inode.number, self.unique() as u32).into_bytes();
            match me.lookup(dir.handle, &name).await {
                Err(e) if e.is_not_found() => return Ok(name),
                Err(e) => return Err(errno(&e)),
                Ok(_) => {}
            }
        }
        Err(Errno::BUSY)
    }

    /// Removes what a removed file was renamed to, unless the file is open.
    pub(crate) async fn remove_silly(self: &Arc<Self>, me: &Client, inode: &Inode) {
        let silly = {
            let mut s = inode.state.lock();
            if s.opens > 0 { None } else { s.silly.take() }
        };
        let Some((dir, name)) = silly else { return };
        {
            let _change = dir.change(&self.clock);
            match me.remove(dir.handle, &name).await {
                Ok(wcc) => self.entries_changed(&dir, &wcc),
                Err(e) => tracing::warn!("cannot remove {}: {e}", String::from_utf8_lossy(&name)),
            }
        }
        self.silly.lock().remove(&(dir.number, name));
    }

    /// A number that no other mount is likely to have.
    fn unique(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let runtime = self.callers.own().runtime();
        millrace_runtime::RuntimeExt::random_u64(&**runtime) ^ NEXT.fetch_add(1, Ordering::Relaxed)
    }
}
