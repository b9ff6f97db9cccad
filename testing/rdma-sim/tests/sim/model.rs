//! The exact times of the model.

use std::sync::Arc;

use millrace_rdma::{Access, ExposedRegion, Memory, MemoryRegion, Provider, ReadRequest, WriteRequest};
use millrace_rdma_sim::{Faults, Seed};
use millrace_runtime::{RuntimeExt, RuntimeRef};

use super::*;

pub(super) const A: [u8; 4] = [10, 0, 0, 1];
pub(super) const B: [u8; 4] = [10, 0, 0, 2];
pub(super) const C: [u8; 4] = [10, 0, 0, 3];
const D: [u8; 4] = [10, 0, 0, 4];

/// A world, its hosts and its time.
pub(super) struct TestNetwork {
    pub(super) world: World,
    pub(super) rt: RuntimeRef,
}

impl TestNetwork {
    pub(super) fn host(&self, ip: [u8; 4]) -> Arc<dyn Provider> {
        self.world.add_host(ip.into())
    }

    pub(super) async fn connect(&self, from: [u8; 4], to: [u8; 4], params: &ConnectParams) -> (Qp, Qp) {
        let mut listener = self.host(to).listen(self.rt.clone(), SocketAddr::from((to, 0))).unwrap();
        let (addr, connecting) = (listener.local_addr(), self.host(from));
        let accept = async {
            let incoming = listener.accept().await.unwrap();
            incoming.accept(self.rt.clone(), arena(), params.clone()).await
        };
        let connect = connecting.connect(self.rt.clone(), arena(), addr, params.clone());
        let (a, b) = tokio::join!(connect, accept);
        (a.unwrap(), b.unwrap())
    }

    async fn up(&self) -> (Qp, Qp) {
        self.connect(A, B, &ConnectParams::default()).await
    }

    pub(super) fn now(&self) -> u64 {
        self.rt.now().as_nanos()
    }
}

pub(super) fn with_world<T>(seed: u64, test: impl AsyncFnOnce(&TestNetwork) -> T) -> T {
    with_world_of(odd(), seed, test)
}

fn with_world_of<T>(profile: Profile, seed: u64, test: impl AsyncFnOnce(&TestNetwork) -> T) -> T {
    let time = VirtualTime::new(seed);
    let lan = TestNetwork { world: World::new(&time, profile), rt: time.runtime() };
    lan.world.begin_trace(Seed(seed));
    time.block_on(test(&lan)).expect("the test made no progress")
}

/// Time in picoseconds for which a message occupies a port, by the formula: turns of 16 packets, each rounded
/// separately.
fn port_ps(bytes: u64) -> u64 {
    let l = odd().link;
    let turn = 16 * u64::from(l.mtu_bytes);
    let turns = (0..bytes.div_ceil(turn).max(1)).map(|i| turn.min(bytes - i * turn));
    turns
        .map(|n| {
            let packets = n.div_ceil(l.mtu_bytes.into()).max(1);
            ((n + packets * u64::from(l.header_bytes)) as f64 * 1e6 / l.mb_per_s).round() as u64
        })
        .sum()
}

/// Time from the post to the port.
fn out_ns() -> u64 {
    let p = odd();
    p.host.post_ns + p.adapter.work_request_ns + p.adapter.transmit_ns
}

/// Time from port to memory, with `ps` of transmission.
pub(super) fn way_ns(ps: u64) -> u64 {
    // 0.1 mile of fibre has a delay of 788 ns.
    ps.div_ceil(1000) + 788 + odd().link.switch_ns + odd().adapter.receive_ns
}

/// Time from the arrival of a message in memory until its owner, which waits for it, has processed the
/// completion.
fn woken_ns() -> u64 {
    let h = odd().host;
    h.interrupt_ns + h.completion_ns + h.message_ns
}

pub(super) fn receive(qp: &mut Qp, n: usize) {
    for _ in 0..n {
        qp.post_receive(buffer(&vec![0; 40_000])).unwrap();
    }
}

fn expose(qp: &Qp, len: usize, access: Access) -> ExposedRegion {
    MemoryRegion::new(qp.domain(), Memory::Owned(buffer(&vec![0; len]))).expose(access).unwrap()
}

#[test]
fn the_time_of_a_ping_pong_is_that_of_the_formula() {
    for bytes in [0, 1, 128, 2048, 2049, 32_768, 39_999] {
        with_world(1, async |lan| {
            let (mut a, mut b) = lan.up().await;
            receive(&mut a, 10);
            receive(&mut b, 10);
            let start = lan.now();
            for _ in 0..10 {
                a.post_send(send(&vec![7; bytes])).unwrap();
                run(&mut a, &mut b, (0, 1)).await;
                b.post_send(send(&vec![8; bytes])).unwrap();
                run(&mut a, &mut b, (1, 0)).await;
            }
            let one_way = out_ns() + way_ns(port_ps(bytes as u64)) + woken_ns();
            assert_eq!(lan.now() - start, 20 * one_way, "{bytes} bytes");
        });
    }
}

#[test]
fn a_stream_of_writes_keeps_the_link_full() {
    with_world(1, async |lan| {
        let (mut a, mut b) = lan.up().await;
        let region = expose(&b, 1 << 20, Access::RemoteWrite);
        receive(&mut b, 1);
        lan.rt.sleep(Duration::from_millis(1)).await; // Wait for the registration.
        let start = lan.now();
        let data = views(&pattern(1 << 20, 1), 1 << 20);
        for _ in 0..50 {
            a.post_write(WriteRequest { data: data.clone(), to: region.segment() }).unwrap();
        }
        a.post_send(send(b"done")).unwrap();
        run(&mut a, &mut b, (0, 1)).await;
        let ps = 50 * port_ps(1 << 20) + port_ps(4);
        assert_eq!(lan.now() - start, out_ns() + way_ns(ps) + woken_ns());
        let used = lan.world.host_use(B.into());
        assert_eq!(used.bytes_in, (50 << 20) + 4);
        assert_eq!(used.registrations, 1);
    });
}

#[test]
fn sequential_reads_take_a_round_trip_each() {
    let run_with = |ord: u16| {
        with_world(1, async |lan| {
            let params = ConnectParams { ord, ird: 64, ..Default::default() };
            let (mut a, mut b) = lan.connect(A, B, &params).await;
            let region = expose(&b, 4096, Access::RemoteRead);
            lan.rt.sleep(Duration::from_millis(1)).await;
            let start = lan.now();
            for i in 0..100 {
                let sink = vec![buffer(&[0; 4096])];
                a.post_read(ReadRequest { id: WorkId(i), from: region.segment(), sink }).unwrap();
            }
            run(&mut a, &mut b, (100, 0)).await;
            lan.now() - start
        })
    };
    let p = odd();
    let one = out_ns() + way_ns(port_ps(0)) + p.adapter.read_response_ns + way_ns(port_ps(4096));
    assert_eq!(run_with(1), 100 * one + p.host.interrupt_ns + p.host.completion_ns);
    // With enough reads in flight the responder is the bottleneck, and more have no effect.
    let busy = p.adapter.read_response_ns + port_ps(4096).div_ceil(1000);
    let first = out_ns() + way_ns(port_ps(0)) + way_ns(0);
    let woken = p.host.interrupt_ns + p.host.completion_ns;
    assert_eq!([4, 64].map(run_with), [first + 100 * busy + woken; 2]);
}

#[test]
fn senders_to_one_host_share_its_port() {
    with_world(1, async |lan| {
        let (mut a, mut c1) = lan.connect(A, C, &ConnectParams::default()).await;
        let (mut b, mut c2) = lan.connect(B, C, &ConnectParams::default()).await;
        receive(&mut c1, 1);
        receive(&mut c2, 1);
        let start = lan.now();
        a.post_send(send(&[1; 30_000])).unwrap();
        b.post_send(send(&[2; 30_000])).unwrap();
        run(&mut a, &mut c1, (0, 1)).await;
        assert_eq!(lan.now() - start, out_ns() + way_ns(port_ps(30_000)) + woken_ns());
        run(&mut b, &mut c2, (0, 1)).await;
        assert_eq!(lan.now() - start, out_ns() + way_ns(2 * port_ps(30_000)) + woken_ns());
    });
}

#[test]
fn sending_and_receiving_at_a_port_are_independent() {
    with_world(1, async |lan| {
        let mut senders = Vec::new();
        for from in [A, B] {
            senders.push(lan.connect(from, C, &ConnectParams::default()).await);
        }
        let (mut c, mut d) = lan.connect(C, D, &ConnectParams::default()).await;
        receive(&mut d, 1);
        let regions: Vec<_> =
            senders.iter().map(|(_, theirs)| expose(theirs, 1 << 20, Access::RemoteWrite)).collect();
        lan.rt.sleep(Duration::from_millis(1)).await;
        let start = lan.now();
        let data = views(&pattern(1 << 20, 1), 1 << 20);
        for ((ours, theirs), region) in senders.iter_mut().zip(&regions) {
            receive(theirs, 1);
            ours.post_write(WriteRequest { data: data.clone(), to: region.segment() }).unwrap();
            ours.post_send(send(b"done")).unwrap();
        }
        // Both have reached the shared port, and half of one was received.
        lan.rt.sleep(Duration::from_nanos(port_ps(1 << 20) / 1000)).await;
        let posted = lan.now();
        c.post_send(send(&[3; 30_000])).unwrap();
        run(&mut c, &mut d, (0, 1)).await;
        // The memory bandwidth exceeds that of both directions, so the message is not delayed.
        assert!(odd().host.memory_mb_per_s > 2.0 * odd().link.mb_per_s);
        assert_eq!(lan.now() - posted, out_ns() + way_ns(port_ps(30_000)) + woken_ns());
        // Meanwhile the incoming messages use the full bandwidth of the receiving side.
        for (ours, theirs) in &mut senders {
            run(ours, theirs, (0, 1)).await;
        }
        let ps = 2 * (port_ps(1 << 20) + port_ps(4));
        let last = out_ns() + way_ns(ps) + woken_ns();
        assert_eq!(lan.now() - start, last);
    });
}

#[test]
fn a_message_waits_for_a_receive_until_the_software_replaces_a_used_one() {
    let mut profile = odd();
    profile.adapter.receive_queue = 1;
    let host = profile.host.clone();
    with_world_of(profile, 1, async |lan| {
        let (mut a, mut b) = lan.up().await;
        receive(&mut b, 3);
        (0..3).for_each(|_| a.post_send(send(&[1; 4])).unwrap());
        // Processing times: of the first message at its arrival, of the others when the completion of the
        // previous one is seen.
        let here = out_ns() + way_ns(port_ps(4));
        let second = here + host.interrupt_ns + host.completion_ns + host.message_ns;
        let third = second + host.completion_ns + host.message_ns;
        let mut now = 0;
        for (taken, at) in (1..).zip([here, second, third]) {
            lan.rt.sleep(Duration::from_nanos(at - 1 - now)).await;
            assert_eq!(b.counters().receives, taken - 1, "before {at}");
            lan.rt.sleep(Duration::from_nanos(2)).await;
            assert_eq!(b.counters().receives, taken, "after {at}");
            now = at + 1;
        }
        run(&mut a, &mut b, (0, 3)).await;
    });
}

/// Expected time in picoseconds for which a message occupies an uplink of half the rate of a port.
fn uplink_ps(bytes: u64) -> u64 {
    let l = odd().link;
    let turn = 16 * u64::from(l.mtu_bytes);
    let turns = (0..bytes.div_ceil(turn).max(1)).map(|i| turn.min(bytes - i * turn));
    turns.map(|n| (odd().wire_bytes(n) as f64 * 2e6 / l.mb_per_s).round() as u64).sum()
}

#[test]
fn hosts_behind_an_uplink_share_it_in_each_direction() {
    with_world(1, async |lan| {
        lan.world.share_uplink(&[A.into(), B.into()], odd().link.mb_per_s / 2.0);
        let (mut a, mut c1) = lan.connect(A, C, &ConnectParams::default()).await;
        let (mut b, mut d1) = lan.connect(B, D, &ConnectParams::default()).await;
        let (mut a2, mut b2) = lan.connect(A, B, &ConnectParams::default()).await;
        for qp in [&mut a, &mut b, &mut c1, &mut d1, &mut b2] {
            receive(qp, 2);
        }
        // One sender: the uplink is the slowest part of the path.
        let start = lan.now();
        a.post_send(send(&[1; 39_999])).unwrap();
        run(&mut a, &mut c1, (0, 1)).await;
        assert_eq!(lan.now() - start, out_ns() + way_ns(uplink_ps(39_999)) + woken_ns());
        // Two senders, with different destinations, share it. The other direction is independent.
        let start = lan.now();
        a.post_send(send(&[1; 30_000])).unwrap();
        b.post_send(send(&[2; 30_000])).unwrap();
        c1.post_send(send(&[3; 30_000])).unwrap();
        run(&mut a, &mut c1, (1, 1)).await;
        assert_eq!(lan.now() - start, out_ns() + way_ns(uplink_ps(30_000)) + woken_ns());
        run(&mut b, &mut d1, (0, 1)).await;
        assert_eq!(lan.now() - start, out_ns() + way_ns(2 * uplink_ps(30_000)) + woken_ns());
        // Hosts behind it reach each other without it.
        let start = lan.now();
        a2.post_send(send(&[4; 30_000])).unwrap();
        run(&mut a2, &mut b2, (0, 1)).await;
        assert_eq!(lan.now() - start, out_ns() + way_ns(port_ps(30_000)) + woken_ns());
    });
}

#[test]
fn hosts_of_one_world_can_differ() {
    let mut other = odd();
    (other.host.post_ns, other.host.message_ns, other.host.completion_ns) = (5000, 70_000, 3000);
    (other.adapter.transmit_ns, other.adapter.receive_ns) = (4000, 6000);
    (other.link.mb_per_s, other.adapter.outstanding_reads) = (odd().link.mb_per_s / 4.0, 3);
    with_world(1, async |lan| {
        lan.world.add_host_with(B.into(), other.clone());
        let params = ConnectParams { ord: 64, ird: 64, ..ConnectParams::default() };
        let (mut a, mut b) = lan.connect(A, B, &params).await;
        assert_eq!([a.info().ord, a.info().ird, b.info().ord, b.info().ird], [3, 64, 3, 3]);
        receive(&mut a, 1);
        receive(&mut b, 1);
        let (start, p, n) = (lan.now(), odd(), 1000);
        let slow = (p.wire_bytes(n) as f64 * 4e6 / p.link.mb_per_s).round() as u64;
        let way = |receive: u64| slow.div_ceil(1000) + 788 + p.link.switch_ns + receive;
        a.post_send(send(&[1; 1000])).unwrap();
        run(&mut a, &mut b, (0, 1)).await;
        let there = out_ns() + way(6000) + p.host.interrupt_ns + 3000 + 70_000;
        assert_eq!(lan.now() - start, there);
        b.post_send(send(&[1; 1000])).unwrap();
        run(&mut a, &mut b, (1, 0)).await;
        let back = 5000 + p.adapter.work_request_ns + 4000 + way(p.adapter.receive_ns) + woken_ns();
        assert_eq!(lan.now() - start, there + back);
    });
}

#[test]
fn registrations_under_a_lock_take_turns() {
    let (n, r) = (5, odd().registration);
    let run_with = |serial_registrations| {
        let mut profile = odd();
        profile.kernel.serial_registrations = serial_registrations;
        with_world_of(profile, 1, async |lan| {
            let mut ends = Vec::new();
            for _ in 0..n {
                ends.push(lan.up().await);
            }
            ends.iter_mut().for_each(|(_, b)| receive(b, 1));
            let start = lan.now();
            let regions: Vec<_> = ends.iter().map(|(a, _)| expose(a, 10_000, Access::RemoteWrite)).collect();
            let (a, b) = ends.last_mut().unwrap();
            a.post_send(send(b"is exposed")).unwrap();
            run(a, b, (0, 1)).await;
            let took = lan.now() - start;
            drop(regions);
            (took, lan.world.host_use(A.into()).registering_ns)
        })
    };
    let (cpu, message) =
        (r.register_ns + 3 * r.register_page_ns, out_ns() + way_ns(port_ps(10)) + woken_ns());
    let one = cpu + r.table_ns;
    assert_eq!(run_with(true), (n * one + message, (1..=n).map(|i| i * one).sum()));
    // Without it, the two cores work concurrently, and only the table takes turns.
    assert_eq!(odd().host.cores, 2);
    assert_eq!(run_with(false).0, n.div_ceil(2) * cpu + r.table_ns + message);
}

#[test]
fn deregistrations_take_turns_under_a_lock_of_their_own_switch() {
    let (n, r) = (5, odd().registration);
    let run_with = |serial_deregistrations| {
        let mut profile = odd();
        profile.kernel.serial_deregistrations = serial_deregistrations;
        with_world_of(profile, 1, async |lan| {
            let mut ends = Vec::new();
            for _ in 0..n {
                ends.push(lan.up().await);
            }
            let regions: Vec<_> = ends.iter().map(|(a, _)| expose(a, 10_000, Access::RemoteWrite)).collect();
            lan.rt.sleep(Duration::from_millis(10)).await;
            drop(regions);
            lan.world.host_use(A.into()).deregistering_ns
        })
    };
    let cpu = r.deregister_ns + 3 * r.deregister_page_ns;
    assert_eq!(run_with(true), (1..=n).map(|i| i * (cpu + r.table_ns)).sum());
    // Without it, the two cores work concurrently, and only the table takes turns.
    let mut table = 0;
    let ends = (1..=n).map(|i: u64| {
        table = table.max(i.div_ceil(2) * cpu) + r.table_ns;
        table
    });
    assert_eq!(run_with(false), ends.sum());
}

#[test]
fn work_under_the_kernel_lock_takes_turns_and_excludes_registrations() {
    let mut profile = odd();
    profile.kernel.serial_registrations = true;
    with_world_of(profile, 1, async |lan| {
        let (mut a, mut b) = lan.up().await;
        receive(&mut b, 1);
        let (start, r, work) = (lan.now(), odd().registration, Duration::from_micros(307));
        let copy = (100_000.0_f64 * 1e3 / odd().host.copy_mb_per_s).round() as u64;
        let holder = || lan.world.locked(A.into(), 100_000, work);
        let free = async {
            // The other core is free.
            lan.world.work(A.into(), Duration::from_micros(50)).await;
            lan.now() - start
        };
        let register = async {
            let region = expose(&a, 10_000, Access::RemoteWrite);
            a.post_send(send(b"is exposed")).unwrap();
            run(&mut a, &mut b, (0, 1)).await;
            drop(region);
            lan.now() - start
        };
        let (_, _, free, registered) = tokio::join!(holder(), holder(), free, register);
        let held = 2 * (copy + 307_000);
        let one = r.register_ns + 3 * r.register_page_ns + r.table_ns;
        assert_eq!(registered, held + one + out_ns() + way_ns(port_ps(10)) + woken_ns());
        assert_eq!(free, 50_000);
    });
}

#[test]
fn only_the_connecting_end_copies_what_it_has_read() {
    let read = |copies, by_the_connecting_end: bool| {
        let mut profile = odd();
        profile.kernel.read_copies = copies;
        with_world_of(profile, 1, async |lan| {
            let (a, b) = lan.up().await;
            let (mut reader, mut owner) = if by_the_connecting_end { (a, b) } else { (b, a) };
            let region = expose(&owner, 40_000, Access::RemoteRead);
            lan.rt.sleep(Duration::from_millis(1)).await;
            let start = lan.now();
            let sink = vec![buffer(&[0; 40_000])];
            reader.post_read(ReadRequest { id: WorkId(1), from: region.segment(), sink }).unwrap();
            run(&mut reader, &mut owner, (1, 0)).await;
            lan.now() - start
        })
    };
    let copy = (80_000.0_f64 * 1e3 / odd().host.copy_mb_per_s).round() as u64;
    assert_eq!(read(2, true), read(0, true) + copy);
    assert_eq!(read(2, false), read(0, false));
}

#[test]
fn work_waits_for_the_registration_before_it() {
    with_world(1, async |lan| {
        let (mut a, mut b) = lan.up().await;
        receive(&mut b, 2);
        let (start, r) = (lan.now(), odd().registration);
        let region = expose(&a, 10_000, Access::RemoteWrite);
        a.post_send(send(b"is exposed")).unwrap();
        run(&mut a, &mut b, (0, 1)).await;
        let cost = r.register_ns + 3 * r.register_page_ns + r.table_ns;
        let message = out_ns() + way_ns(port_ps(10)) + woken_ns();
        assert_eq!(lan.now() - start, cost + message);
        let (start, cost) = (lan.now(), r.deregister_ns + 3 * r.deregister_page_ns + r.table_ns);
        assert!(region.revoke().is_some());
        a.post_send(send(b"is revoked")).unwrap();
        run(&mut a, &mut b, (0, 1)).await;
        assert_eq!(lan.now() - start, cost + message);
    });
}

#[test]
fn segments_have_the_size_of_the_profile() {
    let time = VirtualTime::new(1);
    let mut profile = odd();
    profile.adapter.segment_bytes = 4096;
    let lan = TestNetwork { world: World::new(&time, profile), rt: time.runtime() };
    time.block_on(async {
        let (mut a, mut b) = lan.up().await;
        let data = pattern(10_000, 3);
        let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&data)));
        let region = region.expose(Access::RemoteRead).unwrap();
        let lengths: Vec<u32> = region.segments().iter().map(|s| s.length).collect();
        assert_eq!(lengths, [4096, 4096, 1808]);
        for (i, from) in region.segments().iter().enumerate() {
            let sink = vec![buffer(&vec![0; from.length as usize])];
            b.post_read(ReadRequest { id: WorkId(i as u64), from: *from, sink }).unwrap();
        }
        let (_, done) = run(&mut a, &mut b, (0, 3)).await;
        let bytes = done.iter().flat_map(|c| match c {
            Completion::Read { sink, .. } => sink[0].to_vec(),
            other => panic!("{other:?}"),
        });
        assert!(bytes.eq(data));
    })
    .unwrap();
}

#[test]
fn programs_share_the_cores_of_their_host() {
    with_world(1, async |lan| {
        let us = Duration::from_micros;
        let work = |t| lan.world.work(A.into(), us(t));
        work(1234).await;
        assert_eq!(lan.now(), 1_234_000);
        // Three programs on two cores, in slices of 100 microseconds.
        tokio::join!(work(500), work(500), work(500));
        assert_eq!(lan.now(), 1_234_000 + 800_000);
        assert_eq!(lan.world.host_use(A.into()).cpu_ns, 1_234_000 + 1_500_000);
        // An interrupt waits at most one slice.
        let (mut a, mut b) = lan.connect(B, A, &ConnectParams::default()).await;
        receive(&mut b, 1);
        let start = lan.now();
        let busy = async { tokio::join!(work(5000), work(5000)) };
        let heard = async {
            a.post_send(send(b"hello")).unwrap();
            run(&mut a, &mut b, (0, 1)).await;
            lan.now() - start
        };
        let (_, heard) = tokio::join!(busy, heard);
        assert_eq!(heard, 100_000 + woken_ns());
        assert_eq!(lan.now() - start, 5_000_000 + woken_ns());
    });
}

#[test]
fn work_planned_ahead_leaves_no_core_idle() {
    with_world(1, async |lan| {
        let mut qps = Vec::new();
        for to in [B, C, D] {
            qps.push(lan.connect(A, to, &ConnectParams::default()).await);
        }
        receive(&mut qps[2].1, 1);
        let regions =
            qps.iter().map(|(_, theirs)| expose(theirs, 1, Access::RemoteWrite)).collect::<Vec<_>>();
        lan.rt.sleep(Duration::from_millis(1)).await;
        let start = lan.now();
        let data = views(b"x", 1);
        for ((ours, _), region) in qps.iter_mut().zip(&regions) {
            for _ in 0..99 {
                ours.post_write(WriteRequest { data: data.clone(), to: region.segment() }).unwrap();
            }
            ours.post_send(send(b"x")).unwrap();
        }
        let (a, b) = &mut qps[2];
        run(a, b, (0, 1)).await;
        // Two connections post at the same time on separate cores, then the third, before the adapter
        // fetches.
        let p = odd();
        let taken = p.host.post_ns + 300 * p.adapter.work_request_ns;
        assert!(taken > 200 * p.host.post_ns && taken < 300 * p.host.post_ns);
        assert_eq!(lan.now() - start, taken + p.adapter.transmit_ns + way_ns(port_ps(1)) + woken_ns());
    });
}

#[test]
fn copies_are_limited_by_the_core_or_by_shared_memory_bandwidth() {
    let run_with = |copies: usize, memory: f64| {
        let time = VirtualTime::new(1);
        let mut profile = odd();
        (profile.host.cores, profile.host.memory_mb_per_s) = (8, memory);
        let world = World::new(&time, profile);
        let all = (0..copies).map(|_| world.copy(A.into(), 64 << 10));
        time.block_on(futures::future::join_all(all)).unwrap();
        time.runtime().now().as_nanos()
    };
    let h = odd().host;
    let core = (65_536.0 * 1e3 / h.copy_mb_per_s).round() as u64;
    assert_eq!(run_with(1, h.memory_mb_per_s), core);
    assert_eq!(run_with(8, 1e6), core);
    let memory_ps = (2.0 * 65_536.0 * 1e6 / h.memory_mb_per_s).round() as u64;
    assert_eq!(run_with(8, h.memory_mb_per_s), (8 * memory_ps).div_ceil(1000));
}

#[test]
fn the_adapter_has_priority_at_the_memory() {
    let memory = 1000.0;
    let time = VirtualTime::new(1);
    let mut profile = odd();
    profile.host.memory_mb_per_s = memory;
    let lan = TestNetwork { world: World::new(&time, profile), rt: time.runtime() };
    time.block_on(async {
        let (mut a, mut b) = lan.up().await;
        receive(&mut b, 1);
        a.post_send(send(&[1; 30_000])).unwrap();
        // Two copies start a nanosecond before the first bit arrives.
        let start = lan.now() + out_ns() + 788 + odd().link.switch_ns - 1;
        lan.rt.sleep(Duration::from_nanos(start - lan.now())).await;
        let copy = || lan.world.copy(B.into(), 64 << 10);
        let copied = async {
            copy().await;
            let one = lan.now();
            copy().await;
            (one, lan.now())
        };
        let message = async { run(&mut a, &mut b, (0, 1)).await };
        let ((one, both), _) = tokio::join!(copied, message);
        let ns = |bytes: f64| (bytes * 1e3 / memory) as u64;
        assert_eq!(one, start + ns(131_072.0));
        assert_eq!(both, start + ns(262_144.0) + ns(30_000.0));
    })
    .unwrap();
}

/// Runs at most 1000 ping-pongs until a fault ends them, and returns the trace.
fn run_with_faults(seed: u64) -> String {
    with_world(seed, async |lan| {
        let (mut a, mut b) = lan.up().await;
        let ms = Duration::from_millis;
        lan.world.set_faults(Faults {
            lose_one_in: 500,
            delay_one_in: 20,
            longest_delay: ms(3),
            stall_one_in: 50,
            longest_stall: ms(5),
        });
        receive(&mut a, 1000);
        receive(&mut b, 1000);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        a.post_send(send(b"ping")).unwrap();
        poll_fn(|cx| {
            loop {
                let ends = [a.poll(cx, &mut x), b.poll(cx, &mut y)];
                if let Some(Poll::Ready(Err(e))) = ends.iter().find(|p| matches!(p, Poll::Ready(Err(_)))) {
                    assert!(e.to_string().contains("simulated fault"), "{e}");
                    return Poll::Ready(());
                }
                // A post on a failed connection is an error, which the next poll reports.
                x.drain(..).for_each(|_| {
                    let _ = a.post_send(send(b"ping"));
                });
                y.drain(..).for_each(|_| {
                    let _ = b.post_send(send(b"pong"));
                });
                if ends.iter().all(Poll::is_pending) {
                    return Poll::Pending;
                }
            }
        })
        .await;
        lan.world.trace()
    })
}

#[test]
fn the_same_seed_gives_the_same_trace_to_the_byte() {
    for seed in 0..20 {
        let trace = run_with_faults(seed);
        assert_eq!(trace, run_with_faults(seed));
        assert_ne!(trace, run_with_faults(seed + 1));
        assert!(trace.starts_with(&format!("simulated v3 seed={seed} profile=odd\n")), "{trace}");
        assert!(trace.contains("fault: the connection is lost"));
        assert_eq!(trace.parse(), Ok(Seed(seed)));
    }
}

#[test]
fn a_trace_of_another_version_is_rejected_with_the_reason() {
    let error = "simulated v7 seed=3 profile=odd\n".parse::<Seed>().unwrap_err().to_string();
    assert!(error.contains("version 7") && error.contains("version 3"), "{error}");
    for text in ["", "seed=3", "simulated v3", "simulated vx seed=3", "simulated v3 seed=-3", "recorded"] {
        assert!(text.parse::<Seed>().unwrap_err().to_string().contains("which begins with"), "{text}");
    }
}

#[test]
fn a_crashed_host_accepts_connections_and_its_peers_are_notified() {
    with_world(1, async |lan| {
        let (mut a, b) = lan.up().await;
        let listener = lan.host(B).listen(lan.rt.clone(), SocketAddr::from((B, 2049))).unwrap();
        let region = expose(&a, 4096, Access::RemoteWrite);
        lan.world.crash(B.into());
        let error = poll_until_error(&mut a).await;
        assert!(error.to_string().contains("lost"), "{error}");
        assert_eq!(lan.world.exposed(), (0, 0));
        drop((b, listener, region));
        lan.up().await;
        assert!(lan.host(B).listen(lan.rt.clone(), SocketAddr::from((B, 2049))).is_ok());
    });
}

#[test]
fn stopped_processors_delay_their_work() {
    with_world(1, async |lan| {
        let (mut a, mut b) = lan.up().await;
        receive(&mut b, 1);
        let start = lan.now();
        lan.world.stall(B.into(), Duration::from_millis(7));
        a.post_send(send(b"hello")).unwrap();
        run(&mut a, &mut b, (0, 1)).await;
        assert_eq!(lan.now() - start, 7_000_000 + woken_ns());
    });
}
