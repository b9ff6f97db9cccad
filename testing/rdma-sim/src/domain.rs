//! The protection domain of an end for its software: [`RemoteAccess`] with the cost of exposures.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use millrace_buffer::{SPAN_BYTES, SpanRef, Views};
use millrace_rdma::{
    Access, Domain, ExposeError, Exposure, ExposureId, LocalKey, LocalUse, Memory, RegistrationKind,
};

use super::{
    access::RemoteAccess,
    event::EndId,
    world::{Inner, software::Charge},
};

/// Fields of a [`LocalKey`]: bytes of the registration, and whether it is a window.
const LOCAL_BYTES: u64 = 0xffff_ffff;
const WINDOW: u64 = 1 << 32;

/// The domain of one end. Its operations have the cost that they have on an adapter.
pub(super) struct SimDomain {
    access: Arc<RemoteAccess>,
    world: Weak<Inner>,
    end: EndId,
    next_local: AtomicU64,
}

/// Whether memory is contiguous and not empty, as adapters require. Memory that exceeds the largest contiguous
/// buffer ([`SPAN_BYTES`]) counts as contiguous in the simulation.
fn is_one_piece(memory: &Memory) -> bool {
    match memory {
        Memory::Owned(b) => !b.is_empty(),
        Memory::Shared(views) => {
            !views.is_empty() && (views.pieces().nth(1).is_none() || views.len() > SPAN_BYTES)
        }
    }
}

impl SimDomain {
    pub(super) fn new(access: Arc<RemoteAccess>, world: &Arc<Inner>, end: EndId) -> Self {
        Self { access, world: Arc::downgrade(world), end, next_local: AtomicU64::new(0) }
    }

    /// Creates a key for local use, which encodes the cost of its deregistration.
    fn local_key(&self, by: RegistrationKind, bytes: usize) -> LocalKey {
        let number = self.next_local.fetch_add(1, Ordering::Relaxed) << 33;
        let window = if by == RegistrationKind::Window { WINDOW } else { 0 };
        LocalKey(number | window | bytes as u64 & LOCAL_BYTES)
    }

    fn charge(&self, what: Charge) {
        if let Some(world) = self.world.upgrade() {
            world.charge(self.end, what);
        }
    }
}

impl Domain for SimDomain {
    fn expose(&self, by: RegistrationKind, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
        if !is_one_piece(&memory) {
            return Err(ExposeError { memory, reason: "the region is empty, or in several pieces" });
        }
        let bytes = memory.len();
        let mut exposure = self.access.table.expose(by, memory, access)?;
        match by {
            RegistrationKind::Region => self.charge(Charge::Register(bytes)),
            RegistrationKind::Window => self.charge(Charge::Bind(bytes)),
            RegistrationKind::Global => {}
        }
        exposure.segments = self.access.segments(exposure.segments);
        Ok(exposure)
    }

    fn revoke(&self, id: ExposureId) -> Option<Memory> {
        let by = self.access.table.lock().means(id);
        let invalid = !self.access.table.is_valid(id);
        let memory = self.access.table.revoke(id)?;
        match by {
            Some(RegistrationKind::Region) => self.charge(Charge::Deregister(memory.len())),
            // Revoking a window that the peer has invalidated has no cost.
            Some(RegistrationKind::Window) if !invalid => self.charge(Charge::Unbind(1)),
            _ => {}
        }
        Some(memory)
    }

    fn release(&self, id: ExposureId) -> Option<Memory> {
        self.access.table.release(id)
    }

    fn invalidate_released(&self) -> usize {
        let windows = self.access.table.invalidate_released();
        self.charge(Charge::Unbind(windows));
        windows
    }

    fn is_valid(&self, id: ExposureId) -> bool {
        self.access.table.is_valid(id)
    }

    fn exposed(&self) -> (usize, usize) {
        self.access.table.exposed()
    }

    fn reserve_windows(&self, count: usize, largest: usize) -> usize {
        self.access.table.reserve_windows(count, largest)
    }

    fn enable_global(&self) -> bool {
        self.access.table.enable_global()
    }

    fn registers_local(&self, by: RegistrationKind) -> bool {
        by != RegistrationKind::Global
    }

    /// Has the cost of a registration or of a window.
    fn register_local(&self, by: RegistrationKind, pieces: &[&[u8]], _for: LocalUse) -> Option<LocalKey> {
        let bytes = pieces.iter().map(|p| p.len()).sum::<usize>();
        match by {
            RegistrationKind::Region => self.charge(Charge::Register(bytes)),
            RegistrationKind::Window => self.charge(Charge::Bind(bytes)),
            RegistrationKind::Global => return None,
        }
        Some(self.local_key(by, bytes))
    }

    fn keep_local(&self, span: &SpanRef) -> Option<LocalKey> {
        let bytes = span.len();
        self.charge(Charge::Register(bytes));
        Some(self.local_key(RegistrationKind::Region, bytes))
    }

    fn deregister_local(&self, key: LocalKey) {
        self.charge(match key.0 & WINDOW {
            0 => Charge::Deregister((key.0 & LOCAL_BYTES) as usize),
            _ => Charge::Unbind(1),
        });
    }

    fn copy_out(&self, id: ExposureId, to: &mut [u8]) -> bool {
        self.charge(Charge::Copy(to.len()));
        self.access.table.copy_out(id, to)
    }

    fn copy_in(&self, id: ExposureId, from: &Views) -> bool {
        self.charge(Charge::Copy(from.len()));
        self.access.table.copy_in(id, from)
    }
}
