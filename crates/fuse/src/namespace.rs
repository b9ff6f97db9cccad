//! Operations that create, remove and rename names.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use millrace_client::{
    handles::{Client, Object},
    ops::{CreateHow, FileType, MknodWhat, SetAttributes, Status, Wcc},
};
use rustix::{fs::OFlags, io::Errno};

use crate::{
    error::errno,
    fs::{Entry, Fs},
    inode::{Inode, PendingLookups},
};

/// Maximum attempts to find an unused `.nfs...` name.
const SILLY_NAME_ATTEMPTS: u32 = 16;

/// The object to create.
pub(crate) enum NewNode {
    Directory(SetAttributes),
    Symlink(Vec<u8>),
    File(SetAttributes),
    Special(MknodWhat),
}

impl Fs {
    /// Creates `name` in `dir`.
    pub(crate) async fn create_node(
        self: &Arc<Self>,
        client: &Client,
        dir: u64,
        name: &[u8],
        what: NewNode,
    ) -> Result<Entry, Errno> {
        let dir = self.inode(dir)?;
        let issued = self.clock.tick();
        let created = {
            let _change = dir.begin_change(&self.clock);
            let created = match what {
                NewNode::Directory(set) => client.mkdir(dir.handle, name, set).await,
                NewNode::Symlink(text) => {
                    client.symlink(dir.handle, name, text, SetAttributes::default()).await
                }
                NewNode::File(set) => client.create(dir.handle, name, CreateHow::Guarded(set)).await,
                NewNode::Special(what) => client.mknod(dir.handle, name, what).await,
            };
            self.finish_create(&dir, name, created)?
        };
        self.make_created_entry(client, (&dir, name), issued, created).await
    }

    /// Updates the directory from the reply to a call that creates `name`.
    fn finish_create(
        self: &Arc<Self>,
        dir: &Arc<Inode>,
        name: &[u8],
        created: Result<Object, millrace_client::Error>,
    ) -> Result<Object, Errno> {
        match created {
            Ok(object) => {
                self.note_entries_changed(dir, &object.dir);
                Ok(object)
            }
            Err(e) => Err(self.map_name_error(dir, name, &e)),
        }
    }

    /// Converts the error of a call that changes `name`. If the error shows that the kernel's entry for the
    /// name is wrong, the name is expired.
    fn map_name_error(self: &Arc<Self>, dir: &Inode, name: &[u8], e: &millrace_client::Error) -> Errno {
        if matches!(e.status(), Some(Status::NoEnt | Status::Exist)) {
            let name = self.inodes.begin_name_expiry((dir.number, name));
            drop(self.expire_names(dir.number, name.into_iter().collect()));
        }
        errno(e)
    }

    /// Creates and opens a regular file. Returns the entry, the file handle, and whether the kernel keeps its
    /// pages.
    pub(crate) async fn create(
        self: &Arc<Self>,
        (client, tid): (Client, u32),
        dir: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, u64, bool), Errno> {
        let dir = self.inode(dir)?;
        let flags = OFlags::from_bits_retain(flags);
        let issued = self.clock.tick();
        let object = {
            let _change = dir.begin_change(&self.clock);
            let created = if flags.contains(OFlags::EXCL) {
                client.create_new(dir.handle, name, mode).await
            } else {
                let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                client.create(dir.handle, name, CreateHow::Unchecked(set)).await
            };
            self.finish_create(&dir, name, created)?
        };
        let mut entry = self.make_created_entry(&client, (&dir, name), issued, object).await?;
        let mut lookup = PendingLookups::new(&self.inodes); // Decrements the lookup counts if the caller is killed.
        lookup.add(entry.inode.number);
        let has_data = entry.attrs.attributes.size > 0 || !entry.inode.writes.is_idle();
        if flags.contains(OFlags::TRUNC) && has_data {
            // The file existed. Truncate it by SETATTR: a size in CREATE would not wait for local writes in
            // flight.
            let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
            entry.attrs = self.setattr(&client, entry.inode.number, cut).await?;
        }
        lookup.commit(); // There is no await between here and the reply, so it is sent.
        let (number, keep) =
            self.insert_open_file((client, tid), Arc::clone(&entry.inode), entry.attrs.update, flags);
        Ok((entry, number, keep))
    }

    /// Creates a hard link.
    ///
    /// # Errors
    /// [`Errno::STALE`] also if the kernel must look up the file's path again and retry (`verify.rs`).
    pub(crate) async fn link(
        self: &Arc<Self>,
        client: &Client,
        file: u64,
        (dir, name): (u64, &[u8]),
        tid: u32,
    ) -> Result<Entry, Errno> {
        let (inode, dir) = (self.inode(file)?, self.inode(dir)?);
        self.check_names(client, &inode, tid).await?;
        {
            let _changes = (dir.begin_change(&self.clock), inode.begin_change(&self.clock));
            let linked = client.link(inode.handle, dir.handle, name).await;
            let linked = linked.map_err(|e| self.map_name_error(&dir, name, &e))?;
            self.note_entries_changed(&dir, &linked.dir);
        }
        let issued = self.clock.tick();
        let attributes = client.getattr(inode.handle).await.map_err(|e| errno(&e))?;
        let object = Object { handle: inode.handle, attributes, dir: Wcc::default() };
        self.make_entry(client, (&dir, name), issued, object).await
    }

    pub(crate) async fn unlink(
        self: &Arc<Self>,
        client: &Client,
        dir: u64,
        name: &[u8],
    ) -> Result<(), Errno> {
        let dir = self.inode(dir)?;
        self.return_delegation_of((dir.number, name)).await;
        let open = self.open_with_single_link(client, &dir, name).await;
        let done = {
            let _change = dir.begin_change(&self.clock);
            match &open {
                Some(inode) => self.silly_rename(client, &dir, name, inode).await,
                None => self.finish_remove(&dir, name, client.remove(dir.handle, name).await),
            }
        };
        self.note_relink();
        done
    }

    /// Updates the directory from the reply to a call that removes `name`.
    fn finish_remove(
        self: &Arc<Self>,
        dir: &Arc<Inode>,
        name: &[u8],
        removed: Result<Wcc, millrace_client::Error>,
    ) -> Result<(), Errno> {
        let wcc = removed.map_err(|e| self.map_name_error(dir, name, &e))?;
        self.note_entries_changed(dir, &wcc);
        self.inodes.remove((dir.number, name));
        Ok(())
    }

    pub(crate) async fn rmdir(self: &Arc<Self>, client: &Client, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let dir = self.inode(dir)?;
        let _change = dir.begin_change(&self.clock);
        self.finish_remove(&dir, name, client.rmdir(dir.handle, name).await)
    }

    /// Renames. An open file that is replaced is kept under a silly name.
    pub(crate) async fn rename(
        self: &Arc<Self>,
        client: &Client,
        (from, name): (u64, &[u8]),
        (to, new): (u64, &[u8]),
    ) -> Result<(), Errno> {
        let (from, to) = (self.inode(from)?, self.inode(to)?);
        self.return_delegation_of((to.number, new)).await;
        let replaced = self.open_with_single_link(client, &to, new).await;
        let done = {
            let other = (from.number != to.number).then(|| to.begin_change(&self.clock));
            let _changes = (from.begin_change(&self.clock), other);
            self.rename_over(client, (&from, name), (&to, new), replaced).await
        };
        self.note_relink();
        done
    }

    async fn rename_over(
        self: &Arc<Self>,
        client: &Client,
        (from, name): (&Arc<Inode>, &[u8]),
        (to, new): (&Arc<Inode>, &[u8]),
        replaced: Option<Arc<Inode>>,
    ) -> Result<(), Errno> {
        // Link the silly name first, so that the new name exists at all times.
        let silly_link = match &replaced {
            Some(inode) => {
                let silly = self.unused_silly_name(client, to, inode).await?;
                let linked = client.link(inode.handle, to.handle, &silly).await.map_err(|e| errno(&e))?;
                to.note_change(&self.clock, &linked.dir);
                Some((inode, silly))
            }
            None => None,
        };
        let renamed = client.rename(from.handle, name, to.handle, new).await;
        let renamed = renamed.map_err(|e| self.map_name_error(from, name, &e));
        if let Ok(wcc) = &renamed {
            if from.number != to.number {
                self.note_entries_changed(from, &wcc.from);
            }
            self.note_entries_changed(to, &wcc.to);
            self.inodes.rename((from.number, name), (to.number, new));
            if let Some(inode) = self.inodes.find_by_name((to.number, new)) {
                inode.state.lock().delegation.forget_names();
            }
        }
        if let Some((inode, silly)) = silly_link {
            let still_there = renamed.is_err()
                || client.lookup(to.handle, new).await.is_ok_and(|o| o.handle == inode.handle);
            if still_there {
                // Nothing was replaced: the rename failed, or both names refer to the same file.
                if let Ok(wcc) = client.remove(to.handle, &silly).await {
                    self.note_entries_changed(to, &wcc);
                }
            } else {
                self.record_silly_name(client, to, inode, silly).await;
            }
        }
        renamed.map(drop)
    }

    /// Returns the file that `name` refers to if it is open here and has no other name.
    async fn open_with_single_link(&self, client: &Client, dir: &Inode, name: &[u8]) -> Option<Arc<Inode>> {
        if self.open.lock().is_empty() {
            return None;
        }
        let object = client.lookup(dir.handle, name).await.ok()?;
        let inode = self.inodes.find_by_handle(&object.handle)?;
        let open = inode.state.lock().open_count > 0;
        (open && object.attributes.file_type == FileType::Regular && object.attributes.nlink == 1)
            .then_some(inode)
    }

    /// Renames an open file to a silly name, until its last close.
    async fn silly_rename(
        self: &Arc<Self>,
        client: &Client,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
    ) -> Result<(), Errno> {
        let silly = self.unused_silly_name(client, dir, inode).await?;
        let renamed = client.rename(dir.handle, name, dir.handle, &silly).await;
        let renamed = renamed.map_err(|e| self.map_name_error(dir, name, &e))?;
        self.note_entries_changed(dir, &renamed.to);
        self.inodes.remove((dir.number, name));
        self.record_silly_name(client, dir, inode, silly).await;
        Ok(())
    }

    /// Records the silly name of a removed file, and removes the file if the last close has happened
    /// meanwhile.
    async fn record_silly_name(
        self: &Arc<Self>,
        client: &Client,
        dir: &Arc<Inode>,
        inode: &Arc<Inode>,
        name: Vec<u8>,
    ) {
        self.silly_names.lock().insert((dir.number, name.clone()));
        inode.note_unknown_change(&self.clock);
        inode.state.lock().silly_name = Some((Arc::clone(dir), name));
        self.remove_silly_name(client, inode).await;
    }

    /// Returns an unused silly name, in the format of the Linux NFS client.
    async fn unused_silly_name(&self, client: &Client, dir: &Inode, inode: &Inode) -> Result<Vec<u8>, Errno> {
        for _ in 0..SILLY_NAME_ATTEMPTS {
            let name = format!(".nfs{:016x}{:08x}", inode.number, self.unique_id() as u32).into_bytes();
            match client.lookup(dir.handle, &name).await {
                Err(e) if e.is_not_found() => return Ok(name),
                Err(e) => return Err(errno(&e)),
                Ok(_) => {}
            }
        }
        Err(Errno::BUSY)
    }

    /// Removes the silly name of a file unless the file is open.
    pub(crate) async fn remove_silly_name(self: &Arc<Self>, client: &Client, inode: &Inode) {
        let silly = {
            let mut s = inode.state.lock();
            if s.open_count > 0 { None } else { s.silly_name.take() }
        };
        let Some((dir, name)) = silly else { return };
        {
            let _change = dir.begin_change(&self.clock);
            match client.remove(dir.handle, &name).await {
                Ok(wcc) => self.note_entries_changed(&dir, &wcc),
                Err(e) => tracing::warn!("cannot remove {}: {e}", String::from_utf8_lossy(&name)),
            }
        }
        self.silly_names.lock().remove(&(dir.number, name));
    }

    /// A number that is unlikely to be used by another mount.
    fn unique_id(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let runtime = self.credentials.default_client().runtime();
        millrace_runtime::RuntimeExt::random_u64(&**runtime) ^ NEXT.fetch_add(1, Ordering::Relaxed)
    }
}
