//! A block device over TCP on the loopback interface.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::try_join_all;
use millrace_admission::{Budget, BudgetConfig};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi_initiator::{BlockDevice, DigestPolicy, Options, Url};
use millrace_iscsi_target::{
    ConnectionLimits, MAX_COMMAND_MEMORY, TableLimits, TargetConfig, TargetTable, tcp::TcpTarget,
};
use millrace_runtime::tokio_rt::{TcpByteStream, TokioRuntime};
use millrace_scsi::{BlockSize, Disk, DiskConfig, Lun, Target};
use millrace_vfs::{
    CreateHow, FileSystemRef, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};

const TARGET: &str = "iqn.2026-01.example:target";
const SIZE: u64 = 16 << 20;

/// Held by each test: copied bytes are counted for the whole process.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Serves a disk in memory; returns the address.
async fn serve() -> SocketAddr {
    let rt = TokioRuntime::current();
    // One for target and file system, as in a server, so that the file can take received memory.
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let fs: FileSystemRef = MemoryFs::new(MemoryConfig::new(arena.clone(), Arc::clone(&rt)));
    let how = CreateHow::Guarded(SetAttr { size: Some(SIZE), ..SetAttr::default() });
    let file = fs.create(&Identity::root(), &fs.root(), b"disk", &how).await.unwrap().handle;
    let config = DiskConfig {
        block_size: BlockSize::B4096,
        read_only: false,
        identifier: 1,
        record_directory: fs.root(),
        record_name: b"reservations".to_vec(),
    };
    let disk = Disk::open(Arc::clone(&fs), file, Identity::root(), config).await.unwrap();
    let device = Target::new(millrace_scsi::TargetConfig { name: TARGET.into(), arena: arena.clone() });
    device.add(Lun::default(), disk).unwrap();
    let table = TargetTable::new(TableLimits::default());
    let (initiators, addresses) = (Vec::new(), Vec::new());
    let name = TARGET.parse().unwrap();
    table
        .replace(vec![TargetConfig {
            name,
            device,
            initiators,
            chap: None,
            xprtsec: Default::default(),
            addresses,
        }])
        .unwrap();
    let (limits, stats) = (ConnectionLimits::default(), Arc::default());
    let server = TcpTarget { table, rt: Arc::clone(&rt), arena, limits, stats };
    let largest = MAX_COMMAND_MEMORY;
    let config = BudgetConfig { memory: 64 << 20, own: 64 << 10, largest, connections: 64, per_client: 64 };
    let budget = Budget::new(config, rt);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let account = budget.open(peer.ip().into()).unwrap();
            let stream = Box::new(TcpByteStream::new(stream.into_std().unwrap()).unwrap());
            tokio::spawn(server.clone().serve(stream, None, account, std::future::pending()));
        }
    });
    address
}

#[tokio::test]
async fn data_is_placed_and_sent_without_copies() {
    let _guard = ONE_AT_A_TIME.lock().await;
    let address = serve().await;
    let url: Url = format!("iscsi://{address}/{TARGET}/0").parse().unwrap();
    for digests in [DigestPolicy::Refuse, DigestPolicy::Require] {
        let mut options = Options::default();
        options.digests = digests;
        let disk = BlockDevice::connect(&url, &options).await.unwrap();
        assert_eq!((disk.capacity(), disk.block_size()), (SIZE, 4096));
        let mut buffer = disk.buffer(4 << 20).unwrap();
        buffer.iter_mut().zip(0_u32..).for_each(|(byte, i)| *byte = (i / 4096 * 13 + i) as u8);
        let written = buffer.freeze();
        let before = millrace_buffer::copied::total();
        disk.write_at_from(4 << 20, written.clone().into()).await.unwrap();
        // The file takes the memory of the data; both sides copy only what arrives with headers.
        let copied = millrace_buffer::copied::total() - before;
        assert!(copied < 512 << 10, "{copied} bytes of 4 MiB were copied for a write");
        disk.flush().await.unwrap();
        let before = millrace_buffer::copied::total();
        let read = disk.read_at_into(4 << 20, disk.buffer(4 << 20).unwrap()).await.unwrap();
        let copied = millrace_buffer::copied::total() - before;
        assert!(read[..] == written[..]);
        assert!(copied < 512 << 10, "{copied} bytes of 4 MiB were copied for a read");
        disk.discard(4 << 20..8 << 20).await.unwrap();
        let read = disk.read_at_into(4 << 20, disk.buffer(1 << 20).unwrap()).await.unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
        disk.close().await;
    }
}

#[tokio::test]
async fn more_data_than_the_queue_of_a_connection_takes_is_sent_without_a_pause() {
    let _guard = ONE_AT_A_TIME.lock().await;
    let address = serve().await;
    let url: Url = format!("iscsi://{address}/{TARGET}/0").parse().unwrap();
    let mut options = Options::default();
    // A ping would wake the peer.
    options.ping_interval = Duration::from_secs(3600);
    let disk = BlockDevice::connect(&url, &options).await.unwrap();
    let transfer = async || {
        for _ in 0..8 {
            let buffers = (0..16).map(|i| (i << 20, disk.buffer(1 << 20).unwrap()));
            let reads = buffers.map(|(offset, buffer)| disk.read_at_into(offset, buffer));
            let read = try_join_all(reads).await.unwrap();
            let data = (0..16).zip(read);
            let writes = data.map(|(i, b)| disk.write_at_from(i << 20, b.freeze().into()));
            try_join_all(writes).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), transfer()).await.expect("the connection stalls");
    disk.close().await;
}
