//! Protection domains enforced in software: the STag table of a connection.
//!
//! Providers without an RDMA adapter (iWARP over TCP sockets, the simulated fabric) use [`StagDomain`] as
//! their [`Domain`]. A provider checks every access of the peer against the domain's [`StagTable`] (RFC 5040
//! section 5, RFC 5041 section 5.2) and holds the table's lock while it accesses the memory, so no access can
//! follow a revocation.

mod access;
mod exposed;
mod global;
mod released;
mod table;
mod tags;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use millrace_buffer::Views;
use millrace_runtime::{
    RuntimeRef,
    sync::{Mutex, MutexGuard},
};

pub use self::{
    access::{AccessError, InvalidateError, Source},
    table::StagTable,
};
use self::{exposed::Exposed, tags::Tags, tally::Tally};
use crate::{Access, Domain, ExposeError, Exposure, ExposureId, Memory, RegistrationKind};

/// Assignment of STag tables to the connections of a provider. The default is one table per connection, with
/// random STag indexes (RFC 5042).
#[derive(Clone, Default)]
pub struct StagTables(Assignment);

#[derive(Clone, Default)]
enum Assignment {
    #[default]
    PerConnection,
    Shared(Arc<Mutex<StagTable>>),
    WholeSpans,
}

impl StagTables {
    /// **Insecure, for demonstrations and tests of attacks.** All connections share one table, and STag
    /// indexes are consecutive. A peer that knows one STag can guess those of other peers.
    pub fn insecure_shared_and_predictable() -> Self {
        Self(Assignment::Shared(Arc::new(Mutex::new(StagTable::new(Tags::predictable())))))
    }

    /// **Insecure, for demonstrations and tests of attacks.** One table per connection, in which the STag of
    /// [`RegistrationKind::Global`] lets the peer write to the whole buffer spans that contain memory exposed for
    /// writing.
    pub fn insecure_whole_spans() -> Self {
        Self(Assignment::WholeSpans)
    }

    /// Creates the domain of a new connection. Random STag indexes come from `rt`.
    pub fn domain(self, rt: RuntimeRef) -> StagDomain {
        let table = match self.0 {
            Assignment::PerConnection => Arc::new(Mutex::new(StagTable::new(Tags::random()))),
            Assignment::Shared(table) => table,
            Assignment::WholeSpans => {
                Arc::new(Mutex::new(StagTable::new(Tags::random()).with_writable_spans()))
            }
        };
        let exposed = Arc::clone(table.lock().tally());
        StagDomain { table, exposed, closed: AtomicBool::new(false), rt }
    }
}

/// The protection domain of one connection, with its STag table.
pub struct StagDomain {
    table: Arc<Mutex<StagTable>>,
    exposed: Arc<Tally>,
    /// Written with the table locked.
    closed: AtomicBool,
    rt: RuntimeRef,
}

impl StagDomain {
    /// Locks the table. A provider holds the lock for at most one system call.
    pub fn lock(&self) -> MutexGuard<'_, StagTable> {
        self.table.lock()
    }

    /// Reserves an STag for the sink of an RDMA Read; no other operation may use it. `None` if the table is
    /// full.
    pub fn reserve_sink(&self) -> Option<u32> {
        self.lock().reserve_sink(&self.rt)
    }

    /// Refuses further exposures because the connection has ended. Exposed memory stays in the table until it
    /// is revoked.
    pub fn close(&self) {
        let _table = self.lock();
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Domain for StagDomain {
    fn expose(&self, by: RegistrationKind, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
        if access == Access::RemoteWrite && matches!(memory, Memory::Shared(_)) {
            return Err(ExposeError { memory, reason: "shared memory cannot be written by a peer" });
        }
        if u32::try_from(memory.len()).is_err() {
            return Err(ExposeError { memory, reason: "more than 4 GiB in one region" });
        }
        let mut t = self.lock();
        if self.closed.load(Ordering::Relaxed) {
            return Err(ExposeError { memory, reason: "the connection is down" });
        }
        let exposed = Exposed::new(memory, access);
        t.expose(&self.rt, by, exposed).map_err(|(memory, reason)| ExposeError { memory, reason })
    }

    fn revoke(&self, id: ExposureId) -> Option<Memory> {
        self.lock().revoke(id)
    }

    fn release(&self, id: ExposureId) -> Option<Memory> {
        self.lock().release(id)
    }

    fn invalidate_released(&self) -> usize {
        self.lock().invalidate_released()
    }

    fn is_valid(&self, id: ExposureId) -> bool {
        self.lock().get(id).is_some_and(|e| e.valid)
    }

    fn exposed(&self) -> (usize, usize) {
        self.exposed.get()
    }

    fn reserve_windows(&self, count: usize, largest: usize) -> usize {
        self.lock().reserve_windows(&self.rt, count, largest)
    }

    fn enable_global(&self) -> bool {
        self.lock().enable_global(&self.rt)
    }

    fn copy_out(&self, id: ExposureId, to: &mut [u8]) -> bool {
        self.lock().get_mut(id).is_some_and(|e| e.copy_out(to))
    }

    fn copy_in(&self, id: ExposureId, from: &Views) -> bool {
        self.lock().get_mut(id).is_some_and(|e| e.memory.copy_in(from))
    }
}
