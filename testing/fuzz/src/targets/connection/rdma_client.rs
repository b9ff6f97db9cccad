//! A requester against a responder that conforms to RDMA and violates RPC-over-RDMA. Input: operations of
//! the responder, which refer to the last call received.

use std::{future::poll_fn, task::Poll, time::Duration};

use futures::future::{Either, select};
use millrace_buffer::{Arena, ArenaConfig, Buffer};
use millrace_oncrpc::{ReplyHeader, ReplySpec, ReplyStatus, Request, Transport};
use millrace_rdma::{
    Completion, ConnectParams, Provider, QueuePair, ReadRequest, Segment, SendRequest, SteeringTag, WorkId,
    WriteRequest,
};
use millrace_rdma_sim::{Profile, World};
use millrace_rpcrdma::{Body, Header, Lists, PrivateData, Requester, RequesterConfig};
use millrace_runtime::{RuntimeExt, RuntimeRef, timeout, virtual_time::VirtualTime};
use millrace_xdr::Encoder;

use super::iwarp_over::IwarpOver;
use crate::{
    bytes::{Input, operations},
    targets::xdr::{arena, encoded, view},
};

const SERVER: [u8; 4] = [10, 0, 0, 1];
const CLIENT: [u8; 4] = [10, 0, 0, 2];
const PORT: u16 = 20049;
/// Bytes of the reply payload of every other call, and of the call payload of the others.
const RESULT: usize = 6000;
const DATA: usize = 5000;
const CALLS: usize = 4;
const GUARD: u8 = 0xaa;
/// All calls end within this time.
const END: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of operations of one input.
const OPERATIONS: usize = 48;
/// Kinds of operations.
const REPLY: u8 = 0;
const CHANGED: u8 = 1;
const SEND: u8 = 2;
const WRITE: u8 = 3;
const READ: u8 = 4;
const INVALIDATE: u8 = 5;
const PAUSE: u8 = 6;
const DISCONNECT: u8 = 7;
const ABORT: u8 = 8;
const NEXT: u8 = 9;
const KINDS: u8 = 10;

/// The last call received.
#[derive(Default)]
struct Received {
    xid: u32,
    lists: Lists,
}

struct Responder {
    qp: Box<dyn QueuePair>,
    rt: RuntimeRef,
    call: Received,
}

fn memory(len: usize) -> Buffer {
    let mut buffer = arena().alloc(len).expect("arena memory");
    buffer.set_len(len);
    buffer
}

impl Responder {
    /// Drives the connection until a completion, for at most `limit`. Returns `false` if the connection is
    /// down.
    async fn work(&mut self, limit: Duration) -> bool {
        let work = poll_fn(|cx| {
            let mut some = Vec::new();
            match self.qp.poll(cx, &mut some) {
                Poll::Ready(Ok(())) => Poll::Ready(Some(some)),
                Poll::Ready(Err(_)) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        let Some(done) = timeout(&*self.rt, limit, work).await else { return true };
        let Some(done) = done else { return false };
        for completion in done {
            if let Completion::Received { buffer, .. } = completion {
                if let Ok((header, _)) = Header::decode(&buffer, 64)
                    && let Body::Msg(lists) | Body::NoMsg(lists) = header.body
                {
                    self.call = Received { xid: header.xid, lists };
                }
                let _ = self.qp.post_receive(memory(8192));
            }
        }
        true
    }

    /// Segment `n` of the last call, modulo their number.
    fn segment(&self, n: u8) -> Segment {
        let segments: Vec<Segment> = self.call.lists.segments().copied().collect();
        let none = Segment { handle: SteeringTag(1), length: 64, offset: 0 };
        segments.get(usize::from(n) % segments.len().max(1)).copied().unwrap_or(none)
    }

    /// A correct reply whose result fills `filled` bytes of the Write chunk.
    fn reply(&mut self, filled: usize) -> Vec<u8> {
        let mut lists = Lists { writes: self.call.lists.writes.clone(), ..Lists::default() };
        let mut left = filled;
        for segment in lists.writes.iter_mut().flatten() {
            segment.length = segment.length.min(left as u32);
            left -= segment.length as usize;
            let data = view(&vec![b'r'; segment.length as usize]).into();
            let _ = self.qp.post_write(WriteRequest { data, to: *segment });
        }
        let written = filled - left;
        let header = Header::new(self.call.xid, 8, Body::Msg(lists));
        let mut out = vec![0; header.encoded_len()];
        header.encode(&mut out);
        out.extend(encoded(|e| {
            e.put(&ReplyHeader { xid: self.call.xid, status: ReplyStatus::Success });
            e.put_u32(7);
            e.put_u32(written as u32);
        }));
        out
    }

    fn send(&mut self, message: &[u8], invalidate: Option<SteeringTag>) {
        let data = view(message).into();
        let _ = self.qp.post_send(SendRequest { data, invalidate, solicited: false, signaled: None });
    }

    async fn execute(&mut self, kind: u8, operand: &[u8]) -> bool {
        let mut fields = Input::new(operand);
        match kind {
            REPLY | CHANGED | INVALIDATE => {
                let filled = usize::from(fields.u16());
                let mut reply = self.reply(filled);
                let tag = self.segment(fields.u8()).handle;
                for change in fields.rest().chunks_exact(2).filter(|_| kind == CHANGED) {
                    let at = usize::from(change[0]) % reply.len();
                    reply[at] ^= change[1];
                }
                self.send(&reply, (kind == INVALIDATE).then_some(tag));
            }
            SEND => self.send(operand, None),
            WRITE => {
                let to = self.segment(fields.u8());
                let (beyond, len) = (u64::from(fields.u16()), usize::from(fields.u16()));
                let to = Segment { length: len as u32, offset: to.offset.wrapping_add(beyond), ..to };
                let _ = self.qp.post_write(WriteRequest { data: view(&vec![b'x'; len]).into(), to });
            }
            READ => {
                let from = self.segment(fields.u8());
                let (beyond, len) = (u64::from(fields.u16()), fields.u16());
                let from = Segment { length: len.into(), offset: from.offset.wrapping_add(beyond), ..from };
                let sink = vec![memory(len.into())];
                let _ = self.qp.post_read(ReadRequest { id: WorkId(1), from, sink });
            }
            PAUSE => self.rt.sleep(Duration::from_millis(u64::from(fields.u16()))).await,
            DISCONNECT => self.qp.disconnect(),
            ABORT => {
                self.qp.abort();
                return false;
            }
            _ => return self.work(Duration::from_secs(1)).await,
        }
        self.work(Duration::from_millis(2)).await
    }
}

/// Accepts one connection and executes the script on it.
async fn respond(world: World, rt: RuntimeRef, script: &[u8]) {
    let mut script = Input::new(script);
    let provider = IwarpOver(world.tcp(SERVER.into()));
    let mut listener = provider.listen(rt.clone(), (SERVER, PORT).into()).expect("an address");
    let incoming = listener.accept().await.expect("a connection");
    let data = PrivateData { remote_invalidate: true, send_size: 4096, receive_size: 4096 };
    let params = ConnectParams { private_data: data.encode().into(), ..ConnectParams::default() };
    let Ok(mut qp) = incoming.accept(rt.clone(), arena(), params).await else { return };
    for _ in 0..16 {
        let _ = qp.post_receive(memory(8192));
    }
    let mut responder = Responder { qp, rt, call: Received::default() };
    let mut up = responder.work(Duration::from_secs(1)).await;
    for _ in 0..OPERATIONS {
        let Some((kind, operand)) = script.operation() else { break };
        if !up {
            return;
        }
        up = responder.execute(kind % KINDS, operand).await;
    }
    // No reply until the requester cancels the call.
    while up {
        up = responder.work(Duration::from_secs(3600)).await;
    }
}

/// Makes one call after the other, with guard memory around the buffers that must not change.
async fn call(world: World, rt: RuntimeRef) {
    let arena = Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false });
    let config = RequesterConfig { credits: 4, call_timeout: Duration::from_secs(5), ..Default::default() };
    let provider = IwarpOver(world.tcp(CLIENT.into()));
    let to = (SERVER, PORT).into();
    let requester = Requester::connect(&provider, rt.clone(), arena.clone(), to, config).await;
    let requester = requester.expect("a connection");
    let guard = || {
        let mut guard = arena.alloc(RESULT).expect("arena memory");
        guard.set_len(RESULT);
        guard.fill(GUARD);
        guard
    };
    let mut guards = Vec::new();
    for n in 0..CALLS {
        guards.push(guard());
        let mut e = Encoder::new(&arena, 256);
        for word in [0, 0, 2, 0x2000_0001, 1, 1, 0, 0, 0, 0] {
            e.put_u32(word);
        }
        if n % 2 == 1 {
            e.put_payload(arena.copy_from(&[b'd'; DATA]).expect("arena memory").into());
        }
        let payload = (n % 2 == 0).then(guard);
        guards.push(guard());
        let spec = ReplySpec { max_head: 64, payload, ..ReplySpec::default() };
        let request = Request::new(e.finish().expect("arena memory"), spec);
        if let Ok(reply) = requester.submit(request).await {
            let mut results = reply.results();
            if results.u32().is_ok() {
                drop(results.payload(RESULT));
            }
        }
    }
    requester.close();
    let ended = async {
        while requester.failure().is_none() || requester.exposed().0 > 0 {
            rt.sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(&*rt, END, ended).await.expect("nothing is exposed when the connection has ended");
    assert!(guards.iter().all(|g| g.iter().all(|b| *b == GUARD)), "memory that was not exposed has changed");
}

/// One execution of operations.
pub(in crate::targets) fn run(script: &[u8]) {
    let time = VirtualTime::new(7);
    let world = World::new(&time, Profile::named("gige-2003").expect("a profile"));
    let rt = time.runtime();
    let done = time.block_on(async {
        let respond = Box::pin(respond(world.clone(), rt.clone(), script));
        // The responder has to listen first.
        let call = Box::pin(async {
            rt.sleep(Duration::from_millis(1)).await;
            call(world.clone(), rt.clone()).await;
        });
        let calls_end = async {
            match select(respond, call).await {
                Either::Left(((), call)) => call.await,
                Either::Right(((), _)) => {}
            }
        };
        timeout(&*rt, END, calls_end).await.expect("the calls end");
    });
    if let Err(stuck) = done {
        panic!("{stuck}");
    }
}

/// Correct replies; replies with one change of each kind; silence.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let full: &[u8] = &[0x17, 0x70];
    let next: (u8, &[u8]) = (NEXT, &[]);
    let reply: (u8, &[u8]) = (REPLY, full);
    let scripts: [&[(u8, &[u8])]; 13] = [
        &[reply, reply, reply, reply],
        &[next, reply, (REPLY, &[0, 0]), (REPLY, &[1, 0]), reply],
        &[(CHANGED, &[0x17, 0x70, 0, 3, 1]), reply],
        &[(CHANGED, &[0x17, 0x70, 0, 35, 255]), reply],
        &[(CHANGED, &[0x17, 0x70, 0, 15, 4]), reply],
        &[(INVALIDATE, &[0x17, 0x70, 0]), reply, (INVALIDATE, &[0x17, 0x70, 1])],
        &[(SEND, &[]), (SEND, &[0; 28]), reply],
        &[(WRITE, &[0, 0, 0, 0x17, 0x70]), reply, (WRITE, &[0, 0, 8, 0x17, 0x70])],
        &[(READ, &[0, 0, 0, 0, 64]), reply],
        &[reply, (READ, &[0, 0, 0, 0, 64]), reply],
        &[(PAUSE, &[0x20, 0]), reply],
        &[reply, (DISCONNECT, &[])],
        &[reply, (ABORT, &[])],
    ];
    scripts.iter().map(|s| operations(s)).collect()
}
