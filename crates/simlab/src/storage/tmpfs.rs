//! A memory file system's lookup of file handles, and its copies.

use std::{collections::HashMap, sync::Arc, time::Duration};

use millrace_runtime::BoxFuture;
use millrace_vfs::Handle;
use parking_lot::Mutex;

use super::Cost;
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
}

impl Tmpfs {
    /// The tmpfs of OpenSolaris. The 70 ns per node are assumed: one memory access of an Opteron of 2005,
    /// since neighbours in the list are not adjacent in memory.
    pub const fn opensolaris(lookup: Lookup) -> Self {
        Self { lookup, node_ns: 70, copies: true }
    }

    pub(super) fn open(&self, hosts: Hosts) -> Open {
        Open { config: self.clone(), hosts, nodes: Arc::default() }
    }
}

/// A tmpfs in use.
pub(super) struct Open {
    config: Tmpfs,
    hosts: Hosts,
    nodes: Arc<Mutex<Nodes>>,
}

impl Open {
    fn copy(&self, len: u64) -> BoxFuture<'static, ()> {
        let hosts = self.hosts.clone();
        let len = if self.config.copies { len } else { 0 };
        Box::pin(async move { hosts.world().copy(Hosts::SERVER, len).await })
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
        self.copy(len)
    }

    fn write(&self, _file: &Handle, _offset: u64, len: u64, _stable: bool) -> BoxFuture<'static, ()> {
        self.copy(len)
    }

    fn created(&self, file: &Handle) {
        self.nodes.lock().add(file);
    }

    fn removed(&self, file: &Handle) {
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
        // Only the root has no entry.
        1 + u64::from(place.map_or(0, |place| self.sum(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
