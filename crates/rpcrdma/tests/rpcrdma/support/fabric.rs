//! Two connected queue pairs in one process; posted work takes effect at once. They make the checks of an
//! adapter (access rights, bounds, receives) and terminate the connection as an adapter would.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use millrace_buffer::{Buffer, SpanRef, Views};
use millrace_rdma::{
    Access, Capabilities, Completion, ConnectParams, ConnectionError, ConnectionInfo, Counters, Domain,
    DomainRef, ExposeError, Exposure, ExposureId, LocalKey, LocalUse, Memory, PostError, QueuePair,
    ReadRequest, RegistrationKind, Segment, SendRequest, SteeringTag, WriteRequest,
};
use millrace_runtime::sync::Mutex;
use smallvec::smallvec;

struct Entry {
    memory: Memory,
    access: Access,
    offset: u64,
    valid: bool,
}

#[derive(Default)]
struct Table {
    entries: HashMap<u32, Entry>,
    next: u32,
    /// Bytes of registrations for local use, by key.
    local: HashMap<u64, usize>,
    next_local: u64,
}

impl Table {
    fn register(&mut self, bytes: usize) -> u64 {
        self.next_local += 1;
        self.local.insert(self.next_local, bytes);
        self.next_local
    }
}

pub struct FabricDomain {
    table: Mutex<Table>,
    region_pieces: usize,
}

impl FabricDomain {
    fn new(region_pieces: usize) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), region_pieces })
    }

    fn with<T>(&self, s: &Segment, access: Access, f: impl FnOnce(&mut Memory, usize) -> T) -> Option<T> {
        let mut t = self.table.lock();
        let e = t.entries.get_mut(&s.handle.0).filter(|e| e.valid && e.access == access)?;
        let at = usize::try_from(s.offset.checked_sub(e.offset)?).ok()?;
        let end = at.checked_add(s.length as usize)?;
        (end <= e.memory.len()).then(|| f(&mut e.memory, at))
    }

    fn invalidate(&self, tag: SteeringTag) -> bool {
        self.table.lock().entries.get_mut(&tag.0).is_some_and(|e| std::mem::take(&mut e.valid))
    }
}

impl Domain for FabricDomain {
    fn expose(&self, by: RegistrationKind, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
        if by != RegistrationKind::Region {
            return Err(ExposeError { memory, reason: "the fabric has registrations only" });
        }
        if matches!((&memory, access), (Memory::Shared(_), Access::RemoteWrite)) {
            return Err(ExposeError { memory, reason: "shared memory cannot be written" });
        }
        if matches!(&memory, Memory::Shared(v) if v.iter().count() > self.region_pieces) {
            return Err(ExposeError { memory, reason: "more pieces than a region may have" });
        }
        let mut t = self.table.lock();
        t.next = t.next.wrapping_add(0x9e37_79b1) | 1;
        let (tag, offset) = (t.next, 0x7f00_0000_0000 + u64::from(t.next) * 64);
        let length = memory.len() as u32;
        t.entries.insert(tag, Entry { memory, access, offset, valid: true });
        let segment = Segment { handle: SteeringTag(tag), length, offset };
        Ok(Exposure { id: ExposureId(tag.into()), segments: smallvec![segment] })
    }

    fn revoke(&self, id: ExposureId) -> Option<Memory> {
        self.table.lock().entries.remove(&(id.0 as u32)).map(|e| e.memory)
    }

    fn is_valid(&self, id: ExposureId) -> bool {
        self.table.lock().entries.get(&(id.0 as u32)).is_some_and(|e| e.valid)
    }

    fn registers_local(&self, by: RegistrationKind) -> bool {
        by != RegistrationKind::Global
    }

    fn register_local(&self, _by: RegistrationKind, pieces: &[&[u8]], _for: LocalUse) -> Option<LocalKey> {
        Some(LocalKey(self.table.lock().register(pieces.iter().map(|p| p.len()).sum())))
    }

    fn keep_local(&self, span: &SpanRef) -> Option<LocalKey> {
        Some(LocalKey(self.table.lock().register(span.len())))
    }

    fn deregister_local(&self, key: LocalKey) {
        assert!(self.table.lock().local.remove(&key.0).is_some());
    }

    fn exposed(&self) -> (usize, usize) {
        let t = self.table.lock();
        (t.entries.len(), t.entries.values().map(|e| e.memory.len()).sum())
    }
}

#[derive(Default)]
struct End {
    receives: VecDeque<Buffer>,
    completions: VecDeque<Completion>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Wire {
    ends: [End; 2],
    down: Option<ConnectionError>,
}

impl Wire {
    fn wake(&mut self) -> Vec<Waker> {
        self.ends.iter_mut().filter_map(|e| e.waker.take()).collect()
    }
}

/// One end of a connection.
pub struct FabricEnd {
    wire: Arc<Mutex<Wire>>,
    side: usize,
    info: ConnectionInfo,
    capabilities: Capabilities,
    domain: Arc<FabricDomain>,
    peer_domain: Arc<FabricDomain>,
    counters: Counters,
}

/// Creates a connected pair whose regions have at most `region_pieces` pieces; each end has the private data
/// of the other.
pub fn pair(region_pieces: usize, a: &ConnectParams, b: &ConnectParams) -> (FabricEnd, FabricEnd) {
    let wire = Arc::new(Mutex::new(Wire::default()));
    let domains = [FabricDomain::new(region_pieces), FabricDomain::new(region_pieces)];
    let addr = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let end = |side: usize, own: &ConnectParams, peer: &ConnectParams| FabricEnd {
        wire: Arc::clone(&wire),
        side,
        info: ConnectionInfo {
            local: addr(1 + side as u16),
            peer: addr(2 - side as u16),
            ord: own.ord.min(peer.ird).min(8),
            ird: own.ird.min(8),
            private_data: peer.private_data.clone(),
            crc: false,
        },
        capabilities: Capabilities::new("fabric", true, 30, 1 << 20, region_pieces),
        domain: Arc::clone(&domains[side]),
        peer_domain: Arc::clone(&domains[1 - side]),
        counters: Counters::default(),
    };
    (end(0, a, b), end(1, b, a))
}

impl FabricEnd {
    fn fail(&self, why: &str) {
        self.down(ConnectionError::PeerMisbehaved(why.into()));
    }

    fn down(&self, e: ConnectionError) {
        let mut w = self.wire.lock();
        w.down.get_or_insert(e);
        w.wake().into_iter().for_each(Waker::wake);
    }

    /// Receives of the peer that are posted and unused.
    pub fn peer_receives(&self) -> usize {
        self.wire.lock().ends[1 - self.side].receives.len()
    }

    fn deliver(&self, side: usize, c: Completion) {
        let mut w = self.wire.lock();
        w.ends[side].completions.push_back(c);
        w.wake().into_iter().for_each(Waker::wake);
    }

    fn up(&self) -> Result<(), PostError> {
        if self.wire.lock().down.is_some() { Err(PostError::Closed) } else { Ok(()) }
    }
}

impl QueuePair for FabricEnd {
    fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn domain(&self) -> DomainRef {
        self.domain.clone()
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), PostError> {
        self.up()?;
        self.wire.lock().ends[self.side].receives.push_back(buffer);
        Ok(())
    }

    fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.up()?;
        let bytes = request.data.to_vec();
        if request.invalidate.is_some_and(|t| !self.peer_domain.invalidate(t)) {
            self.fail("invalidate of a tag that is not valid");
            return Ok(());
        }
        let receive = self.wire.lock().ends[1 - self.side].receives.pop_front();
        match receive {
            Some(mut buffer) if bytes.len() <= buffer.len() => {
                buffer.set_len(bytes.len());
                buffer.copy_from_slice(&bytes);
                self.counters.sends += 1;
                self.deliver(1 - self.side, Completion::Received { buffer, invalidated: request.invalidate });
                if let Some(id) = request.signaled {
                    self.deliver(self.side, Completion::Sent(id));
                }
            }
            Some(_) => self.fail("a Send larger than the receive"),
            None => self.fail("a Send without a receive"),
        }
        Ok(())
    }

    fn post_write(&mut self, request: WriteRequest) -> Result<(), PostError> {
        self.up()?;
        let bytes = request.data.to_vec();
        assert!(request.data.iter().count() <= self.capabilities.max_pieces);
        if bytes.len() > request.to.length as usize {
            return Err(PostError::Invalid("write larger than its segment"));
        }
        let ok = self.peer_domain.with(&request.to, Access::RemoteWrite, |m, at| match m {
            Memory::Owned(b) => b[at..at + bytes.len()].copy_from_slice(&bytes),
            Memory::Shared(_) => unreachable!("exposed for writing"),
        });
        self.counters.writes += 1;
        self.counters.tagged_bytes_out += bytes.len() as u64;
        if ok.is_none() {
            self.fail("a Write outside of exposed memory");
        }
        Ok(())
    }

    fn post_read(&mut self, mut request: ReadRequest) -> Result<(), PostError> {
        self.up()?;
        let want: usize = request.sink.iter().map(|b| b.len()).sum();
        if want != request.from.length as usize {
            return Err(PostError::Invalid("sink of another size"));
        }
        let bytes = self.peer_domain.with(&request.from, Access::RemoteRead, |m, at| match m {
            Memory::Owned(b) => b[at..at + want].to_vec(),
            Memory::Shared(v) => Views::slice(v, at, want).to_vec(),
        });
        let Some(bytes) = bytes else {
            self.fail("a Read outside of exposed memory");
            return Ok(());
        };
        let mut rest = &bytes[..];
        for b in &mut request.sink {
            let (now, later) = rest.split_at(b.len());
            b.copy_from_slice(now);
            rest = later;
        }
        self.counters.reads += 1;
        // RDMA Reads complete out of order: every second one overtakes its predecessor.
        let mut w = self.wire.lock();
        let queue = &mut w.ends[self.side].completions;
        let done = Completion::Read { id: request.id, sink: request.sink };
        if self.counters.reads.is_multiple_of(2) {
            queue.push_front(done)
        } else {
            queue.push_back(done)
        }
        w.wake().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), ConnectionError>> {
        let mut w = self.wire.lock();
        let down = w.down.clone();
        let end = &mut w.ends[self.side];
        if !end.completions.is_empty() {
            out.extend(end.completions.drain(..));
            return Poll::Ready(Ok(()));
        }
        if let Some(e) = down {
            return Poll::Ready(Err(e));
        }
        end.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn flush(&mut self, _cx: &mut Context<'_>) {}

    fn disconnect(&mut self) {
        self.down(ConnectionError::Closed);
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for FabricEnd {
    fn drop(&mut self) {
        self.down(ConnectionError::Closed);
        let mut w = self.wire.lock();
        let end = std::mem::take(&mut w.ends[self.side]);
        drop(w);
        drop(end);
    }
}
