//! Mounts an NFS export: a FUSE file system on top of the client library.
//!
//! [`Mount::new`] connects, mounts and serves requests until [`Mount::unmount`], a signal handler or
//! `umount(8)` ends the mount. [`MountOptions`] parses the options of mount(8) and nfs(5).
//!
//! # Request path
//! `handler/` implements the FUSE operations. With one connection (`nconnect=1`, the default), a task of the executor that
//! owns it reads the requests (`millrace_fuse_session::channel`), so that one thread reads a request, sends the call and writes the reply. It
//! must not block: what may block, such as reading `/proc` and dropping pages, runs in other threads. With more
//! connections, threads read requests, each from its own clone of `/dev/fuse`. Requests become futures of the executor
//! (`millrace_fuse_session::dispatch`), which sends the replies. With `io_uring` and one connection, the task receives requests over io_uring,
//! and `/dev/fuse` carries what the kernel sends only there. Requests that need no server, such as GETATTR from the cache or a WRITE that
//! is coalesced, are answered where they are read. READ data is received into an arena buffer, which
//! the kernel copies into its page cache: one copy. WRITE data is copied once, from the request's buffer into the
//! arena.
//!
//! # Caching
//! - *Inodes* (`inode.rs`): the inode number is the server's fileid, or a synthetic number when another file
//!   has that fileid. An inode lives until the kernel forgets it, and longer while it is open or has
//!   unwritten data.
//! - *Attributes* are cached for `acregmin` to `acregmax` seconds (directories: `acdirmin` to `acdirmax`).
//!   The timeout doubles each time the attributes are found unchanged. The kernel gets the same timeouts.
//!   Attributes from a reply that may predate a local change are not cached.
//! - *Names* are cached by the kernel as long as the attributes of their directory (`lookupcache`).
//!   `dentries.rs` records which names the kernel has cached. When a reply shows that another client has
//!   changed a directory, the names in it are expired (FUSE_NOTIFY_INVAL_ENTRY, `invalidation.rs`).
//!
//! # Close-to-open consistency
//! An open looks up the names by which the kernel may have reached the file, and requests its attributes and
//! access rights: one call, or two in parallel (`verify.rs`). If a name leads to another file, or an append
//! would use an outdated size, the open fails with ESTALE; the kernel then looks the path up again and
//! retries the open once. The retry is served for the unchanged inode, so programs get no ESTALE because of another
//! client's change. The kernel does not retry opens of kernel threads, such as those of nfsd, so these opens do not
//! fail with ESTALE unless the server returns it. A close writes and commits all data, and reports write errors that
//! this descriptor has not reported yet.
//!
//! While a file is delegated to the client (`delegations.rs`), an open needs no request, and its attributes and pages do not
//! expire.
//!
//! # The kernel's page cache
//! An open keeps the kernel's cached pages of a file only if the version on the server equals that for which the
//! pages are valid: that under which they were read, or that to which local changes led (`pages.rs`). The version is size,
//! mtime and ctime with NFSv3, and the change attribute of NFSv4 if it counts the changes. The version after a local change
//! is known if the server returns pre-operation attributes (`wcc_data` of NFSv3), or the change attribute proves that
//! nothing else has changed the file (NFSv4, `millrace_client::Options::attributes_before`); otherwise the next open drops
//! the pages. Stale pages of a file that is open for reading are dropped at once, by a separate task
//! (`invalidation.rs`), because dropping a page may wait for a reply of the mount. The kernel reads its cached pages
//! without a request, so the mount polls the attributes of such files when they expire (`revalidate.rs`). With
//! `acregmin=0` (and so with `noac`) the kernel revalidates at each read and drops pages when the mtime has changed
//! (FUSE_AUTO_INVAL_DATA), which includes changes by local writes.
//!
//! The kernel reads ahead 4 MiB if the mount may set this (root), else 128 KiB; in that case the mount itself
//! reads ahead (`prefetch.rs`).
//!
//! # Writing
//! Adjacent writes are coalesced up to `wsize` and sent asynchronously (`write.rs`); `millrace_client::handles::File`
//! retains them until COMMIT and resends them when the server's write verifier changes. Reads, attribute
//! requests and truncation wait for writes in flight. None of this survives the mounting process: as for
//! every NFS client, data is durable after fsync or close.
//!
//! # Differences from a local file system
//! - A file that is removed or replaced while it is open is renamed to `.nfs...` until its last close (silly
//!   rename). The name is not listed through this mount, but its directory cannot be removed before.
//! - Locks (flock, fcntl) are byte-range locks at the server with NFSv4 (`locks.rs`, `lock_owners.rs`). With NFSv3, and with
//!   `local_lock=all`, they are local to this mount.
//! - Extended attributes (of users) and `fallocate` fail with EOPNOTSUPP before NFSv4.2, and `lseek` then reports no holes.
//! - Concurrent appends from several hosts may overwrite each other, as with every NFS client.
//!
//! # Unreachable server
//! `hard` (the default) retries forever, `soft` fails with EIO after `timeo` and `retrans`. In both cases a
//! process that is killed, also by Ctrl-C, ends at once (FUSE_INTERRUPT), except while it reads or writes
//! with O_DIRECT, which Linux does not interrupt (FUSE_ASYNC_DIO). If it has got another signal
//! during the same request before, SIGKILL ends it within about a second: the kernel reports only the first signal.

mod access;
mod clock;
mod convert;
mod copy;
mod credentials;
mod delegated;
mod delegations;
mod dentries;
mod dir_stream;
mod directory;
mod error;
mod forgotten;
mod fs;
mod handler;
mod inode;
mod invalidation;
mod lock_owners;
mod locks;
mod mount;
mod namespace;
mod open;
mod open_file;
mod options;
mod page_invalidations;
mod pages;
mod prefetch;
mod read_ahead;
mod remount;
mod retries;
mod revalidate;
#[cfg(test)]
mod simulated;
mod sparse;
mod timeouts;
mod verify;
mod write;
mod write_queue;
mod xattrs;

pub use error::{LostFile, MountError};
pub use millrace_fuse_session::mountpoint::{detach, umount};
pub use mount::Mount;
pub use options::{LookupCache, MountOptions};
pub use remount::{is_remount, remount};
