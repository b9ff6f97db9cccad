//! Memory that only this side's adapter uses: the sources of RDMA Writes and the sinks of RDMA Reads.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::{Context, Poll},
};

use buffer::Buffer;
use rdma::{
    Capabilities, Completion, ConnectionError, ConnectionInfo, Counters, DomainRef, LocalKey, PostError,
    QueuePair, ReadRequest, SendRequest, WorkId, WriteRequest,
};

use super::{Counts, Registered};

/// Ids of Sends that nobody but this module wants to hear of begin here; a responder counts its own from 1.
const OURS: u64 = 1 << 63;

/// A registration that ends when it is dropped.
struct Held {
    domain: DomainRef,
    key: LocalKey,
    _registered: Registered,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.domain.deregister_local(self.key);
    }
}

/// A queue pair that registers what each RDMA Read and RDMA Write uses before it is posted, and deregisters it when it
/// is done. Providers that have all memory for buffers registered, or need no registration, have nothing to do.
pub(super) struct PerOperation {
    inner: Box<dyn QueuePair>,
    domain: DomainRef,
    counts: Arc<Counts>,
    reads: HashMap<WorkId, Held>,
    /// Sources of Writes behind which no Send was posted yet.
    writes: Vec<Held>,
    /// Signaled Sends, each with the sources of the Writes before it.
    sends: VecDeque<(WorkId, Vec<Held>)>,
    next: u64,
}

impl PerOperation {
    pub(super) fn new(inner: Box<dyn QueuePair>, counts: Arc<Counts>) -> Self {
        let domain = inner.domain();
        let (reads, writes, sends) = (HashMap::new(), Vec::new(), VecDeque::new());
        Self { inner, domain, counts, reads, writes, sends, next: OURS }
    }

    fn register<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>, bytes: usize) -> Option<Held> {
        let pieces: Vec<&[u8]> = pieces.collect();
        let Some(key) = self.domain.register_local(&pieces) else {
            self.counts.hit();
            return None;
        };
        let registered = Registered::new(&self.counts, bytes);
        Some(Held { domain: Arc::clone(&self.domain), key, _registered: registered })
    }

    /// A Send was handed over: all Writes before it are done. Whether its owner wants to hear of it.
    fn sent(&mut self, id: WorkId) -> bool {
        while let Some((done, _)) = self.sends.pop_front() {
            if done == id {
                break;
            }
        }
        id.0 < OURS
    }
}

impl QueuePair for PerOperation {
    fn info(&self) -> &ConnectionInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn domain(&self) -> DomainRef {
        self.inner.domain()
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), PostError> {
        self.inner.post_receive(buffer)
    }

    fn post_send(&mut self, mut request: SendRequest) -> Result<(), PostError> {
        if request.signaled.is_none() && !self.writes.is_empty() {
            self.next = (self.next + 1) | OURS;
            request.signaled = Some(WorkId(self.next));
        }
        if let Some(id) = request.signaled {
            self.sends.push_back((id, std::mem::take(&mut self.writes)));
        }
        self.inner.post_send(request)
    }

    fn post_write(&mut self, request: WriteRequest) -> Result<(), PostError> {
        let held = self.register(request.data.iter().map(|v| &**v), request.data.len());
        self.inner.post_write(request)?;
        self.writes.extend(held);
        Ok(())
    }

    fn post_read(&mut self, request: ReadRequest) -> Result<(), PostError> {
        let (id, bytes) = (request.id, request.from.length as usize);
        let held = self.register(request.sink.iter().map(|b| &**b), bytes);
        self.inner.post_read(request)?;
        self.reads.extend(held.map(|held| (id, held)));
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), ConnectionError>> {
        let before = out.len();
        let polled = self.inner.poll(cx, out);
        let mut at = before;
        while let Some(c) = out.get(at) {
            let keep = match c {
                Completion::Read { id, .. } => {
                    self.reads.remove(id);
                    true
                }
                Completion::Sent(id) => self.sent(*id),
                Completion::Received { .. } => true,
            };
            if keep {
                at += 1;
            } else {
                out.remove(at);
            }
        }
        polled
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.inner.flush(cx);
    }

    fn disconnect(&mut self) {
        self.inner.disconnect();
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
