//! The native client: an operation for each method.

use std::{
    borrow::Cow,
    ffi::OsString,
    io::ErrorKind,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_client::{
    Client as Rust, Error, FileTimes, OpenOptions, Url,
    ops::{FileHandle, FileType, SetAttributes, SetTime, access},
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyList};

use crate::{
    connection::{Export, Mount, Settings},
    copying,
    errors::{Failure, at, between, text},
    file::{Access, File},
    memory::{NewBytes, UserBuffer, keep_freed_memory},
    metadata::stat,
    operation::{Finish, Operation},
    ranges::{self, Range},
    runtime, tree,
};

/// A client of one export. It connects at the first operation in each process.
#[pyclass(frozen, module = "millrace_nfs._native")]
pub(crate) struct Client {
    export: Arc<Export>,
}

impl Client {
    /// An operation that calls `run` with the connected client.
    fn operation<T, F>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(Rust) -> F + Send + 'static,
    ) -> PyResult<Operation>
    where
        F: Future<Output = Result<T, Failure>> + Send,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let mount = self.export.mount(py)?;
        Operation::new(py, async move { run(mount.client().await?).await.map_err(|e| mount.located(e)) })
    }
}

#[pymethods]
impl Client {
    #[new]
    /// With `absolute`, the paths in errors begin with the export.
    fn new(py: Python<'_>, url: &str, settings: Settings, absolute: bool) -> PyResult<Self> {
        let export = Export::new(url, settings, absolute).map_err(|e| e.exception(py))?;
        Ok(Self { export: Arc::new(export) })
    }

    /// Connects. Returns the name of the export, the rest of the URL's path below it, and the server's address.
    fn connect(&self, py: Python<'_>) -> PyResult<Operation> {
        self.operation(py, async |client| {
            Ok((
                client.export().to_owned(),
                client.path_in_export().as_os_str().to_owned(),
                client.server().to_owned(),
            ))
        })
    }

    /// Ends the session at the server, which takes at most a second, and closes the connections of this process.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(client) = self.export.close() {
            let runtime = runtime::handle(py)?;
            py.detach(|| runtime.block_on(client.shutdown()));
        }
        Ok(())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.export.is_closed()
    }

    /// Counters: calls, bytes read, bytes written.
    fn stats(&self, py: Python<'_>) -> PyResult<Operation> {
        self.operation(py, async |client| {
            let stats = client.stats();
            Ok((stats.calls, stats.bytes_read, stats.bytes_written))
        })
    }

    /// Attributes of a path, of the link itself unless `follow`.
    fn stat(&self, py: Python<'_>, path: PathBuf, follow: bool) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            let nfs = client.by_handle();
            let name = path.as_os_str().as_bytes();
            let found = if follow { nfs.resolve(name).await } else { nfs.resolve_link(name).await };
            let (handle, attributes) = found.map_err(at(&path))?;
            Ok(stat(Some(handle), &attributes))
        })
    }

    /// Attributes of many paths, following links: a list with the attributes, or the exception, for each.
    fn stat_all(&self, py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Operation> {
        let mount = self.export.mount(py)?;
        Operation::finished_by(py, async move {
            let client = mount.client().await?;
            let found = ranges::stat_all(&client, paths).await;
            Ok(Box::new(move |py: Python<'_>| {
                let list = PyList::empty(py);
                for result in found {
                    match result {
                        Ok(stat) => list.append(stat)?,
                        Err(failure) => list.append(mount.located(failure).exception(py).into_value(py))?,
                    }
                }
                Ok(list.into_any().unbind())
            }) as Finish)
        })
    }

    /// Names and attributes of the entries of a directory.
    fn scan(&self, py: Python<'_>, path: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            let mut entries = client.read_dir(&path).await.map_err(at(&path))?;
            let (mut found, count) = (Vec::new(), tree::Count::default());
            while let Some(entry) = entries.next_entry().await.map_err(at(&path))? {
                count.add().map_err(at(&path))?;
                let name: OsString = entry.file_name().to_owned();
                found.push((name, stat(None, entry.metadata().attributes())));
            }
            Ok(found)
        })
    }

    /// The objects below a directory, down to `depth` levels: paths below it, attributes, whether a link leads to them.
    fn tree(&self, py: Python<'_>, path: PathBuf, depth: usize) -> PyResult<Operation> {
        self.operation(py, async move |client| tree::tree(&client, path, depth).await)
    }

    /// Reads ranges (file handle, start, length). Returns a list with bytes, or the exception, for each. Exceptions have the
    /// path at the same place of `paths`, if there is one.
    fn read_ranges(
        &self,
        py: Python<'_>,
        ranges: Vec<(Vec<u8>, u64, usize)>,
        paths: Vec<PathBuf>,
    ) -> PyResult<Operation> {
        let mount = self.export.mount(py)?;
        keep_freed_memory(py, ranges.iter().map(|(_, _, len)| *len).fold(0, usize::saturating_add));
        let range = |(handle, start, len): (Vec<u8>, u64, usize)| {
            let file =
                FileHandle::new(&handle).ok_or_else(|| PyValueError::new_err("invalid file handle"))?;
            Ok::<_, PyErr>(Range { file, start, data: NewBytes::new(py, len)? })
        };
        let ranges = ranges.into_iter().map(range).collect::<PyResult<Vec<_>>>()?;
        Operation::finished_by(py, async move {
            let done = ranges::read(mount.connected().await?, ranges).await;
            Ok(Box::new(move |py: Python<'_>| {
                let list = PyList::empty(py);
                let paths = paths.iter().map(Some).chain(std::iter::repeat(None));
                for ((data, result), path) in done.into_iter().zip(paths) {
                    match result {
                        Ok(filled) => list.append(data.finish(py, filled))?,
                        Err(e) => {
                            let failure = Failure::from(e);
                            let failure = match path {
                                Some(path) => failure.or_at(path),
                                None => failure,
                            };
                            list.append(mount.located(failure).exception(py).into_value(py))?;
                        }
                    }
                }
                Ok(list.into_any().unbind())
            }) as Finish)
        })
    }

    /// Writes a whole file to stable storage.
    fn write(&self, py: Python<'_>, path: PathBuf, data: &Bound<'_, PyAny>) -> PyResult<Operation> {
        let (data, mount) = (UserBuffer::readable(data)?, self.export.mount(py)?);
        Operation::new(py, async move {
            let connected = mount.connected().await?;
            let _permit = connected.write().await;
            let written = connected.client.write(&path, data.data()).await;
            written.map_err(at(&path)).map_err(|e| mount.located(e))
        })
    }

    /// Opens a file.
    fn open(&self, py: Python<'_>, path: PathBuf, access: Access) -> PyResult<Operation> {
        let (export, mount) = (Arc::clone(&self.export), self.export.mount(py)?);
        Operation::finished_by(py, async move {
            let client = mount.client().await?;
            let opened = access.options().open(&client, &path).await;
            let file = opened.map_err(at(&path)).map_err(|e| mount.located(e))?;
            Ok(Box::new(move |py: Python<'_>| {
                Ok(Py::new(py, File::new(export, path, access, file))?.into_any())
            }) as Finish)
        })
    }

    fn mkdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| create_dir(&client, &path).await.map_err(at(&path)))
    }

    /// Creates a directory and its missing parents; it may exist with `exist_ok`.
    fn makedirs(&self, py: Python<'_>, path: PathBuf, exist_ok: bool) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            let made = async {
                if exist_ok {
                    return client.create_dir_all(&path).await;
                }
                if let Some(parent) = path.parent() {
                    client.create_dir_all(parent).await?;
                }
                create_dir(&client, &path).await
            };
            made.await.map_err(at(&path))
        })
    }

    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| client.remove_file(&path).await.map_err(at(&path)))
    }

    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| client.remove_dir(&path).await.map_err(at(&path)))
    }

    fn rmtree(&self, py: Python<'_>, path: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| client.remove_dir_all(&path).await.map_err(at(&path)))
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| client.rename(&from, &to).await.map_err(between(&from, &to)))
    }

    fn link(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            client.hard_link(&from, &to).await.map_err(between(&from, &to))
        })
    }

    fn symlink(&self, py: Python<'_>, target: PathBuf, link: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            client.symlink(&target, &link).await.map_err(between(&target, &link))
        })
    }

    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            let target = client.read_link(&path).await.map_err(at(&path))?;
            Ok(target.into_os_string())
        })
    }

    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<Operation> {
        self.operation(py, async move |client| client.set_permissions(&path, mode).await.map_err(at(&path)))
    }

    /// Sets owner and group; None leaves one unchanged. Symbolic links are followed only with `follow`.
    fn chown(
        &self,
        py: Python<'_>,
        path: PathBuf,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> PyResult<Operation> {
        let attributes = SetAttributes { uid, gid, ..SetAttributes::default() };
        self.operation(py, async move |client| {
            set_attributes(&client, &path, attributes, follow).await.map_err(at(&path))
        })
    }

    /// Sets the size of a file.
    fn truncate(&self, py: Python<'_>, path: PathBuf, size: u64) -> PyResult<Operation> {
        let attributes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.operation(py, async move |client| {
            set_attributes(&client, &path, attributes, true).await.map_err(at(&path))
        })
    }

    /// Whether the caller has all rights of `mode`, the bits of access(2).
    fn access(&self, py: Python<'_>, path: PathBuf, mode: i32) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            let nfs = client.by_handle();
            let permitted = async {
                let (object, attributes) = nfs.resolve(path.as_os_str().as_bytes()).await?;
                let wanted = rights(mode, attributes.file_type);
                Ok(nfs.access(object, wanted).await? == wanted)
            };
            permitted.await.map_err(at(&path))
        })
    }

    /// Size of the file system of an object, space that the caller can use, and free space, in bytes.
    fn space(&self, py: Python<'_>, path: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            let nfs = client.by_handle();
            let space = async {
                let (object, _) = nfs.resolve(path.as_os_str().as_bytes()).await?;
                nfs.fsstat(object).await
            };
            let space = space.await.map_err(at(&path))?;
            Ok((space.total_bytes, space.available_bytes, space.free_bytes))
        })
    }

    /// The value of an extended attribute, whose name has no prefix.
    fn xattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            let value = client.xattr(&path, name.as_bytes()).await.map_err(at(&path))?;
            let missing = || Error::missing_xattr(name.to_string_lossy(), text(&path));
            value.map(Cow::<[u8]>::Owned).ok_or_else(missing).map_err(at(&path))
        })
    }

    fn set_xattr(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: OsString,
        value: Vec<u8>,
    ) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            client.set_xattr(&path, name.as_bytes(), value).await.map_err(at(&path))
        })
    }

    fn list_xattrs(&self, py: Python<'_>, path: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            let names = client.list_xattrs(&path).await.map_err(at(&path))?;
            Ok(names.into_iter().map(OsString::from_vec).collect::<Vec<_>>())
        })
    }

    fn remove_xattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<Operation> {
        self.operation(py, async move |client| {
            client.remove_xattr(&path, name.as_bytes()).await.map_err(at(&path))
        })
    }

    /// Sets the times of last access and modification, in nanoseconds since 1970; None leaves one unchanged.
    fn utime(
        &self,
        py: Python<'_>,
        path: PathBuf,
        atime: Option<u64>,
        mtime: Option<u64>,
    ) -> PyResult<Operation> {
        let time = |ns| std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(ns);
        let mut times = FileTimes::new();
        if let Some(ns) = atime {
            times = times.set_accessed(time(ns));
        }
        if let Some(ns) = mtime {
            times = times.set_modified(time(ns));
        }
        self.operation(py, async move |client| client.set_times(&path, times).await.map_err(at(&path)))
    }

    /// Sets both times of an object to those of the server, and creates an empty file if there is none; with `exist_ok` it
    /// may exist.
    fn touch(&self, py: Python<'_>, path: PathBuf, exist_ok: bool) -> PyResult<Operation> {
        let now = SetTime::ServerTime;
        let now = SetAttributes { atime: now, mtime: now, ..SetAttributes::default() };
        self.operation(py, async move |client| {
            if exist_ok {
                match set_attributes(&client, &path, now, true).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    set => return set.map_err(at(&path)),
                }
            }
            let mut options = OpenOptions::new();
            let created = options.write(true).create(true).create_new(!exist_ok).open(&client, &path).await;
            created.map(drop).map_err(at(&path))
        })
    }

    /// Copies a file within the export. Returns the number of bytes.
    fn copy(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<Operation> {
        self.operation(py, async move |client| client.copy(&from, &to).await.map_err(between(&from, &to)))
    }

    /// Copies a local file to the export with the copy engine. Returns the number of bytes.
    fn put(&self, py: Python<'_>, local: PathBuf, path: PathBuf) -> PyResult<Operation> {
        let mount: Mount = self.export.mount(py)?;
        let progress = Arc::default();
        let counter = Arc::clone(&progress);
        let copy =
            async move { copying::put(&mount, &local, &path, counter).await.map_err(|e| mount.located(e)) };
        Ok(Operation::new(py, copy)?.counted(progress))
    }

    /// Copies a file of the export to the local file system with the copy engine. Returns the number of bytes.
    fn get(&self, py: Python<'_>, path: PathBuf, local: PathBuf) -> PyResult<Operation> {
        let mount: Mount = self.export.mount(py)?;
        let progress = Arc::default();
        let counter = Arc::clone(&progress);
        let copy =
            async move { copying::get(&mount, &path, &local, counter).await.map_err(|e| mount.located(e)) };
        Ok(Operation::new(py, copy)?.counted(progress))
    }
}

/// Creates a directory. One that has no name in its parent, such as the root, exists.
async fn create_dir(client: &Rust, path: &Path) -> Result<(), Error> {
    match client.create_dir(path).await {
        Err(e) if e.kind() == ErrorKind::InvalidInput => {
            let is_directory = client.metadata(path).await.is_ok_and(|found| found.is_dir());
            let (path, reason) = (text(path), "the directory exists".into());
            Err(if is_directory { Error::Path { path, reason, kind: ErrorKind::AlreadyExists } } else { e })
        }
        created => created,
    }
}

async fn set_attributes(
    client: &Rust,
    path: &Path,
    attributes: SetAttributes,
    follow: bool,
) -> Result<(), Error> {
    let (nfs, name) = (client.by_handle(), path.as_os_str().as_bytes());
    let (object, _) = if follow { nfs.resolve(name).await? } else { nfs.resolve_link(name).await? };
    nfs.setattr(object, attributes, None).await.map(drop)
}

/// The rights of ACCESS that the bits of access(2) mean (RFC 1813 section 3.3.4).
fn rights(mode: i32, of: FileType) -> u32 {
    let is_directory = of == FileType::Directory;
    let [execute, write] = match is_directory {
        true => [access::LOOKUP, access::MODIFY | access::EXTEND | access::DELETE],
        false => [access::EXECUTE, access::MODIFY | access::EXTEND],
    };
    let bits = [(libc::R_OK, access::READ), (libc::W_OK, write), (libc::X_OK, execute)];
    bits.iter().filter(|(bit, _)| mode & bit != 0).fold(0, |all, (_, right)| all | right)
}

/// Names of the exports of the URL's server.
#[pyfunction]
pub(crate) fn exports(py: Python<'_>, url: &str) -> PyResult<Operation> {
    let url: Url = url.parse().map_err(|e| Failure::from(e).exception(py))?;
    let handle = runtime::handle(py)?;
    Operation::new(py, async move {
        let runtime = millrace_client::TokioRuntime::from_handle(handle);
        let list = millrace_client::exports(runtime, &url, &millrace_client::Options::default()).await?;
        Ok(list.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
    })
}
