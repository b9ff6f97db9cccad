//! One greedy host, and the initiator and the NFS client of another one: the host takes its share at most.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::atomic::Ordering,
    time::Duration,
};

use millrace_iscsi::{
    discovery::{self, SendTargets},
    login::{LoginError, Status},
    pdu::{Request, RequestNumbers, ScsiCommand},
    session::{Direction, InitiatorEvent, Outcome},
};
use millrace_iscsi_target::{ConnectionLimits, TableLimits};
use millrace_runtime::{RuntimeExt, timeout};

use super::{
    common::{Bench, Client, run, rw10},
    hostile::{data_out, nop, write},
};

const VICTIM: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 1));
/// Sessions of the greedy host, of the 64 connections that the server has.
const SESSIONS: u8 = 60;

/// An address of another host.
fn other(n: u16) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 3 + n, 0, 0, 0, 1).into()
}

/// Address `n` of the greedy host.
fn greedy(n: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, n.into()).into()
}

/// Sessions of the greedy host, which send what `storm` returns for the numbers of the next command.
async fn attack(bench: &Bench, storm: impl Fn(RequestNumbers) -> Vec<(Request, u32)>) -> Vec<Client> {
    let mut sessions = Vec::new();
    for n in 0..SESSIONS {
        let mut client = bench.connect_from(greedy(n));
        client.settings.max_burst = 1 << 20;
        client.log_in(n).await.unwrap();
        client.clear_attention().await;
        let exp_stat_sn = client.exp_stat_sn();
        for (request, length) in storm(RequestNumbers { cmd_sn: 102, exp_stat_sn }) {
            // The target may end the connection because of data that it has not permitted.
            if client.send(&request.encode(length), &vec![1; length as usize]).await.is_err() {
                break;
            }
        }
        sessions.push(client);
    }
    sessions
}

/// The victim logs in, writes and reads, and a call of an NFS client gets 1 MiB; no session of the greedy host has to
/// end for that.
async fn expect_share(bench: &Bench, case: &str) {
    let mut call = bench.account_of(VICTIM);
    assert!(call.take(1 << 20), "{case}: {:?}", bench.budget.stats());
    drop(call);
    let mut victim = bench.connect_from(VICTIM);
    victim.log_in(200).await.unwrap();
    victim.clear_attention().await;
    victim.write(8, &[5; 1 << 20]).await;
    assert_eq!(victim.read(8, 2048).await, [5; 1 << 20], "{case}");
    assert_eq!(bench.stats.stalled.load(Ordering::Relaxed), 0, "{case}");
    victim.log_out().await;
}

/// Commands whose data does not come leave the memory to others.
#[test]
fn data_that_does_not_come_takes_the_share_of_its_host() {
    let command = |numbers: RequestNumbers, n: u32, blocks| {
        let numbers = RequestNumbers { cmd_sn: numbers.cmd_sn + n, ..numbers };
        ScsiCommand { numbers, ..write(0x1000 + n, blocks) }
    };
    type Storm = Box<dyn Fn(RequestNumbers) -> Vec<(Request, u32)>>;
    let cases: Vec<(&str, Storm)> = vec![
        (
            "64 WRITEs of 64 KiB without the F bit",
            Box::new(move |numbers| {
                let announced = |n| ScsiCommand { last: false, ..command(numbers, n, 128) };
                (0..64).map(|n| (Request::ScsiCommand(announced(n)), 0)).collect()
            }),
        ),
        (
            "Data-Out PDUs without end",
            Box::new(move |numbers| {
                let announced = |n| ScsiCommand { last: false, ..command(numbers, n, 2048) };
                let part = |n| {
                    Request::DataOut(millrace_iscsi::pdu::DataOut {
                        last: false,
                        ..data_out(0x1000 + n, u32::MAX, 0, 0)
                    })
                };
                (0..16).flat_map(|n| [(Request::ScsiCommand(announced(n)), 0), (part(n), 512)]).collect()
            }),
        ),
        (
            "64 WRITEs of 1 MiB with immediate data",
            Box::new(move |numbers| {
                (0..64).map(|n| (Request::ScsiCommand(command(numbers, n, 2048)), 65536)).collect()
            }),
        ),
        (
            "64 WRITEs of 1 MiB that the target requests",
            Box::new(move |numbers| {
                (0..64).map(|n| (Request::ScsiCommand(command(numbers, n, 2048)), 0)).collect()
            }),
        ),
        (
            "4 immediate WRITEs of 64 KiB without the F bit, and 64 others",
            Box::new(move |numbers| {
                let announced = |n| ScsiCommand { last: false, immediate: n < 4, ..command(numbers, n, 128) };
                let others = (0..64).map(|n| ScsiCommand { last: false, ..command(numbers, n, 128) });
                let others = others.map(|c| ScsiCommand { itt: c.itt + 0x1000, ..c });
                (0..4).map(announced).chain(others).map(|c| (Request::ScsiCommand(c), 0)).collect()
            }),
        ),
    ];
    for (case, storm) in cases {
        run(ConnectionLimits::default(), async |bench| {
            // The victim has a mount, so the greedy host is not the only client.
            let mount = bench.account_of(VICTIM);
            let sessions = attack(&bench, &storm).await;
            expect_share(&bench, case).await;
            drop((sessions, mount));
            bench.expect_idle().await;
        });
    }
}

/// Pings whose answers are not received, of sessions without and with a write: they wait for memory, or are rejected.
#[test]
fn pings_take_the_share_of_their_host() {
    const PING: usize = 256 << 10;
    for writes in [0, 1] {
        run(ConnectionLimits::default(), async |mut bench| {
            bench.fixture.limits.settings.immediate_data = false;
            bench.server.limits = bench.limits.clone();
            let mount = bench.account_of(VICTIM);
            let command = |numbers| ScsiCommand { numbers, ..write(0x1000, 8) };
            let mut sessions = attack(&bench, |numbers| {
                (0..writes).map(|_| (Request::ScsiCommand(command(numbers)), 0)).collect()
            })
            .await;
            let mut received = 0;
            for client in &mut sessions {
                let ping = Request::NopOut(nop(1)).encode(PING as u32);
                for _ in 0..8 {
                    let sent =
                        timeout(&*bench.rt, Duration::from_millis(10), client.send(&ping, &[7; PING])).await;
                    received += if sent == Some(Ok(())) { PING } else { 0 };
                }
            }
            let stats = bench.budget.stats();
            assert!(stats.in_use <= stats.shared, "{writes} writes: {stats:?}");
            assert!(writes > 0 || received <= stats.shared, "{received} bytes of pings");
            expect_share(&bench, "pings").await;
            drop((sessions, mount));
            bench.expect_idle().await;
        });
    }
}

/// A session beyond its share: its ping is answered, although a write waits for data that arrives after it.
#[test]
fn a_ping_does_not_wait_for_data_that_follows_it() {
    run(ConnectionLimits::default(), async |mut bench| {
        bench.fixture.charge_all();
        let mut client = bench.connect_from(greedy(0));
        client.settings.initial_r2t = true;
        client.settings.immediate_data = false;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        let itt = client.submit(&rw10(0x2a, 0, 8), Direction::Write, vec![3; 4096]);
        client.flush().await.unwrap();
        bench.rt.sleep(Duration::from_millis(1)).await;
        let mut others = bench.account_of(greedy(1));
        others.take_unconditionally(64 << 20);
        assert!(!others.take(4096)); // Nor has the session any for its next command.
        for length in [0, 8192] {
            client.session().ping(vec![7; length]).unwrap();
            client.flush().await.unwrap();
        }
        assert!(matches!(client.outcome(itt).await, Ok(Outcome::Completed { status: 0, .. })));
        for _ in 0..2 {
            client.event(|e| matches!(e, InitiatorEvent::Pong { .. }).then_some(())).await.unwrap();
        }
        client.log_out().await;
        drop(others);
        bench.expect_idle().await;
    });
}

/// The greedy host was alone, and has nearly all memory for WRITEs whose data does not come. For the victim, sessions of it
/// end that have fallen behind by a short time. A host within its share keeps its session, which has fallen behind as much.
#[test]
fn stalled_sessions_beyond_the_share_end_when_others_need_memory() {
    run(ConnectionLimits::default(), async |bench| {
        let requested = |numbers: RequestNumbers, n| {
            let numbers = RequestNumbers { cmd_sn: numbers.cmd_sn + n, ..numbers };
            (Request::ScsiCommand(ScsiCommand { numbers, ..write(0x1000 + n, 2048) }), 0)
        };
        let sessions = attack(&bench, |numbers| (0..16).map(|n| requested(numbers, n)).collect()).await;
        let mut modest = bench.connect_from(other(0));
        modest.settings.initial_r2t = true;
        modest.settings.immediate_data = false;
        modest.log_in(201).await.unwrap();
        modest.clear_attention().await;
        let slow = modest.submit(&rw10(0x2a, 0, 1024), Direction::Write, vec![3; 1024 * 512]);
        modest.flush().await.unwrap();
        bench.rt.sleep(Duration::from_secs(1)).await;
        let mut victim = bench.connect_from(VICTIM);
        victim.log_in(200).await.unwrap();
        victim.clear_attention().await;
        let before = bench.rt.now();
        victim.write(1024, &vec![5; 4 << 20]).await;
        let waited = bench.rt.now().duration_since(before);
        assert!(waited < Duration::from_secs(10), "{waited:?}: {:?}", bench.budget.stats());
        let stalled = bench.stats.stalled.load(Ordering::Relaxed);
        assert!((1..u64::from(SESSIONS)).contains(&stalled), "{stalled} sessions had to end");
        assert!(matches!(modest.outcome(slow).await, Ok(Outcome::Completed { status: 0, .. })));
        for client in [&mut modest, &mut victim] {
            client.log_out().await;
        }
        drop(sessions);
        bench.expect_idle().await;
    });
}

/// Initiators that send nothing but a login keep memory for their commands, and leave the half of it to others.
#[test]
fn idle_sessions_leave_memory_to_others() {
    run(ConnectionLimits::default(), async |bench| {
        let mut sessions = attack(&bench, |_| Vec::new()).await;
        let stats = bench.budget.stats();
        assert!(stats.in_use <= stats.shared / 2, "{stats:?}");
        expect_share(&bench, "idle").await;
        // All of them work: with unsolicited data, or without if the login has granted none.
        for client in &mut sessions {
            let itt = client.submit(&rw10(0x2a, 0, 128), Direction::Write, vec![3; 65536]);
            client.outcome(itt).await.unwrap();
            client.stream_shutdown();
        }
        bench.expect_idle().await;
    });
}

/// Eight logins at a time are permitted: the greedy host leaves some, and when others have taken them, its oldest login
/// ends for the victim.
#[test]
fn half_open_logins_of_a_host_leave_room_to_others() {
    run(ConnectionLimits::default(), async |mut bench| {
        bench.limit(TableLimits { logins: 8, ..TableLimits::default() });
        let mut open = Vec::new();
        for host in (0..20).map(greedy).chain((0..2).map(other)) {
            let mut client = bench.connect_from(host);
            // The target may have closed the connection.
            let _sent = client.send_bytes(&[0x43, 0x87]).await;
            bench.rt.sleep(Duration::from_millis(1)).await;
            open.push(client);
        }
        let mut victim = bench.connect_from(VICTIM);
        victim.log_in(200).await.unwrap();
        assert!(open[0].expect_end().await.is_empty());
        assert_eq!(bench.stats.stalled.load(Ordering::Relaxed), 0, "its time limit has not passed");
        victim.clear_attention().await;
        victim.log_out().await;
        for client in &mut open[1..] {
            assert!(client.expect_end().await.is_empty());
        }
        bench.expect_idle().await;
    });
}

/// Discovery sessions, which need no authentication, count as logins, and end in the time of a login.
#[test]
fn discovery_sessions_of_a_host_leave_room_to_others() {
    run(ConnectionLimits::default(), async |mut bench| {
        bench.limit(TableLimits { sessions: 8, logins: 8 });
        let mut open = Vec::new();
        for n in 0..20 {
            let mut client = bench.connect_from(greedy(n));
            if client.try_log_in_to(n, None).await == Ok(Ok(())) {
                open.push(client);
            }
        }
        assert_eq!(open.len(), 6);
        let mut victim = bench.connect_from(VICTIM);
        victim.log_in(200).await.unwrap();
        let mut finder = bench.connect_from(VICTIM);
        finder.log_in_to(200, None).await.unwrap();
        finder.session().send_text(SendTargets::All.encode()).unwrap();
        let text = |event: &InitiatorEvent| match event {
            InitiatorEvent::Text { text, .. } => Some(text.clone()),
            _ => None,
        };
        assert_eq!(discovery::decode(&finder.event(text).await.unwrap()).unwrap().len(), 1);
        finder.log_out().await;
        for client in &mut open {
            client.expect_end().await;
        }
        victim.clear_attention().await;
        victim.log_out().await;
        bench.expect_idle().await;
    });
}

/// Eight sessions are permitted, and the victim has the initiator name of the greedy host, which nothing authenticates.
#[test]
fn sessions_of_a_host_leave_room_to_others() {
    run(ConnectionLimits::default(), async |mut bench| {
        bench.limit(TableLimits { sessions: 8, ..TableLimits::default() });
        let mut open = Vec::new();
        for n in 0..20 {
            let mut client = bench.connect_from(greedy(n));
            match client.log_in(n).await {
                Ok(()) => {
                    client.clear_attention().await;
                    open.push(client);
                }
                Err(e) => assert_eq!(e, LoginError::Status(Status::OUT_OF_RESOURCES)),
            }
            bench.rt.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(open.len(), 6);
        for n in 0..2 {
            let mut client = bench.connect_from(other(n));
            client.log_in(100 + n as u8).await.unwrap();
            client.clear_attention().await;
            open.push(client);
        }
        // Nothing is left, but a host may reinstate its sessions.
        let mut again = bench.connect_from(greedy(5));
        again.log_in(5).await.unwrap();
        again.clear_attention().await;
        open[5].expect_end_of_session().await;
        open[5] = again;
        bench.rt.sleep(Duration::from_millis(1)).await;
        open[0].read(0, 1).await;
        let mut victim = bench.connect_from(VICTIM);
        victim.log_in(200).await.unwrap();
        open.remove(1).expect_end_of_session().await; // It was idle longest.
        victim.clear_attention().await;
        for client in open.iter_mut().chain([&mut victim]) {
            client.read(0, 1).await;
            client.log_out().await;
        }
        bench.expect_idle().await;
    });
}
