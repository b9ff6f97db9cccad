//! The sizes of replies that a session permits, with protection.

use std::time::Duration;

use millrace_kerberos_testing::realm_tests;
use millrace_nfs::v4::*;
use millrace_nfs4_conformance::compound::{
    CHANNEL, Call, Compound, Op, Session, exchange_id, getattr, op, open, putfh, read, request, send,
    sequence,
};
use millrace_server::{Config, Server};

use super::{
    SERVICES,
    caller::{GssCaller, principal, tickets},
    settings,
};
use crate::common::{Proto, config, run};

/// Limits of a session in bytes: of a reply, and of one that is kept.
const REPLY: u32 = 3000;
const CACHED: u32 = 1000;
/// More than one operand more makes a reply longer.
const STEP: usize = 8;

/// Status and size of the reply to a COMPOUND.
async fn sized(c: &GssCaller, session: &Session, cache: bool, ops: Vec<Op>) -> (Status, usize) {
    let ops: Vec<_> = std::iter::once(sequence(session.sequence(cache))).chain(ops).collect();
    let (reply, size) =
        c.call_and_size(request(c, &Compound { tag: b"", minor_version: 2, ops: &ops })).await.unwrap();
    let frame: CompoundRes<'_> = reply.results().get().unwrap();
    (frame.status, size)
}

realm_tests! {
    fn a_protected_reply_is_not_longer_than_the_session_permits(realm) {
        run(async {
            let kerberos = settings(realm, &[(&principal(0), "0:0")]);
            let exports = ["/x=memory:8MiB,sec=krb5p:krb5i:krb5,squash=none"];
            let server = Server::start(Config { kerberos, ..config(&exports) }).unwrap();
            let first = GssCaller::connect(&server, Proto::Tcp, &tickets(realm, &[0]), 1).await;
            for service in SERVICES {
                let c = first.with_service(service);
                let identified = send(&c, 1, &[exchange_id(b"limits", [service as u8; 8])]).await;
                let ok: ExchangeIdOk<'_> = identified.take(Operation::ExchangeId);
                let fore = ChannelAttrs { max_response_size: REPLY, max_response_size_cached: CACHED, max_operations: 64, ..CHANNEL };
                let session = Session::of(&c, ok.client_id, ok.sequence, fore).await;
                assert_eq!(session.ok.fore.max_response_size, REPLY);
                assert_eq!(session.ok.fore.max_response_size_cached, CACHED);
                session.reclaim_complete(&c).await;
                let root = session.path(&c, "x").await.unwrap();
                let opened = session.send(&c, [putfh(&root), open(b"o", "file", 3, 0, true), op(Operation::Getfh, ())]).await;
                let ok: OpenOk<'_> = opened.skip(&[Operation::Putfh]).take(Operation::Open);
                let file = opened.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
                let data = vec![7; REPLY as usize];
                let write = WriteArgs { stateid: ok.stateid, offset: 0, stable: StableHow::FileSync, data: c.arena().copy_from(&data).unwrap().into() };
                assert_eq!(session.status(&c, [putfh(&file), op(Operation::Write, write)]).await, Status::Ok);

                // The longest reply that is permitted is close to the limit, and the next one is refused.
                let mut longest = 0;
                for count in (0..REPLY).step_by(4) {
                    let (status, size) = sized(&c, &session, false, vec![putfh(&file), read(ok.stateid, 0, count)]).await;
                    assert!(size <= REPLY as usize, "READ of {count} bytes with service {service}: {size} bytes");
                    match status {
                        Status::Ok => longest = longest.max(size),
                        status => assert_eq!(status, Status::RepTooBig, "{count}"),
                    }
                }
                assert!(longest + STEP > REPLY as usize, "READ with service {service}: at most {longest} bytes");

                let mut longest = 0;
                for number in 0..60 {
                    let ops = std::iter::once(putfh(&file)).chain((0..number).map(|_| getattr(&[Attribute::FileType])));
                    let (status, size) = sized(&c, &session, true, ops.collect()).await;
                    match status {
                        Status::Ok => {
                            assert!(size <= CACHED as usize, "{number} GETATTR with service {service}: {size} bytes");
                            longest = longest.max(size);
                        }
                        status => assert_eq!(status, Status::RepTooBigToCache, "{number}"),
                    }
                }
                assert!(longest + 24 + STEP > CACHED as usize, "GETATTR with service {service}: at most {longest} bytes");
            }
            server.stop(Duration::from_secs(5)).await;
        });
    }
}
