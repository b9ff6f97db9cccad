//! Copying, renaming and removing objects.

use std::{io::ErrorKind, os::unix::ffi::OsStrExt, path::Path};

use millrace_client::{AtomicFile, Error, FileType, nfs::v3::FileHandle, nfs3};

use crate::{Mode, Objects, Version, is_replaced, publish};

/// Maximum number of attempts to copy an object that is replaced meanwhile.
const MAX_ATTEMPTS: usize = 100;

impl Objects {
    /// Copies the object at `from`, within the server if it can. Returns the version at `to`.
    ///
    /// # Errors
    /// As [`Self::find`] for `from`, [`AtomicFile::create`] and [`publish`] for `to`.
    pub async fn copy(&self, from: &Path, to: &Path, mode: Mode) -> Result<Version, Error> {
        let mut attempts = 0;
        loop {
            let source = self.find(from).await?;
            let mut target = AtomicFile::create(self.client(), to).await?;
            match self.copy_version(source, &target).await {
                Ok(()) => return publish(&mut target, mode).await,
                Err(e) if is_replaced(&e) && attempts < MAX_ATTEMPTS => attempts += 1,
                Err(e) => return Err(e),
            }
        }
    }

    async fn copy_version(&self, source: Version, target: &AtomicFile) -> Result<(), Error> {
        let size = source.attributes.size;
        // The client retains data until this limit.
        let retained = size.min(self.client().options().unstable_limit as u64);
        let _permit = self.memory.for_writing(retained as usize).await;
        let source = nfs3::File::new(self.client().nfs3().clone(), source.handle);
        target.copy_from(&source, size).await.map(drop)
    }

    /// Renames an object. With [`Mode::Create`] it has both names for a moment.
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotFound`] or [`ErrorKind::IsADirectory`] if there is no object at `from`; the errors of
    /// [`millrace_client::Client::rename`] and [`millrace_client::Client::hard_link`].
    pub async fn rename(&self, from: &Path, to: &Path, mode: Mode) -> Result<(), Error> {
        let source = self.named(from).await?;
        if mode == Mode::Create {
            self.in_directory(to, || self.client().hard_link(from, to)).await?;
            return self.remove(from).await;
        }
        if from == to {
            return Ok(());
        }
        if self.named(to).await.is_ok_and(|target| target == source) {
            // RENAME between two names of one file has no effect (RFC 1813 section 3.3.14).
            return self.remove(from).await;
        }
        self.in_directory(to, || self.client().rename(from, to)).await
    }

    /// Removes an object.
    ///
    /// # Errors
    /// As [`millrace_client::Client::remove_file`].
    pub async fn remove(&self, path: &Path) -> Result<(), Error> {
        self.client().remove_file(path).await
    }

    /// The handle of the file or link with the name.
    async fn named(&self, path: &Path) -> Result<FileHandle, Error> {
        let (handle, attributes) = self.client().nfs3().resolve_link(path.as_os_str().as_bytes()).await?;
        let (kind, reason) = match attributes.file_type {
            FileType::Regular | FileType::Symlink => return Ok(handle),
            FileType::Directory => (ErrorKind::IsADirectory, "a directory"),
            _ => (ErrorKind::NotFound, "not a regular file"),
        };
        Err(Error::Path { path: path.to_string_lossy().into_owned(), reason: reason.into(), kind })
    }

    /// Makes a change that creates the name `to`. Creates the missing directories of the name.
    async fn in_directory<F: Future<Output = Result<(), Error>>>(
        &self,
        to: &Path,
        change: impl Fn() -> F,
    ) -> Result<(), Error> {
        match (change().await, to.parent()) {
            (Err(e), Some(directory)) if e.kind() == ErrorKind::NotFound => {
                self.client().create_dir_all(directory).await?;
                change().await
            }
            (changed, _) => changed,
        }
    }
}
