//! Registered bounce buffers by size class, with one copy between them and the caller's memory.

use std::sync::{Arc, atomic::Ordering};

use crate::{Access, DomainRef, ExposeError, ExposedRegion, Memory, MemoryRegion, Segment, Segments};
use millrace_buffer::{Arena, SPAN_BYTES};
use millrace_runtime::{RuntimeRef, sync::Mutex};

use super::{
    Counts, Registered, RegisteredMemory, Registrar, RegistrationCount, Settings, pressure::Watermarks,
};

/// The smallest size class in bytes.
const SMALLEST: usize = 4096;
const CLASSES: usize = (SPAN_BYTES / SMALLEST).trailing_zeros() as usize + 1;

/// An exposed buffer of a size class, and the caller's memory that it replaces, if it is in use.
pub(crate) struct BounceBuffer {
    region: ExposedRegion,
    _registered: RegistrationCount,
    counts: Arc<Counts>,
    bytes: usize,
    /// The segments that the peer receives.
    advertised: Segments,
    caller: Option<(Memory, Access)>,
}

impl BounceBuffer {
    fn new(region: ExposedRegion, bytes: usize, counts: &Arc<Counts>) -> Self {
        counts.kept_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let (registered, advertised) = (RegistrationCount::new(counts, bytes), Segments::new());
        Self { region, _registered: registered, counts: Arc::clone(counts), bytes, advertised, caller: None }
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.advertised
    }

    /// Sets the segments to those of the first `len` bytes.
    fn advertise(&mut self, len: usize) {
        let mut left = len;
        self.advertised.clear();
        for segment in self.region.segments() {
            let length = left.min(segment.length as usize);
            self.advertised.push(Segment { length: length as u32, ..*segment });
            left -= length;
            if left == 0 {
                break;
            }
        }
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        self.counts.kept_bytes.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

/// Free buffers of one access right by size class, the most recently used last.
#[allow(clippy::vec_box)] // The box moves to the call and back without an allocation.
type Slab = [Vec<Box<BounceBuffer>>; CLASSES];

/// [`super::Strategy::Cache`] on one connection. Buffers are found by size and never by address, so memory
/// that was freed and mapped again cannot be confused with its predecessor.
pub(super) struct Cache {
    domain: DomainRef,
    arena: Arena,
    counts: Arc<Counts>,
    slabs: [Mutex<Slab>; 2],
    watermarks: Watermarks,
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
        Self { domain, arena, counts, slabs: Default::default(), watermarks: Watermarks::new(settings, rt) }
    }

    fn slab(&self, access: Access) -> &Mutex<Slab> {
        &self.slabs[usize::from(access == Access::RemoteWrite)]
    }

    fn kept_bytes(&self) -> usize {
        self.counts.kept_bytes.load(Ordering::Relaxed) as usize
    }

    /// Takes a free buffer for `len` bytes, or creates one.
    fn take(&self, len: usize, access: Access) -> Result<Box<BounceBuffer>, &'static str> {
        let class = class_of(len);
        if let Some(buffer) = self.slab(access).lock().get_mut(class).and_then(Vec::pop) {
            self.counts.hit();
            return Ok(buffer);
        }
        let bytes = class_bytes(class);
        let mut buffer = self.arena.alloc(bytes).map_err(|_| "no memory for a bounce buffer")?;
        if access == Access::RemoteRead {
            buffer.fill(0); // Memory of the arena contains the data of its previous owner.
        }
        let region = MemoryRegion::new(Arc::clone(&self.domain), Memory::Owned(buffer)).expose(access);
        let region = region.map_err(|e| e.reason)?;
        Ok(Box::new(BounceBuffer::new(region, bytes, &self.counts)))
    }

    /// Caches a buffer for the next call, unless the peer invalidated its tag or the limit is reached.
    fn keep(&self, buffer: Box<BounceBuffer>, access: Access) {
        if !self.watermarks.allows(self.kept_bytes()) {
            self.counts.fell_back();
        } else if buffer.region.is_valid()
            && let Some(free) = self.slab(access).lock().get_mut(class_of(buffer.bytes))
        {
            free.push(buffer);
        }
        if let Some(keep) = self.watermarks.excess(self.kept_bytes()) {
            self.reclaim(keep);
        }
    }

    /// Releases free buffers, the largest first, until at most `target` bytes are cached or no buffer is
    /// free.
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

impl Registrar for Cache {
    fn map(&self, memory: Memory, access: Access) -> Result<RegisteredMemory, ExposeError> {
        let memory = match memory {
            Memory::Owned(b) if access == Access::RemoteRead => Memory::Shared(b.freeze().into()),
            other => other,
        };
        let mut buffer = match self.take(memory.len(), access) {
            Ok(buffer) => buffer,
            Err(reason) => return Err(ExposeError { memory, reason }),
        };
        if let Memory::Shared(data) = &memory
            && !buffer.region.copy_in(data)
        {
            let reason = "the provider does not copy into exposed memory, or the connection is down";
            return Err(ExposeError { memory, reason });
        }
        buffer.advertise(memory.len());
        buffer.caller = Some((memory, access));
        Ok(RegisteredMemory(Registered::Bounce(buffer)))
    }

    fn unmap(&self, mapped: RegisteredMemory, placed: usize) -> Option<Memory> {
        let RegisteredMemory(Registered::Bounce(mut buffer)) = mapped else { return None };
        let (mut memory, access) = buffer.caller.take()?;
        let copied = match &mut memory {
            Memory::Owned(b) => b.get_mut(..placed).is_some_and(|to| buffer.region.copy_out(to)),
            Memory::Shared(_) => true,
        };
        self.keep(buffer, access);
        copied.then_some(memory)
    }
}
