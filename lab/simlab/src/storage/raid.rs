//! Disks behind a cache.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use millrace_bench::BenchError;
use millrace_runtime::{BoxFuture, Instant, RuntimeRef};
use millrace_vfs::Handle;
use parking_lot::Mutex;

use super::Cost;
use crate::Hosts;

/// Stripes over disks (RAID 0), with a part of the server's memory as a write-back cache of whole stripes
/// with LRU replacement.
///
/// The consecutive stripes of a file are on consecutive disks. A disk serves requests in the order of their
/// arrival, and seeks unless a request starts where the last one ended. Writes go to the cache. A dirty
/// stripe is written to disk at a COMMIT, or when another stripe needs its place, which then waits. There is
/// no read-ahead, a part of a stripe is written without reading the rest, and the controller takes no time.
#[derive(Debug, Clone, PartialEq)]
pub struct Raid {
    /// Number of disks, 1 to 1024.
    pub disks: u32,
    /// Sequential rate of each disk, in 10^6 bytes per second.
    pub disk_mb_per_s: f64,
    /// Nanoseconds for a seek and half a rotation.
    pub seek_ns: u64,
    /// Bytes of a stripe, the unit of distribution over the disks: 512 to 16 MiB.
    pub stripe: u32,
    /// Bytes of memory for the cache: at least two stripes.
    pub memory: u64,
    /// CPU time of the server for each byte that is read from or written to the cache, in picoseconds.
    pub byte_ps: f64,
}

impl Raid {
    /// The server of Designing 2007, section 5.3: 8 SCSI disks of 30 MB/s each as RAID 0, and 4 or 8 GB of
    /// memory, all of which is cache (`memory` bytes). Assumed: 8 ms for a seek (10,000 rotations per minute)
    /// and stripes of 64 KiB (the default of Linux).
    pub const fn eight_disks(memory: u64) -> Self {
        Self { disks: 8, disk_mb_per_s: 30.0, seek_ns: 8_000_000, stripe: 64 << 10, memory, byte_ps: 0.0 }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first value outside its range.
    pub fn check(&self) -> Result<(), BenchError> {
        let fields = [
            ("disks", f64::from(self.disks), 1.0, 1024.0),
            ("disk_mb_per_s", self.disk_mb_per_s, 0.001, 1e6),
            ("seek_ns", self.seek_ns as f64, 0.0, 1e9),
            ("stripe", f64::from(self.stripe), 512.0, f64::from(16 << 20)),
            ("byte_ps", self.byte_ps, 0.0, 1e6),
            ("memory", self.memory as f64, 2.0 * f64::from(self.stripe), 1e15),
        ];
        for (field, value, least, most) in fields {
            if !(least..=most).contains(&value) {
                return Err(BenchError::Parameter(format!(
                    "raid.{field} is {value}; choose {least} to {most}"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn open(&self, hosts: Hosts, rt: &RuntimeRef) -> Result<Open, BenchError> {
        self.check()?;
        let array = Array {
            config: self.clone(),
            disks: vec![Disk::default(); self.disks as usize],
            files: HashMap::new(),
            uses: BTreeMap::new(),
            next_use: 0,
            next_file: 0,
        };
        Ok(Open { array: Arc::new(Mutex::new(array)), hosts, rt: Arc::clone(rt) })
    }
}

/// A RAID in use.
pub(super) struct Open {
    array: Arc<Mutex<Array>>,
    hosts: Hosts,
    rt: RuntimeRef,
}

impl Open {
    /// Works for `len` bytes in the cache, and then waits until the time that `order` returns.
    fn wait(
        &self,
        len: u64,
        order: impl FnOnce(&mut Array, u64) -> u64 + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        let (array, rt, hosts) = (Arc::clone(&self.array), Arc::clone(&self.rt), self.hosts.clone());
        let time = Duration::from_nanos((len as f64 * array.lock().config.byte_ps / 1e3) as u64);
        Box::pin(async move {
            hosts.world().work(Hosts::SERVER, time).await;
            let now = rt.now().as_nanos();
            let done = order(&mut array.lock(), now);
            if done > now {
                rt.sleep_until(Instant::from_nanos(done)).await;
            }
        })
    }
}

impl Cost for Open {
    fn read(&self, file: &Handle, offset: u64, len: u64) -> BoxFuture<'static, ()> {
        let file = *file;
        self.wait(len, move |array, now| array.read(&file, offset, len, now))
    }

    fn write(&self, file: &Handle, offset: u64, len: u64, stable: bool) -> BoxFuture<'static, ()> {
        let file = *file;
        self.wait(len, move |array, now| {
            let written = array.write(&file, offset, len, now);
            if stable { written.max(array.flush(&file, now)) } else { written }
        })
    }

    fn commit(&self, file: &Handle) -> BoxFuture<'static, ()> {
        let file = *file;
        self.wait(0, move |array, now| array.flush(&file, now))
    }

    fn can_lose(&self) -> bool {
        true
    }

    fn resized(&self, file: &Handle, size: u64) {
        self.array.lock().truncate(file, size);
    }

    fn removed(&self, file: &Handle) {
        let mut array = self.array.lock();
        array.truncate(file, 0);
        array.files.remove(file);
    }
}

/// The state of the disks and the cache. Times are in nanoseconds.
struct Array {
    config: Raid,
    disks: Vec<Disk>,
    files: HashMap<Handle, File>,
    /// The stripes in the cache, ordered by their last use.
    uses: BTreeMap<u64, (Handle, u64)>,
    next_use: u64,
    next_file: u64,
}

#[derive(Clone, Default)]
struct Disk {
    /// Time at which it becomes idle.
    free: u64,
    /// The file number and stripe that it can access next without a seek.
    next: Option<(u64, u64)>,
}

struct File {
    number: u64,
    /// The stripes of the file in the cache.
    stripes: BTreeMap<u64, Stripe>,
    /// Time at which all data that was sent to disk is on disk.
    stable: u64,
}

struct Stripe {
    /// Number of its last use.
    used: u64,
    /// Time at which its data is in the cache.
    ready: u64,
    /// Whether it was modified since it was last sent to disk.
    dirty: bool,
    /// Time at which the data that was sent is on disk.
    stable: u64,
}

impl Array {
    /// The stripes that contain these bytes.
    fn stripes(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let stripe = u64::from(self.config.stripe);
        let first = offset / stripe;
        first..if len == 0 { first } else { offset.saturating_add(len).div_ceil(stripe) }
    }

    /// Reads or writes a stripe and returns the time of completion.
    fn disk(&mut self, file: u64, stripe: u64, now: u64) -> u64 {
        let Raid { disks: count, disk_mb_per_s, seek_ns, stripe: bytes, .. } = self.config;
        // Files begin on consecutive disks.
        let disk = &mut self.disks[((file + stripe) % u64::from(count)) as usize];
        let seek = if disk.next == Some((file, stripe)) { 0 } else { seek_ns };
        let moves = (f64::from(bytes) * 1e3 / disk_mb_per_s).round() as u64;
        disk.free = disk.free.max(now) + seek + moves;
        disk.next = Some((file, stripe + u64::from(count)));
        disk.free
    }

    /// Writes a stripe of a file and returns the time at which it is on disk.
    fn write_back(&mut self, handle: &Handle, stripe: u64, now: u64) -> u64 {
        let Some(number) = self.files.get(handle).map(|f| f.number) else { return now };
        let stable = self.disk(number, stripe, now);
        if let Some(file) = self.files.get_mut(handle) {
            file.stable = file.stable.max(stable);
        }
        stable
    }

    /// Records a use of the stripe.
    fn touch(&mut self, handle: &Handle, stripe: u64) -> Option<&mut Stripe> {
        self.next_use += 1;
        let found = self.files.get_mut(handle)?.stripes.get_mut(&stripe)?;
        self.uses.remove(&found.used);
        found.used = self.next_use;
        self.uses.insert(self.next_use, (*handle, stripe));
        Some(found)
    }

    /// Evicts stripes, inserts a stripe, and returns the time at which there was space.
    fn put(&mut self, handle: &Handle, stripe: u64, ready: u64, dirty: bool, now: u64) -> u64 {
        let mut room = now;
        while (self.uses.len() as u64 + 1) * u64::from(self.config.stripe) > self.config.memory {
            let Some((_, (old, at))) = self.uses.pop_first() else { break };
            let Some(gone) = self.files.get_mut(&old).and_then(|f| f.stripes.remove(&at)) else { continue };
            let stable = if gone.dirty { self.write_back(&old, at, now) } else { gone.stable };
            room = room.max(stable);
        }
        self.next_use += 1;
        let (used, ready) = (self.next_use, ready.max(room));
        if let Some(file) = self.files.get_mut(handle) {
            file.stripes.insert(stripe, Stripe { used, ready, dirty, stable: now });
            self.uses.insert(used, (*handle, stripe));
        }
        room
    }

    fn read(&mut self, handle: &Handle, offset: u64, len: u64, now: u64) -> u64 {
        let Some(number) = self.files.get(handle).map(|f| f.number) else { return now };
        let mut done = now;
        for stripe in self.stripes(offset, len) {
            if let Some(found) = self.touch(handle, stripe) {
                done = done.max(found.ready);
                continue;
            }
            let ready = self.disk(number, stripe, now);
            done = done.max(ready).max(self.put(handle, stripe, ready, false, now));
        }
        done
    }

    fn write(&mut self, handle: &Handle, offset: u64, len: u64, now: u64) -> u64 {
        let number = self.next_file;
        self.files.entry(*handle).or_insert_with(|| {
            self.next_file += 1;
            File { number, stripes: BTreeMap::new(), stable: now }
        });
        let mut done = now;
        for stripe in self.stripes(offset, len) {
            match self.touch(handle, stripe) {
                Some(found) => found.dirty = true,
                None => done = done.max(self.put(handle, stripe, now, true, now)),
            }
        }
        done
    }

    /// Sends all dirty stripes to disk and returns the time at which the whole file is on disk.
    fn flush(&mut self, handle: &Handle, now: u64) -> u64 {
        let Some(file) = self.files.get(handle) else { return now };
        let dirty: Vec<u64> = file.stripes.iter().filter(|(_, s)| s.dirty).map(|(at, _)| *at).collect();
        for at in dirty {
            let stable = self.write_back(handle, at, now);
            if let Some(stripe) = self.files.get_mut(handle).and_then(|f| f.stripes.get_mut(&at)) {
                (stripe.dirty, stripe.stable) = (false, stable);
            }
        }
        self.files.get(handle).map_or(now, |f| f.stable.max(now))
    }

    /// Drops the stripes beyond `size`.
    fn truncate(&mut self, handle: &Handle, size: u64) {
        let first = self.stripes(0, size).end;
        let Some(file) = self.files.get_mut(handle) else { return };
        for stripe in file.stripes.split_off(&first).into_values() {
            self.uses.remove(&stripe.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_rdma_sim::{Profile, World};
    use millrace_runtime::virtual_time::VirtualTime;

    use super::*;

    /// Nanoseconds for a stripe of 60,000 bytes at 30 MB/s, and for a seek.
    const MOVE: u64 = 2_000_000;
    const SEEK: u64 = 8_000_000;
    const STRIPE: u64 = 60_000;

    fn raid(disks: u32, stripes: u64) -> Open {
        let raid = Raid { disks, stripe: STRIPE as u32, ..Raid::eight_disks(stripes * STRIPE) };
        let time = VirtualTime::new(1);
        let world = World::new(&time, Profile::named("sdr-opensolaris").unwrap());
        raid.open(Hosts::new(world, 1), &time.runtime()).unwrap()
    }

    fn handle(n: u8) -> Handle {
        Handle::from_array([n])
    }

    /// Makes a file of `stripes` stripes on disk, none of them in the cache, and returns the time at which
    /// the disks are idle.
    fn cold(raid: &Open, n: u8, stripes: u64) -> u64 {
        let mut array = raid.array.lock();
        array.write(&handle(n), 0, stripes * STRIPE, 0);
        let free = array.flush(&handle(n), 0);
        let (uses, file) = (array.uses.len(), array.files.get_mut(&handle(n)).unwrap());
        file.stripes.clear();
        array.uses.clear();
        assert!(uses > 0);
        array.disks.iter_mut().for_each(|d| d.next = None);
        free
    }

    #[test]
    fn all_disks_read_a_cold_file_concurrently_with_one_seek_each() {
        for (disks, stripes) in [(1, 10), (2, 10), (8, 64)] {
            let raid = raid(disks, 100);
            let now = cold(&raid, 1, stripes);
            let mut array = raid.array.lock();
            let done = array.read(&handle(1), 0, stripes * STRIPE, now);
            assert_eq!(done - now, SEEK + stripes / u64::from(disks) * MOVE);
            // After the first read, the file is in the cache.
            assert_eq!(array.read(&handle(1), 0, stripes * STRIPE, done), done);
            // A read waits for a stripe that has not arrived.
            assert_eq!(array.read(&handle(1), (stripes - 1) * STRIPE, 1, now), done);
        }
    }

    #[test]
    fn the_page_cache_takes_time_of_a_core_for_each_byte() {
        let time = VirtualTime::new(1);
        let hosts = Hosts::new(World::new(&time, Profile::named("sdr-opensolaris").unwrap()), 1);
        let raid = Raid { byte_ps: 1500.0, ..Raid::eight_disks(1 << 20) };
        let open = raid.open(hosts.clone(), &time.runtime()).unwrap();
        let (file, other) = (handle(1), handle(2));
        let (a, b, c) = (
            open.write(&file, 0, 100_000, false),
            open.write(&other, 0, 100_000, false),
            open.read(&file, 0, 50_000),
        );
        time.block_on(async { futures::join!(a, b) }).unwrap();
        // Two cores.
        assert_eq!(time.runtime().now().as_nanos(), 150_000);
        time.block_on(c).unwrap();
        assert_eq!(time.runtime().now().as_nanos(), 225_000);
        assert_eq!(hosts.spent().server_cpu.as_nanos(), 375_000);
    }

    #[test]
    fn two_alternating_readers_seek_for_each_stripe() {
        let raid = raid(2, 100);
        let now = cold(&raid, 1, 20).max(cold(&raid, 2, 20));
        let mut array = raid.array.lock();
        let mut done = now;
        for piece in 0..5 {
            for file in [1, 2] {
                done = array.read(&handle(file), piece * 4 * STRIPE, 4 * STRIPE, done);
            }
        }
        assert_eq!(done - now, 10 * (SEEK + 2 * MOVE));
    }

    #[test]
    fn only_a_file_that_fits_into_the_cache_stays_there() {
        for (stripes, hit) in [(8, true), (9, false)] {
            let raid = raid(1, 8);
            let now = cold(&raid, 1, stripes);
            let mut array = raid.array.lock();
            let read = |array: &mut Array, now| {
                // Stripe by stripe, like a program that reads a file sequentially.
                (0..stripes).fold(now, |now, at| array.read(&handle(1), at * STRIPE, STRIPE, now))
            };
            let first = read(&mut array, now);
            assert_eq!(first - now, SEEK + stripes * MOVE);
            let again = read(&mut array, first) - first;
            assert_eq!(again, if hit { 0 } else { SEEK + stripes * MOVE });
        }
    }

    #[test]
    fn writes_take_no_time_until_a_commit_or_an_eviction() {
        let raid = raid(2, 8);
        let mut array = raid.array.lock();
        assert_eq!(array.write(&handle(1), 0, 8 * STRIPE, 0), 0);
        let full = array.write(&handle(1), 8 * STRIPE, STRIPE, 0);
        assert_eq!(full, SEEK + MOVE); // The oldest stripe is written to disk.
        let done = array.flush(&handle(1), full);
        assert_eq!(done - full, SEEK + 4 * MOVE); // The first disk continues where it stopped; the other one seeks.
        assert_eq!(array.flush(&handle(1), done), done);
        // Stripes of a removed file are never written.
        array.write(&handle(2), 0, 4 * STRIPE, done);
        array.truncate(&handle(2), 2 * STRIPE);
        assert_eq!(array.flush(&handle(2), done) - done, SEEK + MOVE);
        drop(array);
        raid.removed(&handle(2));
        raid.removed(&handle(1));
        assert!(raid.array.lock().uses.is_empty());
    }

    #[test]
    fn written_back_stripes_are_stable_when_the_disk_has_completed() {
        let raid = raid(1, 4);
        let mut array = raid.array.lock();
        array.write(&handle(1), 0, 4 * STRIPE, 0);
        let done = array.flush(&handle(1), 0);
        assert_eq!(done, SEEK + 4 * MOVE);
        // A second commit meanwhile has nothing to send, and waits for the same time.
        assert_eq!(array.flush(&handle(1), 1), done);
        assert_eq!(array.flush(&handle(1), done + 1), done + 1);
        // A write that needs the place of a stripe whose write-back is in progress waits, too.
        let again = array.write(&handle(1), 0, 4 * STRIPE, done);
        assert_eq!(again, done);
        let sent = array.flush(&handle(1), done);
        assert_eq!(sent, done + SEEK + 4 * MOVE);
        assert_eq!(array.write(&handle(2), 0, STRIPE, done + 1), done + SEEK + MOVE);
        // A commit also waits for a stripe that has left the cache.
        array.write(&handle(1), STRIPE, STRIPE, sent);
        let moved = array.write(&handle(2), STRIPE, 4 * STRIPE, sent);
        assert!(array.files[&handle(1)].stripes.is_empty());
        assert_eq!(moved, sent + 2 * (SEEK + MOVE));
        assert_eq!(array.flush(&handle(1), sent), moved);
    }

    #[test]
    fn transfers_of_no_bytes_use_no_stripes() {
        let raid = raid(2, 100);
        let now = cold(&raid, 1, 10);
        let mut array = raid.array.lock();
        for offset in [0, 1, STRIPE, STRIPE + 1, u64::MAX] {
            assert_eq!(array.read(&handle(1), offset, 0, now), now, "{offset}");
            assert_eq!(array.write(&handle(1), offset, 0, now), now, "{offset}");
        }
        assert!(array.uses.is_empty());
        assert_eq!(array.stripes(u64::MAX - 1, u64::MAX).count(), 1);
    }

    #[test]
    fn the_error_for_an_invalid_raid_names_the_value() {
        let good = Raid::eight_disks(1 << 20);
        for (raid, field) in [
            (Raid { disks: 0, ..good.clone() }, "raid.disks"),
            (Raid { disk_mb_per_s: f64::NAN, ..good.clone() }, "raid.disk_mb_per_s"),
            (Raid { seek_ns: u64::MAX, ..good.clone() }, "raid.seek_ns"),
            (Raid { stripe: 0, ..good.clone() }, "raid.stripe"),
            (Raid { byte_ps: -1.0, ..good.clone() }, "raid.byte_ps"),
            (Raid { memory: 100_000, ..good }, "raid.memory"),
        ] {
            let said = raid.check().unwrap_err().to_string();
            assert!(said.starts_with(field), "{said}");
        }
    }
}
