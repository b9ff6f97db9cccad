//! Replies without memory of the arena. iWARP over streams in memory, in virtual time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use millrace_admission::Account;
use millrace_buffer::{Arena, ArenaConfig, Buffer};
use millrace_oncrpc::{CallContext, Message, ReplyHeader, ReplyStatus, Service};
use millrace_rdma::ConnectParams;
use millrace_rpcrdma::{Accepted, Header, Lists, RequesterConfig, Responder, ResponderConfig};
use millrace_runtime::{MaybeReady, RuntimeExt, RuntimeRef, memory_stream, virtual_time::VirtualTime};
use millrace_xdr::Encoder;

use raw::{Raw, msg};

use crate::support::{self, Ask, message, peer, raw};

fn small_arena() -> Arena {
    Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false })
}

/// Answers after a second, and first allocates all memory of the arena. Keeps its reply, as a duplicate request cache
/// does, so that the header of the transport needs separate memory.
struct Exhausting {
    rt: RuntimeRef,
    arena: Arena,
    taken: Arc<Mutex<Vec<Buffer>>>,
    kept: Mutex<Vec<Message>>,
}

impl Service for Exhausting {
    fn call(&self, call: CallContext, mut e: Encoder) -> MaybeReady<'static, Option<Message>> {
        e.put(&ReplyHeader { xid: call.header.xid, status: ReplyStatus::Success });
        let reply = e.finish().ok();
        self.kept.lock().unwrap().extend(reply.clone());
        let (rt, arena, taken) = (Arc::clone(&self.rt), self.arena.clone(), Arc::clone(&self.taken));
        MaybeReady::wait(async move {
            rt.sleep(Duration::from_secs(1)).await;
            let mut taken = taken.lock().unwrap();
            for len in (0..=22).rev().map(|order| 1 << order) {
                while let Ok(buffer) = arena.alloc(len) {
                    taken.push(buffer);
                }
            }
            reply
        })
    }
}

/// The arena has no memory for a reply for one second. Meanwhile the connection is stopped, exceeds its idle timeout, or neither.
#[test]
fn a_reply_without_memory_is_sent_once_memory_is_available() {
    for (stop, idle) in [(None, None), (Some(1500), None), (None, Some(200))] {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        let test = async {
            let (ours, theirs) = memory_stream(256 << 10, usize::MAX);
            let mut config = ResponderConfig { credits: 4, ..ResponderConfig::default() };
            config.connection.idle_timeout = idle.map(Duration::from_millis);
            let accept = config.connect_params(ConnectParams::default());
            let connect = RequesterConfig::default().connect_params();
            let connect =
                millrace_rdma_iwarp::connect_over(Arc::clone(&rt), support::arena(), Box::new(ours), connect);
            let accept =
                millrace_rdma_iwarp::accept_over(Arc::clone(&rt), support::arena(), Box::new(theirs), accept);
            let (ours, theirs) = futures::future::try_join(connect, accept).await.unwrap();
            let (arena, taken) = (small_arena(), Arc::<Mutex<Vec<Buffer>>>::default());
            let service = Exhausting {
                rt: Arc::clone(&rt),
                arena: arena.clone(),
                taken: Arc::clone(&taken),
                kept: Mutex::default(),
            };
            let peer = peer(&*theirs);
            let stats = Arc::default();
            let (service, rt, account) = (Arc::new(service), Arc::clone(&rt), Account::unlimited());
            let connection =
                Accepted { qp: theirs, peer, service, rt: Arc::clone(&rt), arena, account, session: None };
            let responder = Responder::new(connection, config, Arc::clone(&stats));
            let stopped = stop.map(|ms| rt.sleep(Duration::from_millis(ms)));
            let running = responder.unwrap().run_until(async {
                match stopped {
                    Some(stopped) => stopped.await,
                    None => std::future::pending().await,
                }
            });
            rt.spawn("responder", Box::pin(async move { drop(running.await) }));
            let mut raw = Raw::new(ours, &support::arena());
            let call = message(&raw.arena, 1, Ask::default()).head.to_vec();
            raw.send(&Raw::message(&msg(1, Lists::default()), &call));
            raw.push().await;
            rt.sleep(Duration::from_secs(2)).await;
            let attempts = stats.snapshot().out_of_memory;
            assert_eq!(attempts, 1, "none while there is no memory");
            let freed = rt.now();
            taken.lock().unwrap().clear();
            let reply = millrace_runtime::timeout(&*rt, Duration::from_secs(5), raw.next()).await;
            let reply = reply.unwrap_or_else(|| panic!("no reply: stop {stop:?}, idle {idle:?}"));
            let reply = reply.unwrap_or_else(|e| panic!("{e}: stop {stop:?}, idle {idle:?}"));
            assert_eq!(Header::decode(&reply, 100).unwrap().0.xid, 1);
            assert_eq!(rt.now(), freed, "the reply waits for nothing but memory");
        };
        time.block_on(test).unwrap();
    }
}
