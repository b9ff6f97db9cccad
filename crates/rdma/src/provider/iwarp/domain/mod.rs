//! The protection domain of a connection: see [`table`] for what it enforces.

mod global;
mod released;
mod table;
mod tags;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use millrace_buffer::Views;
use millrace_runtime::RuntimeRef;
use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::table::{Denied, NotInvalidated, Source, Table};
use self::{
    table::{Exposed, Tally},
    tags::Tags,
};
use crate::{Access, Domain, ExposeError, Exposure, ExposureId, Means, Memory};

/// Whose tags a connection uses.
#[derive(Clone, Default)]
pub(crate) enum TagTables {
    /// Its own, and they are random.
    #[default]
    OfEachConnection,
    /// This one, with all others.
    Shared(Arc<Mutex<Table>>),
    /// Its own, and its global tag reaches whole spans.
    WithSpansBehindGlobalTag,
}

impl TagTables {
    /// One table for all connections, whose tags follow one another: see
    /// [`super::Iwarp::insecure_with_predictable_shared_tags`].
    pub(crate) fn predictable_and_shared() -> Self {
        Self::Shared(Arc::new(Mutex::new(Table::new(Tags::predictable()))))
    }

    /// The domain of a new connection.
    pub(crate) fn domain(self, rt: RuntimeRef) -> IwarpDomain {
        let own = || Table::new(Tags::random());
        let table = match self {
            Self::OfEachConnection => Arc::new(Mutex::new(own())),
            Self::Shared(table) => table,
            Self::WithSpansBehindGlobalTag => Arc::new(Mutex::new(own().with_spans_behind_the_global_tag())),
        };
        let exposed = Arc::clone(table.lock().tally());
        IwarpDomain { table, exposed, closed: AtomicBool::new(false), rt }
    }
}

/// A connection's protection domain.
pub(crate) struct IwarpDomain {
    table: Arc<Mutex<Table>>,
    exposed: Arc<Tally>,
    /// Changed while the table is locked.
    closed: AtomicBool,
    rt: RuntimeRef,
}

impl IwarpDomain {
    /// The table. Held over one system call at most.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// A tag for the sink of an RDMA Read: good for nothing but that Read's responses.
    pub(crate) fn reserve_sink(&self) -> Option<u32> {
        self.lock().reserve_sink(&self.rt)
    }

    /// Ends the use of a sink's tag.
    pub(crate) fn release_sink(&self, tag: u32) {
        self.lock().release_sink(tag);
    }

    /// The connection is gone: nothing can be exposed any more. Memory stays with its tags until they are revoked.
    pub(crate) fn close(&self) {
        let _table = self.lock();
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Domain for IwarpDomain {
    fn expose(&self, by: Means, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
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
