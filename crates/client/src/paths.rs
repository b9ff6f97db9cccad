//! Operations on paths.

use std::{
    ffi::OsString,
    io::ErrorKind,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use crate::{
    Client, Error, File, FileTimes, Metadata, OpenOptions, ReadDir, SetxattrOption,
    handles::resolve::bad_path,
    ops::{FileHandle, FileType, SetAttributes, StableHow},
};

/// The permission bits of new directories.
pub(crate) const DIRECTORY_MODE: u32 = 0o755;
/// Maximum number of READ or WRITE calls in flight for one file.
pub(crate) const DEPTH: usize = 8;

/// The bytes of a path.
pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl Client {
    /// Opens a file for reading.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// use tokio::io::AsyncReadExt;
    ///
    /// client.write("greeting", "hello").await?;
    /// let mut text = String::new();
    /// client.open("greeting").await?.read_to_string(&mut text).await?;
    /// assert_eq!(text, "hello");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        OpenOptions::new().read(true).open(self, path).await
    }

    /// Opens a file for writing. Creates it if it does not exist, otherwise truncates it.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// use tokio::io::AsyncWriteExt;
    ///
    /// let mut file = client.create("greeting").await?;
    /// file.write_all(b"hello").await?;
    /// file.shutdown().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub async fn create(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path).await
    }

    /// The attributes of the object at `path`. Symbolic links are followed.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("data", [0; 100]).await?;
    /// let metadata = client.metadata("data").await?;
    /// assert!(metadata.is_file() && metadata.len() == 100);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotFound`] if the object does not exist; the errors of
    /// [`crate::handles::Client::resolve`].
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        let (_, attributes) = self.by_handle().resolve(bytes(path.as_ref())).await?;
        Ok(attributes.into())
    }

    /// As [`Self::metadata`], but for a symbolic link the attributes of the link itself.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.symlink("nowhere", "link").await?;
    /// assert!(client.symlink_metadata("link").await?.is_symlink());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Self::metadata`].
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        let (_, attributes) = self.by_handle().resolve_link(bytes(path.as_ref())).await?;
        Ok(attributes.into())
    }

    /// Whether the object at `path` exists. Symbolic links are followed; a dangling link yields `false`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// assert!(!client.try_exists("no/such/file").await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::metadata`] except [`ErrorKind::NotFound`].
    pub async fn try_exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reads the whole content of a file.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("data", [1, 2, 3]).await?;
    /// assert_eq!(client.read("data").await?, [1, 2, 3]);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`OpenOptions::open`] and [`crate::handles::File::read_stream`].
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let path = bytes(path.as_ref());
        let (file, beginning) = self.by_handle().open_and_read(path).await?;
        let mut content = Vec::new();
        let mut append = |data: millrace_buffer::Views| {
            millrace_buffer::copied::count(data.len());
            data.iter().for_each(|view| content.extend_from_slice(view));
        };
        let (mut read, mut is_whole) = (0, false);
        if let Some(beginning) = beginning {
            (read, is_whole) = (beginning.data.len() as u64, beginning.eof);
            append(beginning.data);
        }
        if !is_whole {
            let rest = file.read_stream(read, u64::MAX, DEPTH, |_, data| append(data));
            rest.await.map_err(|e| e.at(path))?;
        }
        Ok(content)
    }

    /// Reads the whole content of a file as text.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("text", "hello").await?;
    /// assert_eq!(client.read_to_string("text").await?, "hello");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Self::read`]; kind [`ErrorKind::InvalidData`] if the content is not UTF-8.
    pub async fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String, Error> {
        let path = path.as_ref();
        String::from_utf8(self.read(path).await?).map_err(|_| Error::Path {
            path: path.to_string_lossy().into_owned(),
            reason: "the file is not valid UTF-8".into(),
            kind: ErrorKind::InvalidData,
        })
    }

    /// Replaces the content of a file with `contents`. Creates the file if it does not exist. On return, the
    /// data is on stable storage of the server.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("text", "hello").await?;
    /// client.write("text", "bye").await?;
    /// assert_eq!(client.read("text").await?, b"bye");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`OpenOptions::open`] and [`crate::handles::File::write_stream`]. After an error, the file may contain
    /// a part of the content.
    pub async fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<(), Error> {
        let (path, contents) = (path.as_ref(), contents.as_ref());
        let file = self.create(path).await?;
        let at = |e: Error| e.at(bytes(path));
        if contents.len() <= self.by_handle().wsize() as usize {
            // A single FILE_SYNC WRITE instead of WRITE and COMMIT.
            return self
                .by_handle()
                .write(file.handle(), 0, contents, StableHow::FileSync)
                .await
                .map(drop)
                .map_err(at);
        }
        let mut rest = contents;
        let pieces = |max: usize| {
            let (piece, tail) = rest.split_at(max.min(rest.len()));
            rest = tail;
            let copied = (!piece.is_empty()).then(|| self.arena().copy_from(piece)).transpose();
            Ok(copied.map_err(Error::from)?.map(Into::into))
        };
        file.by_handle().write_stream(0, DEPTH, pieces).await.map(drop).map_err(at)
    }

    /// Creates a directory with the permission bits `0o755`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.create_dir("reports").await?;
    /// let again = client.create_dir("reports").await.unwrap_err();
    /// assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::AlreadyExists`] if `path` exists, [`ErrorKind::NotFound`] if its parent does
    /// not exist; the errors of [`crate::handles::Client::mkdir`].
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let (parent, name) = self.by_handle().resolve_parent(path).await?;
        let attributes = SetAttributes { mode: Some(DIRECTORY_MODE), ..SetAttributes::default() };
        self.by_handle().mkdir(parent, name, attributes).await.map(drop).map_err(|e| e.at(path))
    }

    /// Returns the entries of a directory as a [`futures::Stream`](futures::stream::Stream).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// use futures::TryStreamExt;
    ///
    /// client.write("a", "1").await?;
    /// client.create_dir("b").await?;
    /// let mut entries = client.read_dir("/").await?;
    /// while let Some(entry) = entries.try_next().await? {
    ///     println!("{} {:?} {} bytes", entry.path().display(), entry.file_type(), entry.metadata().len());
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotADirectory`] if `path` is not a directory; the errors of [`Self::metadata`].
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        let path = path.as_ref();
        let dir = self.directory(path).await?;
        Ok(ReadDir::new(self.by_handle().clone(), dir, path.to_owned()))
    }

    /// Removes a name of an object that is not a directory. Symbolic links are not followed.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("data", "x").await?;
    /// client.remove_file("data").await?;
    /// assert!(!client.try_exists("data").await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotFound`] if the name does not exist, [`ErrorKind::IsADirectory`] for a directory;
    /// the errors of [`crate::handles::Client::remove`].
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let (parent, name) = self.by_handle().resolve_parent(path).await?;
        self.by_handle().remove(parent, name).await.map(drop).map_err(|e| e.at(path))
    }

    /// Removes an empty directory.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.create_dir_all("a/b").await?;
    /// let full = client.remove_dir("a").await.unwrap_err();
    /// assert_eq!(full.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    /// client.remove_dir("a/b").await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::DirectoryNotEmpty`] if it has entries, [`ErrorKind::NotADirectory`] for another
    /// object; the errors of [`crate::handles::Client::rmdir`].
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let (parent, name) = self.by_handle().resolve_parent(path).await?;
        self.by_handle().rmdir(parent, name).await.map(drop).map_err(|e| e.at(path))
    }

    /// Renames an object. Replaces the object at `to` under the rules of POSIX `rename`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("new", "x").await?;
    /// client.rename("new", "data").await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotFound`] if `from` does not exist; the errors of [`crate::handles::Client::rename`].
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let (from, to) = (bytes(from.as_ref()), bytes(to.as_ref()));
        let (from_dir, from_name) = self.by_handle().resolve_parent(from).await?;
        let (to_dir, to_name) = self.by_handle().resolve_parent(to).await?;
        let renamed = self.by_handle().rename(from_dir, from_name, to_dir, to_name).await;
        renamed.map(drop).map_err(|e| e.at(from))
    }

    /// Creates `link`, a hard link to the object at `original`. A symbolic link at `original` is not
    /// followed.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("one", "x").await?;
    /// client.hard_link("one", "two").await?;
    /// assert_eq!(client.metadata("two").await?.nlink(), 2);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::AlreadyExists`] if `link` exists; the errors of
    /// [`crate::handles::Client::link`].
    pub async fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        let link = bytes(link.as_ref());
        let (object, _) = self.by_handle().resolve_link(bytes(original.as_ref())).await?;
        let (dir, name) = self.by_handle().resolve_parent(link).await?;
        self.by_handle().link(object, dir, name).await.map(drop).map_err(|e| e.at(link))
    }

    /// Creates `link`, a symbolic link with the target `original`, which need not exist.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("data", "x").await?;
    /// client.symlink("data", "link").await?;
    /// assert_eq!(client.read("link").await?, b"x");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::AlreadyExists`] if `link` exists; the errors of
    /// [`crate::handles::Client::symlink`].
    pub async fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        let link = bytes(link.as_ref());
        let (dir, name) = self.by_handle().resolve_parent(link).await?;
        let made =
            self.by_handle().symlink(dir, name, bytes(original.as_ref()), SetAttributes::default()).await;
        made.map(drop).map_err(|e| e.at(link))
    }

    /// Reads the target of a symbolic link.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.symlink("some/where", "link").await?;
    /// assert_eq!(client.read_link("link").await?.to_str(), Some("some/where"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::InvalidInput`] if `path` is not a symbolic link; the errors of
    /// [`crate::handles::Client::readlink`].
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = bytes(path.as_ref());
        let (link, attributes) = self.by_handle().resolve_link(path).await?;
        if attributes.file_type != FileType::Symlink {
            return Err(bad_path(path, ErrorKind::InvalidInput, "not a symbolic link"));
        }
        let text = self.by_handle().readlink(link).await.map_err(|e| e.at(path))?;
        Ok(OsString::from_vec(text).into())
    }

    /// Sets the permission bits (as [`Metadata::mode`]). Symbolic links are followed.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("script", "#!/bin/sh").await?;
    /// client.set_permissions("script", 0o755).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::PermissionDenied`] if the caller is not the owner; the errors of
    /// [`crate::handles::Client::setattr`].
    pub async fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Error> {
        self.set(path.as_ref(), SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() }).await
    }

    /// Sets the times of last access and modification. Symbolic links are followed.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// use std::time::{Duration, SystemTime};
    /// use millrace_client::FileTimes;
    ///
    /// client.write("data", "x").await?;
    /// let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    /// client.set_times("data", FileTimes::new().set_modified(time)).await?;
    /// assert_eq!(client.metadata("data").await?.modified(), time);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::InvalidInput`] for a time before 1970 or after 2106 with NFSv3; the errors of
    /// [`crate::handles::Client::setattr`].
    pub async fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<(), Error> {
        let (atime, mtime) = times.to_nfs(self.by_handle().version())?;
        self.set(path.as_ref(), SetAttributes { atime, mtime, ..SetAttributes::default() }).await
    }

    /// The value of an extended attribute of a file or directory; `None` if it does not exist. Symbolic links are followed.
    /// Names have no prefix: `origin` is `user.origin` of Linux, the only namespace of NFS. Extended attributes need
    /// NFSv4.2 (RFC 8276).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("data", "x").await?;
    /// client.set_xattr("data", "origin", "sensor 7").await?;
    /// assert_eq!(client.xattr("data", "origin").await?.as_deref(), Some(&b"sensor 7"[..]));
    /// assert_eq!(client.list_xattrs("data").await?, [b"origin"]);
    /// client.remove_xattr("data", "origin").await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::Unsupported`] with NFSv3 and 4.1, and if the server has no extended attributes; the errors of
    /// [`crate::handles::Client::xattr`].
    pub async fn xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let (object, path) = self.xattr_object(path.as_ref()).await?;
        self.by_handle().xattr(object, name).await.map_err(|e| e.at(path))
    }

    /// Creates or replaces an extended attribute of a file or directory, as [`Self::xattr`] returns it. Values have at
    /// most 64 KiB, and less on many file systems.
    ///
    /// # Errors
    /// As [`Self::xattr`]; kind [`ErrorKind::ArgumentListTooLong`] for a value that is too long.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let (object, path) = self.xattr_object(path.as_ref()).await?;
        let set = self.by_handle().set_xattr(object, name, value.as_ref(), SetxattrOption::Either).await;
        set.map(drop).map_err(|e| e.at(path))
    }

    /// The names of the extended attributes of a file or directory, in any order.
    ///
    /// # Errors
    /// As [`Self::xattr`].
    pub async fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>, Error> {
        let (object, path) = self.xattr_object(path.as_ref()).await?;
        self.by_handle().list_xattrs(object).await.map_err(|e| e.at(path))
    }

    /// Removes an extended attribute of a file or directory.
    ///
    /// # Errors
    /// As [`Self::xattr`]; kind [`ErrorKind::NotFound`] if it does not exist.
    pub async fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<(), Error> {
        let (object, path) = self.xattr_object(path.as_ref()).await?;
        self.by_handle().remove_xattr(object, name).await.map(drop).map_err(|e| e.at(path))
    }

    /// The handle and the bytes of a path, for an operation on extended attributes.
    async fn xattr_object<'p>(&self, path: &'p Path) -> Result<(FileHandle, &'p [u8]), Error> {
        let path = bytes(path);
        Ok((self.by_handle().resolve(path).await?.0, path))
    }

    async fn set(&self, path: &Path, attributes: SetAttributes) -> Result<(), Error> {
        let (object, _) = self.by_handle().resolve(bytes(path)).await?;
        self.by_handle().setattr(object, attributes, None).await.map(drop).map_err(|e| e.at(bytes(path)))
    }

    /// Resolves the handle of the directory at `path`.
    async fn directory(&self, path: &Path) -> Result<FileHandle, Error> {
        let (dir, attributes) = self.by_handle().resolve(bytes(path)).await?;
        if attributes.file_type == FileType::Directory {
            Ok(dir)
        } else {
            Err(bad_path(bytes(path), ErrorKind::NotADirectory, "not a directory"))
        }
    }
}
