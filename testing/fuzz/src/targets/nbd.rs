//! A connection of an NBD server: a client that executes the input's operations, in virtual time.

use std::{
    future::{pending, poll_fn},
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::future::join;
use millrace_admission::{Budget, BudgetConfig};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi_initiator::{BlockDevice, Url};
use millrace_iscsi_target::{
    ConnectionLimits, TableLimits, TargetConfig, TargetStats, TargetTable, tcp::TcpTarget,
};
use millrace_nbd::{Export, Options};
use millrace_runtime::{
    BoxFuture, ByteStream, LocalPort, MemoryStream, RuntimeExt, RuntimeRef, StreamListener, StreamProvider,
    memory_stream, timeout, virtual_time::VirtualTime,
};
use millrace_scsi::{BlockSize, Disk, DiskConfig, Lun, Target};
use millrace_vfs::{
    CreateHow, FileSystemRef, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};

use crate::bytes::{Input, operations};

const TARGET: &str = "iqn.2026-01.example:target";
/// Size of the disk in bytes.
const SIZE: u64 = 128 * 512;
/// Memory of the device in bytes: less than the largest request.
const MEMORY: usize = 16 << 20;
/// Maximum number of operations of one input.
const OPERATIONS: usize = 64;
/// Time limit for the server to accept or send bytes.
const PATIENCE: Duration = Duration::from_secs(2);
/// A connection ends within this time.
const END: Duration = Duration::from_secs(3600);

/// Kinds of operations.
const BYTES: u8 = 0;
/// The client flags and the default export, without or with structured replies.
const SHAKE_HANDS: u8 = 1;
const OPTION: u8 = 2;
const REQUEST: u8 = 3;
const PAUSE: u8 = 4;
const READ: u8 = 5;
const SHUT_DOWN: u8 = 6;
const KINDS: u8 = 7;

/// The network between the device and a target with a disk in memory.
struct Network {
    server: TcpTarget,
    budget: Budget,
}

impl StreamProvider for Network {
    fn connect(&self, _: LocalPort, _: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let (ours, theirs) = memory_stream(1 << 16, usize::MAX);
        let account = self.budget.open(IpAddr::V4(Ipv4Addr::LOCALHOST).into()).expect("a connection");
        let served = self.server.clone().serve(Box::new(theirs), None, account, pending());
        self.server.rt.spawn("target", Box::pin(served));
        Box::pin(async { Ok(Box::new(ours) as Box<dyn ByteStream>) })
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn StreamListener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

async fn device(rt: &RuntimeRef) -> BlockDevice {
    let arena = || Arena::new(ArenaConfig { limit: 32 << 20, huge_pages: false });
    let fs: FileSystemRef = MemoryFs::new(MemoryConfig::new(arena(), rt.clone()));
    let how = CreateHow::Guarded(SetAttr { size: Some(SIZE), ..SetAttr::default() });
    let (root, directory) = (Identity::root(), fs.root());
    let file = fs.create(&root, &directory, b"disk", &how).await.expect("a file");
    let config = DiskConfig {
        block_size: BlockSize::B512,
        read_only: false,
        identifier: 1,
        record_directory: directory,
        record_name: b"reservations".to_vec(),
    };
    let disk = Disk::open(fs, file.handle, root, config).await.expect("a disk");
    let device = Target::new(millrace_scsi::TargetConfig { name: TARGET.into(), arena: arena() });
    device.add(Lun::default(), disk).expect("a free LUN");
    let table = TargetTable::new(TableLimits::default());
    let (initiators, addresses, name) = (Vec::new(), Vec::new(), TARGET.parse().expect("a name"));
    let target =
        TargetConfig { name, device, initiators, chap: None, xprtsec: Default::default(), addresses };
    table.replace(vec![target]).expect("one target");
    let (limits, stats) = (ConnectionLimits::default(), Arc::new(TargetStats::default()));
    let server = TcpTarget { table, rt: rt.clone(), arena: arena(), limits, stats };
    let largest = 8 << 20;
    let config = BudgetConfig { memory: 32 << 20, own: 64 << 10, largest, connections: 4, per_client: 4 };
    let mut options = millrace_iscsi_initiator::Options::default();
    options.memory = MEMORY;
    options.runtime = Some(rt.clone());
    options.streams = Some(Arc::new(Network { server, budget: Budget::new(config, rt.clone()) }));
    let url: Url = format!("iscsi://192.0.2.1/{TARGET}/0").parse().expect("a URL");
    BlockDevice::connect(&url, &options).await.expect("a device")
}

/// Executes the target with `input`: the capacity and the segments of the stream, and operations. The connection ends,
/// and returns its memory; another client writes and reads.
pub(super) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let capacity = 512 << (input.u8() % 8);
    let segment = usize::from(input.u8()) * 16 + 1;
    let script = input.rest();
    let time = VirtualTime::new(7);
    let rt = time.runtime();
    let done = time.block_on(async {
        let disk = device(&rt).await;
        let export = Export::new(disk.clone(), rt.clone(), &Options::default());
        let serve = async |stream| export.serve(Box::new(stream), pending()).await;
        let (ours, theirs) = memory_stream(capacity, segment);
        let attack = join(serve(theirs), Client { rt: &rt, stream: ours }.execute(script));
        // How the connection ends depends on the input.
        drop(timeout(&*rt, END, attack).await.expect("the connection ends"));
        let (ours, theirs) = memory_stream(1 << 16, 3000);
        let (served, ()) = join(serve(theirs), Client { rt: &rt, stream: ours }.work()).await;
        served.expect("a correct client");
        // Operations of a connection that ended early may be in progress.
        rt.sleep(Duration::from_secs(60)).await;
        let all: Vec<_> = (0..MEMORY >> 22).map(|_| disk.buffer(4 << 20)).collect();
        assert!(all.iter().all(Result::is_ok), "memory is not returned");
    });
    if let Err(stuck) = done {
        panic!("{stuck}");
    }
}

struct Client<'a> {
    rt: &'a RuntimeRef,
    stream: MemoryStream,
}

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    [b"IHAVEOPT", &kind.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
}

fn request(flags: u16, command: u16, offset: u64, length: u32) -> Vec<u8> {
    let (flags, command) = (flags.to_be_bytes(), command.to_be_bytes());
    [b"\x25\x60\x95\x13", &flags[..], &command, &[7; 8], &offset.to_be_bytes(), &length.to_be_bytes()]
        .concat()
}

fn hands(structured: bool) -> Vec<u8> {
    let replies = if structured { option(8, &[]) } else { Vec::new() };
    [&3_u32.to_be_bytes()[..], &replies, &option(1, &[])].concat()
}

impl Client<'_> {
    /// Executes the operations, and ends the stream.
    async fn execute(mut self, script: &[u8]) {
        let mut script = Input::new(script);
        for _ in 0..OPERATIONS {
            let Some((kind, operand)) = script.operation() else { break };
            let mut fields = Input::new(operand);
            match kind % KINDS {
                BYTES => self.write(operand).await,
                SHAKE_HANDS => self.write(&hands(fields.u8() & 1 != 0)).await,
                OPTION => {
                    let kind = u32::from(fields.u8());
                    self.write(&option(kind, fields.rest())).await;
                }
                REQUEST => {
                    let (flags, command) = (fields.u8().into(), fields.u8().into());
                    // Mostly blocks of the disk.
                    let offset = u64::from(fields.u16()) * 512;
                    let length = u32::from(fields.u16()) << (fields.u8() % 16);
                    let data = if command == 1 { length.min(1 << 18) } else { 0 };
                    let bytes = [&request(flags, command, offset, length)[..], fields.rest()].concat();
                    self.write(&[bytes, vec![0x55; data as usize]].concat()).await;
                }
                PAUSE => self.rt.sleep(Duration::from_millis(fields.u16().into())).await,
                READ => drop(self.read(usize::from(fields.u16())).await),
                _ => self.stream.shutdown(),
            }
        }
        self.stream.shutdown();
        self.read(usize::MAX).await;
    }

    /// Writes as much as the server accepts in time.
    async fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let write = poll_fn(|cx| self.stream.poll_write(cx, &[IoSlice::new(bytes)]));
            match timeout(&**self.rt, PATIENCE, write).await {
                Some(Ok(n @ 1..)) => bytes = &bytes[n..],
                _ => return,
            }
        }
    }

    /// Reads at most `length` bytes, until none arrives in time.
    async fn read(&mut self, length: usize) -> Vec<u8> {
        let mut received = Vec::new();
        while received.len() < length {
            let mut bytes = vec![0; 4096.min(length - received.len())];
            let read = poll_fn(|cx| self.stream.poll_read(cx, &mut [IoSliceMut::new(&mut bytes)]));
            match timeout(&**self.rt, PATIENCE, read).await {
                Some(Ok(n @ 1..)) => received.extend(&bytes[..n]),
                _ => break,
            }
        }
        received
    }

    /// Writes and reads the disk.
    async fn work(mut self) {
        self.write(&hands(false)).await;
        assert_eq!(self.read(18 + 10).await[18..26], SIZE.to_be_bytes());
        let data: Vec<u8> = (0..SIZE).map(|i| (i / 512 + i) as u8).collect();
        self.write(&[&request(0, 1, 0, SIZE as u32)[..], &data].concat()).await;
        let success = b"\x67\x44\x66\x98\0\0\0\0\x07\x07\x07\x07\x07\x07\x07\x07";
        assert_eq!(self.read(16).await, success, "a write");
        self.write(&request(0, 0, 0, SIZE as u32)).await;
        let read = self.read(16 + data.len()).await;
        assert!(read[..16] == *success && read[16..] == data, "a read of what was written");
        self.write(&request(0, 2, 0, 0)).await;
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let stream = [&[4, 200][..], &[2, 0], &[7, 255]];
    let default_export = [&[7][..], &[0, 0, 0, 0, 0, 1, 0, 3]].concat();
    // Flags, command, first block, length and its shift.
    let write: &[u8] = &[1, 1, 0, 4, 2, 0, 0];
    let large_write: &[u8] = &[0, 1, 0, 0, 0xff, 0xff, 9];
    let read: &[u8] = &[4, 0, 0, 4, 2, 0, 0];
    let large_read: &[u8] = &[0, 0, 0, 0, 0x80, 0, 1];
    let (flush, status): (&[u8], &[u8]) = (&[0, 3], &[0, 7, 0, 0, 2, 0, 4]);
    // NBD_OPT_SET_META_CONTEXT.
    let allocation = [&[10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
    let (trim, zeroes): (&[u8], &[u8]) = (&[0, 4, 0, 4, 4, 0, 0], &[3, 6, 0, 4, 4, 0, 0]);
    let scripts = [
        operations(&[
            (SHAKE_HANDS, &[1]),
            (REQUEST, write),
            (REQUEST, read),
            (REQUEST, flush),
            (READ, &[9, 0]),
        ]),
        operations(&[(SHAKE_HANDS, &[0]), (REQUEST, trim), (REQUEST, zeroes), (REQUEST, large_read)]),
        operations(&[(SHAKE_HANDS, &[1]), (REQUEST, large_write), (PAUSE, &[9, 0]), (SHUT_DOWN, &[])]),
        operations(&[
            (BYTES, &3_u32.to_be_bytes()),
            (OPTION, &[8]),
            (OPTION, &[3]),
            (OPTION, &default_export),
            (REQUEST, read),
        ]),
        operations(&[
            (BYTES, &3_u32.to_be_bytes()),
            (OPTION, &[8]),
            (OPTION, &allocation),
            (OPTION, &[1]),
            (REQUEST, write),
            (REQUEST, status),
            (READ, &[1, 0]),
        ]),
        operations(&[(BYTES, &3_u32.to_be_bytes()), (OPTION, b"\x05tls"), (OPTION, &[2]), (READ, &[1, 0])]),
        operations(&[(SHAKE_HANDS, &[1]), (REQUEST, write), (BYTES, &request(0, 2, 0, 0))]),
    ];
    scripts.iter().zip(stream.iter().cycle()).map(|(script, stream)| [stream, &script[..]].concat()).collect()
}
