//! The send queue: waiting and posted work, and its memory.

#![allow(unsafe_code)] // Posts memory that this module owns.

use std::{collections::VecDeque, io};

use millrace_buffer::{Buffer, View, Views};
use millrace_rdma::{Completion, ReadRequest, WorkId};
use slab::Slab;

use super::{
    adapter::{Protection, Registration},
    ffi::verbs::*,
    hardware::{Hardware, Sizes},
    local::Local,
    request::{Batch, Binding, remote, request},
};

/// Work that is posted in order.
pub(super) enum Work {
    Send {
        data: Views,
        invalidate: Option<u32>,
        solicited: bool,
        signaled: Option<WorkId>,
    },
    /// A Write from piece `at` on; `offset` is that of the first unposted byte.
    Write {
        data: Views,
        at: usize,
        rkey: u32,
        offset: u64,
    },
    Bind(Binding),
}

/// A Read that waits or is partly posted.
struct Read {
    id: WorkId,
    sink: Vec<Buffer>,
    rkey: u32,
    offset: u64,
    /// Index of the first unposted buffer.
    at: usize,
    /// Number of its work requests in flight.
    in_flight: usize,
}

/// The memory that a posted work request keeps, and its completion.
enum Held {
    Nothing,
    Data(#[allow(dead_code)] Views), // Kept until the completion, and dropped then.
    Signaled(#[allow(dead_code)] Views, WorkId),
    /// A part of the Read `key`, with the registration of its sink if the sink needs a separate one.
    Read {
        key: usize,
        completed: bool,
        sink: Option<Registration>,
    },
}

/// The work of the send queue and its memory.
pub(super) struct Sends {
    sizes: Sizes,
    /// On iWARP devices, sinks of Reads require remote write access.
    iwarp: bool,
    ord: usize,
    waiting: VecDeque<Work>,
    reads: Slab<Read>,
    /// Keys of `reads` that are not completely posted.
    reads_waiting: VecDeque<usize>,
    reads_in_flight: usize,
    /// The posted work requests, in order; the id of a work request is its position, counted from the start
    /// of the connection.
    posted: VecDeque<Held>,
    first: u64,
    /// All work requests before this one have completed, except Reads: those of an iWARP device may complete
    /// later.
    covered: u64,
    /// Number of signaled Sends without completion.
    awaited: usize,
    batch: Batch,
}

// SAFETY: the pointers in bind requests refer to objects of libibverbs, which may be used from any thread.
unsafe impl Send for Sends {}

impl Sends {
    pub(super) fn new(sizes: Sizes, iwarp: bool) -> Self {
        Self {
            sizes,
            iwarp,
            ord: 0,
            waiting: VecDeque::new(),
            reads: Slab::new(),
            reads_waiting: VecDeque::new(),
            reads_in_flight: 0,
            posted: VecDeque::new(),
            first: 0,
            covered: 0,
            awaited: 0,
            batch: Batch::default(),
        }
    }

    /// Sets the maximum number of Reads in flight.
    pub(super) fn set_ord(&mut self, ord: u16) {
        self.ord = ord.into();
    }

    pub(super) fn push(&mut self, work: Work) {
        self.awaited += usize::from(matches!(work, Work::Send { signaled: Some(_), .. }));
        self.waiting.push_back(work);
    }

    pub(super) fn push_read(&mut self, read: ReadRequest) {
        let (rkey, offset) = (read.from.handle.0, read.from.offset);
        let key = self.reads.insert(Read { id: read.id, sink: read.sink, rkey, offset, at: 0, in_flight: 0 });
        self.reads_waiting.push_back(key);
    }

    /// Removes a bind request that was not posted. False if it was posted.
    pub(super) fn cancel_binding(&mut self, rkey: u32) -> bool {
        let found = self.waiting.iter().rposition(|w| matches!(w, Work::Bind(b) if b.rkey == rkey));
        found.and_then(|i| self.waiting.remove(i)).is_some()
    }

    /// Whether no work waits or is posted.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.reads.is_empty() && self.posted.is_empty()
    }

    /// Whether a completion is awaited: of work that does not fit into the queue, Reads, and signaled Sends.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty() || !self.reads.is_empty() || self.awaited > 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.posted.len() >= self.sizes.send
    }

    /// Whether the work request `seq` has completed.
    pub(super) fn is_completed(&self, seq: u64) -> bool {
        self.covered > seq
    }

    /// Posts as much work as the adapter's queue can hold, in one call. The last request is always signaled,
    /// so that all posted work completes without a signal for each request.
    pub(super) fn post(
        &mut self,
        hardware: &mut Hardware,
        protection: &Protection,
        local: &Local,
    ) -> io::Result<()> {
        self.batch.requests.clear();
        self.batch.pieces.clear();
        while !self.is_full() {
            let built = self.next_read(protection, local)? || self.next_work(protection, local)?;
            if !built {
                break;
            }
        }
        self.submit(hardware)
    }

    /// Posts the invalidation of a local tag before waiting work, and returns its position. The queue must
    /// not be full.
    pub(super) fn post_invalidation(&mut self, hardware: &mut Hardware, rkey: u32) -> io::Result<u64> {
        self.batch.requests.clear();
        self.batch.pieces.clear();
        let wr = ibv_send_wr { invalidate_rkey: rkey, ..request(IBV_WR_LOCAL_INV, 0) };
        let seq = self.build(wr, Held::Nothing);
        self.submit(hardware)?;
        Ok(seq)
    }

    fn submit(&mut self, hardware: &mut Hardware) -> io::Result<()> {
        let Some(last) = self.batch.requests.last_mut() else { return Ok(()) };
        last.send_flags |= IBV_SEND_SIGNALED;
        let first = self.batch.link();
        // SAFETY: a linked list of valid requests. `posted` and `reads` keep their memory until their
        // completion; `Queues` drops the hardware first.
        let posted = unsafe { hardware.post_send(first) };
        for (mw, rkey) in self.batch.bound.drain(..) {
            // SAFETY: the owner of the bind request keeps the window as long as the queues. The next work
            // request for the window must contain the tag of this one; the library leaves this update to the
            // caller.
            unsafe { (*mw).rkey = rkey };
        }
        posted
    }

    /// Adds a work request whose pieces are in the batch.
    fn build(&mut self, mut wr: ibv_send_wr, held: Held) -> u64 {
        let seq = self.first + self.posted.len() as u64;
        wr.wr_id = seq;
        self.batch.requests.push(wr);
        self.posted.push_back(held);
        seq
    }

    /// Adds pieces to the batch, and returns their number.
    fn pieces<'a>(
        &mut self,
        views: impl Iterator<Item = &'a View>,
        (protection, local): (&Protection, &Local),
        inline: bool,
    ) -> io::Result<usize> {
        let before = self.batch.pieces.len();
        for v in views.filter(|v| !v.is_empty()) {
            // Inline data needs no registration.
            let lkey = if inline { 0 } else { local.lkey(protection, v.span(), v.address(), v.len())? };
            self.batch.pieces.push(ibv_sge { addr: v.address() as u64, length: v.len() as u32, lkey });
        }
        Ok(self.batch.pieces.len() - before)
    }

    /// Builds the next Read, if the ORD permits. Returns whether one was built.
    fn next_read(&mut self, protection: &Protection, local: &Local) -> io::Result<bool> {
        let Some(&key) = self.reads_waiting.front() else { return Ok(false) };
        if self.reads_in_flight >= self.ord {
            return Ok(false);
        }
        let Some(read) = self.reads.get_mut(key) else { return Ok(false) };
        let (offset, rkey) = (read.offset, read.rkey);
        let (mut registration, mut pieces, mut bytes) = (None, 0, 0);
        while pieces < self.sizes.read_pieces
            && let Some(b) = read.sink.get(read.at)
        {
            read.at += 1;
            if b.is_empty() {
                continue;
            }
            let lkey = if self.iwarp {
                let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
                // SAFETY: the sink is an exclusively owned buffer; it stays in `reads` until the Read has
                // completed, and the registration is dropped before it.
                let own = unsafe { protection.register(b.address(), b.len(), access) }?;
                registration.insert(own).lkey()
            } else {
                local.lkey(protection, b.span(), b.address(), b.len())?
            };
            self.batch.pieces.push(ibv_sge { addr: b.address() as u64, length: b.len() as u32, lkey });
            (pieces, bytes) = (pieces + 1, bytes + b.len());
        }
        read.offset += bytes as u64;
        read.in_flight += 1;
        if read.sink[read.at..].iter().all(|b| b.is_empty()) {
            self.reads_waiting.pop_front();
        }
        self.reads_in_flight += 1;
        let mut wr = request(IBV_WR_RDMA_READ, pieces);
        wr.wr = remote(offset, rkey);
        wr.send_flags = IBV_SEND_SIGNALED;
        self.build(wr, Held::Read { key, completed: false, sink: registration });
        Ok(true)
    }

    /// Builds the next Send, Write or bind request. Returns whether there was one.
    fn next_work(&mut self, protection: &Protection, local: &Local) -> io::Result<bool> {
        match self.waiting.pop_front() {
            None => return Ok(false),
            Some(Work::Send { data, invalidate, solicited, signaled }) => {
                // Linux's siw ends the connection at a Send with Invalidate with inline data.
                let may_inline = !(self.iwarp && invalidate.is_some());
                let inline = may_inline && data.len() <= self.sizes.inline;
                let pieces = self.pieces(data.iter(), (protection, local), inline)?;
                let mut wr = match invalidate {
                    Some(rkey) => {
                        // The user space driver of Linux's siw reads the tag from the field of a Write.
                        let (invalidate_rkey, wr) = (rkey, remote(0, rkey));
                        ibv_send_wr { invalidate_rkey, wr, ..request(IBV_WR_SEND_WITH_INV, pieces) }
                    }
                    None => request(IBV_WR_SEND, pieces),
                };
                wr.send_flags |= if inline && pieces > 0 { IBV_SEND_INLINE } else { 0 };
                wr.send_flags |= if solicited { IBV_SEND_SOLICITED } else { 0 };
                wr.send_flags |= if signaled.is_some() { IBV_SEND_SIGNALED } else { 0 };
                let held = match signaled {
                    Some(id) => Held::Signaled(data, id),
                    None => Held::Data(data),
                };
                self.build(wr, held);
            }
            Some(Work::Write { data, at, rkey, offset }) => {
                let n = self.sizes.pieces.min(data.iter().len() - at);
                let part = || data.iter().skip(at).take(n);
                let bytes: usize = part().map(|v| v.len()).sum();
                let inline = bytes <= self.sizes.inline;
                let pieces = self.pieces(part(), (protection, local), inline)?;
                let mut wr = request(IBV_WR_RDMA_WRITE, pieces);
                wr.wr = remote(offset, rkey);
                wr.send_flags |= if inline { IBV_SEND_INLINE } else { 0 };
                // The last part keeps the data of all parts: they complete in order.
                if at + n < data.iter().len() {
                    self.waiting.push_front(Work::Write {
                        data,
                        at: at + n,
                        rkey,
                        offset: offset + bytes as u64,
                    });
                    self.build(wr, Held::Nothing);
                } else {
                    self.build(wr, Held::Data(data));
                }
            }
            Some(Work::Bind(b)) => {
                self.batch.bound.push((b.mw, b.rkey));
                let mut wr = request(IBV_WR_BIND_MW, 0);
                wr.bind_mw = ibv_send_wr_bind_mw {
                    mw: b.mw,
                    rkey: b.rkey,
                    bind_info: ibv_mw_bind_info {
                        mr: b.mr,
                        addr: b.addr as u64,
                        length: b.len as u64,
                        mw_access_flags: b.access,
                    },
                };
                self.build(wr, Held::Nothing);
            }
        }
        Ok(true)
    }

    /// Completes the work request `wr_id` and all before it, except Reads.
    pub(super) fn complete(&mut self, wr_id: u64, done: &mut Vec<Completion>) {
        let Some(at) = wr_id.checked_sub(self.first).and_then(|n| usize::try_from(n).ok()) else { return };
        match self.posted.get_mut(at) {
            Some(Held::Read { completed, .. }) => *completed = true,
            Some(_) => self.covered = self.covered.max(wr_id + 1),
            None => return,
        }
        while let Some(held) = self.posted.front() {
            match held {
                Held::Read { completed, .. } if *completed => {}
                Held::Read { .. } => break,
                _ if self.first < self.covered => {}
                _ => break,
            }
            self.first += 1;
            match self.posted.pop_front() {
                Some(Held::Signaled(_, id)) => {
                    self.awaited -= 1;
                    done.push(Completion::Sent(id));
                }
                Some(Held::Read { key, sink, .. }) => {
                    drop(sink); // Ends the peer's access.
                    self.complete_read(key, done);
                }
                _ => {}
            }
        }
        self.covered = self.covered.max(self.first);
    }

    /// Completes a part of a Read.
    fn complete_read(&mut self, key: usize, done: &mut Vec<Completion>) {
        self.reads_in_flight -= 1;
        let Some(read) = self.reads.get_mut(key) else { return };
        read.in_flight -= 1;
        if read.in_flight == 0 && !self.reads_waiting.contains(&key) {
            let read = self.reads.remove(key);
            done.push(Completion::Read { id: read.id, sink: read.sink });
        }
    }
}
