//! One greedy host, and the initiator and the NFS client of another one: the host takes its share at most.

use std::{
    future::poll_fn,
    net::{IpAddr, Ipv6Addr},
    sync::atomic::Ordering,
    task::Poll,
    time::Duration,
};

use millrace_iscsi::session::{Direction, Outcome};
use millrace_iscsi_target::ConnectionLimits;
use millrace_runtime::RuntimeExt;

use super::common::{Bench, Client, Fabric, pattern, run, rw10};

const VICTIM: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 1));
/// A third host, which takes less than its share.
const MODEST: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 3, 0, 0, 0, 1));
/// Sessions of the greedy host. The receives and immediate data of all their windows would exceed the memory.
const SESSIONS: u8 = 20;

/// Address `n` of the greedy host.
fn greedy(n: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, n.into()).into()
}

/// Sessions of the greedy host, each with this number of WRITEs of `blocks` blocks, whose data begins with immediate data.
/// Nothing polls their queue pairs: over iWARP the rest does not come.
async fn attack(bench: &Bench, writes: u32, blocks: u16) -> Vec<Client> {
    let mut sessions = Vec::new();
    for n in 0..SESSIONS {
        let mut client = bench.connect_from(greedy(n)).await;
        client.log_in(n).await.unwrap();
        client.clear_attention().await;
        for i in 0..writes {
            let data = vec![1; usize::from(blocks) * 512];
            client.submit(&rw10(0x2a, i * u32::from(blocks), blocks), Direction::Write, data);
        }
        client.flush();
        poll_fn(|cx| {
            client.qp.flush(cx);
            Poll::Ready(())
        })
        .await;
        sessions.push(client);
    }
    sessions
}

/// Sessions keep receives and memory for immediate data from their login on, and leave memory to others, with or without
/// commands.
#[test]
fn sessions_of_a_host_take_its_share() {
    for writes in [0, 64] {
        run(&ConnectionLimits::default(), async |bench| {
            // The victim has a mount, so the greedy host is not the only client.
            let mount = bench.account_of(VICTIM);
            let sessions = attack(&bench, writes, 128).await;
            let mut call = bench.account_of(VICTIM);
            assert!(call.take(1 << 20), "{writes} writes: {:?}", bench.budget.stats());
            drop(call);
            let mut victim = bench.connect_from(VICTIM).await;
            victim.log_in(200).await.unwrap();
            victim.clear_attention().await;
            let data = pattern(1 << 20, 5);
            victim.write(16384, &data).await;
            assert!(victim.read(16384, 2048).await == data);
            assert_eq!(bench.stats.stalled.load(Ordering::Relaxed), 0, "no session has to end for that");
            victim.log_out().await;
            drop((sessions, mount));
            bench.expect_idle().await;
        });
    }
}

/// The greedy host was alone, and has nearly all memory for WRITEs whose data does not come. For the victim, sessions of it
/// end that have fallen behind by a short time. A host within its share keeps its session, which has fallen behind as much.
#[test]
fn stalled_sessions_beyond_the_share_end_when_others_need_memory() {
    run(&ConnectionLimits::default(), async |bench| {
        if bench.fabric == Fabric::Sim {
            return; // Its adapter serves RDMA Reads without the initiator.
        }
        let sessions = attack(&bench, 2, 8192).await;
        let mut modest = bench.connect_from(MODEST).await;
        modest.log_in(201).await.unwrap();
        modest.clear_attention().await;
        let slow = modest.submit(&rw10(0x2a, 0, 1024), Direction::Write, vec![3; 1024 * 512]);
        modest.flush();
        poll_fn(|cx| {
            modest.qp.flush(cx);
            Poll::Ready(())
        })
        .await;
        bench.rt.sleep(Duration::from_secs(1)).await;
        let mut victim = bench.connect_from(VICTIM).await;
        victim.log_in(200).await.unwrap();
        victim.clear_attention().await;
        let before = bench.rt.now();
        victim.write(1024, &pattern(4 << 20, 5)).await;
        let waited = bench.rt.now().duration_since(before);
        assert!(waited < Duration::from_secs(10), "{waited:?}: {:?}", bench.budget.stats());
        let stalled = bench.stats.stalled.load(Ordering::Relaxed);
        assert!((1..u64::from(SESSIONS)).contains(&stalled), "{stalled} sessions had to end");
        assert!(matches!(modest.outcome(slow).await, Ok(Outcome::Completed { status: 0, .. })));
        modest.log_out().await;
        victim.log_out().await;
        drop(sessions);
        bench.expect_idle().await;
    });
}
