//! An NFS export as a directory of this machine: a FUSE file system over the client library.
//!
//! [`Mount::new`] connects, mounts and serves until [`Mount::unmount`], a signal's handler or `umount(8)` ends it.
//! [`MountOptions`] reads the words of mount(8) and nfs(5).
//!
//! # Who does what
//! `kernel.rs` (with `translate.rs`) takes what `fuser` hands it: its threads, each with a channel of its own to the kernel, take requests and hand
//! them as futures to the lanes (`lanes.rs`) of the executor that owns the connections; the answer goes out from there. What needs no server (a
//! cached attribute, a write that is gathered) is answered by the thread that took it. READ places data in a buffer
//! of the arena, and the kernel copies it from there into its page cache: one copy. WRITE data is copied once, out of
//! fuser's buffer into the arena.
//!
//! # What is remembered
//! - *Inodes* (`inode.rs`): the kernel's number is the server's fileid, or a spare one when another file has that. An
//!   inode lives until the kernel forgets it, and longer while it is open or has data to write.
//! - *Attributes* live `acregmin` to `acregmax` seconds (directories `acdirmin` to `acdirmax`): each time they are found
//!   unchanged, twice as long. The kernel gets the same times. Attributes of a call that was overtaken by a change of
//!   ours are not kept.
//! - *Names* live in the kernel's cache as long as their directory's attributes (`lookupcache`). `dentries.rs` records which
//!   names the kernel has. When a reply shows that another client has changed a directory, the kernel is told to ask again
//!   for the names in it (FUSE_NOTIFY_INVAL_ENTRY, `invalidation.rs`).
//!
//! # Close-to-open
//! Opening looks up the names by which the kernel may have reached the file, and asks for its attributes and rights: one
//! call, or two at the same time (`verify.rs`). If a name leads elsewhere, or an append would use an old size, the open is
//! answered with ESTALE; the kernel then looks the path up again and repeats the open once. The repeated one is answered by
//! the inode, so programs see no ESTALE because of another client's change.
//! Closing writes everything, commits it, and reports what went wrong since the last report to this descriptor.
//!
//! # The kernel's pages
//! The kernel keeps its pages of a file over an open only if size, mtime and ctime are those that the pages are good for:
//! those that they were read under, or what our own changes made of them (`pages.rs`). That is known where the server says
//! what was before a change (`wcc_data`); where it does not, the next open drops them. What is found old while the file is
//! open for reading is dropped at once, by a task of its own (`invalidation.rs`), since dropping a page may wait for an answer
//! of ours; and as the kernel reads its pages without asking, the mount itself asks about such files when their attributes
//! are no longer believed (`revalidate.rs`). With `acregmin=0` (so with `noac`) it is the kernel that asks, at each read, and
//! drops pages when the mtime is another (FUSE_AUTO_INVAL_DATA), which it then does after our own writes too.
//!
//! The kernel reads ahead, 4 MiB if the mount may say so (root), else 128 KiB; then the mount does the rest itself
//! (`read_ahead.rs`).
//!
//! # Writing
//! Writes that follow each other are gathered to `wsize` and sent without waiting (`write.rs`); `millrace_client::File` retains
//! them until COMMIT and sends them again when the server's verifier changes. Reads, attributes and truncation wait for
//! what is on its way. Nothing of this survives the end of the mounting process: fsync and close are the promises, as
//! for every NFS client.
//!
//! # Where it differs from a local file system
//! - A file that is removed or replaced while it is open is renamed to `.nfs...` (not listed through this mount) until
//!   its last close; so its directory cannot be removed before.
//! - Locks (flock, fcntl) are kept by the kernel of this machine (`local_lock=all`): NFSv3 has them in another protocol,
//!   which is not there yet. Other machines do not see them.
//! - Extended attributes are answered with EOPNOTSUPP; `lseek` finds no holes.
//! - Appending from several machines at once may overwrite, as with every NFS client.
//!
//! # When the server is gone
//! `hard` (the default) waits for it, `soft` gives EIO after `timeo` and `retrans`. A process that is killed is let go
//! within about a second either way: fuser does not hand interrupts on, so waiting calls look whether their caller is
//! to die (`killed.rs`).

mod convert;
mod credentials;
mod dentries;
mod device;
mod directory;
mod dispatch;
mod error;
mod flags;
mod forgotten;
mod fs;
mod handler;
mod inode;
mod interrupt;
mod invalidation;
mod mount;
mod mountpoint;
mod namespace;
mod open;
mod options;
mod pages;
pub mod passthrough;
mod read_ahead;
mod remount;
mod revalidate;
mod session;
#[cfg(test)]
mod simulated;
mod timeouts;
mod verify;
mod write;

pub use error::{LostFile, MountError};
pub use mount::Mount;
pub use mountpoint::detach;
pub use options::{LookupCache, MountOptions};
pub use remount::{is_remount, remount};
