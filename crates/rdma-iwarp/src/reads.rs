//! Our RDMA Reads: those that wait for the ORD, and those whose responses are awaited, in order (RFC 5040
//! section 5.3: responses come in the order of the requests).

use std::collections::VecDeque;

use millrace_buffer::Buffer;
use millrace_rdma::{Completion, ReadRequest, WorkId};

/// A read whose request was handed to the transmitter.
#[derive(Debug)]
pub(crate) struct SentRead {
    /// From the request.
    pub(crate) id: WorkId,
    /// The sink's tag; its tagged offsets begin at 0.
    pub(crate) tag: u32,
    /// Bytes to come in all.
    pub(crate) size: usize,
    /// Bytes of complete segments so far.
    pub(crate) placed: usize,
    /// Where they go.
    pub(crate) sink: Vec<Buffer>,
}

impl SentRead {
    /// Copies `bytes` to position `at` of the sink.
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

/// The memory of `buffers` in order, from position `skip` on.
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

/// The reads of a connection.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// The most reads in flight.
    pub(crate) ord: usize,
    /// Reads beyond it.
    pub(crate) waiting: VecDeque<ReadRequest>,
    /// Reads in flight, in order.
    pub(crate) sent: VecDeque<SentRead>,
}

impl Reads {
    /// The next read that may start.
    pub(crate) fn next_to_start(&mut self) -> Option<ReadRequest> {
        if self.sent.len() < self.ord { self.waiting.pop_front() } else { None }
    }

    /// The first read has all its bytes: its tag, and its completion.
    pub(crate) fn finish_first(&mut self) -> Option<(u32, Completion)> {
        let r = self.sent.pop_front()?;
        Some((r.tag, Completion::Read { id: r.id, sink: r.sink }))
    }

    /// Forgets everything and releases the sinks.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.sent.clear();
    }
}
