//! A file system that checks paths with the IDs of each request, as mergerfs does.

use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    sync::{Arc, Mutex},
};

use millrace_vfs::{FileSystem, Stability};

use super::{mounts::Mounts, *};
use crate::LocalFs;

/// The owner of the directory, mode 0700, and of the file in it.
const OWNER: u32 = 1000;
const DIRECTORY: u64 = 1;
const FILE: u64 = 2;
/// Largest WRITE request, with its headers.
const REQUEST: usize = (128 << 10) + 4096;

/// Fields of a FUSE message (`include/uapi/linux/fuse.h`).
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn longs(mut self, values: &[u64]) -> Self {
        self.0.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
        self
    }

    fn words(mut self, values: &[u32]) -> Self {
        self.0.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
        self
    }

    /// `struct fuse_attr`
    fn attributes(self, node: u64, size: usize) -> Self {
        let (mode, links) = if node == DIRECTORY { (0o040_700, 2) } else { (0o100_600, 1) };
        let this = self.longs(&[node, size as u64, 0, 0, 0, 0]);
        this.words(&[0, 0, 0, mode, links, OWNER, OWNER, 0, 4096, 0])
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The result of a request, or an error number; `None` if it has no reply.
fn answer(request: &[u8], data: &mut Vec<u8>) -> Option<Result<Fields, i32>> {
    const FORGET: u32 = 2;
    const BATCH_FORGET: u32 = 42;
    let (operation, node, uid) = (word(request, 4), long(request, 16), word(request, 24));
    let fields = Fields::default();
    Some(Ok(match operation {
        FORGET | BATCH_FORGET => return None,
        // LOOKUP
        1 if &request[40..] == b"f\0" => {
            fields.longs(&[FILE, 0, 0, 0]).words(&[0, 0]).attributes(FILE, data.len())
        }
        1 => return Some(Err(libc::ENOENT)),
        // GETATTR: without the handle of an open file, the path is checked.
        3 => {
            let by_handle = word(request, 40) & 1 != 0;
            if node == FILE && !by_handle && ![0, OWNER].contains(&uid) {
                return Some(Err(libc::ENOENT));
            }
            fields.longs(&[0, 0]).attributes(node, data.len())
        }
        // OPEN, OPENDIR
        14 | 27 => fields.longs(&[7, 0]),
        // READ
        15 => {
            let (from, count) = (long(request, 48) as usize, word(request, 56) as usize);
            let from = from.min(data.len());
            Fields(data[from..data.len().min(from + count)].to_vec())
        }
        // WRITE
        16 => {
            let (from, count) = (long(request, 48) as usize, word(request, 56) as usize);
            data.resize(data.len().max(from + count), 0);
            data[from..from + count].copy_from_slice(&request[80..80 + count]);
            fields.words(&[count as u32, 0])
        }
        // STATFS
        17 => fields.longs(&[1 << 20; 5]).words(&[4096, 255, 4096, 0, 0, 0, 0, 0, 0, 0]),
        // RELEASE, FSYNC, FLUSH, RELEASEDIR, FSYNCDIR, DESTROY
        18 | 20 | 25 | 29 | 30 | 38 => fields,
        // INIT
        26 => fields.words(&[7, 31, 0, 0, 0, 128 << 10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        _ => return Some(Err(libc::ENOSYS)),
    }))
}

/// Serves the device until the file system is unmounted.
fn serve(mut device: File, data: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; REQUEST];
    loop {
        let request = match device.read(&mut buffer) {
            Ok(n) => &buffer[..n],
            // ENOENT: the request was interrupted.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Interrupted) => continue,
            Err(_) => return,
        };
        let Some(answer) = answer(request, &mut data.lock().unwrap()) else { continue };
        let (error, Fields(body)) = match answer {
            Ok(fields) => (0, fields),
            Err(error) => (-error, Fields::default()),
        };
        let header = Fields::default().words(&[16 + body.len() as u32, error as u32]);
        let reply = [header.longs(&[long(request, 8)]).0, body].concat();
        let _ = device.write(&reply);
    }
}

#[test]
fn data_below_a_directory_that_only_its_owner_may_search_is_transferred() {
    let data = Arc::new(Mutex::new(vec![1; 8192]));
    let made = Mounts::new(|m| {
        let device = m.fuse("root")?;
        let data = Arc::clone(&data);
        std::thread::spawn(move || serve(device, &data));
        Ok(())
    });
    let Some(mounts) = made else { return };
    let owner = Identity { uid: OWNER, gid: OWNER, gids: Default::default() };
    for config in configs(&mounts.path("root")).filter(|c| c.handles == HandleMode::Index) {
        let fs = LocalFs::open(config).unwrap();
        let (file, _) = wait(fs.lookup(&owner, &fs.root(), b"f")).unwrap();
        for (stable, byte) in [(Stability::Unstable, 2), (Stability::FileSync, 3)] {
            let written = wait(fs.write(&owner, &file, 0, views(&[byte; 4096]), stable));
            assert_eq!(written.map(|w| w.count), Ok(4096));
            assert_eq!(data.lock().unwrap()[..4096], [byte; 4096]);
        }
        let committed = wait(fs.commit(&owner, &file, 0, 0));
        assert_eq!(committed.map(|wcc| wcc.after.unwrap().size), Ok(8192));
        for count in [10, 100_000] {
            let read = wait(fs.read(&owner, &file, 4096, count));
            assert_eq!(read.map(|r| r.data.to_vec()), Ok(vec![1; 4096.min(count as usize)]));
        }
    }
}
