//! The same file operations over RDMA and TCP in a simulated world.

use std::time::Duration;

use millrace_client::{Proto, Strategy, handles::Client};
use millrace_rdma_sim::Profile;
use millrace_runtime::virtual_time::VirtualTime;

use millrace_crashtest::cluster::{Cluster, MIB, mount, options};

/// Writes and reads a file; returns the durations, and the processor time of both hosts.
fn write_and_read(proto: Proto, miles: f64) -> ([Duration; 2], u64) {
    let time = VirtualTime::new(7);
    let profile = Profile::named("gige-2003").and_then(|p| p.at_distance(miles)).expect("unknown profile");
    let mut cluster = Cluster::new(&time, profile);
    cluster.start(&time);
    let rt = time.runtime();
    let done = time.block_on(async {
        let options = options(Strategy::Cache);
        let client: Client = mount(&cluster.world, &rt, 0, proto, options).await.expect("cannot mount");
        let file = client.create_file("file", 0o600).await.expect("cannot create a file");
        let mut bytes = vec![0; 4 * MIB as usize];
        rt.fill_random(&mut bytes);
        let start = rt.now();
        file.write(0, &bytes).await.expect("cannot write");
        file.commit().await.expect("cannot commit");
        let written = rt.now();
        let mut back = vec![0; bytes.len()];
        assert_eq!(file.read(0, &mut back).await.expect("cannot read"), bytes.len());
        assert!(back == bytes, "the data read differs from the written data");
        [written.duration_since(start), rt.now().duration_since(written)]
    });
    let cpu = [[10, 0, 0, 1], [10, 0, 1, 0]].map(|ip: [u8; 4]| cluster.world.host_use(ip.into()).cpu_ns);
    (done.expect("the run made no progress"), cpu.iter().sum())
}

/// Hosts whose adapters have page-sized segments.
fn of_pages(time: &VirtualTime) -> Cluster {
    let profile = Profile::named("ddr-linux-allphys").expect("unknown profile");
    assert_eq!(profile.adapter.segment_bytes, 4096);
    let mut cluster = Cluster::new(time, profile);
    cluster.start(time);
    cluster
}

#[test]
fn large_blocks_are_transferred_with_page_sized_segments_by_every_strategy() {
    for strategy in Strategy::ALL {
        let time = VirtualTime::new(7);
        let (cluster, rt) = (of_pages(&time), time.runtime());
        let done = time.block_on(async {
            let options = options(strategy).rsize(None).wsize(None);
            let client = mount(&cluster.world, &rt, 0, Proto::Rdma, options).await.expect("cannot mount");
            // The number of segments that fit into a Send of 4 KiB besides the call limits the block size.
            assert!((128 << 10..1 << 20).contains(&client.wsize()), "{}", client.wsize());
            let file = client.create_file("file", 0o600).await.expect("cannot create a file");
            let mut bytes = vec![0; 3 * MIB as usize];
            rt.fill_random(&mut bytes);
            file.write(0, &bytes).await.expect("cannot write");
            file.commit().await.expect("cannot commit");
            let mut back = vec![0; bytes.len()];
            assert_eq!(file.read(0, &mut back).await.expect("cannot read"), bytes.len());
            assert!(back == bytes, "the data read differs from the written data");
            assert_eq!(client.stats().reconnects, 0, "{strategy}");
        });
        done.expect("the run made no progress");
    }
}

#[test]
fn transfers_over_tcp_are_reproducible_in_virtual_time() {
    let (took, cpu) = write_and_read(Proto::Tcp, 0.0);
    assert_eq!((took, cpu), write_and_read(Proto::Tcp, 0.0));
    // Not faster than the link, and with more processor time than over RDMA.
    let link = Duration::from_nanos(4 * MIB * 1000 / 125);
    assert!(took.iter().all(|t| *t > link && *t < 4 * link), "{took:?} instead of {link:?}");
    let (_, over_rdma) = write_and_read(Proto::Rdma, 0.0);
    assert!(cpu > 2 * over_rdma, "{cpu} instead of {over_rdma}");
}

#[test]
fn tcp_over_a_distance_is_limited_by_its_window() {
    let (near, _) = write_and_read(Proto::Tcp, 0.0);
    let (far, _) = write_and_read(Proto::Tcp, 1400.0);
    // 4 MiB in windows of 256 KiB: at least 15 additional round trips of 22 ms.
    let more = Duration::from_nanos(15 * 2 * 1400 * 7881);
    for (near, far) in near.into_iter().zip(far) {
        assert!(far > near + more, "{far:?} instead of {near:?}");
    }
}
