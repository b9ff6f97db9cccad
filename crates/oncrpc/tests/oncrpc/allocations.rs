//! Calls in steady state allocate no heap memory at either end.

use std::sync::Arc;

use millrace_admission::Account;
use millrace_counting_allocator::allocations;
use millrace_oncrpc::{
    Credential, Dispatcher, Program, ReplySpec, Request, Transport, call_header,
    tcp::{TcpServer, TcpTransport},
};
use millrace_runtime::{memory_stream, tokio_rt::TokioRuntime};
use millrace_xdr::Encoder;

use crate::common::{Doubler, arena, peer};

/// Bytes of data: within the first piece of a record, and the usual maximum transfer size.
const LENGTHS: [usize; 2] = [5001, 1 << 20];

#[test]
fn calls_over_tcp_allocate_nothing_in_steady_state() {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let (rt, arena) = (TokioRuntime::current(), arena());
        let (ours, theirs) = memory_stream(200_000, 200_000);
        let server = TcpServer {
            service: Arc::new(Dispatcher::new([Arc::new(Doubler::default()) as Arc<dyn Program>])),
            rt: rt.clone(),
            arena: arena.clone(),
            config: Default::default(),
            stats: Arc::default(),
        };
        rt.spawn(
            "server",
            Box::pin(server.serve(Box::new(theirs), peer(), Account::unlimited(), std::future::pending())),
        );
        let t: Arc<dyn Transport> =
            TcpTransport::start(Box::new(ours), &rt, &arena, Default::default()).unwrap();
        for len in LENGTHS {
            let data = arena.copy_from(&vec![5; len]).unwrap();
            let call = || {
                let mut e = Encoder::new(&arena, 128);
                call_header(&mut e, 100_003, 3, 7, &Credential::None);
                e.put_payload(data.clone().into());
                let reply = ReplySpec { max_head: 128, ..ReplySpec::default() };
                t.submit(Request::new(e.finish().unwrap(), reply))
            };
            let round = async || {
                let (a, b, c) = futures::join!(call(), call(), call());
                for reply in [a, b, c] {
                    let data = reply.unwrap().results().payload(len).unwrap();
                    assert_eq!(data.len(), len);
                }
            };
            for _ in 0..50 {
                round().await;
            }
            let before = allocations();
            for _ in 0..200 {
                round().await;
            }
            assert_eq!(allocations() - before, 0, "allocations in 600 calls of {len} bytes");
        }
    });
}
