//! Regions: owned, and exposed.

use std::{fmt, sync::Arc};

use buffer::{Buffer, Views};

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
}

/// Why memory could not be exposed. The memory comes back.
#[derive(Debug, thiserror::Error)]
#[error("cannot expose {} bytes: {reason}", memory.len())]
pub struct ExposeError {
    /// The memory.
    pub memory: Memory,
    /// Why.
    pub reason: &'static str,
}

/// The protection domain of one connection: the table of its steering tags.
pub trait Domain: Send + Sync + 'static {
    /// Gives `memory` a fresh steering tag with the right `access`. From now on the peer can reach it.
    ///
    /// # Errors
    /// When there are no tags left, the domain is closed, shared memory shall be written, or it is in more pieces than
    /// [`crate::Capabilities::max_region_pieces`].
    fn expose(&self, memory: Memory, access: Access) -> Result<Segment, ExposeError>;

    /// Invalidates the tag and gives the memory back. When it returns no peer can touch the memory any more. (On a
    /// provider whose revocation must wait, it waits for the adapter, for at most microseconds.) `None` if the tag is
    /// not one of this domain: each tag is revoked once, by its [`ExposedRegion`].
    fn revoke(&self, tag: SteeringTag) -> Option<Memory>;

    /// Whether the tag is live: not invalidated by the peer's Send with Invalidate, and not revoked.
    fn is_valid(&self, tag: SteeringTag) -> bool;

    /// How many regions are exposed now, and their bytes.
    fn exposed(&self) -> (usize, usize);
}

/// How code holds a domain.
pub type DomainRef = Arc<dyn Domain>;

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

    /// Lets the peer reach the whole region with the right `access`, and nothing else of this process.
    ///
    /// # Errors
    /// As [`Domain::expose`].
    pub fn expose(self, access: Access) -> Result<ExposedRegion, ExposeError> {
        let segment = self.domain.expose(self.memory, access)?;
        Ok(ExposedRegion { segment, domain: Some(self.domain) })
    }
}

/// A region that the peer can reach. Nothing of this process can read, reuse or free its memory until it is revoked;
/// dropping it revokes it.
pub struct ExposedRegion {
    segment: Segment,
    domain: Option<DomainRef>,
}

impl ExposedRegion {
    /// What the peer needs to reach it.
    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// Whether the peer can still reach it (it may have invalidated the tag by Send with Invalidate).
    pub fn is_valid(&self) -> bool {
        self.domain.as_ref().is_some_and(|d| d.is_valid(self.segment.handle))
    }

    /// Makes the peer unable to reach it and gives the region back; `None` only if the connection is gone and its
    /// provider released the memory with it.
    pub fn revoke(mut self) -> Option<MemoryRegion> {
        let domain = self.domain.take()?;
        let memory = domain.revoke(self.segment.handle)?;
        Some(MemoryRegion { memory, domain })
    }
}

impl Drop for ExposedRegion {
    fn drop(&mut self) {
        if let Some(d) = self.domain.take() {
            drop(d.revoke(self.segment.handle));
        }
    }
}
