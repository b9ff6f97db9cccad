//! Making, removing and renaming.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use client::{Client, Object};
use nfs::v3::{CreateHow, FileType, MknodWhat, Sattr, SetTime};
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
    pub(crate) async fn make(&self, me: &Client, dir: u64, name: &[u8], what: Make) -> Result<Entry, Errno> {
        let dir = self.inode(dir)?;
        let made = {
            let _change = dir.change(&self.clock);
            match what {
                Make::Directory(set) => me.mkdir(dir.handle, name, set).await,
                Make::Symlink(text) => me.symlink(dir.handle, name, text, Sattr::default()).await,
                Make::File(set) => me.create(dir.handle, name, CreateHow::Guarded(set)).await,
                Make::Node(what) => me.mknod(dir.handle, name, what).await,
            }
        };
        let object = made.map_err(|e| errno(&e))?;
        Ok(self.entry((&dir, name), self.clock.tick(), object))
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
                me.create(dir.handle, name, CreateHow::Unchecked(set)).await.map_err(|e| errno(&e))?
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
        let (number, keep) = self.add_open(me, Arc::clone(&entry.inode), entry.told, flags);
        Ok((entry, number, keep))
    }

    /// EXCLUSIVE: nobody else has made this file, even if the call had to be sent twice. Servers keep the verifier in
    /// its attributes, so they are set afterwards.
    async fn create_exclusively(
        &self,
        me: &Client,
        dir: &Inode,
        name: &[u8],
        mode: u32,
    ) -> Result<Object, Errno> {
        let verifier = self.unique().to_ne_bytes();
        let made =
            me.create(dir.handle, name, CreateHow::Exclusive(verifier)).await.map_err(|e| errno(&e))?;
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
    pub(crate) async fn link(&self, me: &Client, file: u64, dir: u64, name: &[u8]) -> Result<Entry, Errno> {
        let (inode, dir) = (self.inode(file)?, self.inode(dir)?);
        {
            let _changes = (dir.change(&self.clock), inode.change(&self.clock));
            me.link(inode.handle, dir.handle, name).await.map_err(|e| errno(&e))?;
        }
        let asked = self.clock.tick();
        let attributes = me.getattr(inode.handle).await.map_err(|e| errno(&e))?;
        Ok(self.entry((&dir, name), asked, Object { handle: inode.handle, attributes }))
    }

    pub(crate) async fn unlink(&self, me: &Client, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let dir = self.inode(dir)?;
        let open = self.open_and_alone(me, &dir, name).await;
        let done = {
            let _change = dir.change(&self.clock);
            match &open {
                Some(inode) => self.hide(me, &dir, name, inode).await,
                None => me.remove(dir.handle, name).await.map_err(|e| errno(&e)),
            }
        };
        self.relink(&dir);
        done
    }

    pub(crate) async fn rmdir(&self, me: &Client, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let dir = self.inode(dir)?;
        let _change = dir.change(&self.clock);
        me.rmdir(dir.handle, name).await.map_err(|e| errno(&e))
    }

    /// Renames; what has the new name is replaced, and lives on under another one while it is open.
    pub(crate) async fn rename(
        &self,
        me: &Client,
        (from, name): (u64, &[u8]),
        (to, new): (u64, &[u8]),
    ) -> Result<(), Errno> {
        let (from, to) = (self.inode(from)?, self.inode(to)?);
        let replaced = self.open_and_alone(me, &to, new).await;
        let done = {
            let _changes = (from.change(&self.clock), to.change(&self.clock));
            self.rename_over(me, (&from, name), (&to, new), replaced).await
        };
        self.relink(&from);
        self.relink(&to);
        done
    }

    async fn rename_over(
        &self,
        me: &Client,
        (from, name): (&Arc<Inode>, &[u8]),
        (to, new): (&Arc<Inode>, &[u8]),
        replaced: Option<Arc<Inode>>,
    ) -> Result<(), Errno> {
        // A further name first, so that there is no moment without the new one.
        let kept = match &replaced {
            Some(inode) => {
                let silly = self.free_name(me, to, inode).await?;
                me.link(inode.handle, to.handle, &silly).await.map_err(|e| errno(&e))?;
                Some((inode, silly))
            }
            None => None,
        };
        let renamed = me.rename(from.handle, name, to.handle, new).await.map_err(|e| errno(&e));
        if renamed.is_ok() {
            self.table.renamed((from.number, name), (to.number, new));
        }
        if let Some((inode, silly)) = kept {
            let still_there =
                renamed.is_err() || me.lookup(to.handle, new).await.is_ok_and(|o| o.handle == inode.handle);
            if still_there {
                // Nothing was replaced: the rename failed, or both names were the same file.
                let _ = me.remove(to.handle, &silly).await;
            } else {
                self.keep_silly(me, to, inode, silly).await;
            }
        }
        renamed
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
        &self,
        me: &Client,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
    ) -> Result<(), Errno> {
        let silly = self.free_name(me, dir, inode).await?;
        me.rename(dir.handle, name, dir.handle, &silly).await.map_err(|e| errno(&e))?;
        self.keep_silly(me, dir, inode, silly).await;
        Ok(())
    }

    /// Remembers the name under which a removed file waits for its last close. If that has come meanwhile, the file goes.
    async fn keep_silly(&self, me: &Client, dir: &Arc<Inode>, inode: &Arc<Inode>, name: Vec<u8>) {
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
    pub(crate) async fn remove_silly(&self, me: &Client, inode: &Inode) {
        let silly = {
            let mut s = inode.state.lock();
            if s.opens > 0 { None } else { s.silly.take() }
        };
        let Some((dir, name)) = silly else { return };
        if let Err(e) = me.remove(dir.handle, &name).await {
            tracing::warn!("cannot remove {}: {e}", String::from_utf8_lossy(&name));
        }
        dir.changed(&self.clock);
        self.silly.lock().remove(&(dir.number, name));
    }

    /// A number that no other mount is likely to have.
    fn unique(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let runtime = self.callers.own().runtime();
        runtime::RuntimeExt::random_u64(&**runtime) ^ NEXT.fetch_add(1, Ordering::Relaxed)
    }
}
