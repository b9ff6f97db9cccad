//! Options for opening a file.

use std::{borrow::Cow, io::ErrorKind, path::Path};

use crate::{
    Client, Error, File, blocking,
    handles::{
        self,
        resolve::{MAX_LINKS, bad_path},
    },
    ops::{CreateHow, FileHandle, FileType, Procedure, SetAttributes, SetTime, Status, access},
    paths::bytes,
};

/// Options and flags for opening a file, as [`std::fs::OpenOptions`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
/// # fn main() { run(|url| async move {
/// use millrace_client::{Client, OpenOptions};
/// use tokio::io::AsyncWriteExt;
///
/// let client = Client::connect(&url).await?;
/// let mut log = OpenOptions::new().append(true).create(true).mode(0o600).open(&client, "log").await?;
/// log.write_all(b"started\n").await?;
/// log.shutdown().await?;
///
/// let again = OpenOptions::new().write(true).create_new(true).open(&client, "log").await;
/// assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A file that was found or created.
struct Found {
    handle: FileHandle,
    file_type: FileType,
    size: u64,
    /// Created by this call: truncation and access checks are unnecessary.
    created: bool,
}

impl Found {
    fn of(object: handles::Object, created: bool) -> Self {
        let handles::Object { handle, attributes, .. } = object;
        Self { handle, file_type: attributes.file_type, size: attributes.size, created }
    }
}

impl OpenOptions {
    /// No flags; mode `0o644`.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    /// Whether the file can be read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Whether the file can be written.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Whether every write appends to the file, independent of the cursor. Implies [`Self::write`].
    ///
    /// NFSv3 has no procedure that appends: the client gets the size and writes at that offset. Two clients
    /// that append to one file concurrently overwrite each other's data, as with any NFS client (see open(2),
    /// `O_APPEND`).
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Whether an existing file is truncated to length 0. Requires [`Self::write`].
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Whether the file is created if it does not exist. Requires [`Self::write`] or [`Self::append`].
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Whether this call must create the file: it fails if an object, including a symbolic link, exists at
    /// the path. [`Self::create`] and [`Self::truncate`] are then ignored. Exactly one of several clients
    /// succeeds (CREATE with mode EXCLUSIVE, RFC 1813 section 3.3.8).
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// The permission bits of a new file. No umask is applied.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Opens the regular file at `path`, a path from the root of the export. Symbolic links are followed
    /// inside the export.
    ///
    /// For an existing file, the server's ACCESS procedure determines the caller's permissions.
    ///
    /// # Errors
    /// By kind: [`ErrorKind::NotFound`], [`ErrorKind::AlreadyExists`] (with [`Self::create_new`]),
    /// [`ErrorKind::PermissionDenied`], [`ErrorKind::IsADirectory`], [`ErrorKind::InvalidInput`] for a
    /// combination of flags that [`std::fs::OpenOptions`] rejects too; the errors of
    /// [`handles::Client::resolve`] and [`handles::Client::create`].
    pub async fn open(&self, client: &Client, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        self.check()?;
        let mut found = self.find(client.by_handle(), bytes(path)).await.map_err(|e| e.at(bytes(path)))?;
        match found.file_type {
            FileType::Regular => {}
            FileType::Directory => return Err(bad_path(bytes(path), ErrorKind::IsADirectory, "a directory")),
            _ => return Err(bad_path(bytes(path), ErrorKind::InvalidInput, "not a regular file")),
        }
        if !found.created {
            self.check_access(client.by_handle(), found.handle).await.map_err(|e| e.at(bytes(path)))?;
            if self.truncate && !self.create_new {
                let empty =
                    SetAttributes { size: Some(0), mtime: SetTime::ServerTime, ..SetAttributes::default() };
                client.by_handle().setattr(found.handle, empty, None).await.map_err(|e| e.at(bytes(path)))?;
                found.size = 0;
            }
        }
        Ok(File::new(client.clone(), found.handle, found.size, path.to_owned(), self.access()))
    }

    /// As [`Self::open`], with a blocking client.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_blocking(
        &self,
        client: &blocking::Client,
        path: impl AsRef<Path>,
    ) -> Result<blocking::File, Error> {
        blocking::File::open(client, self, path.as_ref())
    }

    fn access(&self) -> crate::file::Access {
        crate::file::Access { read: self.read, write: self.write || self.append, append: self.append }
    }

    /// Rejects the combinations that [`std::fs::OpenOptions`] rejects.
    fn check(&self) -> Result<(), Error> {
        let invalid = |reason: &str| Err(Error::InvalidInput(format!("cannot open a file: {reason}")));
        match (self.write, self.append) {
            (false, false) if self.truncate || self.create || self.create_new => {
                invalid("create and truncate require write access")
            }
            (_, true) if self.truncate && !self.create_new => {
                invalid("append and truncate cannot be combined")
            }
            (false, false) if !self.read => invalid("set at least one of read, write and append"),
            _ => Ok(()),
        }
    }

    async fn find(&self, nfs: &handles::Client, path: &[u8]) -> Result<Found, Error> {
        if self.create_new {
            let (dir, name) = nfs.resolve_parent(path).await?;
            return Ok(Found::of(nfs.create_new(dir, name, self.mode).await?, true));
        }
        if self.create {
            return self.find_or_create(nfs, path).await;
        }
        let (handle, attributes) = nfs.resolve(path).await?;
        Ok(Found { handle, file_type: attributes.file_type, size: attributes.size, created: false })
    }

    /// Opens or creates the file at `path`, or the target of a dangling symbolic link.
    async fn find_or_create(&self, nfs: &handles::Client, path: &[u8]) -> Result<Found, Error> {
        let mut target = Cow::Borrowed(path);
        for _ in 0..MAX_LINKS {
            let (dir, name) = nfs.resolve_parent(&target).await?;
            match nfs.lookup(dir, &name).await {
                Ok(link) if link.attributes.file_type == FileType::Symlink => {
                    let text = nfs.readlink(link.handle).await?;
                    let next = nfs.link_target(&target, &text).ok_or_else(|| {
                        bad_path(
                            path,
                            ErrorKind::CrossesDevices,
                            "the symbolic link leads outside the export",
                        )
                    })?;
                    target = Cow::Owned(next);
                }
                Ok(object) => return Ok(Found::of(object, false)),
                Err(e) if e.is_not_found() => {
                    // UNCHECKED: if another client creates the file concurrently, both open it.
                    let size = self.truncate.then_some(0);
                    let set =
                        SetAttributes { mode: Some(self.mode & 0o7777), size, ..SetAttributes::default() };
                    return Ok(Found::of(nfs.create(dir, name, CreateHow::Unchecked(set)).await?, true));
                }
                Err(e) => return Err(e),
            }
        }
        Err(bad_path(path, ErrorKind::InvalidInput, "too many levels of symbolic links"))
    }

    async fn check_access(&self, nfs: &handles::Client, file: FileHandle) -> Result<(), Error> {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        let wanted = bit(self.read, access::READ)
            | bit(self.write, access::MODIFY | access::EXTEND)
            | bit(self.append, access::EXTEND);
        if nfs.access(file, wanted).await? == wanted {
            return Ok(());
        }
        Err(Error::Nfs { procedure: Procedure::Access, object: String::new(), status: Status::Access })
    }
}
