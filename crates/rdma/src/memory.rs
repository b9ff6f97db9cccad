//! Owned and exposed memory regions.

use std::fmt;

use millrace_buffer::{Buffer, Views};

use crate::{DomainRef, ExposeError, Exposure, RegistrationKind};

/// A steering tag (STag, rkey, handle): 24 bits of index, which are unpredictable, and 8 bits of key, which
/// change at each registration (RFC 5040 section 1.3, RFC 5042 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SteeringTag(pub u32);

impl fmt::Debug for SteeringTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "STag({:#010x})", self.0)
    }
}

/// A plain RDMA segment: names exposed memory to the peer (RFC 8166 section 3.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The steering tag.
    pub handle: SteeringTag,
    /// Length in bytes.
    pub length: u32,
    /// Tagged offset of the first byte.
    pub offset: u64,
}

/// The peer's right of access to exposed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// RDMA Read.
    RemoteRead,
    /// RDMA Write.
    RemoteWrite,
}

/// Memory for a domain.
#[derive(Debug)]
pub enum Memory {
    /// Exclusively owned; may be exposed for reading or writing.
    Owned(Buffer),
    /// Shared and read-only; may be exposed for reading only.
    Shared(Views),
}

impl Memory {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(b) => b.len(),
            Self::Shared(v) => v.len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the first `to.len()` bytes to `to`, for implementations of [`crate::Domain::copy_out`]. Returns
    /// `false`, without copying, if the memory is shorter. The copy is counted.
    pub fn copy_out(&self, to: &mut [u8]) -> bool {
        match self {
            Self::Owned(b) if to.len() <= b.len() => millrace_buffer::copy(to, &b[..to.len()]),
            Self::Shared(v) if to.len() <= v.len() => v.slice(0, to.len()).copy_to(to),
            _ => return false,
        }
        true
    }

    /// Copies `from` to the start of the memory, for implementations of [`crate::Domain::copy_in`]. Returns
    /// `false`, without copying, if `from` is longer or the memory is shared. The copy is counted.
    pub fn copy_in(&mut self, from: &Views) -> bool {
        match self {
            Self::Owned(b) if from.len() <= b.len() => from.copy_to(b),
            _ => return false,
        }
        true
    }
}

/// Owned memory together with the domain in which it can be exposed. The peer has no access to it.
pub struct MemoryRegion {
    memory: Memory,
    domain: DomainRef,
}

impl MemoryRegion {
    /// Combines `memory` with `domain`; the memory is not yet registered.
    pub fn new(domain: DomainRef, memory: Memory) -> Self {
        Self { memory, domain }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the memory.
    pub fn into_memory(self) -> Memory {
        self.memory
    }

    /// Grants the peer the right `access` to the whole region by [`RegistrationKind::Region`].
    ///
    /// # Errors
    /// Those of [`crate::Domain::expose`].
    pub fn expose(self, access: Access) -> Result<ExposedRegion, ExposeError> {
        self.expose_by(RegistrationKind::Region, access)
    }

    /// Grants the peer the right `access` to the whole region by the given kind of registration.
    ///
    /// # Errors
    /// Those of [`crate::Domain::expose`].
    pub fn expose_by(self, by: RegistrationKind, access: Access) -> Result<ExposedRegion, ExposeError> {
        let exposure = self.domain.expose(by, self.memory, access)?;
        Ok(ExposedRegion { exposure, domain: Some(self.domain) })
    }
}

/// A region that the peer can access. No code of this process can read, reuse or free its memory until it is
/// revoked. Dropping it revokes it.
pub struct ExposedRegion {
    exposure: Exposure,
    domain: Option<DomainRef>,
}

impl ExposedRegion {
    /// Segments to send to the peer, in the order of the region's bytes.
    pub fn segments(&self) -> &[Segment] {
        &self.exposure.segments
    }

    /// The first of [`Self::segments`]; sufficient for a region with one segment.
    pub fn segment(&self) -> Segment {
        let none = Segment { handle: SteeringTag(0), length: 0, offset: 0 };
        self.exposure.segments.first().copied().unwrap_or(none)
    }

    /// Whether the peer still has access (it may have invalidated the tag by Send with Invalidate).
    pub fn is_valid(&self) -> bool {
        self.domain.as_ref().is_some_and(|d| d.is_valid(self.exposure.id))
    }

    /// Ends the peer's access and returns the region; `None` only if the connection has ended and its
    /// provider released the memory.
    pub fn revoke(mut self) -> Option<MemoryRegion> {
        let domain = self.domain.take()?;
        let memory = domain.revoke(self.exposure.id)?;
        Some(MemoryRegion { memory, domain })
    }

    /// Returns the region like [`Self::revoke`], but leaves a window with [`Access::RemoteWrite`] bound until
    /// [`crate::Domain::invalidate_released`]; see [`crate::Domain::release`].
    pub fn release(mut self) -> Option<MemoryRegion> {
        let domain = self.domain.take()?;
        let memory = domain.release(self.exposure.id)?;
        Some(MemoryRegion { memory, domain })
    }

    /// Copies the first `to.len()` bytes to `to` while the region is exposed. Returns `false` if the region
    /// is shorter or the provider cannot copy.
    pub fn copy_out(&self, to: &mut [u8]) -> bool {
        self.domain.as_ref().is_some_and(|d| d.copy_out(self.exposure.id, to))
    }

    /// Copies `from` to the start of the region while it is exposed. Returns `false` if `from` is longer or
    /// the provider cannot copy.
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
