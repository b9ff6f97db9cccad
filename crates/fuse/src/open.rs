//! Operations on files: access check and revalidation at open, reading and writing, error reports at fsync and
//! close.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_buffer::{Buffer, View};
use millrace_client::{handles::Client, ops::SetAttributes};
use millrace_fuse_session::channel::WriteData;
use rustix::{fs::OFlags, io::Errno};

use crate::{
    access::{FILE_ACCESS, required_access},
    error::errno,
    fs::Fs,
    inode::{AttrReply, CacheUpdate, Inode, KernelAttrs, PageInvalidation},
    open_file::OpenFile,
    page_invalidations::PageRead,
    write::WritePosition,
};

/// Maximum attempts to allocate a buffer; retained data is committed between them.
const BUFFER_ATTEMPTS: u32 = 20;
/// Time limit for dropping pages before a WRITE reply. It ends the wait for a page that is locked until the reply, in the one
/// case in which the requests of the kernel do not show whether it is (`page_invalidations.rs`).
const PAGE_DROP_TIMEOUT: Duration = Duration::from_millis(100);

/// How a WRITE relates to the kernel's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// It bypasses it (O_DIRECT).
    Direct,
    /// The data of a write(2), which the kernel has also copied into its pages, and its thread, or 0.
    WriteThrough { tid: u32 },
    /// Pages that were dirty: of a mapping, and of write(2) with `writeback`.
    WriteBack,
}

/// Conditions for replying to a WRITE whose data was accepted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteCompletion {
    /// The WRITE call in flight with this number must complete, since too many bytes are in flight.
    flight: Option<u64>,
    /// The kernel must have dropped the pages of this range, or all pages.
    range: Option<Range<u64>>,
    all: bool,
    /// The kernel must have dropped these pages.
    stale: Vec<PageRead>,
}

impl Fs {
    /// Opens a file. Returns the file handle, and whether the kernel's pages are still valid.
    ///
    /// # Errors
    /// [`Errno::STALE`] also if the kernel must look up the path again and retry the open: if a name leads to
    /// another file (`verify.rs`), or the kernel has an outdated size, at which it would append, or outdated
    /// permissions, which it would check.
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
        let last_open = std::mem::replace(&mut inode.state.lock().last_open, self.clock.tick());
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
            // Close-to-open consistency: commit local data, then use the size that other clients have
            // written.
            let _ = self.commit(&inode).await; // The next fsync or close returns a failure.
            let issued = self.clock.tick();
            let attributes = client.getattr(inode.handle).await.map_err(|e| errno(&e))?;
            update = inode.record_attributes(&self.timeouts, issued, attributes);
            self.apply_update(&inode, update);
        }
        let (now, before) = {
            let s = inode.state.lock();
            (KernelAttrs::of(&s.attrs.attributes), s.kernel_attrs)
        };
        // The kernel appends at its own size, and has checked permissions with its own attributes.
        let is_outdated = (flags.contains(OFlags::APPEND) && now.size != before.size)
            || (!self.checks_access && now.permissions != before.permissions);
        if is_outdated && !opening.is_retry && self.will_retry(&inode, tid).await {
            return Err(Errno::STALE);
        }
        if now.ctime != before.ctime || now.size != before.size {
            self.expire_kernel_attributes(&inode);
        }
        if last_open != 0 && flags & OFlags::RWMODE == OFlags::RDONLY {
            self.request_delegation(&client, &inode);
        }
        Ok(self.insert_open_file((client, tid), inode, update, flags))
    }

    /// Creates an open file description for a thread, after `update` was derived from fresh attributes.
    pub(crate) fn insert_open_file(
        &self,
        (client, tid): (Client, u32),
        inode: Arc<Inode>,
        update: CacheUpdate,
        flags: OFlags,
    ) -> (u64, bool) {
        let mut file = OpenFile::new(inode, client, flags);
        let (keep, epoch) = {
            let mut s = file.inode.state.lock();
            s.open_count += 1;
            s.readers += u32::from(file.readable);
            s.cached_readers += u32::from(file.uses_page_cache);
            (update.is_current && s.pages.are_valid(), s.pages.invalidations())
        };
        if !keep {
            file.set_pending_drop(epoch, tid);
        }
        file.inode.note_caller(tid);
        (self.open.lock().insert(Arc::new(file)) as u64, keep)
    }

    /// Returns the open file of a handle that the kernel sent.
    pub(crate) fn open_file(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        self.open.lock().get(number as usize).cloned().ok_or(Errno::BADF)
    }

    /// Reads up to `len` bytes, fewer only at the end of the file. `reader`: the thread that reads pages, or 0. Otherwise the
    /// request bypasses the page cache, and returns the server's current data.
    pub(crate) async fn read(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        len: usize,
        reader: Option<u32>,
    ) -> Result<View, Errno> {
        file.note_use();
        if let Some(tid) = reader {
            file.inode.note_page_read(offset..offset + len as u64, tid);
        }
        let (is_clean, mut uncommitted) = file.inode.writes.for_read();
        if !is_clean {
            self.write_back(&file.inode).await;
            uncommitted = file.inode.writes.for_read().1;
        }
        if self.read_ahead_enabled.load(Ordering::Relaxed)
            && reader.is_some()
            && let Some(data) = self.read_prefetched(file, offset, len).await
        {
            return Ok(data);
        }
        let client = &file.client;
        let memory = self.alloc_buffer(client, len).await?;
        let first = file.read_into(uncommitted.as_deref(), offset, memory).await?;
        if first.count >= len || first.eof {
            return Ok(first.buffer.freeze());
        }
        // The reply was limited by the server or by rsize: append the rest.
        let mut whole = self.alloc_buffer(client, len).await?;
        let mut done = first.count;
        millrace_buffer::copy(&mut whole[..done], &first.buffer[..done]);
        while done < len {
            let memory = self.alloc_buffer(client, len - done).await?;
            let next = file.read_into(uncommitted.as_deref(), offset + done as u64, memory).await?;
            millrace_buffer::copy(&mut whole[done..done + next.count], &next.buffer[..next.count]);
            done += next.count;
            if next.eof {
                break;
            }
        }
        whole.set_len(done);
        Ok(whole.freeze())
    }

    /// Allocates a buffer. If the arena is exhausted, commits retained data, which releases its memory, and
    /// retries.
    async fn alloc_buffer(self: &Arc<Self>, client: &Client, len: usize) -> Result<Buffer, Errno> {
        for _ in 0..BUFFER_ATTEMPTS {
            if let Ok(buffer) = client.buffer(len) {
                return Ok(buffer);
            }
            self.commit_all().await;
        }
        Err(Errno::NOMEM)
    }

    /// Accepts write data. Returns the conditions for the reply, if
    /// any, for [`Self::complete_write`].
    ///
    /// # Errors
    /// Those of [`Self::write`].
    pub(crate) fn accept_write(
        self: &Arc<Self>,
        file: &OpenFile,
        (position, data): (WritePosition, &mut WriteData<'_>),
        kind: WriteKind,
    ) -> Result<Option<WriteCompletion>, Errno> {
        file.note_use();
        let (inode, length) = (&file.inode, data.len() as u64);
        let accepted = self.write(inode, &file.client, position, data)?;
        let mut completion = WriteCompletion { flight: accepted.flight, ..WriteCompletion::default() };
        let range = position.kernel_offset()..position.kernel_offset() + length;
        match kind {
            WriteKind::Direct => match inode.note_direct_write() {
                PageInvalidation::None => {}
                PageInvalidation::Range => completion.range = Some(range),
                PageInvalidation::All(update) => {
                    self.apply_update(inode, update);
                    completion.all = true;
                }
            },
            WriteKind::WriteThrough { tid } => completion.stale = inode.note_page_write(range, tid),
            WriteKind::WriteBack => inode.note_page_write_back(),
        }
        if accepted.relocated {
            // The pages contain the data at the wrong offset. They are locked until the reply.
            self.apply_update(inode, inode.invalidate_pages());
            if let Some(invalidator) = self.invalidator.get() {
                invalidator.invalidate_attributes(inode.number);
            }
        }
        let is_done = !self.write_through && completion == WriteCompletion::default();
        Ok((!is_done).then_some(completion))
    }

    /// Accepts write data after memory was exhausted, or appends when the size is outdated, and waits as in
    /// [`Self::complete_write`].
    pub(crate) async fn write_deferred(
        self: &Arc<Self>,
        file: &OpenFile,
        position: WritePosition,
        data: &[u8],
        kind: WriteKind,
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
            match self.accept_write(file, (position, &mut WriteData::Borrowed(data)), kind) {
                Err(Errno::NOMEM) => self.commit_all().await,
                Err(e) => return Err(e),
                Ok(completion) => return self.complete_write(file, completion.unwrap_or_default()).await,
            }
        }
        Err(Errno::NOMEM)
    }

    /// Waits until the reply to an accepted write may be sent.
    pub(crate) async fn complete_write(
        self: &Arc<Self>,
        file: &OpenFile,
        completion: WriteCompletion,
    ) -> Result<(), Errno> {
        if let Some(invalidator) = self.invalidator.get() {
            if let Some(part) = completion.range {
                invalidator.invalidate_range(&file.inode, part).await;
            }
            if !completion.stale.is_empty() {
                let dropped = invalidator.drop_stale(&self.rt, &file.inode, completion.stale);
                if millrace_runtime::timeout(&*self.rt, PAGE_DROP_TIMEOUT, dropped).await.is_none() {
                    self.page_drop_timeouts.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(file = file.inode.number, "pages were not dropped before the reply");
                }
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

    /// Makes all written data stable, or returns the error.
    pub(crate) async fn fsync(self: &Arc<Self>, file: &OpenFile) -> Result<(), Errno> {
        let committed = self.commit(&file.inode).await;
        file.take_write_error()?; // A failure of this commit or an earlier one.
        committed
    }

    /// Handles the close of one of its descriptors. Also a child process that executes a program closes its copy of a
    /// descriptor, and ignores the error, so fsync reports it again (as in Linux, `nfs_file_flush`).
    pub(crate) async fn flush(self: &Arc<Self>, file: &OpenFile) -> Result<(), Errno> {
        file.note_use();
        if !file.writable {
            return Ok(());
        }
        let committed = self.commit(&file.inode).await;
        file.write_error()?; // A failure of this commit or an earlier one.
        committed
    }

    /// Handles the last close of the description.
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
            inode.locks.release_if_unused();
            self.remove_silly_name(&file.client, inode).await;
            self.inodes.remove_if_unused(inode.number);
        }
    }

    /// Sets attributes after committing earlier writes. Otherwise data lost by a restarted server would be
    /// resent afterwards, beyond the new end, changing the mtime and clearing set-ID bits. If the commit
    /// fails, a size change fails too; other attributes are set, and fsync and close report the failure.
    pub(crate) async fn setattr(
        self: &Arc<Self>,
        client: &Client,
        number: u64,
        set: SetAttributes,
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
