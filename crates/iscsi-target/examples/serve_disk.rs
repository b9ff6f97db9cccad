//! Serves a disk in memory over iSCSI, without authentication:
//!
//! ```text
//! cargo run --release -p millrace-iscsi-target --example serve_disk -- 127.0.0.1:3260 256 512
//! iscsi-ls -s iscsi://127.0.0.1
//! qemu-img info iscsi://127.0.0.1/iqn.2026-01.example.millrace:memory/0
//! ```
//!
//! The arguments are the address, the size in MiB, and the size of a block in bytes (512 or 4096).

use std::{env, net::SocketAddr, sync::Arc};

use anyhow::{Context, Result, bail};
use millrace_admission::{Budget, BudgetConfig};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi_target::{
    ConnectionLimits, MAX_COMMAND_MEMORY, TableLimits, TargetConfig, TargetTable, tcp::TcpTarget,
};
use millrace_runtime::{
    RuntimeRef,
    tokio_rt::{TcpByteStream, TokioRuntime},
};
use millrace_scsi::{BlockSize, Disk, DiskConfig, Lun, Target};
use millrace_vfs::{
    CreateHow, FileSystemRef, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};

const NAME: &str = "iqn.2026-01.example.millrace:memory";
/// Memory for commands in progress, in bytes.
const COMMANDS: usize = 256 << 20;

fn arena(limit: usize) -> Arena {
    Arena::new(ArenaConfig { limit, huge_pages: false })
}

/// A device with one disk of `size` bytes at LUN 0.
async fn device(rt: &RuntimeRef, size: u64, block_size: BlockSize) -> Result<Arc<Target>> {
    // The file system needs some memory for more than the data.
    let limit = usize::try_from(size)? + (64 << 20);
    let fs: FileSystemRef = MemoryFs::new(MemoryConfig::new(arena(limit), Arc::clone(rt)));
    let how = CreateHow::Guarded(SetAttr { size: Some(size), ..SetAttr::default() });
    let file = fs.create(&Identity::root(), &fs.root(), b"disk", &how).await.context("create the disk")?;
    let config = DiskConfig {
        block_size,
        read_only: false,
        identifier: 1,
        record_directory: fs.root(),
        record_name: b"reservations".to_vec(),
    };
    let disk = Disk::open(Arc::clone(&fs), file.handle, Identity::root(), config).await?;
    let device = Target::new(millrace_scsi::TargetConfig { name: NAME.into(), arena: arena(COMMANDS) });
    device.add(Lun::new(0).context("LUN 0")?, disk)?;
    Ok(device)
}

fn target(rt: &RuntimeRef, device: Arc<Target>) -> Result<TcpTarget> {
    let table = TargetTable::new(TableLimits::default());
    let (initiators, addresses) = (Vec::new(), Vec::new());
    table.replace(vec![TargetConfig {
        name: NAME.parse()?,
        device,
        initiators,
        chap: None,
        xprtsec: Default::default(),
        addresses,
    }])?;
    let (limits, stats) = (ConnectionLimits::default(), Arc::default());
    Ok(TcpTarget { table, rt: Arc::clone(rt), arena: arena(COMMANDS), limits, stats })
}

fn arguments() -> Result<(SocketAddr, u64, BlockSize)> {
    let mut args = env::args().skip(1);
    let mut next = |default: &str| args.next().unwrap_or_else(|| default.into());
    let address = next("127.0.0.1:3260").parse().context("the first argument is not ADDRESS:PORT")?;
    let size: u64 = next("256").parse().context("the second argument is not a size in MiB")?;
    let block_size = match next("512").as_str() {
        "512" => BlockSize::B512,
        "4096" => BlockSize::B4096,
        other => bail!("{other} is not a block size; use 512 or 4096"),
    };
    Ok((address, size << 20, block_size))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let (address, size, block_size) = arguments()?;
    let rt = TokioRuntime::current();
    let target = target(&rt, device(&rt, size, block_size).await?)?;
    let largest = MAX_COMMAND_MEMORY;
    let limits =
        BudgetConfig { memory: COMMANDS, own: 64 << 10, largest, connections: 1024, per_client: 1024 };
    let budget = Budget::new(limits, Arc::clone(&rt));
    let listener =
        tokio::net::TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
    println!("iscsi://{}/{NAME}/0", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        let Ok(account) = budget.open(peer.ip().into()) else { continue };
        let stream = Box::new(TcpByteStream::new(stream.into_std()?)?);
        tokio::spawn(target.clone().serve(stream, None, account, std::future::pending()));
    }
}
