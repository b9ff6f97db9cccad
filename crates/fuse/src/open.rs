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
    inode::{AttrReply, CacheUpdate, Inode, KernelAttrs, PageInvalidation},
    read_ahead::ReadAhead,
    verify::FILE_ACCESS,
    write::WritePosition,
};

/// Set in the flags of an open for execve(2); not in any header.
const FMODE_EXEC: u32 = 0x20;
/// How often a call that found no memory commits what is retained, and tries again.
const BUFFER_ATTEMPTS: u32 = 20;
/// How long the answer to a WRITE waits for pages to be dropped: a page that was not up to date is locked until the answer,
/// and was read by no other.
const PAGE_DROP_TIMEOUT: Duration = Duration::from_millis(100);

/// An open description.
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<Inode>,
    /// Who opened it: as such it reads and writes.
    pub(crate) client: Client,
    pub(crate) readable: bool,
    writable: bool,
    /// Reads through the kernel's pages, if it was not changed by fcntl(2) since.
    uses_page_cache: bool,
    /// Failures of writing that it was told of.
    reported_failures: AtomicU64,
    /// If not 0: the kernel drops pages from before the epoch that is one less, when it learns that this is open.
    pending_drop: AtomicU64,
    pub(crate) read_ahead: ReadAhead,
}

impl OpenFile {
    /// The kernel uses it: so it has dropped what it had to drop.
    fn note_use(&self) {
        if self.pending_drop.load(Ordering::Relaxed) != 0
            && let Some(epoch) = self.pending_drop.swap(0, Ordering::Relaxed).checked_sub(1)
        {
            self.inode.finish_page_invalidation();
            self.inode.state.lock().pages.mark_dropped(epoch);
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
    fn take_write_error(&self) -> Result<(), Errno> {
        let (failures, last) = self.inode.writes.failures();
        let is_new = self.reported_failures.swap(failures, Ordering::Relaxed) != failures;
        match last {
            Some(e) if is_new => {
                self.inode.writes.mark_reported(failures);
                Err(e)
            }
            _ => Ok(()),
        }
    }
}

/// What the answer to a write waits for, whose data was taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteCompletion {
    /// That less is on its way.
    flight: Option<u64>,
    /// That the kernel has dropped these of its pages, or all.
    range: Option<Range<u64>>,
    all: bool,
    /// That it has dropped those of these pages that are not locked until the answer.
    read_again: Option<Range<u64>>,
}

/// The rights that an open takes: all of the first, any of the second.
fn required_access(flags: OFlags) -> (u32, u32) {
    let execution = flags.bits() & FMODE_EXEC != 0;
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
        client: Client,
        number: u64,
        flags: u32,
        tid: u32,
    ) -> Result<(u64, bool), Errno> {
        let inode = self.inode(number)?;
        let flags = OFlags::from_bits_retain(flags);
        let (all, any) = required_access(flags);
        inode.state.lock().last_open = self.clock.tick();
        let opening = self.check_open(&client, &inode, FILE_ACCESS, tid).await?;
        let granted = opening.granted;
        let lacks = granted & all != all || (any != 0 && granted & any == 0);
        if self.checks_access && lacks {
            return Err(Errno::ACCESS);
        }
        let mut update = inode.record_attributes(&self.timeouts, opening.issued, opening.attributes);
        self.apply_update(&inode, update);
        let is_changed = std::mem::take(&mut inode.state.lock().changed_by_others);
        if is_changed && inode.writes.is_unstable() {
            // Close-to-open consistency: what another client has written counts, once ours is stable.
            let _ = self.commit(&inode).await; // What fails is counted.
            let issued = self.clock.tick();
            let attributes = client.getattr(inode.handle).await.map_err(|e| errno(&e))?;
            update = inode.record_attributes(&self.timeouts, issued, attributes);
            self.apply_update(&inode, update);
        }
        let (now, before) = {
            let s = inode.state.lock();
            (KernelAttrs::of(&s.attrs.attributes), s.kernel_attrs)
        };
        // The kernel appends where its size ends, and has checked its rights.
        let is_wrong = (flags.contains(OFlags::APPEND) && now.size != before.size)
            || (!self.checks_access && now.permissions != before.permissions);
        if is_wrong && !opening.is_retry {
            return Err(self.stale_for_retry(&inode, tid));
        }
        if (now.ctime != before.ctime || now.size != before.size)
            && let Some(invalidator) = self.invalidator.get()
        {
            invalidator.invalidate_attributes(number);
        }
        Ok(self.insert_open_file(client, inode, update, flags))
    }

    /// A description of a file of which `update` were just learned.
    pub(crate) fn insert_open_file(
        &self,
        client: Client,
        inode: Arc<Inode>,
        update: CacheUpdate,
        flags: OFlags,
    ) -> (u64, bool) {
        let mode = flags & OFlags::RWMODE;
        let (readable, writable) = (mode != OFlags::WRONLY, mode != OFlags::RDONLY);
        let uses_page_cache = readable && !flags.contains(OFlags::DIRECT);
        let (keep, epoch) = {
            let mut s = inode.state.lock();
            s.open_count += 1;
            s.readers += u32::from(readable);
            s.cached_readers += u32::from(uses_page_cache);
            (update.is_current && s.pages.are_valid(), s.pages.invalidations())
        };
        if !keep {
            inode.begin_page_invalidation();
        }
        let reported_failures = AtomicU64::new(inode.writes.failures().0);
        let pending_drop = AtomicU64::new(if keep { 0 } else { epoch + 1 });
        let read_ahead = ReadAhead::default();
        let file = Arc::new(OpenFile {
            inode,
            client,
            readable,
            writable,
            uses_page_cache,
            reported_failures,
            pending_drop,
            read_ahead,
        });
        (self.open.lock().insert(file) as u64, keep)
    }

    /// The description of a number that the kernel gave.
    pub(crate) fn open_file(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
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
        file.note_use();
        if !direct {
            file.inode.note_page_read();
        }
        let (is_clean, mut retains) = file.inode.writes.for_read();
        if !is_clean {
            self.write_back(&file.inode).await;
            retains = file.inode.writes.for_read().1;
        }
        if self.read_ahead_enabled.load(Ordering::Relaxed)
            && !direct
            && let Some(data) = self.read_prefetched(file, offset, len).await
        {
            return Ok(data);
        }
        let client = &file.client;
        let memory = self.alloc_buffer(client, len).await?;
        let first = file.read_into(retains.as_ref(), offset, memory).await?;
        if first.count >= len || first.eof {
            return Ok(first.buffer.freeze());
        }
        // The server, or rsize, gave less: the rest is put behind it.
        let mut whole = self.alloc_buffer(client, len).await?;
        let mut done = first.count;
        millrace_buffer::copy(&mut whole[..done], &first.buffer[..done]);
        while done < len {
            let memory = self.alloc_buffer(client, len - done).await?;
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
    async fn alloc_buffer(self: &Arc<Self>, client: &Client, len: usize) -> Result<Buffer, Errno> {
        for _ in 0..BUFFER_ATTEMPTS {
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
    pub(crate) fn accept_write(
        self: &Arc<Self>,
        file: &OpenFile,
        (position, data): (WritePosition, &[u8]),
        direct: bool,
    ) -> Result<Option<WriteCompletion>, Errno> {
        file.note_use();
        let inode = &file.inode;
        let accepted = self.write(inode, &file.client, position, data)?;
        let mut completion = WriteCompletion { flight: accepted.flight, ..WriteCompletion::default() };
        if direct {
            match inode.note_direct_write() {
                PageInvalidation::None => {}
                PageInvalidation::Range => {
                    completion.range =
                        Some(position.kernel_offset()..position.kernel_offset() + data.len() as u64)
                }
                PageInvalidation::All(update) => {
                    self.apply_update(inode, update);
                    completion.all = true;
                }
            }
        } else if inode.note_page_write() {
            completion.read_again =
                Some(position.kernel_offset()..position.kernel_offset() + data.len() as u64);
        }
        if accepted.relocated {
            // The pages have it in the wrong place. Their locks are held until this is answered.
            self.apply_update(inode, inode.invalidate_pages());
            if let Some(invalidator) = self.invalidator.get() {
                invalidator.invalidate_attributes(inode.number);
            }
        }
        let is_done = !self.write_through && completion == WriteCompletion::default();
        Ok((!is_done).then_some(completion))
    }

    /// Takes data for which there was no memory at first, or that is to go to the end of the file when its size was asked for
    /// long ago, and waits as [`Self::taken`].
    pub(crate) async fn write_deferred(
        self: &Arc<Self>,
        file: &OpenFile,
        position: WritePosition,
        data: &[u8],
        direct: bool,
    ) -> Result<(), Errno> {
        if matches!(position, WritePosition::Append(_)) && file.inode.needs_revalidation(&self.timeouts) {
            self.write_back(&file.inode).await;
            let issued = self.clock.tick();
            if let Ok(attributes) = file.client.getattr(file.inode.handle).await {
                let update = file.inode.record_attributes(&self.timeouts, issued, attributes);
                self.apply_update(&file.inode, update);
            }
        }
        for _ in 0..BUFFER_ATTEMPTS {
            match self.accept_write(file, (position, data), direct) {
                Err(Errno::NOMEM) => self.commit_all().await,
                Err(e) => return Err(e),
                Ok(completion) => return self.complete_write(file, completion.unwrap_or_default()).await,
            }
        }
        Err(Errno::NOMEM)
    }

    /// What a write whose data was taken waits for.
    pub(crate) async fn complete_write(
        self: &Arc<Self>,
        file: &OpenFile,
        completion: WriteCompletion,
    ) -> Result<(), Errno> {
        if let Some(invalidator) = self.invalidator.get() {
            if let Some(part) = completion.range {
                invalidator.invalidate_range(&file.inode, part).await;
            }
            if let Some(pages) = completion.read_again {
                let dropped = invalidator.invalidate_range(&file.inode, pages);
                let _ = millrace_runtime::timeout(&*self.rt, PAGE_DROP_TIMEOUT, dropped).await;
            }
            if completion.all {
                invalidator.wait_until_dropped(&file.inode).await;
            }
        }
        if self.write_through {
            return self.fsync(file).await;
        }
        if let Some(flight) = completion.flight {
            self.wait_for_flight(&file.inode, flight).await;
        }
        Ok(())
    }

    /// Everything that was written is stable, or the description is told why not.
    pub(crate) async fn fsync(self: &Arc<Self>, file: &OpenFile) -> Result<(), Errno> {
        let _ = self.commit(&file.inode).await; // What fails is counted.
        file.take_write_error()
    }

    /// A close of one of its descriptors.
    pub(crate) async fn flush(self: &Arc<Self>, file: &OpenFile) -> Result<(), Errno> {
        file.note_use();
        if file.writable { self.fsync(file).await } else { Ok(()) }
    }

    /// The last use of a description.
    pub(crate) async fn release(self: &Arc<Self>, number: u64) {
        let Some(file) = self.open.lock().try_remove(number as usize) else { return };
        file.note_use();
        let inode = &file.inode;
        let last = {
            let mut s = inode.state.lock();
            s.open_count = s.open_count.saturating_sub(1);
            s.readers = s.readers.saturating_sub(u32::from(file.readable));
            s.cached_readers = s.cached_readers.saturating_sub(u32::from(file.uses_page_cache));
            s.open_count == 0
        };
        if last {
            self.finish_writes(inode).await;
            self.remove_silly_name(&file.client, inode).await;
            self.inodes.remove_if_unused(inode.number);
        }
    }

    /// Changes attributes, after what was written before is stable: data that a restarted server lost is written again,
    /// beyond the new end, and with a new mtime and without set-id bits. Where it cannot be made stable, only the size
    /// stays as it is; fsync and close say so.
    pub(crate) async fn setattr(
        self: &Arc<Self>,
        client: &Client,
        number: u64,
        set: Sattr,
    ) -> Result<AttrReply, Errno> {
        let inode = self.inode(number)?;
        let stable = self.commit(&inode).await;
        if set.size.is_some() {
            stable?;
        }
        let changed = {
            let _change = inode.begin_change(&self.clock);
            let changed = client.setattr(inode.handle, set, None).await.map_err(|e| errno(&e))?;
            inode.note_change(&self.clock, &changed);
            changed
        };
        if let Some(size) = set.size {
            inode.set_size(size);
        }
        let issued = self.clock.tick();
        let attributes = match changed.after {
            Some(a) => a,
            None => client.getattr(inode.handle).await.map_err(|e| errno(&e))?,
        };
        Ok(self.update_from_server(&inode, issued, attributes))
    }
}
