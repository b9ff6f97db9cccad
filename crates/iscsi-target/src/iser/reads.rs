//! RDMA Reads of the data of writes.

use std::collections::HashMap;

use millrace_buffer::Buffer;
use millrace_iscsi::iser::RemoteBuffer;
use millrace_rdma::{
    ReadRequest, Segment, SteeringTag, WorkId,
    registration::{LocalRegistration, LocalRegistrations},
};

/// The data of a task.
struct Fetch {
    /// Source of the next RDMA Read.
    source: RemoteBuffer,
    /// The sinks in order; `None` while they are in use.
    sinks: Vec<Option<Buffer>>,
    /// Number of sinks whose RDMA Reads were posted.
    posted: usize,
    /// RDMA Reads in progress.
    outstanding: usize,
    registrations: LocalRegistrations,
}

/// The RDMA Reads of a connection. One fills as many buffers of a task as its length permits. Tasks are read one after
/// the other.
pub(super) struct Reads {
    /// Maximum length of an RDMA Read in bytes. No buffer is longer.
    max_length: usize,
    fetches: HashMap<u32, Fetch>,
    /// The task whose RDMA Reads are not all posted.
    current: Option<u32>,
    in_flight: usize,
    /// The buffers of the task whose RDMA Reads have ended, until the caller has taken them.
    ended: Vec<Option<Buffer>>,
    /// Empty lists of the sinks of RDMA Reads, to be used again; as many as were in flight.
    spare: Vec<Vec<Buffer>>,
    /// Empty lists of the sinks of tasks, to be used again; as many as there were tasks at a time.
    spare_of_tasks: Vec<Vec<Option<Buffer>>>,
}

impl Reads {
    /// No RDMA Reads. Later ones have at most `max_length` bytes.
    pub(super) fn new(max_length: usize) -> Self {
        Self {
            max_length,
            fetches: HashMap::new(),
            current: None,
            in_flight: 0,
            ended: Vec::new(),
            spare: Vec::new(),
            spare_of_tasks: Vec::new(),
        }
    }

    /// RDMA Reads that are posted and not complete.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The task whose RDMA Reads are not all posted. No other one can begin.
    pub(super) fn current(&self) -> Option<u32> {
        self.current
    }

    /// Begins to read from `source` into `sinks`.
    pub(super) fn begin(&mut self, itt: u32, source: RemoteBuffer, sinks: impl Iterator<Item = Buffer>) {
        let mut list = self.spare_of_tasks.pop().unwrap_or_default();
        list.extend(sinks.map(Some));
        let registrations = LocalRegistrations::new();
        self.fetches.insert(itt, Fetch { source, sinks: list, posted: 0, outstanding: 0, registrations });
        self.current = Some(itt);
    }

    /// The next RDMA Read of the current task, to be posted now.
    pub(super) fn next(&mut self) -> Option<ReadRequest> {
        let itt = self.current?;
        let fetch = self.fetches.get_mut(&itt)?;
        let id = WorkId(u64::from(itt) << 32 | fetch.posted as u64);
        let (mut sink, mut total) = (self.spare.pop().unwrap_or_default(), 0);
        while let Some(buffer) = fetch.sinks.get_mut(fetch.posted)
            && let Some(buffer) = buffer.take_if(|b| total == 0 || total + b.len() <= self.max_length)
        {
            total += buffer.len();
            sink.push(buffer);
            fetch.posted += 1;
        }
        // Buffers have less than 4 GiB, and so has `max_length`.
        let (handle, length) = (SteeringTag(fetch.source.stag), total as u32);
        let from = Segment { handle, length, offset: fetch.source.base };
        // The session has checked that the source does not exceed the address space.
        fetch.source.base = fetch.source.base.wrapping_add(length.into());
        fetch.outstanding += 1;
        self.in_flight += 1;
        if fetch.posted == fetch.sinks.len() {
            self.current = None;
        }
        Some(ReadRequest { id, from, sink })
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
    pub(super) fn completed(
        &mut self,
        id: WorkId,
        mut sink: Vec<Buffer>,
    ) -> Option<(u32, impl Iterator<Item = Buffer>)> {
        let (itt, first) = ((id.0 >> 32) as u32, (id.0 & 0xffff_ffff) as usize);
        self.in_flight = self.in_flight.saturating_sub(1);
        let fetch = self.fetches.get_mut(&itt)?;
        fetch.outstanding = fetch.outstanding.saturating_sub(1);
        for (slot, buffer) in fetch.sinks.iter_mut().skip(first).zip(sink.drain(..)) {
            *slot = Some(buffer);
        }
        self.spare.push(sink);
        if fetch.outstanding > 0 || fetch.posted < fetch.sinks.len() {
            return None;
        }
        let fetch = self.fetches.remove(&itt)?;
        self.spare_of_tasks.push(std::mem::replace(&mut self.ended, fetch.sinks));
        Some((itt, self.ended.drain(..).flatten()))
    }
}
