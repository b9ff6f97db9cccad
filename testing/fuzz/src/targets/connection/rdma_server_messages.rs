//! A client that conforms to RDMA and sends arbitrary RPC-over-RDMA messages and RDMA operations. Input:
//! flags of the server, and operations. In messages the word [`TAG`] is replaced by the tag of memory that
//! the peer exposes.

use std::{future::poll_fn, task::Poll, time::Duration};

use millrace_buffer::Buffer;
use millrace_client::Proto;
use millrace_rdma::{
    Access, Completion, ConnectParams, ExposedRegion, Memory, MemoryRegion, QueuePair, ReadRequest, Segment,
    SendRequest, SteeringTag, WorkId, WriteRequest,
};
use millrace_rpcrdma::{Body, Header, Lists, PrivateData, ReadSegment};
use millrace_runtime::{RuntimeExt, RuntimeRef, timeout};

use super::{
    calls::calls,
    scene::{Kind, Net, RDMA, Scene, server},
};
use crate::{
    bytes::{Input, operations},
    targets::{
        iwarp::replace,
        xdr::{arena, view},
    },
};

const HOST: u8 = 1;
/// Maximum number of operations of one input.
const OPERATIONS: usize = 48;
/// Bytes of each region of the peer, and of each receive.
const REGION: usize = 8192;
/// Receives of the peer.
const RECEIVES: usize = 16;
/// Placeholder for the tag of the memory that the server may read.
const TAG: u32 = 0xf00d_0001;
/// Placeholder for the tag of the memory that the server may write.
const SINK_TAG: u32 = 0xf00d_0002;
/// The call (READDIRPLUS) in the memory that the server may read, and its offset there.
const LONG: usize = 10;
const LONG_AT: usize = 1024;
/// Kinds of operations.
const SEND: u8 = 0;
const INVALIDATE: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;
const PAUSE: u8 = 4;
const DISCONNECT: u8 = 5;
const ABORT: u8 = 6;
const KINDS: u8 = 7;

struct Peer {
    qp: Box<dyn QueuePair>,
    source: ExposedRegion,
    sink: ExposedRegion,
}

fn memory(len: usize) -> Buffer {
    let mut buffer = arena().alloc(len).expect("arena memory");
    buffer.set_len(len);
    buffer.fill(b'm');
    buffer
}

impl Peer {
    async fn connect(net: &Net, rt: &RuntimeRef) -> Option<Self> {
        let data = PrivateData { remote_invalidate: true, send_size: 4096, receive_size: 4096 };
        let params = ConnectParams { private_data: data.encode().into(), ..ConnectParams::default() };
        let connect = net.iwarp(HOST).connect(rt.clone(), arena(), server(RDMA), params);
        let mut qp = connect.await.ok()?;
        let expose = |memory, access| {
            MemoryRegion::new(qp.domain(), Memory::Owned(memory)).expose(access).expect("an exposed region")
        };
        let mut source = memory(REGION);
        let long = &calls()[LONG];
        source[LONG_AT..LONG_AT + long.len()].copy_from_slice(long);
        let (source, sink) =
            (expose(source, Access::RemoteRead), expose(memory(REGION), Access::RemoteWrite));
        for _ in 0..RECEIVES {
            qp.post_receive(memory(REGION)).ok()?;
        }
        Some(Self { qp, source, sink })
    }

    /// Posts work. The queue pair reports errors.
    fn post(&mut self, kind: u8, operand: &[u8]) {
        let mut bytes = operand.to_vec();
        replace(&mut bytes, TAG, self.source.segment().handle.0);
        replace(&mut bytes, SINK_TAG, self.sink.segment().handle.0);
        let mut fields = Input::new(&bytes);
        match kind {
            SEND | INVALIDATE => {
                let tag = SteeringTag(u32::from(fields.u16()) << 16 | u32::from(fields.u16()));
                let invalidate = (kind == INVALIDATE).then_some(tag);
                let data = view(if kind == SEND { &bytes } else { fields.rest() }).into();
                let send = SendRequest { data, invalidate, solicited: false, signaled: None };
                let _ = self.qp.post_send(send);
            }
            _ => {
                let handle = SteeringTag(u32::from(fields.u16()) << 16 | u32::from(fields.u16()));
                let (offset, length) = (u64::from(fields.u16()), u32::from(fields.u16()));
                let at = Segment { handle, length, offset };
                if kind == WRITE {
                    let _ = self.qp.post_write(WriteRequest { data: view(fields.rest()).into(), to: at });
                } else {
                    let sink = vec![memory(length as usize)];
                    let _ = self.qp.post_read(ReadRequest { id: WorkId(1), from: at, sink });
                }
            }
        }
    }

    /// Drives the connection for `limit`. Returns `false` if the connection is down.
    async fn work(&mut self, rt: &RuntimeRef, limit: Duration) -> bool {
        let work = poll_fn(|cx| {
            let mut some = Vec::new();
            loop {
                match self.qp.poll(cx, &mut some) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
                for completion in some.drain(..) {
                    if let Completion::Received { .. } = completion {
                        let _ = self.qp.post_receive(memory(REGION));
                    }
                }
            }
        });
        timeout(&**rt, limit, work).await.is_none()
    }
}

async fn attack(net: Net, rt: RuntimeRef, script: &[u8]) {
    let mut script = Input::new(script);
    let mut peer = Peer::connect(&net, &rt).await;
    for _ in 0..OPERATIONS {
        let Some((kind, operand)) = script.operation() else { break };
        let Some(connected) = &mut peer else {
            peer = Peer::connect(&net, &rt).await;
            continue;
        };
        match kind % KINDS {
            PAUSE => {
                let limit = Duration::from_millis(u64::from(Input::new(operand).u16()));
                connected.work(&rt, limit).await;
                continue;
            }
            DISCONNECT => connected.qp.disconnect(),
            ABORT => {
                connected.qp.abort();
                peer = None;
                continue;
            }
            kind => connected.post(kind, operand),
        }
        if !connected.work(&rt, Duration::from_millis(2)).await {
            peer = None;
        }
    }
    if let Some(mut peer) = peer {
        peer.work(&rt, Duration::from_millis(100)).await;
    }
    rt.sleep(Duration::from_millis(1)).await;
}

/// Executes the target with `input`.
pub(in crate::targets) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let scene = Scene::new(Kind::new(input.u8(), Proto::Rdma));
    scene.run(attack(scene.net.clone(), scene.rt.clone(), input.rest()));
}

/// Calls without chunks, with a Read chunk, with a Write chunk, with a position-zero Read chunk and a Reply
/// chunk; RDMA operations on the server.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let calls = calls();
    let at = |handle, length, offset| Segment { handle: SteeringTag(handle), length, offset };
    let chunk = |length| [at(SINK_TAG, length, 0)].into_iter().collect();
    let with = |n: usize, body: fn(Lists) -> Body, lists: Lists, inline: usize| {
        let header = Header::new(n as u32 + 1, 8, body(lists));
        let mut out = vec![0; header.encoded_len()];
        header.encode(&mut out);
        out.extend(&calls[n][..inline.min(calls[n].len())]);
        out
    };
    let plain: Vec<Vec<u8>> =
        (0..calls.len()).map(|n| with(n, Body::Msg, Lists::default(), usize::MAX)).collect();
    let mut out = Vec::new();
    for flags in 0..2 {
        let script: Vec<(u8, &[u8])> = plain.iter().map(|m| (SEND, &m[..])).collect();
        out.push([&[flags][..], &operations(&script)].concat());
        // WRITE, with its 600 bytes of data in a Read chunk.
        let inline = calls[6].len() - 600;
        let mut lists = Lists::default();
        lists.reads.push(ReadSegment { position: inline as u32, segment: at(TAG, 600, 16) });
        let write = with(6, Body::Msg, lists, inline);
        let mut lists = Lists::default();
        lists.writes.push(chunk(512));
        let read = with(5, Body::Msg, lists, usize::MAX);
        let mut lists = Lists::default();
        let segment = at(TAG, calls[LONG].len() as u32, LONG_AT as u64);
        lists.reads.push(ReadSegment { position: 0, segment });
        lists.reply = Some(chunk(4096));
        let long = with(LONG, Body::NoMsg, lists, 0);
        let lists = Lists { reply: Some(chunk(4096)), ..Lists::default() };
        let reply = with(10, Body::Msg, lists, usize::MAX);
        let done = with(3, |_| Body::Done, Lists::default(), 0);
        let script: [(u8, &[u8]); 6] =
            [(SEND, &write), (SEND, &read), (SEND, &reply), (SEND, &long), (SEND, &done), (PAUSE, &[1, 0])];
        out.push([&[flags][..], &operations(&script)].concat());
    }
    let script: [(u8, &[u8]); 4] = [
        (SEND, &plain[0]),
        (INVALIDATE, &[&[0, 0, 0, 1][..], &plain[3]].concat()),
        (DISCONNECT, &[]),
        (SEND, &plain[0]),
    ];
    out.push([&[0][..], &operations(&script)].concat());
    for operation in [(WRITE, &[0, 0, 1, 0, 0, 0, 0, 64, 9, 9, 9, 9][..]), (READ, &[0, 0, 1, 0, 0, 0, 0, 64])]
    {
        let script = [(SEND, &plain[0][..]), operation, (ABORT, &[]), (SEND, &[])];
        out.push([&[0][..], &operations(&script)].concat());
    }
    out
}
