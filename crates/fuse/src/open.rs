//! Open files: rights and revalidation at open, reading, and the reports at fsync and close.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_buffer::{Buffer, View};
use millrace_client::{Client, File, ReadInto};
use millrace_nfs::v3::{Sattr, access};
use rustix::{fs::OFlags, io::Errno};

use crate::{
    error::errno,
    fs::Fs,
    inode::{Drops, Inode, KernelHas, News, Told},
    read_ahead::Ahead,
    verify::OF_FILES,
    write::Place,
};

/// Set in the flags of an open for execve(2); not in any header.
const FOR_EXECUTION: u32 = 0x20;
/// How often a call that found no memory commits what is retained, and tries again.
const MEMORY_TRIES: u32 = 20;
/// How long the answer to a WRITE waits for pages to be dropped: a page that was not up to date is locked until the answer,
/// and was read by no other.
const LOCKED: Duration = Duration::from_millis(100);

/// An open description.
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<Inode>,
    /// Who opened it: as such it reads and writes.
    pub(crate) client: Client,
    pub(crate) reads: bool,
    writes: bool,
    /// Reads through the kernel's pages, if it was not changed by fcntl(2) since.
    through_pages: bool,
    /// Failures of writing that it was told of.
    seen: AtomicU64,
    /// If not 0: the kernel drops pages from before the epoch that is one less, when it learns that this is open.
    drops: AtomicU64,
    pub(crate) ahead: Ahead,
}

impl OpenFile {
    /// The kernel uses it: so it has dropped what it had to drop.
    fn is_used(&self) {
        if self.drops.load(Ordering::Relaxed) != 0
            && let Some(epoch) = self.drops.swap(0, Ordering::Relaxed).checked_sub(1)
        {
            self.inode.has_dropped_pages();
            self.inode.state.lock().pages.drop_before(epoch);
        }
    }

    /// READ, with what `retains` has over what the server has.
    pub(crate) async fn read_into(
        &self,
        retains: Option<&File>,
        offset: u64,
        buffer: Buffer,
    ) -> Result<ReadInto, Errno> {
        let read = match retains {
            Some(written) => written.read_into_as(&self.client, offset, buffer).await,
            None => self.client.read_into(self.inode.handle, offset, buffer).await,
        };
        read.map_err(|e| errno(&e))
    }

    /// What went wrong since the last time that this description was told.
    fn report(&self) -> Result<(), Errno> {
        let (failures, last) = self.inode.writes.failures();
        let news = self.seen.swap(failures, Ordering::Relaxed) != failures;
        match last {
            Some(e) if news => {
                self.inode.writes.told(failures);
                Err(e)
            }
            _ => Ok(()),
        }
    }
}

/// What the answer to a write waits for, whose data was taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// That less is on its way.
    flight: Option<u64>,
    /// That the kernel has dropped these of its pages, or all.
    part: Option<Range<u64>>,
    all: bool,
    /// That it has dropped those of these pages that are not locked until the answer.
    read_again: Option<Range<u64>>,
}

/// The rights that an open takes: all of the first, any of the second.
fn rights(flags: OFlags) -> (u32, u32) {
    let execution = flags.bits() & FOR_EXECUTION != 0;
    match flags & OFlags::RWMODE {
        OFlags::WRONLY => (access::MODIFY, 0),
        OFlags::RDWR => (access::READ | access::MODIFY, 0),
        _ if execution => (0, access::READ | access::EXECUTE),
        _ => (access::READ, 0),
    }
}

impl Fs {
    /// Opens: the description's number, and whether the kernel's pages are still good.
    ///
    /// # Errors
    /// [`Errno::STALE`] also when the kernel is to look the path up again and repeat the open: when the name leads elsewhere
    /// (`verify.rs`), or when the kernel has an old size, at which it would append, or old rights, which it would check.
    pub(crate) async fn open(
        self: &Arc<Self>,
        me: Client,
        number: u64,
        flags: u32,
        tid: u32,
    ) -> Result<(u64, bool), Errno> {
        let inode = self.inode(number)?;
        let flags = OFlags::from_bits_retain(flags);
        let (all, any) = rights(flags);
        inode.state.lock().opened = self.clock.tick();
        let opening = self.ask_to_open(&me, &inode, OF_FILES, tid).await?;
        let granted = opening.granted;
        let lacks = granted & all != all || (any != 0 && granted & any == 0);
        if self.asks_rights && lacks {
            return Err(Errno::ACCESS);
        }
        let mut news = inode.check(&self.times, opening.asked, opening.attributes);
        self.drop_cached(&inode, news);
        let is_changed = std::mem::take(&mut inode.state.lock().is_changed_elsewhere);
        if is_changed && inode.writes.is_unstable() {
            // Close-to-open consistency: what another client has written counts, once ours is stable.
            let _ = self.commit(&inode).await; // What fails is counted.
            let asked = self.clock.tick();
            let attributes = me.getattr(inode.handle).await.map_err(|e| errno(&e))?;
            news = inode.check(&self.times, asked, attributes);
            self.drop_cached(&inode, news);
        }
        let (now, before) = {
            let s = inode.state.lock();
            (KernelHas::of(&s.cached.attributes), s.kernel)
        };
        // The kernel appends where its size ends, and has checked its rights.
        let is_wrong = (flags.contains(OFlags::APPEND) && now.size != before.size)
            || (!self.asks_rights && now.rights != before.rights);
        if is_wrong && !opening.is_repeated {
            return Err(self.repeat(&inode, tid));
        }
        if (now.ctime != before.ctime || now.size != before.size)
            && let Some(notices) = self.notices.get()
        {
            notices.attributes(number);
        }
        Ok(self.add_open(me, inode, news, flags))
    }

    /// A description of a file of which `news` were just learned.
    pub(crate) fn add_open(
        &self,
        client: Client,
        inode: Arc<Inode>,
        news: News,
        flags: OFlags,
    ) -> (u64, bool) {
        let mode = flags & OFlags::RWMODE;
        let (reads, writes) = (mode != OFlags::WRONLY, mode != OFlags::RDONLY);
        let through_pages = reads && !flags.contains(OFlags::DIRECT);
        let (keep, epoch) = {
            let mut s = inode.state.lock();
            s.opens += 1;
            s.readers += u32::from(reads);
            s.page_readers += u32::from(through_pages);
            (news.is_current && s.pages.are_good(), s.pages.epoch())
        };
        if !keep {
            inode.begins_to_drop_pages();
        }
        let seen = AtomicU64::new(inode.writes.failures().0);
        let drops = AtomicU64::new(if keep { 0 } else { epoch + 1 });
        let ahead = Ahead::default();
        let file = Arc::new(OpenFile { inode, client, reads, writes, through_pages, seen, drops, ahead });
        (self.open.lock().insert(file) as u64, keep)
    }

    /// The description of a number that the kernel gave.
    pub(crate) fn opened(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        self.open.lock().get(number as usize).cloned().ok_or(Errno::BADF)
    }

    /// Reads up to `len` bytes; less only at the end of the file. `direct`: not through the kernel's pages, and what the
    /// server has now.
    pub(crate) async fn read(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        len: usize,
        direct: bool,
    ) -> Result<View, Errno> {
        file.is_used();
        if !direct {
            file.inode.reads_pages();
        }
        let (is_clean, mut retains) = file.inode.writes.for_read();
        if !is_clean {
            self.settle(&file.inode).await;
            retains = file.inode.writes.for_read().1;
        }
        if self.reads_ahead.load(Ordering::Relaxed)
            && !direct
            && let Some(data) = self.ahead(file, offset, len).await
        {
            return Ok(data);
        }
        let client = &file.client;
        let memory = self.memory(client, len).await?;
        let first = file.read_into(retains.as_ref(), offset, memory).await?;
        if first.count >= len || first.eof {
            return Ok(first.buffer.freeze());
        }
        // The server, or rsize, gave less: the rest is put behind it.
        let mut whole = self.memory(client, len).await?;
        let mut done = first.count;
        millrace_buffer::copy(&mut whole[..done], &first.buffer[..done]);
        while done < len {
            let memory = self.memory(client, len - done).await?;
            let next = file.read_into(retains.as_ref(), offset + done as u64, memory).await?;
            millrace_buffer::copy(&mut whole[done..done + next.count], &next.buffer[..next.count]);
            done += next.count;
            if next.eof {
                break;
            }
        }
        whole.set_len(done);
        Ok(whole.freeze())
    }

    /// A buffer; where there is none, after retained data is committed and its memory is back.
    async fn memory(self: &Arc<Self>, client: &Client, len: usize) -> Result<Buffer, Errno> {
        for _ in 0..MEMORY_TRIES {
            if let Ok(buffer) = client.buffer(len) {
                return Ok(buffer);
            }
            self.commit_all().await;
        }
        Err(Errno::NOMEM)
    }

    /// Takes data to be written; `direct`: it did not go through the kernel's pages. `Some`: what the answer waits for, for
    /// [`Self::taken`].
    ///
    /// # Errors
    /// Those of [`Self::write`].
    pub(crate) fn take(
        self: &Arc<Self>,
        file: &OpenFile,
        (place, data): (Place, &[u8]),
        direct: bool,
    ) -> Result<Option<Waits>, Errno> {
        file.is_used();
        let inode = &file.inode;
        let taken = self.write(inode, &file.client, place, data)?;
        let mut waits = Waits { flight: taken.flight, ..Waits::default() };
        if direct {
            match inode.wrote_directly() {
                Drops::Nothing => {}
                Drops::Part => waits.part = Some(place.kernel()..place.kernel() + data.len() as u64),
                Drops::All(news) => {
                    self.drop_cached(inode, news);
                    waits.all = true;
                }
            }
        } else if inode.wrote_pages() {
            waits.read_again = Some(place.kernel()..place.kernel() + data.len() as u64);
        }
        if taken.is_moved {
            // The pages have it in the wrong place. Their locks are held until this is answered.
            self.drop_cached(inode, inode.spoil());
            if let Some(notices) = self.notices.get() {
                notices.attributes(inode.number);
            }
        }
        let is_done = !self.write_through && waits == Waits::default();
        Ok((!is_done).then_some(waits))
    }

    /// Takes data for which there was no memory at first, or that is to go to the end of the file when its size was asked for
    /// long ago, and waits as [`Self::taken`].
    pub(crate) async fn write_later(
        self: &Arc<Self>,
        file: &OpenFile,
        place: Place,
        data: &[u8],
        direct: bool,
    ) -> Result<(), Errno> {
        if matches!(place, Place::End(_)) && file.inode.is_due(&self.times) {
            self.settle(&file.inode).await;
            let asked = self.clock.tick();
            if let Ok(attributes) = file.client.getattr(file.inode.handle).await {
                let news = file.inode.check(&self.times, asked, attributes);
                self.drop_cached(&file.inode, news);
            }
        }
        for _ in 0..MEMORY_TRIES {
            match self.take(file, (place, data), direct) {
                Err(Errno::NOMEM) => self.commit_all().await,
                Err(e) => return Err(e),
                Ok(waits) => return self.taken(file, waits.unwrap_or_default()).await,
            }
        }
        Err(Errno::NOMEM)
    }

    /// What a write whose data was taken waits for.
    pub(crate) async fn taken(self: &Arc<Self>, file: &OpenFile, waits: Waits) -> Result<(), Errno> {
        if let Some(notices) = self.notices.get() {
            if let Some(part) = waits.part {
                notices.part(&file.inode, part).await;
            }
            if let Some(pages) = waits.read_again {
                let dropped = notices.part(&file.inode, pages);
                let _ = millrace_runtime::timeout(&*self.rt, LOCKED, dropped).await;
            }
            if waits.all {
                notices.dropped(&file.inode).await;
            }
        }
        if self.write_through {
            return self.fsync(file).await;
        }
        if let Some(flight) = waits.flight {
            self.landed(&file.inode, flight).await;
        }
        Ok(())
    }

    /// Everything that was written is stable, or the description is told why not.
    pub(crate) async fn fsync(self: &Arc<Self>, file: &OpenFile) -> Result<(), Errno> {
        let _ = self.commit(&file.inode).await; // What fails is counted.
        file.report()
    }

    /// A close of one of its descriptors.
    pub(crate) async fn flush(self: &Arc<Self>, file: &OpenFile) -> Result<(), Errno> {
        file.is_used();
        if file.writes { self.fsync(file).await } else { Ok(()) }
    }

    /// The last use of a description.
    pub(crate) async fn release(self: &Arc<Self>, number: u64) {
        let Some(file) = self.open.lock().try_remove(number as usize) else { return };
        file.is_used();
        let inode = &file.inode;
        let last = {
            let mut s = inode.state.lock();
            s.opens = s.opens.saturating_sub(1);
            s.readers = s.readers.saturating_sub(u32::from(file.reads));
            s.page_readers = s.page_readers.saturating_sub(u32::from(file.through_pages));
            s.opens == 0
        };
        if last {
            self.finish(inode).await;
            self.remove_silly(&file.client, inode).await;
            self.table.sweep(inode.number);
        }
    }

    /// Changes attributes, after what was written before is stable: data that a restarted server lost is written again,
    /// beyond the new end, and with a new mtime and without set-id bits. Where it cannot be made stable, only the size
    /// stays as it is; fsync and close say so.
    pub(crate) async fn setattr(
        self: &Arc<Self>,
        me: &Client,
        number: u64,
        set: Sattr,
    ) -> Result<Told, Errno> {
        let inode = self.inode(number)?;
        let stable = self.commit(&inode).await;
        if set.size.is_some() {
            stable?;
        }
        let changed = {
            let _change = inode.change(&self.clock);
            let changed = me.setattr(inode.handle, set, None).await.map_err(|e| errno(&e))?;
            inode.changed_by(&self.clock, &changed);
            changed
        };
        if let Some(size) = set.size {
            inode.set_size(size);
        }
        let asked = self.clock.tick();
        let attributes = match changed.after {
            Some(a) => a,
            None => me.getattr(inode.handle).await.map_err(|e| errno(&e))?,
        };
        Ok(self.learn(&inode, asked, attributes))
    }
}
