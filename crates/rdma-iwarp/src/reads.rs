//! RDMA Reads of this end: those that wait because of the ORD, and those in flight, in order (RFC 5040
//! section 5.3: responses arrive in the order of the requests).

use std::collections::VecDeque;

use millrace_buffer::Buffer;
use millrace_rdma::{Completion, ReadRequest, WorkId};

/// A Read whose request was passed to the transmitter.
#[derive(Debug)]
pub(crate) struct SentRead {
    /// Id of the request.
    pub(crate) id: WorkId,
    /// The sink's tag; its tagged offsets begin at 0.
    pub(crate) tag: u32,
    /// Total bytes to read.
    pub(crate) size: usize,
    /// Bytes of complete segments so far.
    pub(crate) placed: usize,
    /// The sink.
    pub(crate) sink: Vec<Buffer>,
}

impl SentRead {
    /// Copies `bytes` to the position `at` of the sink.
    pub(crate) fn copy_in(&mut self, at: usize, mut bytes: &[u8]) {
        for part in parts_from(self.sink.iter_mut(), at) {
            let n = part.len().min(bytes.len());
            part[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if bytes.is_empty() {
                break;
            }
        }
    }
}

/// The memory of `buffers` in order, from the position `skip` on.
pub(crate) fn parts_from<'a>(
    buffers: impl Iterator<Item = &'a mut Buffer>,
    mut skip: usize,
) -> impl Iterator<Item = &'a mut [u8]> {
    buffers.filter_map(move |b| {
        let b: &mut [u8] = b;
        let cut = skip.min(b.len());
        skip -= cut;
        (cut < b.len()).then(|| &mut b[cut..])
    })
}

/// The RDMA Reads of a connection.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Maximum number of Reads in flight.
    pub(crate) ord: usize,
    /// Reads that wait for others to complete.
    pub(crate) waiting: VecDeque<ReadRequest>,
    /// Reads in flight, in order.
    pub(crate) sent: VecDeque<SentRead>,
}

impl Reads {
    /// Removes the next Read that may start.
    pub(crate) fn next_to_start(&mut self) -> Option<ReadRequest> {
        if self.sent.len() < self.ord { self.waiting.pop_front() } else { None }
    }

    /// Completes the first Read in flight; returns its tag and completion.
    pub(crate) fn finish_first(&mut self) -> Option<(u32, Completion)> {
        let r = self.sent.pop_front()?;
        Some((r.tag, Completion::Read { id: r.id, sink: r.sink }))
    }

    /// Removes all Reads and releases their sinks.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.sent.clear();
    }
}
