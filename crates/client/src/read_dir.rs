//! Streams of directory entries.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};

use futures::{
    StreamExt,
    stream::{self, BoxStream, Stream},
};

use crate::{
    Error, Metadata, handles,
    ops::{self, FileHandle, FileType, Verifier},
};

/// An entry of a directory, with the attributes of its object.
#[derive(Debug, Clone)]
pub struct DirEntry {
    path: PathBuf,
    metadata: Metadata,
    handle: Option<FileHandle>,
}

impl DirEntry {
    /// The argument of [`crate::Client::read_dir`] joined with the name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name.
    pub fn file_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// The type of the object. Symbolic links are not followed.
    pub fn file_type(&self) -> FileType {
        self.metadata.file_type()
    }

    /// The attributes at the time when the directory was read. Symbolic links are not followed.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The file handle; `None` if the server did not send it.
    pub fn handle(&self) -> Option<FileHandle> {
        self.handle
    }
}

/// A stream of the entries of a directory, without `.` and `..`, from [`crate::Client::read_dir`]. It
/// requests further entries on demand.
///
/// Entries that are added or removed concurrently may be included or not. If the server cannot continue after
/// such a change (NFS3ERR_BAD_COOKIE), the stream returns an error. A name that is empty or contains `/` or NUL is
/// an error too, because a path with it leads elsewhere. The stream ends after an error.
pub struct ReadDir(BoxStream<'static, Result<DirEntry, Error>>);

impl ReadDir {
    /// The entries of the directory `dir`; their paths, and those in errors, begin with `path`.
    pub fn new(client: handles::Client, dir: FileHandle, path: PathBuf) -> Self {
        let pages =
            Pages { client, dir, path, page: VecDeque::new(), cookie: 0, verifier: [0; 8], eof: false };
        Self(
            stream::try_unfold(pages, |mut pages| async move { Ok(pages.next().await?.map(|e| (e, pages))) })
                .boxed(),
        )
    }

    /// The next entry, `None` at the end.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn next_entry(&mut self) -> Result<Option<DirEntry>, Error> {
        self.0.next().await.transpose()
    }
}

impl Stream for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_next_unpin(cx)
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadDir").finish_non_exhaustive()
    }
}

/// A position in a directory.
struct Pages {
    client: handles::Client,
    dir: FileHandle,
    path: PathBuf,
    /// Remaining entries of the last reply.
    page: VecDeque<ops::DirEntry>,
    cookie: u64,
    verifier: Verifier,
    eof: bool,
}

impl Pages {
    async fn next(&mut self) -> Result<Option<DirEntry>, Error> {
        loop {
            while let Some(entry) = self.page.pop_front() {
                if !entry.is_dot()
                    && let Some(entry) = self.entry(entry).await?
                {
                    return Ok(Some(entry));
                }
            }
            if self.eof {
                return Ok(None);
            }
            let page = self.client.readdir_page(self.dir, self.cookie, self.verifier).await;
            let page = page.map_err(|e| e.at(self.path.as_os_str().as_bytes()))?;
            self.cookie = page.entries.last().map_or(self.cookie, |last| last.cookie);
            (self.verifier, self.eof) = (page.verifier, page.eof);
            self.page = page.entries.into();
        }
    }

    /// Fetches the attributes if the server did not send them; `None` if the object has been removed.
    async fn entry(&self, entry: ops::DirEntry) -> Result<Option<DirEntry>, Error> {
        if !is_valid_name(&entry.name) {
            let what = "a name that is empty or contains '/' or NUL";
            return Err(self.client.shared.pool.bad_reply("READDIR", what));
        }
        let path = self.path.join(OsString::from_vec(entry.name.clone()));
        let (attributes, handle) = match entry.attributes {
            Some(attributes) => (attributes, entry.handle),
            None => match self.client.lookup(self.dir, &entry.name).await {
                Ok(object) => (object.attributes, Some(object.handle)),
                Err(e) if e.is_not_found() => return Ok(None),
                Err(e) => return Err(e.at(path.as_os_str().as_bytes())),
            },
        };
        Ok(Some(DirEntry { path, metadata: attributes.into(), handle }))
    }
}

/// Whether `name` can name a directory entry: it is not empty, `.` or `..`, and contains neither `/` nor NUL.
/// Names that a server sends must be checked before they are joined to a local path.
pub fn is_valid_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|b| matches!(b, b'/' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_directory_are_invalid() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"../x", b"a\0"] {
            assert!(!is_valid_name(bad), "{bad:?}");
        }
        for good in [&b"a"[..], b"...", b".hidden", b"with space", b"\xff\xfe"] {
            assert!(is_valid_name(good), "{good:?}");
        }
    }
}
