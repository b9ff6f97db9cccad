//! A disk of a target as a file: what programs see through the kernel.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

#[allow(unreachable_pub)] // Other tests have it in a public module.
#[path = "../../fuse-session/tests/common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Seek, SeekFrom},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    time::Duration,
};

use millrace_crashtest::Random;
use millrace_disk_mount::DiskMount;
use millrace_fuse_session::MountError;
use millrace_iscsi_initiator::{BlockDevice, Options};
use millrace_server::{Config, LunSettings, Running, Server, TargetSettings, target_name};
use mounts::{fuse_is_available, is_mounted};
use rustix::{
    fs::{FallocateFlags, OFlags, fallocate},
    io::Errno,
};
use tokio::runtime::Runtime;

const SIZE: u64 = 16 << 20;
/// Upper limit for waiting; only a hang takes longer.
const HANG: Duration = Duration::from_secs(60);

/// Pseudo-random bytes, so that misplaced data is detected.
fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

/// A disk, and the executor that serves its mounts.
struct Attached {
    rt: Runtime,
    server: Running,
    dir: tempfile::TempDir,
}

impl Attached {
    fn new() -> Self {
        let lun: LunSettings = format!("/data/disk,size={SIZE},block=4096").parse().unwrap();
        let server = Server::start(Config {
            exports: vec!["/data=memory:64MiB,squash=none".parse().unwrap()],
            listen_iscsi: Some("127.0.0.1:0".parse().unwrap()),
            targets: vec![TargetSettings::new(target_name("disk").unwrap(), vec![lun])],
            shards: Some(1),
            ..Config::default()
        });
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { rt, server: server.unwrap(), dir: tempfile::tempdir().unwrap() }
    }

    fn connect(&self) -> BlockDevice {
        let address = self.server.iscsi_addr().unwrap();
        let url = format!("iscsi://{address}/{}/0", target_name("disk").unwrap());
        self.rt.block_on(BlockDevice::connect(&url.parse().unwrap(), &Options::default())).unwrap()
    }

    fn mount(&self, read_only: bool) -> Result<DiskMount, MountError> {
        let device = self.connect();
        let _context = self.rt.enter();
        DiskMount::new(device, self.dir.path(), read_only)
    }

    /// The content of the disk, without FUSE.
    fn content(&self, offset: u64, length: usize) -> Vec<u8> {
        let device = self.connect();
        let read = device.read_at_into(offset, device.buffer(length).unwrap());
        self.rt.block_on(read).unwrap().to_vec()
    }
}

fn open(mount: &DiskMount) -> File {
    OpenOptions::new().read(true).write(true).open(mount.file()).unwrap()
}

#[test]
fn disk_is_a_file_until_it_is_unmounted() {
    if !fuse_is_available() {
        return;
    }
    let attached = Attached::new();
    let mount = attached.mount(false).unwrap();
    let names: Vec<_> = fs::read_dir(mount.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk"]);
    let file = open(&mount);
    let metadata = file.metadata().unwrap();
    assert!(metadata.is_file() && metadata.len() == SIZE && metadata.blocks() == SIZE / 512);

    // The second of these ranges begins and ends within a block, the last within one and the same.
    let mut model = vec![0; SIZE as usize];
    for (offset, length) in [(0, 4 << 20), (5_000_001, 3_000_000), (9 << 20, 100), (9_437_300, 7)] {
        let data = random_bytes(length, offset as u64 + 1);
        file.write_all_at(&data, offset as u64).unwrap();
        model[offset..offset + length].copy_from_slice(&data);
        let mut read = vec![0; length];
        file.read_exact_at(&mut read, offset as u64).unwrap();
        assert!(read == data, "{offset}");
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (mode, offset, length) in [(punch, 1000, 1_000_000), (FallocateFlags::ZERO_RANGE, 5_100_000, 100)] {
        fallocate(&file, mode, offset as u64, length as u64).unwrap();
        model[offset..offset + length].fill(0);
    }
    file.sync_all().unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(mount.file());
    let mut first = vec![0; 100];
    direct.unwrap().read_exact_at(&mut first, 900).unwrap();
    assert!(first == model[900..1000]);
    for at in (0..SIZE).step_by(4 << 20) {
        assert!(attached.content(at, 4 << 20) == model[at as usize..at as usize + (4 << 20)], "{at}");
    }

    drop(file);
    let at = mount.path().to_owned();
    millrace_fuse_session::mountpoint::detach(&at).unwrap();
    attached.rt.block_on(async { tokio::time::timeout(HANG, mount.ended()).await.unwrap() });
    attached.rt.block_on(mount.unmount()).unwrap();
    assert!(!is_mounted(&at));
}

#[test]
fn size_is_fixed() {
    if !fuse_is_available() {
        return;
    }
    let attached = Attached::new();
    let mount = attached.mount(false).unwrap();
    let mut file = open(&mount);
    assert_eq!(file.set_len(1).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(File::create(mount.file()).unwrap_err().kind(), ErrorKind::PermissionDenied);
    file.set_len(SIZE).unwrap();
    file.set_modified(std::time::SystemTime::now()).unwrap();

    // The end is within the write: a part is written. Then there is no space.
    assert_eq!(file.write_at(&[7; 100], SIZE - 10).unwrap(), 10);
    assert_eq!(file.write_at(&[7; 100], SIZE).unwrap_err().kind(), ErrorKind::StorageFull);
    let mut end = [0; 20];
    assert_eq!(file.read_at(&mut end, SIZE - 10).unwrap(), 10);
    assert_eq!(end[..10], [7; 10]);
    assert_eq!(file.read_at(&mut end, SIZE + 1).unwrap(), 0);
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), SIZE);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), SIZE);
    assert_eq!(fallocate(&file, FallocateFlags::ZERO_RANGE, SIZE, 1), Err(Errno::NOSPC));
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 4096), Err(Errno::OPNOTSUPP));
    drop(file);
    attached.rt.block_on(mount.unmount()).unwrap();
}

#[test]
fn writes_into_one_block_from_many_threads_are_all_kept() {
    if !fuse_is_available() {
        return;
    }
    let attached = Attached::new();
    let mount = attached.mount(false).unwrap();
    let (writers, blocks) = (8, 50);
    std::thread::scope(|s| {
        for writer in 0..writers {
            let mount = &mount;
            s.spawn(move || {
                let sync = OFlags::DSYNC.bits() as i32;
                let options = OpenOptions::new().write(true).custom_flags(sync).clone();
                let file = options.open(mount.file()).unwrap();
                for block in 0..blocks {
                    file.write_all_at(&[writer + 1; 512], block * 4096 + u64::from(writer) * 512).unwrap();
                }
            });
        }
    });
    let content = attached.content(0, 4096 * blocks as usize);
    for (i, part) in content.chunks(512).enumerate() {
        assert!(part.iter().all(|byte| *byte == (i % 8) as u8 + 1), "part {i}");
    }
    attached.rt.block_on(mount.unmount()).unwrap();
}

#[test]
fn read_only_mount_refuses_writes_and_used_directory_is_refused() {
    if !fuse_is_available() {
        return;
    }
    let attached = Attached::new();
    let mount = attached.mount(true).unwrap();
    let refused = OpenOptions::new().write(true).open(mount.file()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    let again = attached.mount(true).err().unwrap().to_string();
    assert!(again.contains("not empty"), "{again}");
    let path = mount.path().to_owned();
    drop(mount);
    assert!(!is_mounted(&path));
}
