//! Clients that use all slots of many sessions on many connections, beside one that makes a request at a time.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use millrace_nfs::v4::*;

use super::{
    compound::*,
    network::{Network, on_both},
};
use crate::common::Caller;

/// Maximum number of sessions of a client.
const SESSIONS: usize = 16;
/// Slots of each session that the greedy client uses.
const SLOTS: u32 = 16;
const CONNECTIONS: usize = 4;

/// GETATTR of the root in a slot.
async fn getattr_in_slot(c: &Caller, session: SessionId, slot: u32, number: u32) -> Status {
    let args = SequenceArgs { session, sequence: number, slot, highest_slot: slot, cache_this: false };
    send(c, 2, &[sequence(args), putrootfh(), getattr(&[Attribute::Size])]).await.status
}

/// The virtual time of `count` requests one after another.
async fn time_of(network: &Network, c: &Caller, s: &Session, count: u32) -> Duration {
    let start = network.rt.now();
    for _ in 0..count {
        assert_eq!(s.status(c, [putrootfh(), getattr(&[Attribute::Size])]).await, Status::Ok);
    }
    network.rt.now().duration_since(start)
}

#[test]
fn a_client_with_many_sessions_slots_and_connections_starves_no_other() {
    on_both(async |network| {
        let modest = network.connect(1).await.caller();
        let alone = Session::new(&modest, b"modest").await;
        let undisturbed = time_of(network, &modest, &alone, 50).await;

        let first = network.connect(2).await.caller();
        let sessions = Session::new(&first, b"greedy").await;
        let mut ids = vec![sessions.ok.session];
        let mut number = sessions.ok.sequence;
        loop {
            number += 1;
            let created = send(&first, 1, &[create_session(sessions.client, number, CHANNEL)]).await;
            if created.status != Status::Ok {
                assert_eq!(created.status, Status::NoSpc);
                break;
            }
            ids.push(created.take::<CreateSessionOk>(Operation::CreateSession).session);
        }
        assert_eq!(ids.len(), SESSIONS);
        let mut connections = vec![Arc::new(first)];
        for _ in 1..CONNECTIONS {
            connections.push(Arc::new(network.connect(2).await.caller()));
        }
        let greedy = ids.iter().skip(1).enumerate().flat_map(|(n, session)| {
            let c = Arc::clone(&connections[n % CONNECTIONS]);
            (0..SLOTS).map(move |slot| {
                let (c, session) = (Arc::clone(&c), *session);
                async move {
                    let mut done = 0_u64;
                    for number in 1..=200 {
                        assert_eq!(getattr_in_slot(&c, session, slot, number).await, Status::Ok);
                        done += 1;
                    }
                    done
                }
            })
        });
        let greedy = join_all(greedy);
        let both = futures::future::join(greedy, time_of(network, &modest, &alone, 50));
        let (done, disturbed) = both.await;
        let total: u64 = done.iter().sum();
        eprintln!("{undisturbed:?} alone, {disturbed:?} beside {total} requests");
        assert_eq!(total, 200 * u64::from(SLOTS) * (SESSIONS as u64 - 1));
        // Far less than a share in proportion to the requests in progress (241).
        assert!(disturbed < undisturbed * 20, "{undisturbed:?} alone, {disturbed:?} beside the others");
        // The counters are per client.
        let stats = network.hosted.stats();
        let calls = |owner: &[u8]| {
            let client = stats.nfs4_clients.iter().find(|(name, _)| **name == *owner);
            client.map(|(_, usage)| usage.latency.count()).unwrap_or_default()
        };
        assert!(calls(b"greedy") >= total, "{}", calls(b"greedy"));
        assert_eq!(calls(b"modest"), 101, "RECLAIM_COMPLETE, and the requests");
    });
}
