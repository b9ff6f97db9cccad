//! An [`object_store::ObjectStore`] on a directory of an NFS export, over RDMA or TCP, for Parquet and other programs that
//! use object_store. The server can be any NFS server (NFSv3, 4.1 or 4.2).
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
//! # fn main() { run(|url| async move {
//! use millrace_object_store::NfsStore;
//! use object_store::{ObjectStoreExt, PutMode, path::Path};
//!
//! // "nfs://server.example/export/directory"
//! let store = NfsStore::connect(&url).await?;
//! let location = Path::from("tables/sales/part-0.parquet");
//! store.put(&location, "data".into()).await?;
//! let read = store.get_range(&location, 1..3).await?;
//! assert_eq!(&read[..], b"at");
//!
//! use object_store::ObjectStore;
//! let again = store.put_opts(&location, "new".into(), PutMode::Create.into()).await;
//! assert!(matches!(again, Err(object_store::Error::AlreadyExists { .. })));
//! store.close().await;
//! # Ok(()) }) }
//! ```
//!
//! # Objects and files
//! The object at a [location](object_store::path::Path) is the regular file of that path below the directory, with the
//! same name, so that other programs can use the files. A name has at most 255 bytes. There cannot be an object `a`
//! and an object `a/b`. Directories are created as needed and remain when their last object is removed; an empty
//! directory is then still one of the common prefixes of a list. Symbolic links to files are objects; links to
//! directories are followed to an object, and omitted from lists.
//!
//! # Atomic changes
//! A put writes a temporary file in the same directory, makes it stable (COMMIT), and gives it its name, so that a
//! reader gets the old object or the new one, and never a part. When a put returns, the object is on stable storage.
//!
//! | operation | method |
//! |---|---|
//! | put, the end of a multipart upload, copy | RENAME of the temporary file |
//! | [`PutMode::Create`], [`CopyMode::Create`] | LINK of the temporary file: exactly one of several clients creates the name |
//! | rename | RENAME |
//! | [`RenameTargetMode::Create`] | LINK, then REMOVE of the old name: the object has both names for a moment |
//! | [`PutMode::Update`] | a lock of the present version (LOCK), comparison of the ETag, RENAME |
//!
//! # Conditional puts
//! [`PutMode::Update`] replaces an object if it has the ETag, and returns [`Error::Precondition`] otherwise. It needs
//! NFSv4; with NFSv3, it returns [`Error::NotImplemented`]. NFS has no call that compares and renames, so that the check
//! is atomic against other puts with [`PutMode::Update`] and [`PutMode::Create`], of any number of clients of this crate, and not against
//! other changes: a version that an unconditional put, a copy, a rename, a deletion or
//! a program on a mount makes between the comparison and RENAME, a few calls later, is replaced. Writers of an object that
//! is updated conditionally all use conditional puts, as table formats do. A lock is lost if its holder cannot reach the
//! server for the duration of a lease: that put returns an error, although it may have been made, and another client's
//! version with it been replaced. The caller needs permission to write the present version's file.
//!
//! # Temporary files
//! Temporary files have names like `.NAME.millrace-0123456789abcdef`, and are never listed. They remain if a program
//! ends during a put. To remove those older than a day on the server:
//! `find DIRECTORY -name '.*.millrace-*' -mtime +1 -delete`.
//!
//! # Reading
//! All ranges of one call of [`get_ranges`](ObjectStore::get_ranges) are of one version of the object, and READs of several
//! ranges are in flight at the same time. The server removes the file of a replaced object: a stream of a large object
//! that is replaced meanwhile returns an error, and never data of the new object.
//!
//! ETags are hashes of the file handle, the modification time and the size; each put changes the ETag.
//! The modification times are those of the server.
//!
//! # Memory
//! A put copies the data once, into registered memory. Data that is read is passed on as [`Bytes`] in the memory into
//! which the server wrote it, without a copy, until callers hold a quarter of the client's arena
//! ([`Options::arena_limit`](millrace_client::Options::arena_limit), 1 GiB by default); further data is copied. READs
//! and WRITEs in flight use at most another quarter each: operations beyond that wait.
//! [`GetResult::bytes`] of an object larger than one READ (1 MiB by default) joins the pieces, which is one copy.
//!
//! # Not supported
//! Attributes and tags of objects, versions.

mod error;
mod list;
mod location;
mod meta;
mod read;
mod write;

use std::{ops::Range, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
pub use millrace_client::Client;
use millrace_client::{Url, Version};
use millrace_objects::{Mode, Objects};
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    RenameTargetMode, Result, path::Path,
};

use crate::write::Upload;

/// Maximum number of REMOVE calls of one [`ObjectStore::delete_stream`] in flight.
const REMOVALS: usize = 16;

/// A directory of an NFS export as an object store. The crate's documentation describes the semantics. Clones share the
/// connections.
#[derive(Debug, Clone)]
pub struct NfsStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    objects: Objects,
    /// The path of the directory in the export.
    root: PathBuf,
}

impl NfsStore {
    /// Connects to the server of `url`, such as `nfs://server/export/directory?proto=rdma&nconnect=2`. The store is the
    /// directory of the URL, which must exist.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the export or the directory does not exist, [`Error::PermissionDenied`], and
    /// [`Error::Generic`] with the error of [`Client::connect`] as its source.
    pub async fn connect<U>(url: U) -> Result<Self>
    where
        U: TryInto<Url>,
        millrace_client::Error: From<U::Error>,
    {
        let root = Path::ROOT;
        let client = Client::connect(url).await.map_err(|e| error::at(&root, e))?;
        let store = Self::new(client);
        let found = store.client().metadata(&store.shared.root).await;
        let found = found.map_err(|e| error::of_existing(&root, e))?;
        if !found.is_dir() {
            let source = format!("{store} is not a directory").into();
            return Err(Error::NotFound { path: store.to_string(), source });
        }
        Ok(store)
    }

    /// Returns a store of the directory at [`Client::path_in_export`] of a client with options of the caller. The directory
    /// is created by the first put if it does not exist.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// use millrace_object_store::{Client, NfsStore};
    ///
    /// let client = Client::builder(&url).nconnect(2).arena_limit(4 << 30).connect().await?;
    /// let store = NfsStore::new(client);
    /// # Ok(()) }) }
    /// ```
    pub fn new(client: Client) -> Self {
        let root = PathBuf::from(client.path_in_export());
        Self { shared: Arc::new(Shared { objects: Objects::new(client), root }) }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        self.objects().client()
    }

    /// Closes the connections of all clones, and waits for the end of the session of NFSv4, as [`Client::shutdown`].
    pub async fn close(&self) {
        self.client().shutdown().await;
    }

    fn objects(&self) -> &Objects {
        &self.shared.objects
    }

    fn file(&self, location: &Path) -> Result<PathBuf> {
        location::file(&self.shared.root, location)
    }

    fn unimplemented(&self, operation: &str) -> Error {
        Error::NotImplemented { operation: operation.into(), implementer: self.to_string() }
    }

    async fn delete_one(self, location: Path) -> Result<Path> {
        let removed = self.objects().remove(&self.file(&location)?).await;
        removed.map_err(|e| error::of_existing(&location, e))?;
        Ok(location)
    }
}

impl std::fmt::Display for NfsStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (client, root) = (self.client(), &self.shared.root);
        let export = client.export().trim_end_matches('/');
        write!(f, "NfsStore(nfs://{}{export}/{})", client.server(), root.display())
    }
}

#[async_trait]
impl ObjectStore for NfsStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if matches!(options.mode, PutMode::Update(_)) && self.client().by_handle().version() == Version::V3 {
            return Err(self.unimplemented("`put_opts` with mode `PutMode::Update` (NFSv3 has no locks)"));
        }
        if !options.attributes.is_empty() {
            return Err(self.unimplemented("`put_opts` with `attributes`"));
        }
        write::put(self.objects(), self.file(location)?, location, payload, options.mode).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !options.attributes.is_empty() {
            return Err(self.unimplemented("`put_multipart_opts` with `attributes`"));
        }
        let upload = Upload::start(self.objects(), self.file(location)?, location.clone()).await?;
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        read::get(self.objects(), &self.file(location)?, location, &options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        read::get_ranges(self.objects(), &self.file(location)?, location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let removals = locations.map(move |location| {
            let this = this.clone();
            async move { this.delete_one(location?).await }
        });
        removals.buffered(REMOVALS).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        list::all(self.objects(), &self.shared.root, prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        list::all(self.objects(), &self.shared.root, prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        list::one_level(self.objects(), &self.shared.root, prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let mode = match options.mode {
            CopyMode::Overwrite => Mode::Replace,
            CopyMode::Create => Mode::Create,
        };
        let copied = self.objects().copy(&self.file(from)?, &self.file(to)?, mode).await;
        copied.map(drop).map_err(|e| of_either(from, to, e))
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let mode = match options.target_mode {
            RenameTargetMode::Overwrite => Mode::Replace,
            RenameTargetMode::Create => Mode::Create,
        };
        let renamed = self.objects().rename(&self.file(from)?, &self.file(to)?, mode).await;
        renamed.map_err(|e| of_either(from, to, e))
    }
}

/// The error of a copy or rename: a missing object is the source, and an existing one the target.
fn of_either(from: &Path, to: &Path, e: millrace_client::Error) -> Error {
    if e.kind() == std::io::ErrorKind::AlreadyExists { error::at(to, e) } else { error::of_read(from, e) }
}

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
