//! The same files over RDMA and over TCP of one simulated world.

use std::time::Duration;

use millrace_client::{Design, Proto, RetryPolicy, Strategy, nfs3::Client};
use millrace_rdma_sim::Profile;
use millrace_runtime::virtual_time::VirtualTime;

use millrace_crashtest::scene::{MIB, Scene, mount, options};

/// Writes a file and reads it again; gives what either took, and processor time of both hosts.
fn write_and_read(proto: Proto, miles: f64) -> ([Duration; 2], u64) {
    let time = VirtualTime::new(7);
    let profile = Profile::named("gige-2003").and_then(|p| p.at_distance(miles)).expect("a profile");
    let mut scene = Scene::new(&time, profile, Design::ReadWrite);
    scene.start(&time);
    let rt = time.runtime();
    let done = time.block_on(async {
        let options = options(Strategy::Cache, Design::ReadWrite);
        let client: Client = mount(&scene.world, &rt, 0, proto, options).await.expect("a mount");
        let file = client.create_file("file", 0o600).await.expect("a file");
        let mut bytes = vec![0; 4 * MIB as usize];
        rt.fill_random(&mut bytes);
        let start = rt.now();
        file.write(0, &bytes).await.expect("written");
        file.commit().await.expect("committed");
        let written = rt.now();
        let mut back = vec![0; bytes.len()];
        assert_eq!(file.read(0, &mut back).await.expect("read"), bytes.len());
        assert!(back == bytes, "the bytes that come back are others");
        [written.duration_since(start), rt.now().duration_since(written)]
    });
    let cpu = [[10, 0, 0, 1], [10, 0, 1, 0]].map(|ip: [u8; 4]| scene.world.host_use(ip.into()).cpu_ns);
    (done.expect("it ends"), cpu.iter().sum())
}

/// Machines whose adapters name memory page by page.
fn of_pages(time: &VirtualTime, design: Design) -> Scene {
    let profile = Profile::named("ddr-linux-allphys").expect("a profile");
    assert_eq!(profile.adapter.segment_bytes, 4096);
    let mut scene = Scene::new(time, profile, design);
    scene.start(time);
    scene
}

#[test]
fn large_blocks_go_over_adapters_that_name_pages_with_every_strategy() {
    for strategy in Strategy::ALL {
        let time = VirtualTime::new(7);
        let (scene, rt) = (of_pages(&time, Design::ReadWrite), time.runtime());
        let done = time.block_on(async {
            let options = options(strategy, Design::ReadWrite).rsize(None).wsize(None);
            let client = mount(&scene.world, &rt, 0, Proto::Rdma, options).await.expect("a mount");
            // As many pages as a Send of 4 KiB names beside the call.
            assert!((128 << 10..1 << 20).contains(&client.wsize()), "{}", client.wsize());
            let file = client.create_file("file", 0o600).await.expect("a file");
            let mut bytes = vec![0; 3 * MIB as usize];
            rt.fill_random(&mut bytes);
            file.write(0, &bytes).await.expect("written");
            file.commit().await.expect("committed");
            let mut back = vec![0; bytes.len()];
            assert_eq!(file.read(0, &mut back).await.expect("read"), bytes.len());
            assert!(back == bytes, "the bytes that come back are others");
            assert_eq!(client.stats().reconnects, 0, "{strategy}");
        });
        done.expect("it ends");
    }
}

#[test]
fn a_design_that_cannot_name_the_pages_of_its_replies_is_refused_at_once() {
    let time = VirtualTime::new(7);
    let (scene, rt) = (of_pages(&time, Design::ReadRead), time.runtime());
    let done = time.block_on(async {
        let retry = RetryPolicy { max_elapsed: Duration::from_secs(1), ..RetryPolicy::default() };
        let options = options(Strategy::Dynamic, Design::ReadRead).retry(retry);
        let mounted = mount(&scene.world, &rt, 0, Proto::Rdma, options).await;
        let error = mounted.map(drop).expect_err("it is refused");
        assert!(error.to_string().contains("the peer closed the connection"), "{error}");
        // No limit was waited for.
        assert!(rt.now().as_nanos() < 2_000_000_000);
    });
    done.expect("it ends");
}

#[test]
fn files_go_over_tcp_in_virtual_time_the_same_each_time() {
    let (took, cpu) = write_and_read(Proto::Tcp, 0.0);
    assert_eq!((took, cpu), write_and_read(Proto::Tcp, 0.0));
    // No faster than the link, and the processors have more to do than over RDMA.
    let link = Duration::from_nanos(4 * MIB * 1000 / 125);
    assert!(took.iter().all(|t| *t > link && *t < 4 * link), "{took:?} for {link:?}");
    let (_, over_rdma) = write_and_read(Proto::Rdma, 0.0);
    assert!(cpu > 2 * over_rdma, "{cpu} for {over_rdma}");
}

#[test]
fn distance_bounds_tcp_by_its_window() {
    let (near, _) = write_and_read(Proto::Tcp, 0.0);
    let (far, _) = write_and_read(Proto::Tcp, 1400.0);
    // 4 MiB by windows of 256 KiB: at least 15 round trips of 22 ms more.
    let more = Duration::from_nanos(15 * 2 * 1400 * 7881);
    for (near, far) in near.into_iter().zip(far) {
        assert!(far > near + more, "{far:?} after {near:?}");
    }
}
