//! Regions: owned, and exposed.

use std::fmt;

use millrace_buffer::{Buffer, Views};

use crate::{DomainRef, ExposeError, Exposure, Means};

/// A steering tag (STag, R_key, handle): 24 bits of index that cannot be guessed and 8 bits of key that change at
/// each registration (RFC 5040 section 1.3, RFC 5042 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SteeringTag(pub u32);

impl fmt::Debug for SteeringTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "STag({:#010x})", self.0)
    }
}

/// What a peer needs to reach exposed memory (RFC 8166 section 3.4.2: a plain RDMA segment).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The steering tag.
    pub handle: SteeringTag,
    /// Bytes.
    pub length: u32,
    /// Tagged offset of the first byte.
    pub offset: u64,
}

/// What a peer may do with exposed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The peer may RDMA Read it.
    RemoteRead,
    /// The peer may RDMA Write it.
    RemoteWrite,
}

/// Memory given to a domain.
#[derive(Debug)]
pub enum Memory {
    /// Exclusively ours: may be exposed for reading or writing.
    Owned(Buffer),
    /// Shared and read-only: may be exposed for reading only.
    Shared(Views),
}

impl Memory {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(b) => b.len(),
            Self::Shared(v) => v.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `to.len()` bytes from its start to `to`, for an implementation of [`crate::Domain::copy_out`]. Returns
    /// `false`, without copying, if there are fewer. The copy is counted.
    pub fn copy_out(&self, to: &mut [u8]) -> bool {
        match self {
            Self::Owned(b) if to.len() <= b.len() => millrace_buffer::copy(to, &b[..to.len()]),
            Self::Shared(v) if to.len() <= v.len() => v.slice(0, to.len()).copy_to(to),
            _ => return false,
        }
        true
    }

    /// Copies `from` to its start, for an implementation of [`crate::Domain::copy_in`]. Returns `false`, without copying,
    /// if `from` is longer or the memory is shared. The copy is counted.
    pub fn copy_in(&mut self, from: &Views) -> bool {
        match self {
            Self::Owned(b) if from.len() <= b.len() => from.copy_to(b),
            _ => return false,
        }
        true
    }
}

/// Memory registered in a connection's domain, *owned* by whoever holds it; no peer can reach it.
pub struct MemoryRegion {
    memory: Memory,
    domain: DomainRef,
}

impl MemoryRegion {
    /// Registers `memory` with `domain`.
    pub fn new(domain: DomainRef, memory: Memory) -> Self {
        Self { memory, domain }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Deregisters.
    pub fn into_memory(self) -> Memory {
        self.memory
    }

    /// Lets the peer reach the whole region with the right `access`, and nothing else of this process, by a
    /// registration of its own.
    ///
    /// # Errors
    /// As [`crate::Domain::expose`].
    pub fn expose(self, access: Access) -> Result<ExposedRegion, ExposeError> {
        self.expose_by(Means::Registration, access)
    }

    /// Lets the peer reach the whole region with the right `access`.
    ///
    /// # Errors
    /// As [`crate::Domain::expose`].
    pub fn expose_by(self, by: Means, access: Access) -> Result<ExposedRegion, ExposeError> {
        let exposure = self.domain.expose(by, self.memory, access)?;
        Ok(ExposedRegion { exposure, domain: Some(self.domain) })
    }
}

/// A region that the peer can reach. Nothing of this process can read, reuse or free its memory until it is revoked;
/// dropping it revokes it.
pub struct ExposedRegion {
    exposure: Exposure,
    domain: Option<DomainRef>,
}

impl ExposedRegion {
    /// What the peer needs to reach it, in the order of its bytes.
    pub fn segments(&self) -> &[Segment] {
        &self.exposure.segments
    }

    /// The first of [`Self::segments`]: of a region in one segment, all that the peer needs.
    pub fn segment(&self) -> Segment {
        let none = Segment { handle: SteeringTag(0), length: 0, offset: 0 };
        self.exposure.segments.first().copied().unwrap_or(none)
    }

    /// Whether the peer can still reach it (it may have invalidated the tag by Send with Invalidate).
    pub fn is_valid(&self) -> bool {
        self.domain.as_ref().is_some_and(|d| d.is_valid(self.exposure.id))
    }

    /// Makes the peer unable to reach it and gives the region back; `None` only if the connection is gone and its
    /// provider released the memory with it.
    pub fn revoke(mut self) -> Option<MemoryRegion> {
        let domain = self.domain.take()?;
        let memory = domain.revoke(self.exposure.id)?;
        Some(MemoryRegion { memory, domain })
    }

    /// As [`Self::revoke`], but a peer that may write through a window can go on doing so until the domain's
    /// [`crate::Domain::invalidate_released`].
    pub fn release(mut self) -> Option<MemoryRegion> {
        let domain = self.domain.take()?;
        let memory = domain.release(self.exposure.id)?;
        Some(MemoryRegion { memory, domain })
    }

    /// Copies bytes from its start, while the peer can reach it; `false` if there are not as many or the provider
    /// cannot.
    pub fn copy_out(&self, to: &mut [u8]) -> bool {
        self.domain.as_ref().is_some_and(|d| d.copy_out(self.exposure.id, to))
    }

    /// Copies `from` to its start, while the peer can reach it; `false` if it does not fit or the provider cannot.
    pub fn copy_in(&self, from: &Views) -> bool {
        self.domain.as_ref().is_some_and(|d| d.copy_in(self.exposure.id, from))
    }
}

impl Drop for ExposedRegion {
    fn drop(&mut self) {
        if let Some(d) = self.domain.take() {
            drop(d.revoke(self.exposure.id));
        }
    }
}
