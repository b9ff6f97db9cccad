//! Counts the heap allocations of calls in steady state at both ends.

use std::sync::Arc;

use millrace_buffer::Arena;
use millrace_counting_allocator::allocations;
use millrace_oncrpc::{
    CallClass, CallContext, MaybeReady, Message, ReplyHeader, ReplySpec, ReplyStatus, Request, Sampler,
    Service, serving::ConnectionConfig, stages::StageTimes,
};
use millrace_rdma::ConnectParams;
use millrace_rpcrdma::{Protocol, RequesterConfig, RequesterTransport, ResponderConfig};
use millrace_xdr::{Encoder, Views};

use super::{Link, PROGRAM, accepted, queue_pairs, rt};

const BYTES: usize = 256 << 10;

/// A connection and the arena and service of its calls.
struct Scene {
    to: Arc<dyn RequesterTransport>,
    arena: Arena,
    data: Views,
    sampler: Sampler,
}

/// Answers every call with the same pages by reference.
struct Pages(Views);

impl Service for Pages {
    fn call(&self, call: CallContext, mut e: Encoder) -> MaybeReady<'static, Option<Message>> {
        let mut d = call.args();
        let want = d.u32().unwrap() as usize;
        let sent = d.payload(BYTES).unwrap().len();
        e.put(&ReplyHeader { xid: call.header.xid, status: ReplyStatus::Success });
        e.put_u32(sent as u32);
        e.put_payload(self.0.slice(0, want));
        MaybeReady::Ready(e.finish().ok())
    }
}

async fn call(scene: &Scene, send: usize, receive: usize) {
    let Scene { to, arena, data, sampler } = scene;
    let mut e = Encoder::new(arena, 64);
    for word in [0, 0, 2, PROGRAM, 1, 1, 0, 0, 0, 0, receive as u32] {
        e.put_u32(word);
    }
    e.put_payload(data.slice(0, send));
    let payload = (receive > 0).then(|| arena.alloc(receive).unwrap());
    let stages = sampler.next_call(None);
    let request =
        Request::new(e.finish().unwrap(), ReplySpec { max_head: 64, payload, ..ReplySpec::default() });
    let reply = to.submit(Request { stages: stages.clone(), ..request }).await.unwrap();
    sampler.finish(stages);
    let mut d = reply.results();
    assert_eq!(d.u32().unwrap() as usize, send);
    assert_eq!(d.payload(BYTES).unwrap().len(), receive);
}

/// Asserts that there are none with `protocol`. One call in `every` is sampled at both ends.
pub async fn assert_none(protocol: &dyn Protocol, every: u32) {
    let arena = super::arena();
    let c = RequesterConfig::default();
    let (client_times, server_times) = (Arc::default(), Arc::default());
    let sampler = |end, times: &Arc<StageTimes>| Sampler::new(rt(), end, every, Arc::clone(times));
    let s = ResponderConfig {
        connection: ConnectionConfig {
            sampler: Some(Arc::new(sampler("server", &server_times))),
            ..Default::default()
        },
        ..Default::default()
    };
    let accept = protocol.accept_params(&s, ConnectParams::default());
    let (qc, qs) = queue_pairs(Link::Tcp, &arena, protocol.connect_params(&c), accept).await;
    let pages: Views = (0..4).map(|_| arena.alloc(64 << 10).unwrap().freeze()).collect();
    let connection = accepted(qs, Arc::new(Pages(pages.clone())), &arena);
    let serving = protocol.serve(connection, s, Arc::default(), Box::pin(std::future::pending()));
    let task = tokio::spawn(serving);
    let to = protocol.requester(qc, rt(), arena.clone(), c).unwrap();
    let scene = Scene { to, arena, data: pages, sampler: sampler("client", &client_times) };
    for (send, receive) in [(0, 0), (0, BYTES), (BYTES, 0), (4096, 4096)] {
        for _ in 0..50 {
            call(&scene, send, receive).await;
        }
        let before = allocations();
        for _ in 0..100 {
            call(&scene, send, receive).await;
        }
        let taken = allocations() - before;
        assert_eq!(
            taken,
            0,
            "by 100 {} calls that send {send} and receive {receive} bytes, 1 in {every} sampled",
            protocol.name()
        );
    }
    let sampled = 600_u32.checked_div(every).map(u64::from).unwrap_or(0);
    for times in [client_times, server_times] {
        let calls = times.snapshot().of(CallClass::Other).calls;
        // The Send of the last reply may not be complete.
        assert!(calls == sampled || calls + 1 == sampled, "{calls} of {sampled}");
    }
    scene.to.close();
    task.await.unwrap().unwrap();
}
