//! A memory file system's lookup of file handles, and its copies.

use std::{collections::HashMap, sync::Arc, time::Duration};

use millrace_runtime::BoxFuture;
use millrace_vfs::Handle;
use parking_lot::Mutex;

use super::{Buffers, Cost};
use crate::Hosts;

/// The method of finding the node of a file handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Constant time, by a hash, or by a cache of nodes as in the enhanced tmpfs of Beneficial 2006.
    Hashed,
    /// Linear search in a list of all nodes, oldest first (Beneficial 2006, section 2.5; OpenSolaris appends
    /// a new node to the list).
    Linear,
}

/// A memory file system. Its other work takes no time, because a profile's cost of a message represents it.
/// The linear search takes no lock, unlike that of OpenSolaris.
#[derive(Debug, Clone, PartialEq)]
pub struct Tmpfs {
    /// The lookup method, applied once to each handle of a call.
    pub lookup: Lookup,
    /// CPU time to visit one node, in nanoseconds.
    pub node_ns: u64,
    /// Whether data is copied between the file system and the network buffers, as in a server that reads and
    /// writes through the kernel's `VOP_READ` and `VOP_WRITE`.
    pub copies: bool,
    /// Work that holds a lock of the kernel, or `None` if copies take no lock and there is no other work.
    pub locked: Option<LockedWork>,
}

/// Work of a tmpfs while it holds a lock of the server's kernel ([`World::locked`]), which its copies hold too.
///
/// [`World::locked`]: millrace_rdma_sim::World::locked
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LockedWork {
    /// CPU time for each byte that is read or written, in picoseconds.
    pub byte_ps: f64,
    /// CPU time for each fresh page at its first use, in nanoseconds: in a buffer that the kernel maps for one call, or
    /// in a file that a WRITE extends.
    pub fresh_page_ns: f64,
    /// The kernel keeps buffers of at most this number of bytes, and maps larger ones for each call.
    pub kept_bytes: u64,
}

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The largest buffers that OpenSolaris kept (`KMEM_MAXBUF` until 2007).
pub const KMEM_MAXBUF: u64 = 32 << 10;

impl Tmpfs {
    /// The tmpfs of OpenSolaris. The 70 ns per node are assumed: one memory access of an Opteron of 2005,
    /// since neighbours in the list are not adjacent in memory.
    pub const fn opensolaris(lookup: Lookup) -> Self {
        Self { lookup, node_ns: 70, copies: true, locked: None }
    }

    pub(super) fn open(&self, hosts: Hosts, buffers: Buffers) -> Open {
        Open { config: self.clone(), hosts, buffers, nodes: Arc::default(), sizes: Arc::default() }
    }
}

/// A tmpfs in use.
pub(super) struct Open {
    config: Tmpfs,
    hosts: Hosts,
    buffers: Buffers,
    nodes: Arc<Mutex<Nodes>>,
    /// The sizes of files that were written.
    sizes: Arc<Mutex<HashMap<Handle, u64>>>,
}

impl Open {
    /// Transfers `len` bytes, of which `added` pages are new in their file, through a buffer if `buffered`.
    fn transfer(&self, len: u64, added: u64, buffered: bool) -> BoxFuture<'static, ()> {
        let hosts = self.hosts.clone();
        let copied = if self.config.copies { len } else { 0 };
        let Some(work) = self.config.locked else {
            return Box::pin(async move { hosts.world().copy(Hosts::SERVER, copied).await });
        };
        let mapped = buffered && len > work.kept_bytes;
        let fresh = added + if mapped { len.div_ceil(PAGE) } else { 0 };
        let time = Duration::from_nanos(
            (len as f64 * work.byte_ps / 1e3 + fresh as f64 * work.fresh_page_ns) as u64,
        );
        Box::pin(async move { hosts.world().locked(Hosts::SERVER, copied, time).await })
    }

    /// The number of pages that a WRITE of these bytes adds to the file.
    fn added(&self, file: &Handle, offset: u64, len: u64) -> u64 {
        let mut sizes = self.sizes.lock();
        let size = sizes.entry(*file).or_default();
        let (first, old, new) =
            (offset / PAGE, size.div_ceil(PAGE), offset.saturating_add(len).div_ceil(PAGE));
        *size = offset.saturating_add(len).max(*size);
        if len == 0 { 0 } else { new.saturating_sub(old.max(first)) }
    }
}

impl Cost for Open {
    fn look_up(&self, files: &[Handle]) -> BoxFuture<'static, ()> {
        let nodes = match self.config.lookup {
            Lookup::Hashed => files.len() as u64,
            Lookup::Linear => {
                let nodes = self.nodes.lock();
                files.iter().map(|f| nodes.until(f)).sum()
            }
        };
        let (hosts, time) = (self.hosts.clone(), Duration::from_nanos(nodes * self.config.node_ns));
        Box::pin(async move { hosts.world().work(Hosts::SERVER, time).await })
    }

    fn read(&self, _file: &Handle, _offset: u64, len: u64) -> BoxFuture<'static, ()> {
        self.transfer(len, 0, self.buffers != Buffers::Kept)
    }

    fn write(&self, file: &Handle, offset: u64, len: u64, _stable: bool) -> BoxFuture<'static, ()> {
        self.transfer(len, self.added(file, offset, len), self.buffers == Buffers::Mapped)
    }

    fn resized(&self, file: &Handle, size: u64) {
        self.sizes.lock().insert(*file, size);
    }

    fn created(&self, file: &Handle) {
        self.nodes.lock().add(file);
    }

    fn removed(&self, file: &Handle) {
        self.sizes.lock().remove(file);
        self.nodes.lock().remove(file);
    }
}

/// The list of nodes in the order of their creation. The root always exists and precedes them.
#[derive(Default)]
struct Nodes {
    /// The index in `counts` of each node.
    places: HashMap<Handle, usize>,
    /// The number of existing nodes, as a binary indexed tree (Fenwick 1994), which finds a node's position
    /// without a traversal of the list.
    counts: Vec<u32>,
}

/// The lowest bit that is set.
const fn low(n: usize) -> usize {
    n & n.wrapping_neg()
}

impl Nodes {
    fn add(&mut self, file: &Handle) {
        let place = self.counts.len() + 1;
        // The sum over the range of the new entry: the node itself, and the ranges below.
        let below = self.sum(place - 1) - self.sum(place - low(place));
        self.counts.push(below + 1);
        self.places.insert(*file, place);
    }

    fn remove(&mut self, file: &Handle) {
        let Some(mut place) = self.places.remove(file) else { return };
        while let Some(count) = self.counts.get_mut(place - 1) {
            *count -= 1;
            place += low(place);
        }
    }

    /// The number of existing nodes among the first `places`.
    fn sum(&self, places: usize) -> u32 {
        let (mut at, mut sum) = (places, 0);
        while at > 0 {
            sum += self.counts[at - 1];
            at -= low(at);
        }
        sum
    }

    /// The number of nodes that a search visits until it finds `file`, or all if there is none. The root is
    /// the first.
    fn until(&self, file: &Handle) -> u64 {
        let place = self.places.get(file).copied();
        // Only the root has no entry in `places`.
        1 + u64::from(place.map_or(0, |place| self.sum(place)))
    }
}

#[cfg(test)]
mod tests {
    use millrace_rdma_sim::{Profile, World};
    use millrace_runtime::virtual_time::VirtualTime;

    use super::*;

    /// The time of what `calls` does, one after the other, on a tmpfs whose work holds the lock.
    fn time_of(buffers: Buffers, calls: impl FnOnce(&Open) -> Vec<BoxFuture<'static, ()>>) -> u64 {
        let time = VirtualTime::new(1);
        let hosts = Hosts::new(World::new(&time, Profile::named("sdr-opensolaris").unwrap()), 1);
        let locked = LockedWork { byte_ps: 500.0, fresh_page_ns: 3000.0, kept_bytes: KMEM_MAXBUF };
        let tmpfs = Tmpfs { locked: Some(locked), ..Tmpfs::opensolaris(Lookup::Hashed) };
        let calls = calls(&tmpfs.open(hosts, buffers));
        time.block_on(futures::future::join_all(calls)).unwrap();
        time.runtime().now().as_nanos()
    }

    #[test]
    fn data_takes_the_time_of_its_copy_its_bytes_and_its_fresh_pages() {
        let file = Handle::from_array([1]);
        // Copies at 1200 MB/s, and 0.5 ns for each byte.
        let bytes = |n: u64| (n as f64 / 1.2).round() as u64 + n / 2;
        let large = 128 << 10;
        for (buffers, len, read, write) in [
            // Pages of the buffer; pages of the buffer and of the file.
            (Buffers::Mapped, large, 32, 64),
            (Buffers::Segments, large, 32, 32),
            (Buffers::Kept, large, 0, 32),
            // The kernel keeps small buffers.
            (Buffers::Mapped, 32 << 10, 0, 8),
            (Buffers::Mapped, (32 << 10) + 1, 9, 18),
        ] {
            let ours = time_of(buffers, |fs| vec![fs.read(&file, 0, len)]);
            assert_eq!(ours, bytes(len) + read * 3000, "READ {buffers:?} {len}");
            let ours = time_of(buffers, |fs| vec![fs.write(&file, 0, len, false)]);
            assert_eq!(ours, bytes(len) + write * 3000, "WRITE {buffers:?} {len}");
        }
    }

    #[test]
    fn concurrent_calls_take_turns() {
        let (file, len) = (Handle::from_array([1]), 16 << 10);
        let one = time_of(Buffers::Kept, |fs| vec![fs.read(&file, 0, len)]);
        let five = time_of(Buffers::Kept, |fs| (0..5).map(|_| fs.read(&file, 0, len)).collect());
        assert_eq!(five, 5 * one);
    }

    #[test]
    fn only_pages_beyond_the_end_of_a_file_are_added() {
        let time = VirtualTime::new(1);
        let hosts = Hosts::new(World::new(&time, Profile::named("sdr-opensolaris").unwrap()), 1);
        let fs = Tmpfs::opensolaris(Lookup::Hashed).open(hosts, Buffers::Kept);
        let (file, other) = (Handle::from_array([1]), Handle::from_array([2]));
        let added = [(0, 1), (1, 4095), (1, 4096), (0, 8192), (40_960, 8192), (20_480, 1), (0, 0)]
            .map(|(offset, len)| fs.added(&file, offset, len));
        assert_eq!(added, [1, 0, 1, 0, 2, 0, 0]);
        assert_eq!(fs.added(&other, 0, 8192), 2);
        fs.resized(&file, 4096);
        assert_eq!(fs.added(&file, 0, 8192), 1);
        fs.removed(&file);
        assert_eq!(fs.added(&file, 0, 8192), 2);
    }

    #[test]
    fn a_search_visits_all_older_nodes_that_still_exist() {
        let handle = |n: u64| Handle::from_array(n.to_le_bytes());
        let mut nodes = Nodes::default();
        let mut list: Vec<u64> = Vec::new();
        let mut random = millrace_bench::random::Random::new(3);
        for n in 0..2000 {
            if random.below(3) == 0 && !list.is_empty() {
                let gone = list.remove(random.below(list.len() as u64) as usize);
                nodes.remove(&handle(gone));
            } else {
                list.push(n);
                nodes.add(&handle(n));
            }
        }
        assert!(list.len() > 300);
        for (at, n) in list.iter().enumerate() {
            assert_eq!(nodes.until(&handle(*n)), at as u64 + 2);
        }
        assert_eq!(nodes.until(&handle(u64::MAX)), 1);
    }
}
