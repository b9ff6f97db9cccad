//! Copying, renaming and removing objects.

use std::{io::ErrorKind, os::unix::ffi::OsStrExt, path::Path};

use millrace_client::{AtomicFile, Error, FileType, handles, ops::FileHandle, temporary_name};
use millrace_runtime::RuntimeExt;

use crate::{Mode, Objects, Version, is_replaced, publish};

/// Maximum number of attempts to copy an object that is replaced meanwhile.
const MAX_ATTEMPTS: usize = 100;

impl Objects {
    /// Copies the object at `from`, within the server if it can. Returns the version at `to`. A copy to its own name has no
    /// effect: it would replace a version that another client puts there meanwhile by an earlier one.
    ///
    /// # Errors
    /// As [`Self::find`] for `from`, [`AtomicFile::create`] and [`publish`] for `to`.
    pub async fn copy(&self, from: &Path, to: &Path, mode: Mode) -> Result<Version, Error> {
        let mut attempts = 0;
        loop {
            let source = self.find(from).await?;
            if from == to && mode == Mode::Replace {
                return Ok(source);
            }
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
        let source = handles::File::new(self.client().by_handle().clone(), source.handle);
        target.copy_from(&source, size).await.map(drop)
    }

    /// Renames an object. With [`Mode::Create`] it has both names for a moment. A version that another client puts at `from`
    /// meanwhile stays there, but is missing for a moment. If another client removes or renames `to` meanwhile, the object
    /// is there again: with two renames in opposite directions, neither name would be left.
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotFound`] or [`ErrorKind::IsADirectory`] if there is no object at `from`; the errors of
    /// [`millrace_client::Client::rename`] and [`millrace_client::Client::hard_link`].
    pub async fn rename(&self, from: &Path, to: &Path, mode: Mode) -> Result<(), Error> {
        let mut source = self.named(from).await?;
        if mode == Mode::Create {
            let mut attempts = 0;
            while let Err(e) = self.in_directory(to, || self.link(source, to)).await {
                if !is_replaced(&e) || attempts == MAX_ATTEMPTS {
                    return Err(e);
                }
                attempts += 1;
                source = self.named(from).await?;
            }
            return self.remove_version(from, source, to).await;
        }
        if from == to {
            return Ok(());
        }
        if self.named(to).await.is_ok_and(|target| target == source) {
            // RENAME between two names of one file has no effect (RFC 1813 section 3.3.14).
            return self.remove_version(from, source, to).await;
        }
        self.in_directory(to, || self.client().rename(from, to)).await
    }

    async fn link(&self, object: FileHandle, to: &Path) -> Result<(), Error> {
        let nfs = self.client().by_handle();
        let (dir, name) = nfs.resolve_parent(to.as_os_str().as_bytes()).await?;
        nfs.link(object, dir, name).await.map(drop)
    }

    /// Removes the name `path` of `version`, which has the name `kept`, but not that of another version, which another client
    /// has put there. REMOVE has only a name: the object is renamed first, so that its name cannot become that of another
    /// version before it is removed. The temporary name remains until the object has another one, because other clients may
    /// remove names of it in the same way.
    async fn remove_version(&self, path: &Path, version: FileHandle, kept: &Path) -> Result<(), Error> {
        let nfs = self.client().by_handle();
        let (dir, name) = nfs.resolve_parent(path.as_os_str().as_bytes()).await?;
        let temporary = temporary_name(&name, self.client().runtime().random_u64());
        match nfs.rename(dir, &name, dir, &temporary).await {
            Err(e) if e.is_not_found() => return Ok(()),
            renamed => drop(renamed?),
        }
        let object = nfs.lookup(dir, &temporary).await?.handle;
        let other = if object == version { kept } else { path };
        match self.link(object, other).await {
            // The object, or a still newer version, which would have replaced this one.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            linked => linked?,
        }
        nfs.remove(dir, &temporary).await.map(drop)
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
        let (handle, attributes) =
            self.client().by_handle().resolve_link(path.as_os_str().as_bytes()).await?;
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

#[cfg(test)]
mod tests {
    use millrace_client::Client;

    use super::*;

    #[test]
    fn a_version_that_another_client_has_put_stays_when_the_earlier_one_is_removed() {
        let config = millrace_server::Config {
            exports: vec!["/data=memory:16MiB".parse().unwrap()],
            listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
            shards: Some(1),
            ..Default::default()
        };
        let server = millrace_server::Server::start(config).unwrap();
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        for version in ["3", "4.2"] {
            let url = format!("nfs://{}/data?proto=tcp&vers={version}", server.tcp_addr().unwrap());
            tokio.block_on(async {
                let client = Client::connect(&url).await.unwrap();
                let objects = Objects::new(client.clone());
                let names = async |expected: &[&str]| {
                    let mut entries = client.read_dir("").await.unwrap();
                    let mut names = Vec::new();
                    while let Some(entry) = entries.next_entry().await.unwrap() {
                        names.push(entry.file_name().to_string_lossy().into_owned());
                    }
                    names.sort();
                    assert_eq!(names, expected, "version {version}");
                };
                let put = async |data: &str| {
                    let mut file = AtomicFile::create(&client, "from").await.unwrap();
                    file.file().write(0, data.as_bytes()).await.unwrap();
                    publish(&mut file, Mode::Replace).await.unwrap();
                };
                let from = Path::new("from");
                put("one").await;
                let one = objects.named(from).await.unwrap();
                objects.link(one, Path::new("to")).await.unwrap();
                // The moment between the link and the removal in a rename.
                put("two").await;
                objects.remove_version(from, one, Path::new("to")).await.unwrap();
                names(&["from", "to"]).await;
                assert_eq!(client.read("from").await.unwrap(), b"two");
                assert_eq!(client.read("to").await.unwrap(), b"one");

                let failed = objects.rename(from, Path::new("to"), Mode::Create).await.unwrap_err();
                assert_eq!(failed.kind(), ErrorKind::AlreadyExists);
                names(&["from", "to"]).await;
                objects.rename(from, Path::new("new/name"), Mode::Create).await.unwrap();
                names(&["new", "to"]).await;
                assert_eq!(client.read("new/name").await.unwrap(), b"two");
                // Another client may have removed the name.
                objects.remove_version(from, one, Path::new("to")).await.unwrap();
                client.remove_dir_all("new").await.unwrap();
                client.remove_file("to").await.unwrap();
            });
        }
    }
}
