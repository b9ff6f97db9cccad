//! An [OpenDAL](opendal_core) service on a directory of an NFS export, over RDMA or TCP. The server can be any NFS
//! server (NFSv3, 4.1 or 4.2).
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
//! # fn main() { run(|url| async move {
//! // "nfs://server.example/export/directory"
//! let op = millrace_opendal::connect(&url).await?;
//! op.write("reports/q1.csv", "city,sales\nBern,7\n").await?;
//! let part = op.read_with("reports/q1.csv").range(11..15).await?;
//! assert_eq!(part.to_vec(), b"Bern");
//! let names: Vec<_> = op.list("reports/").await?.iter().map(|entry| entry.path().to_owned()).collect();
//! assert_eq!(names, ["reports/", "reports/q1.csv"]);
//! # Ok(()) }) }
//! ```
//!
//! # Capabilities
//!
//! | operation | how |
//! |---|---|
//! | `stat` | with the size, the modification time and an ETag |
//! | `read` | ranges, with up to 8 READs in flight; without a copy ([`millrace_objects`] describes the memory). A reader reads one version of the file, and fails if the file is replaced meanwhile |
//! | `write` | to a temporary file, which is committed and renamed by `close`: other readers see the old file or the new one, and the data is on stable storage. `if_not_exists`: exactly one of several clients creates the file. `if_match` (not with NFSv3): other such writes are excluded by a lock, and other changes at that moment are not ([`Objects::update`]) |
//! | `copy` | through the client, and atomic as `write`; `if_not_exists` too |
//! | `rename` | RENAME; with `if_not_exists` LINK and REMOVE, so that the file has both names for a moment |
//! | `delete` | files, and empty directories; `recursive` removes trees |
//! | `list` | one directory; OpenDAL simulates `recursive` |
//! | `create_dir` | with the missing parents |
//!
//! `append` is not supported, because NFS has no atomic append.
//!
//! Temporary files have names like `.NAME.millrace-0123456789abcdef`, and are never listed. They remain if a program
//! ends during a write.
//!
//! # Closing
//! An operator has no end. To end the session of NFSv4 at the server, keep a clone of the client of [`Nfs::new`], and call
//! [`Client::shutdown`] at last; otherwise the server keeps the session until its lease ends.
//!
//! # Behaviour tests
//! OpenDAL does not publish its behaviour tests as a crate. `tests/behaviour` of this crate has tests of the same cases
//! for the capabilities above.

mod error;
mod list;
mod metadata;
mod read;
mod write;

use std::{
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

pub use millrace_client::Client;
use millrace_client::{FileType, Url, Version, is_temporary_name};
use millrace_objects::{Mode, Objects};
pub use opendal_core::Operator;
use opendal_core::{
    Builder, Capability, Error, ErrorKind, OperationContext, Result,
    raw::{
        OpCopy, OpCreateDir, OpDelete, OpList, OpPresign, OpRead, OpRename, OpStat, OpWrite, RpCreateDir,
        RpPresign, RpRename, RpStat, Service, ServiceInfo, oio,
    },
};

pub use self::{list::Lister, read::Reader, write::Writer};

/// Connects to the server of `url`, such as `nfs://server/export/directory?proto=rdma`, and returns an operator on the
/// directory of the URL, which is created by the first write if it does not exist.
///
/// # Errors
/// As [`Client::connect`].
pub async fn connect<U>(url: U) -> Result<Operator>
where
    U: TryInto<Url>,
    millrace_client::Error: From<U::Error>,
{
    Operator::new(Nfs::new(Client::connect(url).await.map_err(error::convert)?))
}

/// The builder of the service, on a client with options of the caller.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
/// # fn main() { run(|url| async move {
/// use millrace_opendal::{Client, Nfs, Operator};
///
/// let client = Client::builder(&url).nconnect(2).connect().await?;
/// let op = Operator::new(Nfs::new(client))?;
/// # Ok(()) }) }
/// ```
#[derive(Debug, Default)]
pub struct Nfs {
    client: Option<Client>,
}

impl Nfs {
    /// Returns the builder of a service on the directory at [`Client::path_in_export`].
    pub fn new(client: Client) -> Self {
        Self { client: Some(client) }
    }
}

impl Builder for Nfs {
    type Config = ();

    /// # Errors
    /// [`ErrorKind::ConfigInvalid`] without a client: connecting is asynchronous, so that a client is required.
    fn build(self) -> Result<impl Service> {
        let client = self.client.ok_or_else(|| {
            Error::new(ErrorKind::ConfigInvalid, "connect a client, and build the service with Nfs::new")
        })?;
        let root = PathBuf::from(client.path_in_export());
        let name = format!("{}{}", client.server(), client.export());
        let info = ServiceInfo::new("nfs", format!("/{}", client.path_in_export().display()), name);
        Ok(NfsService { objects: Objects::new(client), root, info })
    }
}

/// The service.
#[derive(Debug, Clone)]
struct NfsService {
    objects: Objects,
    /// The path of the directory in the export.
    root: PathBuf,
    info: ServiceInfo,
}

impl NfsService {
    /// The path of a file or directory in the export.
    fn path(&self, path: &str) -> PathBuf {
        match path.trim_matches('/') {
            "" => self.root.clone(),
            below => self.root.join(below),
        }
    }

    /// The path of a file in the export, for an operation that creates it.
    fn new_file(&self, path: &str) -> Result<PathBuf> {
        let path = self.path(path);
        match path.file_name() {
            Some(name) if is_temporary_name(name.as_encoded_bytes()) => Err(error::unsupported(
                "names that end with .millrace- and 16 hexadecimal digits are reserved for incomplete files",
            )),
            _ => Ok(path),
        }
    }

    async fn delete(&self, path: &str, args: &OpDelete) -> Result<(), millrace_client::Error> {
        let (client, file) = (self.objects.client(), self.path(path));
        match (path.ends_with('/'), args.recursive()) {
            (true, true) if file == self.root => {
                let mut entries = client.read_dir(&file).await?;
                while let Some(entry) = entries.next_entry().await? {
                    self.remove_tree(entry.path()).await?;
                }
                Ok(())
            }
            (_, true) => self.remove_tree(&file).await,
            (true, false) => client.remove_dir(file).await,
            (false, false) => client.remove_file(file).await,
        }
    }

    /// Removes a file, or a directory with its contents.
    async fn remove_tree(&self, path: &Path) -> Result<(), millrace_client::Error> {
        match self.objects.client().remove_dir_all(path).await {
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                self.objects.client().remove_file(path).await
            }
            removed => removed,
        }
    }
}

impl oio::OneShotDelete for NfsService {
    async fn delete_once(&self, path: String, args: OpDelete) -> Result<()> {
        match self.delete(&path, &args).await {
            // The path does not exist, or a file is a part of it.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
            removed => removed.map_err(error::convert),
        }
    }
}

impl Service for NfsService {
    type Reader = Reader;
    type Writer = Writer;
    type Lister = Lister;
    type Deleter = oio::OneShotDeleter<Self>;
    type Copier = oio::OneShotCopier;
    type Composer = ();

    fn info(&self) -> ServiceInfo {
        self.info.clone()
    }

    fn capability(&self) -> Capability {
        Capability {
            stat: true,
            read: true,
            read_with_suffix: true,
            write: true,
            write_can_empty: true,
            write_can_multi: true,
            // It needs a lock, which NFSv3 does not have.
            write_with_if_match: self.objects.client().by_handle().version() != Version::V3,
            write_with_if_not_exists: true,
            create_dir: true,
            delete: true,
            delete_with_recursive: true,
            copy: true,
            copy_with_if_not_exists: true,
            rename: true,
            rename_with_if_not_exists: true,
            list: true,
            shared: true,
            ..Capability::default()
        }
    }

    async fn create_dir(&self, _: &OperationContext, path: &str, _: OpCreateDir) -> Result<RpCreateDir> {
        self.objects.client().create_dir_all(self.path(path)).await.map_err(error::convert)?;
        Ok(RpCreateDir::default())
    }

    async fn stat(&self, _: &OperationContext, path: &str, _: OpStat) -> Result<RpStat> {
        let path = self.path(path);
        let found = self.objects.client().by_handle().resolve(path.as_os_str().as_bytes()).await;
        let (handle, attributes) = found.map_err(error::of_existing)?;
        let metadata = match attributes.file_type {
            FileType::Directory => metadata::of(&attributes),
            _ => metadata::of_version(&millrace_objects::Version { handle, attributes }),
        };
        Ok(RpStat::new(metadata))
    }

    fn read(&self, _: &OperationContext, path: &str, _: OpRead) -> Result<Reader> {
        Ok(Reader::new(self.objects.clone(), self.path(path)))
    }

    fn write(&self, _: &OperationContext, path: &str, args: OpWrite) -> Result<Writer> {
        let (mode, if_match) = (mode(args.if_not_exists()), args.if_match().map(str::to_owned));
        if mode == Mode::Create && if_match.is_some() {
            return Err(error::unsupported("the conditions if_match and if_not_exists exclude each other"));
        }
        Ok(Writer::new(self.objects.clone(), self.new_file(path)?, mode, if_match))
    }

    fn delete(&self, _: &OperationContext) -> Result<Self::Deleter> {
        Ok(oio::OneShotDeleter::new(self.clone()))
    }

    fn list(&self, _: &OperationContext, path: &str, _: OpList) -> Result<Lister> {
        Ok(Lister::new(self.objects.clone(), self.path(path), path))
    }

    fn copy(&self, _: &OperationContext, from: &str, to: &str, args: OpCopy) -> Result<Self::Copier> {
        let (from, to, mode) = (self.path(from), self.new_file(to)?, mode(args.if_not_exists()));
        let objects = self.objects.clone();
        Ok(oio::OneShotCopier::new_with(move || {
            let (objects, from, to) = (objects.clone(), from.clone(), to.clone());
            async move {
                let copied = objects.copy(&from, &to, mode).await.map_err(of_mode(mode))?;
                Ok(metadata::of_version(&copied))
            }
        }))
    }

    async fn rename(&self, _: &OperationContext, from: &str, to: &str, args: OpRename) -> Result<RpRename> {
        let mode = mode(args.if_not_exists());
        self.objects.rename(&self.path(from), &self.new_file(to)?, mode).await.map_err(of_mode(mode))?;
        Ok(RpRename::default())
    }

    async fn presign(&self, _: &OperationContext, _: &str, _: OpPresign) -> Result<RpPresign> {
        Err(error::unsupported("NFS has no presigned requests"))
    }
}

/// The mode of an operation with or without the condition that its target does not exist.
fn mode(if_not_exists: bool) -> Mode {
    if if_not_exists { Mode::Create } else { Mode::Replace }
}

/// The conversion of errors of an operation with this mode.
fn of_mode(mode: Mode) -> fn(millrace_client::Error) -> Error {
    match mode {
        Mode::Create => error::if_not_exists,
        Mode::Replace => error::convert,
    }
}

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
