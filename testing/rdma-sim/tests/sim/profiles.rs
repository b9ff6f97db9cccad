//! Tests of profiles: invalid values, and reproduction of the measurements that they were calibrated with.

use millrace_rdma::{Access, Memory, MemoryRegion, ReadRequest, WriteRequest};
use millrace_rdma_sim::{Profile, ProfileError};

use super::{
    model::{A, B},
    *,
};

#[test]
fn all_profiles_are_valid_and_have_a_description() {
    assert_eq!(Profile::names().len(), 12);
    for name in Profile::names() {
        let profile = Profile::named(name).unwrap();
        assert_eq!(profile.name, name);
        assert!(profile.about.len() > 20, "{name}");
    }
    let error = Profile::named("qdr").unwrap_err().to_string();
    assert!(error.contains("\"qdr\"") && error.contains("sdr-opensolaris, "), "{error}");
}

#[test]
fn a_value_out_of_range_is_rejected_by_name() {
    let with = |line: &str, other: &str| {
        assert!(ODD.contains(line), "{line}");
        Profile::parse(&with_sources(&ODD.replacen(line, other, 1)))
    };
    let line_of = |other: &str, text: &str| text.lines().position(|l| l == other.trim_end()).map(|n| n + 1);
    for (line, other, field) in [
        ("cores = 2\n", "cores = 0\n", "host.cores"),
        ("mb_per_s = 937.0\n", "mb_per_s = -1.0\n", "link.mb_per_s"),
        ("mb_per_s = 937.0\n", "mb_per_s = nan\n", "link.mb_per_s"),
        ("miles = 0.1\n", "miles = 1e9\n", "link.miles"),
        ("mtu_bytes = 2048\n", "mtu_bytes = 1\n", "link.mtu_bytes"),
        ("outstanding_reads = 64\n", "outstanding_reads = 0\n", "adapter.outstanding_reads"),
        ("window_bytes = 262144\n", "window_bytes = 1447\n", "tcp.window_bytes"),
        ("initial_window_bytes = 262144\n", "initial_window_bytes = 262145\n", "tcp.initial_window_bytes"),
        ("packet_bytes = 1448\n", "packet_bytes = 1449\n", "tcp.packet_bytes"),
        ("checksum_mb_per_s = 2111.0\n", "checksum_mb_per_s = -1.0\n", "tcp.checksum_mb_per_s"),
        ("receive_queues = 1\n", "receive_queues = 0\n", "tcp.receive_queues"),
        ("table_ns = 5003\n", "table_ns = 99999999999\n", "registration.table_ns"),
    ] {
        match with(line, other) {
            Err(error @ ProfileError::OutOfRange { field: named, line: at, .. }) => {
                assert_eq!((named, at), (field, line_of(other, &ODD.replacen(line, other, 1))));
                assert!(error.to_string().contains(&format!("{field} (line {})", at.unwrap())), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Wrong types, missing and unknown fields.
    for (line, other, field) in [
        ("cores = 2\n", "cores = -2\n", "cores"),
        ("cores = 2\n", "", "cores"),
        ("cores = 2\n", "cores = \"two\"\n", "cores"),
        ("receive_copies = 2\n", "", "receive_copies"),
        ("[tcp]\n", "[udp]\n", "udp"),
        ("cores = 2\n", "cores = 2\nthreads = 4\n", "threads"),
    ] {
        let error = with(line, other).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
        if let Some(at) = other.lines().next_back().and_then(|l| line_of(l, &ODD.replacen(line, other, 1))) {
            assert!(error.contains(&format!("line {at},")), "{error}");
        }
    }
    // A value without a source; text needs none.
    let text = with_sources(ODD);
    for (field, line) in [("link.miles", "miles = 0.1"), ("host.cores", "cores = 2")] {
        for comment in ["", " #", " #  "] {
            let at = line_of(line, ODD).unwrap();
            let bare: Vec<_> = text
                .lines()
                .zip(1..)
                .map(|(l, n)| if n == at { format!("{line}{comment}") } else { l.into() })
                .collect();
            let error = Profile::parse(&bare.join("\n")).unwrap_err();
            assert_eq!(error, ProfileError::NoSource { field: field.into(), line: at });
            assert!(error.to_string().contains(&format!("line {at}: {field} has no source")), "{error}");
        }
    }
    // The table that a profile may omit.
    let kernel = |lines: &str| Profile::parse(&format!("{text}\n[kernel]\n{lines}"));
    assert!(
        kernel("serial_registrations = true # test\nserial_deregistrations = true # test\nread_copies = 1 # test\n")
            .unwrap()
            .kernel
            .serial_registrations
    );
    assert!(kernel("serial_registrations = true\n").unwrap_err().to_string().contains("has no source"));
    assert!(kernel("read_copies = 11 # test\n").unwrap_err().to_string().contains("kernel.read_copies"));
    assert!(odd().at_distance(-1.0).is_err());
    assert!(odd().at_distance(1400.0).is_ok());
}

/// Simulated throughput of RDMA Writes or Reads of `size` bytes on one connection in 10^6 bytes per second,
/// as in perftest.
fn raw(profile: &Profile, miles: f64, size: usize, count: usize, reads: bool) -> f64 {
    let time = VirtualTime::new(1);
    // perftest polls, and processes no RPC.
    let mut profile = profile.clone().at_distance(miles).unwrap();
    (profile.host.interrupt_ns, profile.host.message_ns, profile.adapter.segment_bytes) = (0, 0, 0);
    let ip = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
    let world = World::new(&time, profile);
    let lab = Lab { provider: world.add_host(ip[1]), rt: time.runtime(), ip: ip[1] };
    let client = world.add_host(ip[0]);
    time.block_on(async {
        let mut listener = lab.listen();
        let (to, params) = (listener.local_addr(), ConnectParams::default());
        let connect = client.connect(lab.rt.clone(), arena(), to, params.clone());
        let accept = async { lab.accept(listener.accept().await.unwrap(), params.clone()).await };
        let (a, b) = tokio::join!(connect, accept);
        let (mut a, mut b) = (a.unwrap(), b.unwrap());
        let access = if reads { Access::RemoteRead } else { Access::RemoteWrite };
        let region = MemoryRegion::new(b.domain(), Memory::Owned(buffer(&vec![0; size])));
        let region = region.expose(access).unwrap();
        let data = views(&vec![1; size], size);
        let start = lab.rt.now();
        let last = count - 1;
        for i in 0..count {
            if reads {
                let sink = vec![buffer(&vec![0; size])];
                a.post_read(ReadRequest { id: WorkId(i as u64), from: region.segment(), sink }).unwrap();
            } else {
                a.post_write(WriteRequest { data: data.clone(), to: region.segment() }).unwrap();
                if i == last {
                    a.post_send(signaled(b"", 0)).unwrap();
                    b.post_receive(buffer(&[0; 8])).unwrap();
                }
            }
        }
        run(&mut a, &mut b, (if reads { count } else { 1 }, 0)).await;
        (size * count) as f64 * 1e3 / lab.rt.now().duration_since(start).as_nanos() as f64
    })
    .unwrap()
}

/// Simulated throughput of one TCP connection in 10^6 bytes per second, as in netperf, and the receiver's
/// processor time in nanoseconds per byte.
fn raw_tcp(profile: Profile) -> (f64, f64) {
    const BYTES: usize = 16 << 20;
    let time = VirtualTime::new(1);
    let world = World::new(&time, profile);
    time.block_on(async {
        let (mut a, mut b) = tcp::connect(&world, A, B).await;
        let start = time.runtime().now();
        // A record that does not end.
        let bytes = vec![0x7f; 64 << 10];
        let write = async {
            for _ in 0..BYTES / bytes.len() {
                tcp::write(&mut a, &bytes).await;
            }
        };
        tokio::join!(write, tcp::read(&mut b, BYTES));
        let took = time.runtime().now().duration_since(start).as_nanos();
        let cpu = world.host_use(B.into()).cpu_ns;
        (BYTES as f64 * 1e3 / took as f64, cpu as f64 / BYTES as f64)
    })
    .unwrap()
}

#[test]
fn tcp_profiles_reproduce_their_calibration() {
    // The commit message of Linux that introduced IPoIB-CM.
    let (simulated, _) = raw_tcp(Profile::named("ipoib-cm").unwrap());
    assert!((simulated / 800.0 - 1.0).abs() < 0.03, "{simulated}");
    // 1 Hz per 1 bit/s, without interrupts.
    for (name, ghz) in [("ipoib-ud", 3.6), ("gige-2003", 0.9)] {
        let mut profile = Profile::named(name).unwrap();
        profile.host.interrupt_ns = 0;
        let (_, cpu) = raw_tcp(profile);
        assert!((cpu / (8.0 / ghz) - 1.0).abs() < 0.1, "{name}: {cpu} at {ghz} GHz");
    }
}

#[test]
fn profiles_reproduce_the_raw_measurements_of_the_papers() {
    let infinihost = Profile::named("wan-infinihost").unwrap();
    // WAN 2008 section 2.2, in 10^6 bytes per second.
    for (miles, size, count, reads, measured) in [
        (0.2, 1 << 20, 200, false, 934.0),
        (0.2, 1 << 20, 200, true, 934.0),
        (0.2, 4096, 20_000, false, 925.0),
        (0.2, 4096, 4000, true, 223.0),
        (1400.0, 4096, 10_000, false, 14.7),
        (1400.0, 4096, 400, true, 0.59),
    ] {
        let simulated = raw(&infinihost, miles, size, count, reads);
        let off = simulated / measured - 1.0;
        assert!(
            off.abs() < 0.03,
            "{size} bytes, {miles} miles, reads: {reads}: {simulated} instead of {measured}"
        );
    }
    // perftest on ConnectX-5 (NVIDIA developer forum, topic 273376).
    let edr = raw(&Profile::named("cx5-100g").unwrap(), 0.0, 1 << 20, 200, false);
    assert!((edr / 12_075.0 - 1.0).abs() < 0.03, "{edr}");
    // Designing 2007 section 1.
    let sdr = raw(&Profile::named("sdr-opensolaris").unwrap(), 0.0, 1 << 20, 200, false);
    assert!((sdr / 900.0 - 1.0).abs() < 0.03, "{sdr}");
}
