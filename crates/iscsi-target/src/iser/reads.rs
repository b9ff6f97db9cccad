//! RDMA Reads of the data of writes.

use std::collections::HashMap;

use millrace_buffer::Buffer;
use millrace_iscsi::iser::RemoteBuffer;
use millrace_rdma::{ReadRequest, Segment, SteeringTag, WorkId};
use millrace_rpcrdma::registration::{LocalRegistration, LocalRegistrations};
use smallvec::SmallVec;

use crate::task::Buffers;

/// The data of a task.
struct Fetch {
    /// Source of the next RDMA Read.
    source: RemoteBuffer,
    /// The sinks in order; `None` while they are in use.
    sinks: SmallVec<[Option<Buffer>; 4]>,
    /// Number of RDMA Reads that were posted.
    posted: usize,
    outstanding: usize,
    registrations: LocalRegistrations,
}

/// The RDMA Reads of a connection: one for each buffer of a task. Tasks are read one after the other.
#[derive(Default)]
pub(super) struct Reads {
    fetches: HashMap<u32, Fetch>,
    /// The task whose RDMA Reads are not all posted.
    current: Option<u32>,
    in_flight: usize,
    /// Empty lists of the sinks of RDMA Reads, to be used again; as many as were in flight.
    spare: Vec<Vec<Buffer>>,
}

impl Reads {
    /// RDMA Reads that are posted and not complete.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The task whose RDMA Reads are not all posted. No other one can begin.
    pub(super) fn current(&self) -> Option<u32> {
        self.current
    }

    /// Begins to read from `source` into `sinks`.
    pub(super) fn begin(&mut self, itt: u32, source: RemoteBuffer, sinks: Buffers) {
        let sinks = sinks.into_iter().map(Some).collect();
        let registrations = LocalRegistrations::new();
        self.fetches.insert(itt, Fetch { source, sinks, posted: 0, outstanding: 0, registrations });
        self.current = Some(itt);
    }

    /// The next RDMA Read of the current task, to be posted now.
    pub(super) fn next(&mut self) -> Option<ReadRequest> {
        let itt = self.current?;
        let fetch = self.fetches.get_mut(&itt)?;
        let sink = fetch.sinks.get_mut(fetch.posted).and_then(Option::take)?;
        // A buffer has less than 4 GiB.
        let (id, length) = (WorkId(u64::from(itt) << 32 | fetch.posted as u64), sink.len() as u32);
        let handle = SteeringTag(fetch.source.stag);
        let from = Segment { handle, length, offset: fetch.source.base };
        // The session has checked that the source does not exceed the address space.
        fetch.source.base = fetch.source.base.wrapping_add(length.into());
        fetch.posted += 1;
        fetch.outstanding += 1;
        self.in_flight += 1;
        if fetch.posted == fetch.sinks.len() {
            self.current = None;
        }
        let mut sinks = self.spare.pop().unwrap_or_default();
        sinks.push(sink);
        Some(ReadRequest { id, from, sink: sinks })
    }

    /// Holds the registration of the RDMA Read with this id.
    pub(super) fn hold(&mut self, id: WorkId, registration: Option<LocalRegistration>) {
        if let Some(fetch) = self.fetches.get_mut(&((id.0 >> 32) as u32)) {
            fetch.registrations.extend(registration);
        }
    }

    /// Posts no further RDMA Read of the current task. Returns whether all posted ones have ended.
    pub(super) fn cancel(&mut self) -> bool {
        let Some(itt) = self.current.take() else { return false };
        let Some(fetch) = self.fetches.get_mut(&itt) else { return false };
        fetch.sinks.truncate(fetch.posted);
        let ended = fetch.outstanding == 0;
        if ended {
            self.fetches.remove(&itt);
        }
        ended
    }

    /// Records the completion of an RDMA Read. Returns the task and its buffers, if all its RDMA Reads have ended.
    pub(super) fn completed(&mut self, id: WorkId, mut sink: Vec<Buffer>) -> Option<(u32, Buffers)> {
        let (itt, index) = ((id.0 >> 32) as u32, (id.0 & 0xffff_ffff) as usize);
        self.in_flight = self.in_flight.saturating_sub(1);
        let buffer = sink.pop();
        self.spare.push(sink);
        let fetch = self.fetches.get_mut(&itt)?;
        fetch.outstanding = fetch.outstanding.saturating_sub(1);
        if let Some(slot) = fetch.sinks.get_mut(index) {
            *slot = buffer;
        }
        if fetch.outstanding > 0 || fetch.posted < fetch.sinks.len() {
            return None;
        }
        let fetch = self.fetches.remove(&itt)?;
        Some((itt, fetch.sinks.into_iter().flatten().collect()))
    }
}
