//! What the copy engine asks of a tree of files, wherever it is.

use std::future::Future;

use millrace_buffer::Views;

use crate::problem::Problem;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// A device, socket or named pipe.
    Special,
}

/// A time: seconds and nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

/// The attributes that a copy uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) kind: Kind,
    /// Permission bits (07777).
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) nlink: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    /// File system and number in it: equal for two names of one file.
    pub(crate) id: (u64, u64),
}

/// A name in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Entry<N> {
    pub(crate) name: Vec<u8>,
    pub(crate) node: N,
    pub(crate) meta: Meta,
}

/// How a record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// It is stable already, or as stable as this tree makes it.
    pub(crate) stable: bool,
    /// If not, it is once a commit gives this same verifier.
    pub(crate) verifier: [u8; 8],
}

/// What of the attributes to set on a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// Owner and group too.
    pub(crate) owner: bool,
}

/// A tree that can be read.
pub(crate) trait Source: Clone + Send + Sync + 'static {
    /// Names an object.
    type Node: Clone + Send + Sync + 'static;
    /// A file that is open for reading.
    type Reader: Clone + Send + Sync + 'static;

    /// All entries of a directory, without `.` and `..`, with names that are safe to use as names.
    fn list(&self, dir: &Self::Node) -> impl Future<Output = Result<Vec<Entry<Self::Node>>, Problem>> + Send;

    /// The target of a symbolic link.
    fn read_link(&self, link: &Self::Node) -> impl Future<Output = Result<Vec<u8>, Problem>> + Send;

    /// Opens a file for reading.
    fn open(&self, file: &Self::Node) -> impl Future<Output = Result<Self::Reader, Problem>> + Send;

    /// `len` bytes from `offset`; fewer only at the end of the file.
    fn read(
        &self,
        file: &Self::Reader,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Views, Problem>> + Send;

    /// The most bytes that one read or write should have.
    fn preferred_record(&self) -> usize;
}

/// A tree that can be written. A file is written under a temporary name and appears under its own when it is whole.
pub(crate) trait Target: Source {
    /// A file that is being written.
    type Writer: Clone + Send + Sync + 'static;

    /// Makes a directory that its owner can fill, or takes the one that is there.
    fn make_dir(
        &self,
        dir: &Self::Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Self::Node, Problem>> + Send;

    /// Starts a file that shall be called `name`.
    fn create(
        &self,
        dir: &Self::Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Self::Writer, Problem>> + Send;

    /// Writes all of `data` at `offset`; `stable`: durably, before this is ready.
    fn write(
        &self,
        file: &Self::Writer,
        offset: u64,
        data: Views,
        stable: bool,
    ) -> impl Future<Output = Result<Stamp, Problem>> + Send;

    /// Makes all writes durable, and gives the verifier that tells which were not lost before.
    fn commit(&self, file: &Self::Writer) -> impl Future<Output = Result<[u8; 8], Problem>> + Send;

    /// What was written, open for reading.
    fn read_back(&self, file: &Self::Writer) -> impl Future<Output = Result<Self::Reader, Problem>> + Send;

    /// Sets the attributes and gives the file its name.
    fn publish(
        &self,
        file: &Self::Writer,
        meta: &Meta,
        keep: Keep,
    ) -> impl Future<Output = Result<Self::Node, Problem>> + Send;

    /// Removes the unfinished file, as well as that goes.
    fn discard(&self, file: &Self::Writer) -> impl Future<Output = ()> + Send;

    /// Makes a symbolic link called `name`, in place of what has that name.
    fn symlink(
        &self,
        dir: &Self::Node,
        name: &[u8],
        text: &[u8],
        meta: &Meta,
        keep: Keep,
    ) -> impl Future<Output = Result<(), Problem>> + Send;

    /// Makes `name` another name of `file`, in place of what has that name.
    fn link(
        &self,
        file: &Self::Node,
        dir: &Self::Node,
        name: &[u8],
    ) -> impl Future<Output = Result<(), Problem>> + Send;

    /// Sets mode and times of a directory, and the owner if asked for.
    fn set_meta(
        &self,
        node: &Self::Node,
        meta: &Meta,
        keep: Keep,
    ) -> impl Future<Output = Result<(), Problem>> + Send;
}

/// Whether `name` may be used as a name in a directory. A server can send anything.
pub(crate) fn is_safe_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|b| matches!(b, b'/' | 0))
}

/// A temporary name for what shall be called `name`: hidden, in the same directory, not used by anybody else.
pub(crate) fn temporary_name(name: &[u8], random: u64) -> Vec<u8> {
    const NAME_MAX: usize = 255;
    let suffix = format!(".millrace-{random:016x}");
    let kept = name.len().min(NAME_MAX - 1 - suffix.len());
    let mut out = Vec::with_capacity(1 + kept + suffix.len());
    out.push(b'.');
    out.extend_from_slice(&name[..kept]);
    out.extend_from_slice(suffix.as_bytes());
    out
}

/// A number that no other process uses for its temporary names.
pub(crate) fn random() -> u64 {
    use std::{
        hash::{BuildHasher, Hasher},
        sync::atomic::{AtomicU64, Ordering},
    };
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The standard library keys each of these from the machine's randomness.
    let mut h = std::hash::RandomState::new().build_hasher();
    h.write_u64(NEXT.fetch_add(1, Ordering::Relaxed));
    h.write_u32(std::process::id());
    h.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_directory_are_not_safe() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"../x", b"a\0"] {
            assert!(!is_safe_name(bad), "{bad:?}");
        }
        for good in [&b"a"[..], b"...", b".hidden", b"with space", b"\xff\xfe"] {
            assert!(is_safe_name(good), "{good:?}");
        }
    }

    #[test]
    fn a_temporary_name_fits_wherever_the_name_fits() {
        assert_eq!(temporary_name(b"a.txt", 10), b".a.txt.millrace-000000000000000a");
        let long = temporary_name(&[b'x'; 255], u64::MAX);
        assert_eq!(long.len(), 255);
        assert!(is_safe_name(&long));
        assert_ne!(random(), random());
    }
}
