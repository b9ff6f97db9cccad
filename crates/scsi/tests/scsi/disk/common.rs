//! A target with one disk in the memory file system.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use millrace_buffer::{Arena, ArenaConfig, Views};
use millrace_runtime::virtual_time::VirtualTime;
use millrace_scsi::{
    Aborted, BlockSize, Disk, DiskConfig, InitiatorPort, Lun, Nexus, Request, Response, Sense, Status,
    Target, TargetConfig, TaskAttribute,
};
use millrace_vfs::{
    CreateHow, FileSystemRef, Handle, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};

/// The LUN of the disk.
pub(crate) const LUN: [u8; 8] = [0; 8];

/// Polls a future that does not wait for anything else.
pub(crate) fn now<T>(future: impl IntoFuture<Output = T>) -> T {
    match pin!(future.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => out,
        Poll::Pending => panic!("the result is not ready"),
    }
}

pub(crate) fn cdb(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

pub(crate) struct Bench {
    pub(crate) target: Arc<Target>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) nexus: Arc<Nexus>,
    pub(crate) arena: Arena,
    pub(crate) fs: FileSystemRef,
    pub(crate) file: Handle,
    pub(crate) config: DiskConfig,
}

pub(crate) fn memory(arena: &Arena) -> FileSystemRef {
    let runtime = VirtualTime::new(1).runtime();
    MemoryFs::new(MemoryConfig::new(arena.clone(), runtime))
}

pub(crate) fn initiator(n: u8) -> InitiatorPort {
    InitiatorPort::new("iqn.2026-01.example:host", [0, 2, 3, 4, 5, n]).unwrap()
}

impl Bench {
    /// A disk of `blocks` blocks; POWER ON is reported already.
    pub(crate) fn new(block_size: BlockSize, blocks: u64) -> Self {
        let arena = Arena::new(ArenaConfig { limit: 256 << 20, huge_pages: false });
        let fs = memory(&arena);
        Self::on(fs, arena, block_size, blocks, false)
    }

    /// A disk in `fs`.
    pub(crate) fn on(
        fs: FileSystemRef,
        arena: Arena,
        block_size: BlockSize,
        blocks: u64,
        read_only: bool,
    ) -> Self {
        let size = Some(blocks * u64::from(block_size.bytes()));
        let how = CreateHow::Guarded(SetAttr { size, ..SetAttr::default() });
        let file = now(fs.create(&Identity::root(), &fs.root(), b"disk", &how)).unwrap().handle;
        let config = DiskConfig {
            block_size,
            read_only,
            identifier: 0x0123_4567_89ab_cdef,
            record_directory: fs.root(),
            record_name: b"disk.reservations".to_vec(),
        };
        Self::open(fs, arena, file, config)
    }

    pub(crate) fn open(fs: FileSystemRef, arena: Arena, file: Handle, config: DiskConfig) -> Self {
        let disk = now(Disk::open(fs.clone(), file, Identity::root(), config.clone())).unwrap();
        let name = "iqn.2026-01.example:target".to_string();
        let target = Target::new(TargetConfig { name, arena: arena.clone() });
        target.add(Lun::new(0).unwrap(), Arc::clone(&disk)).unwrap();
        let nexus = target.open_nexus(initiator(1));
        let bench = Self { target, disk, nexus, arena, fs, file, config };
        bench.expect_attention(&bench.nexus, (0x29, 0x00));
        bench
    }

    pub(crate) fn other(&self, n: u8) -> Arc<Nexus> {
        let nexus = self.target.open_nexus(initiator(n));
        self.expect_attention(&nexus, (0x29, 0x00));
        nexus
    }

    pub(crate) fn views(&self, data: &[u8]) -> Views {
        data.chunks(1 << 16).map(|chunk| self.arena.copy_from(chunk).unwrap()).collect()
    }

    pub(crate) fn request(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Request {
        Request {
            task: self.target.task(nexus, LUN),
            cdb: cdb(bytes),
            attribute: TaskAttribute::Simple,
            data_out: self.views(data),
            data_out_length: data.len() as u32,
        }
    }

    pub(crate) fn try_execute(
        &self,
        nexus: &Arc<Nexus>,
        bytes: &[u8],
        data: &[u8],
    ) -> Result<Response, Aborted> {
        now(self.target.execute(self.request(nexus, bytes, data)))
    }

    /// Executes a command, whose response the initiator receives.
    pub(crate) fn execute(&self, nexus: &Arc<Nexus>, bytes: &[u8], data: &[u8]) -> Response {
        let response = self.try_execute(nexus, bytes, data).unwrap();
        self.target.sense_received(nexus);
        response
    }

    /// Executes a command that succeeds; returns data-in.
    pub(crate) fn good(&self, bytes: &[u8], data: &[u8]) -> Vec<u8> {
        let response = self.execute(&self.nexus, bytes, data);
        assert_eq!((response.status, response.sense), (Status::Good, None), "{bytes:x?}");
        response.data_in.to_vec()
    }

    /// Executes a command that fails; returns its sense data.
    pub(crate) fn check(&self, bytes: &[u8], data: &[u8]) -> Sense {
        let response = self.execute(&self.nexus, bytes, data);
        assert_eq!(response.status, Status::CheckCondition, "{bytes:x?}");
        assert!(response.data_in.is_empty());
        response.sense.unwrap()
    }

    /// Executes a command that fails with this key and code.
    pub(crate) fn fails(&self, bytes: &[u8], data: &[u8], key: u8, code: (u8, u8)) {
        let sense = self.check(bytes, data);
        assert_eq!((sense.key as u8, (sense.additional.0, sense.additional.1)), (key, code), "{bytes:x?}");
    }

    /// TEST UNIT READY reports this condition.
    pub(crate) fn expect_attention(&self, nexus: &Arc<Nexus>, code: (u8, u8)) {
        let sense = self.execute(nexus, &[0], &[]).sense.expect("no unit attention condition");
        assert_eq!((sense.key as u8, (sense.additional.0, sense.additional.1)), (6, code));
    }

    pub(crate) fn expect_ready(&self, nexus: &Arc<Nexus>) {
        assert_eq!(self.execute(nexus, &[0], &[]).sense, None);
    }
}
