//! Copies of directory trees between the local file system and NFS exports, in any direction.
//!
//! A [`TreeCopy`] has two sides: a [`Source`], which is read, and a [`Target`], which is written.
//! [`LocalTree`] (the local file system) and [`RemoteTree`] (an export that a
//! [`millrace_client::handles::Client`] has mounted) implement both.
//!
//! - A new file has a temporary name in the same directory until all of its data is stable; then it is renamed to
//!   its final name. The temporary file is removed if the copy fails or is interrupted.
//! - Copies get the mode and times of their sources; owners, extended attributes and hard links if requested
//!   ([`Options::preserve`], [`Options::hard_links`]). ACLs are not copied.
//! - An existing file is written in place, as by cp(1): it keeps its owner, mode, ACL and hard links, and gets the times of
//!   the source. With [`Options::atomic`] a new file replaces it. An existing directory keeps its attributes, except with
//!   [`Replace::Different`].
//! - [`Options::replace`] selects the existing files to replace. With [`Replace::Different`] and [`Options::delete`] the
//!   target gets what the source has, and nothing else; what does not differ, also after an interruption, is not copied
//!   again.
//! - Holes of a file are not written.
//! - Data that an NFS server lost in a restart before COMMIT is rewritten (RFC 1813 section 4.8).
//! - With [`Options::verify`], each file is read back from the target and its SHA-256 checksum compared.
//! - Failure of one file does not stop the others, unless every further file would fail for the same reason
//!   ([`Error::is_fatal`]).
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
//! # fn main() { run(|url| async move {
//! use millrace_buffer::{Arena, ArenaConfig};
//! use millrace_client::{Options as ClientOptions, handles::Client};
//! use millrace_copy::{Event, Item, LocalTree, Options, RemoteTree, TreeCopy};
//! use millrace_runtime::tokio_rt::TokioRuntime;
//!
//! // "nfs://server.example/export"
//! let url = url.parse()?;
//! let client = Client::connect(TokioRuntime::current(), &url, ClientOptions::default()).await?;
//! let (local, remote) = (LocalTree::new(Arena::new(ArenaConfig::default())), RemoteTree::new(client.clone()));
//! # let directory = tempfile::tempdir()?;
//! # let photo = directory.path().join("photo");
//! # std::fs::write(&photo, [1; 1000])?;
//! let photo = Item::local(&photo, "photo")?;
//!
//! let report = TreeCopy::new(&local, &remote, Options { verify: true, ..Options::default() })
//!     .on_event(|event| {
//!         if let Event::Failed { path, error } = event {
//!             eprintln!("{path}: {error}");
//!         }
//!     })
//!     .run(vec![photo], client.root())
//!     .await;
//! println!("{} files, {} verified", report.files, report.verified);
//! # assert_eq!((report.files, report.verified), (1, 1));
//! # Ok(()) }) }
//! ```
//!
//! # Concurrency
//!
//! One task walks the source. Each directory is created, and each file is copied, by its own task, at most
//! [`Options::parallel`] directories and as many files at a time. A file keeps several records in flight, at most
//! [`Options::outstanding`] over all files. Data is read into arena memory and written from it without a
//! copy.
//!
//! The futures use Tokio's tasks and timers and must run on a Tokio runtime.

mod control;
mod data;
mod delete;
mod error;
mod exclude;
mod file;
mod local;
mod options;
mod remote;
mod report;
mod tree;
mod walk;
mod xattrs;

#[cfg(test)]
mod tests;

pub use control::Event;
pub use error::Error;
pub use exclude::{Exclude, PatternError};
pub use local::{LocalReader, LocalTree, LocalWriter, standard_stream, umask};
pub use millrace_client::is_valid_name;
pub use options::{Options, Preserve, Replace};
pub use remote::{RemoteTree, RemoteWriter};
pub use report::{FailedFile, Report};
pub use tree::{
    Directory, Entries, Entry, Existing, FileKind, Item, Lost, Metadata, Source, Target, Timestamp,
    WriteOutcome, Xattrs,
};
pub use walk::TreeCopy;
