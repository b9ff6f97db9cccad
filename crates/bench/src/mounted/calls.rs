//! Timed operations of a program on a mounted directory.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use millrace_buffer::{Arena, ArenaConfig};
use rustix::fs::OFlags;

use super::{ENTRIES, FILES, JOBS, MountBench, RECORD, SMALL, name};
use crate::BenchError;

/// Amount of work, and its duration.
pub(super) struct Measured {
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) took: Duration,
}

/// Creates the directories of small files in `dir`.
pub(super) fn fill(dir: &Path, config: &MountBench) -> Result<(), BenchError> {
    for (sub, n) in [(FILES, config.files), (ENTRIES, config.entries)] {
        let sub = dir.join(sub);
        fs::create_dir(&sub).map_err(BenchError::io("create a directory in the tmpfs"))?;
        for i in 0..n {
            File::create(sub.join(name(i))).map_err(BenchError::io("create a file in the tmpfs"))?;
        }
    }
    Ok(())
}

/// Marks a record with its offset.
fn stamp(record: &mut [u8], at: u64) {
    if let Some(first) = record.first_chunk_mut() {
        *first = at.to_le_bytes();
    }
}

fn check(record: &[u8], at: u64) -> Result<(), BenchError> {
    if record.first_chunk() == Some(&at.to_le_bytes()) {
        return Ok(());
    }
    Err(BenchError::Client(format!("the data read at offset {at} differs from the written data")))
}

/// Offsets of the records of a file of `size` bytes.
fn records(size: u64) -> impl Iterator<Item = u64> {
    (0..size / RECORD as u64).map(|n| n * RECORD as u64)
}

/// Creates or overwrites a file of `size` bytes, and syncs it.
pub(super) fn write(path: &Path, size: u64) -> Result<Measured, BenchError> {
    let mut record = vec![0x4d; RECORD];
    let start = Instant::now();
    let failed = || BenchError::io("write the large file");
    let mut file = File::create(path).map_err(failed())?;
    for at in records(size) {
        for (n, small) in record.chunks_exact_mut(SMALL).enumerate() {
            stamp(small, at + (n * SMALL) as u64);
        }
        file.write_all(&record).map_err(failed())?;
    }
    file.sync_all().map_err(failed())?;
    drop(file);
    Ok(Measured { bytes: size, operations: size / RECORD as u64, took: start.elapsed() })
}

/// Reads a file of `size` bytes.
pub(super) fn read(path: &Path, size: u64) -> Result<Measured, BenchError> {
    let mut record = vec![0; RECORD];
    let start = Instant::now();
    let failed = || BenchError::io("read the large file");
    let mut file = File::open(path).map_err(failed())?;
    for at in records(size) {
        file.read_exact(&mut record).map_err(failed())?;
        check(&record, at)?;
    }
    drop(file);
    Ok(Measured { bytes: size, operations: size / RECORD as u64, took: start.elapsed() })
}

/// Reads small records of a file of `size` bytes with O_DIRECT, in a permuted order.
pub(super) fn random_read(path: &Path, size: u64, operations: u64) -> Result<Measured, BenchError> {
    let records = (size / SMALL as u64).max(1);
    let each = operations.div_ceil(JOBS as u64);
    let arena = Arena::new(ArenaConfig::default());
    let job = |job: u64| -> Result<(), BenchError> {
        let failed = || BenchError::io("read the large file");
        let direct = OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(direct).open(path).map_err(failed())?;
        let mut memory = arena.alloc(SMALL)?;
        for i in 0..each {
            let at = shuffled(job * each + i, records) * SMALL as u64;
            file.read_exact_at(&mut memory, at).map_err(failed())?;
            check(&memory, at)?;
        }
        Ok(())
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS as u64)
            .map(|n| {
                let job = &job;
                scope.spawn(move || job(n))
            })
            .collect();
        jobs.into_iter().try_for_each(|j| {
            j.join().map_err(|_| BenchError::Client("a job of the random test panicked".into()))?
        })
    })?;
    let operations = each * JOBS as u64;
    Ok(Measured { bytes: operations * SMALL as u64, operations, took: start.elapsed() })
}

/// The `n`th element of a permutation of the numbers below `of`: multiples of a step that is coprime to `of`.
fn shuffled(n: u64, of: u64) -> u64 {
    const STEPS: [u64; 3] = [2_654_435_761, 2_246_822_519, 3_266_489_917]; // Primes.
    let step = STEPS.into_iter().find(|s| !of.is_multiple_of(*s)).unwrap_or(1);
    ((u128::from(n) * u128::from(step)) % u128::from(of.max(1))) as u64
}

/// Calls stat for `files` files, whose attributes are cached.
pub(super) fn stat(dir: &Path, files: u32, passes: usize) -> Result<Measured, BenchError> {
    let paths: Vec<_> = (0..files).map(|n| dir.join(name(n))).collect();
    let all = || {
        paths
            .iter()
            .try_for_each(|p| rustix::fs::stat(p).map(drop))
            .map_err(|e| BenchError::io("stat a file")(e.into()))
    };
    all()?;
    let start = Instant::now();
    (0..passes).try_for_each(|_| all())?;
    Ok(Measured { bytes: 0, operations: passes as u64 * u64::from(files), took: start.elapsed() })
}

/// Lists a directory of `entries` files.
pub(super) fn list(dir: &Path, entries: u32, attributes: bool) -> Result<Measured, BenchError> {
    let failed = || BenchError::io("list a directory");
    let start = Instant::now();
    let mut found = 0;
    for entry in fs::read_dir(dir).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if attributes {
            entry.metadata().map_err(failed())?;
        }
        found += 1;
    }
    if found != entries {
        return Err(BenchError::Client(format!("the listing has {found} instead of {entries} entries")));
    }
    Ok(Measured { bytes: 0, operations: entries.into(), took: start.elapsed() })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_round_contains_every_record_once() {
        for of in [1, 2, 1000, 65_536] {
            assert_eq!((0..of).map(|n| shuffled(n, of)).collect::<HashSet<_>>().len() as u64, of);
        }
        assert_eq!(shuffled(5, 0), 0);
    }

    #[test]
    fn wrong_data_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let (path, size) = (dir.path().join("large"), 3 << 20);
        assert_eq!(write(&path, size).unwrap().bytes, size);
        assert_eq!(read(&path, size).unwrap().operations, 3);
        let mut data = fs::read(&path).unwrap();
        data[1 << 20] ^= 1;
        fs::write(&path, data).unwrap();
        assert!(read(&path, size).is_err());
        assert!(read(&path, 4 << 20).is_err());
    }
}
