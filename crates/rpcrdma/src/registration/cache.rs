//! Buffers that stay registered, by size class, with one copy between them and the caller's memory.

use std::sync::{Arc, atomic::Ordering};

use millrace_buffer::{Arena, SPAN_BYTES};
use millrace_rdma::{Access, DomainRef, ExposeError, ExposedRegion, Memory, MemoryRegion, Segment, Segments};
use millrace_runtime::RuntimeRef;
use parking_lot::Mutex;

use super::{Counts, Lending, Lent, Registered, Settings, pressure::Marks};

/// The smallest size class.
const SMALLEST: usize = 4096;
const CLASSES: usize = (SPAN_BYTES / SMALLEST).trailing_zeros() as usize + 1;

/// A buffer of a size class that stays exposed, and whose memory it stands in for, if any.
pub(crate) struct Kept {
    region: ExposedRegion,
    _registered: Registered,
    counts: Arc<Counts>,
    bytes: usize,
    /// What the peer is told of it.
    told: Segments,
    caller: Option<(Memory, Access)>,
}

impl Kept {
    fn new(region: ExposedRegion, bytes: usize, counts: &Arc<Counts>) -> Self {
        counts.kept_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let (registered, told) = (Registered::new(counts, bytes), Segments::new());
        Self { region, _registered: registered, counts: Arc::clone(counts), bytes, told, caller: None }
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.told
    }

    /// Tells the peer of the first `len` bytes.
    fn tell(&mut self, len: usize) {
        let mut left = len;
        self.told.clear();
        for segment in self.region.segments() {
            let length = left.min(segment.length as usize);
            self.told.push(Segment { length: length as u32, ..*segment });
            left -= length;
            if left == 0 {
                break;
            }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.counts.kept_bytes.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

/// Free buffers of one right by size class, the one that was used last at the end.
#[allow(clippy::vec_box)] // The box goes from here to the call and comes back, without the heap.
type Slab = [Vec<Box<Kept>>; CLASSES];

/// [`super::Strategy::Cache`] on one connection. Buffers are found by their size and never by an address, so that memory
/// that was given back and mapped again cannot be taken for what it was.
pub(super) struct Cache {
    domain: DomainRef,
    arena: Arena,
    counts: Arc<Counts>,
    slabs: [Mutex<Slab>; 2],
    marks: Marks,
}

fn class_of(len: usize) -> usize {
    (len.max(SMALLEST).next_power_of_two() / SMALLEST).trailing_zeros() as usize
}

fn class_bytes(class: usize) -> usize {
    SMALLEST << class
}

impl Cache {
    pub(super) fn new(
        domain: DomainRef,
        arena: Arena,
        rt: RuntimeRef,
        counts: Arc<Counts>,
        settings: &Settings,
    ) -> Self {
        Self { domain, arena, counts, slabs: Default::default(), marks: Marks::new(settings, rt) }
    }

    fn slab(&self, access: Access) -> &Mutex<Slab> {
        &self.slabs[usize::from(access == Access::RemoteWrite)]
    }

    fn kept_bytes(&self) -> usize {
        self.counts.kept_bytes.load(Ordering::Relaxed) as usize
    }

    /// A buffer for `len` bytes: a free one, or a new one.
    fn take(&self, len: usize, access: Access) -> Result<Box<Kept>, &'static str> {
        let class = class_of(len);
        if let Some(kept) = self.slab(access).lock().get_mut(class).and_then(Vec::pop) {
            self.counts.hit();
            return Ok(kept);
        }
        let bytes = class_bytes(class);
        let mut buffer = self.arena.alloc(bytes).map_err(|_| "no memory for a buffer that is kept")?;
        if access == Access::RemoteRead {
            buffer.fill(0); // An arena gives memory as its last owner left it.
        }
        let region = MemoryRegion::new(Arc::clone(&self.domain), Memory::Owned(buffer)).expose(access);
        let region = region.map_err(|e| e.reason)?;
        Ok(Box::new(Kept::new(region, bytes, &self.counts)))
    }

    /// Keeps a buffer for the next call, unless the peer has invalidated its tag or too much is kept.
    fn keep(&self, kept: Box<Kept>, access: Access) {
        if !self.marks.allow(self.kept_bytes()) {
            self.counts.fell_back();
        } else if kept.region.is_valid()
            && let Some(free) = self.slab(access).lock().get_mut(class_of(kept.bytes))
        {
            free.push(kept);
        }
        if let Some(keep) = self.marks.excess(self.kept_bytes()) {
            self.reclaim(keep);
        }
    }

    /// Lets go of free buffers, the largest first, until no more than `keep` bytes are kept or none is free here.
    fn reclaim(&self, keep: usize) {
        for slab in &self.slabs {
            for free in slab.lock().iter_mut().rev() {
                while self.kept_bytes() > keep && free.pop().is_some() {
                    self.counts.reclaimed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Lending for Cache {
    fn lend(&self, memory: Memory, access: Access) -> Result<Lent, ExposeError> {
        let memory = match memory {
            Memory::Owned(b) if access == Access::RemoteRead => Memory::Shared(b.freeze().into()),
            other => other,
        };
        let mut kept = match self.take(memory.len(), access) {
            Ok(kept) => kept,
            Err(reason) => return Err(ExposeError { memory, reason }),
        };
        if let Memory::Shared(data) = &memory
            && !kept.region.copy_in(data)
        {
            let reason = "the provider does not copy into exposed memory, or the connection is down";
            return Err(ExposeError { memory, reason });
        }
        kept.tell(memory.len());
        kept.caller = Some((memory, access));
        Ok(Lent::StandIn(kept))
    }

    fn take_back(&self, lent: Lent, placed: usize) -> Option<Memory> {
        let Lent::StandIn(mut kept) = lent else { return None };
        let (mut memory, access) = kept.caller.take()?;
        let copied = match &mut memory {
            Memory::Owned(b) => b.get_mut(..placed).is_some_and(|to| kept.region.copy_out(to)),
            Memory::Shared(_) => true,
        };
        self.keep(kept, access);
        copied.then_some(memory)
    }
}
