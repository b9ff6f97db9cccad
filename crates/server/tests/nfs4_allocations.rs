//! Heap allocations of a server for NFSv4. This test has its own process, because it counts the allocations of all
//! threads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{net::Ipv4Addr, time::Duration};

use millrace_counting_allocator::{allocations, allocations_of_all_threads};
use millrace_nfs::v4::Status;
use millrace_nfs4_conformance::{
    Connection,
    compound::{Session, open, putfh, read},
    operations::{opened, write},
};
use millrace_runtime::tokio_rt::run_shard;
use millrace_server::{Config, Server};

/// READs before those that are counted, and READs that are counted.
const READS: [u64; 2] = [500, 2000];

/// SEQUENCE, PUTFH and READ of 4 KiB.
#[test]
fn a_read_does_not_allocate_in_the_steady_state() {
    let config = Config {
        exports: vec!["/data=memory:16MiB,squash=none".parse().unwrap()],
        listen_tcp: vec![(Ipv4Addr::LOCALHOST, 0).into()],
        shards: Some(1),
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    let address = server.tcp_addr().unwrap();
    run_shard(async {
        let c = Connection::connect(address).await.unwrap();
        let s = Session::new(&c, b"client").await;
        let root = s.path(&c, "/data").await.unwrap();
        let (stateid, file) = opened(&c, &s, &root, open(b"o", "f", 3, 0, true)).await.unwrap();
        assert_eq!(s.status(&c, [putfh(&file), write(&c, stateid, 0, &[7; 4096])]).await, Status::Ok);
        let server_allocations = || allocations_of_all_threads() - allocations();
        let mut counted = 0;
        for reads in READS {
            let before = server_allocations();
            for _ in 0..reads {
                assert_eq!(s.status(&c, [putfh(&file), read(stateid, 0, 4096)]).await, Status::Ok);
            }
            counted = server_allocations() - before;
        }
        println!("{counted} allocations of the server in {} READs", READS[1]);
        // Timers allocate now and then; a READ does not.
        assert!(counted < READS[1] / 50, "{counted} allocations in {} READs", READS[1]);
    })
    .unwrap();
    server.stop_blocking(Duration::from_secs(1));
}
