//! One greedy host, and the initiator and the NFS client of another one: the host takes its share at most.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::atomic::Ordering,
};

use millrace_iscsi::session::Direction;
use millrace_iscsi_target::ConnectionLimits;

use crate::common::{Bench, Client, pattern, run, rw10};

const VICTIM: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 1));
/// Sessions of the greedy host. The receives and immediate data of all their windows would exceed the memory.
const SESSIONS: u8 = 20;

/// Address `n` of the greedy host.
fn greedy(n: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, n.into()).into()
}

/// Sessions of the greedy host, each with this number of WRITEs of 64 KiB, whose data begins with immediate data. Nothing
/// polls their queue pairs: over iWARP the rest does not come.
async fn attack(bench: &Bench, writes: u32) -> Vec<Client> {
    let mut sessions = Vec::new();
    for n in 0..SESSIONS {
        let mut client = bench.connect_from(greedy(n)).await;
        client.log_in(n).await.unwrap();
        client.clear_attention().await;
        for i in 0..writes {
            client.submit(&rw10(0x2a, i * 128, 128), Direction::Write, vec![1; 65536]);
        }
        client.flush();
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
            let sessions = attack(&bench, writes).await;
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
