//! The local file system.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_buffer::{Arena, Views};
use millrace_client::temporary_name;
use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid};

use crate::{
    Error, Preserve,
    tree::{Entry, FileKind, Item, Metadata, Source, Target, Timestamp, WriteOutcome, random},
};

/// Maximum size of one read or write in bytes.
const RECORD: usize = 1 << 20;

/// The mode bits set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// The local file system. Objects are identified by their paths.
#[derive(Clone)]
pub struct LocalTree {
    arena: Arena,
}

/// A local file that is open for reading, and its path.
pub type LocalReader = Arc<(File, PathBuf)>;

/// A local file that is being written under a temporary name.
#[derive(Debug, Clone)]
pub struct LocalWriter {
    file: Arc<File>,
    temporary: PathBuf,
    path: PathBuf,
}

#[cfg(test)]
impl LocalWriter {
    /// The file under its temporary name.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl LocalTree {
    /// Creates a source or target whose files are read into memory of `arena`.
    pub fn new(arena: Arena) -> Self {
        Self { arena }
    }
}

/// Runs `work`, which may block, on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(Error::Task))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Local { action, path: path.to_owned(), source }
}

impl Item<PathBuf> {
    /// Returns the local object at `path`, to be copied under the name `name`. A symbolic link is not
    /// followed.
    ///
    /// # Errors
    /// The attributes of `path` cannot be read.
    pub fn local(path: &Path, name: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let meta = fs::symlink_metadata(path).map_err(failed("read", path))?;
        Ok(Self {
            path: path.display().to_string(),
            name: name.into(),
            node: path.to_owned(),
            meta: (&meta).into(),
        })
    }
}

impl From<&fs::Metadata> for Metadata {
    fn from(m: &fs::Metadata) -> Self {
        let time = |seconds, nanos: i64| Timestamp { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
        let t = m.file_type();
        Self {
            kind: match (t.is_file(), t.is_dir(), t.is_symlink()) {
                (true, ..) => FileKind::File,
                (_, true, _) => FileKind::Directory,
                (.., true) => FileKind::Symlink,
                _ => FileKind::Special,
            },
            mode: m.mode() & 0o7777,
            uid: m.uid(),
            gid: m.gid(),
            size: m.size(),
            nlink: u32::try_from(m.nlink()).unwrap_or(u32::MAX),
            atime: time(m.atime(), m.atime_nsec()),
            mtime: time(m.mtime(), m.mtime_nsec()),
            id: (m.dev(), m.ino()),
        }
    }
}

/// Sets owner, then mode (which a change of owner may reset), then times, without following a link.
fn apply(path: &Path, meta: &Metadata, preserve: Preserve) -> io::Result<()> {
    if preserve.owner {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if meta.kind != FileKind::Symlink {
        // Without the owner, set-user-ID and set-group-ID bits from a server would grant this user's rights.
        let mode =
            if meta.kind == FileKind::File && !preserve.owner { meta.mode & !SET_ID } else { meta.mode };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let spec = |t: Timestamp| Timespec { tv_sec: t.seconds, tv_nsec: t.nanos.into() };
    let times = Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

fn in_dir(dir: &Path, name: &[u8]) -> Result<PathBuf, Error> {
    if !crate::is_valid_name(name) {
        return Err(Error::InvalidName(String::from_utf8_lossy(name).into_owned()));
    }
    Ok(dir.join(OsStr::from_bytes(name)))
}

fn list(dir: &Path) -> io::Result<Vec<Entry<PathBuf>>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = match entry.metadata() {
            Ok(m) => (&m).into(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // Removed concurrently.
            Err(e) => return Err(e),
        };
        out.push(Entry { node: entry.path(), name: entry.file_name().into_vec(), meta });
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

impl Source for LocalTree {
    type Node = PathBuf;
    type Reader = LocalReader;

    async fn list(&self, dir: &PathBuf) -> Result<Vec<Entry<PathBuf>>, Error> {
        let dir = dir.clone();
        blocking(move || list(&dir).map_err(failed("list", &dir))).await
    }

    async fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>, Error> {
        let text = fs::read_link(link).map_err(failed("read", link))?;
        Ok(text.into_os_string().into_vec())
    }

    async fn open(&self, file: &PathBuf) -> Result<LocalReader, Error> {
        let f = File::open(file).map_err(failed("read", file))?;
        Ok(Arc::new((f, file.clone())))
    }

    async fn read(&self, file: &LocalReader, offset: u64, len: usize) -> Result<Views, Error> {
        let mut memory = self
            .arena
            .alloc(len)
            .map_err(|e| failed("read", &file.1)(io::Error::new(io::ErrorKind::OutOfMemory, e)))?;
        let file = Arc::clone(file);
        blocking(move || {
            let mut have = 0;
            while have < len {
                match file.0.read_at(&mut memory[have..], offset + have as u64) {
                    Ok(0) => break,
                    Ok(n) => have += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(failed("read", &file.1)(e)),
                }
            }
            memory.set_len(have);
            Ok(Views::from(memory.freeze()))
        })
        .await
    }

    fn preferred_record(&self) -> usize {
        RECORD
    }
}

impl Target for LocalTree {
    type Writer = LocalWriter;

    async fn make_dir(&self, dir: &PathBuf, name: &[u8]) -> Result<PathBuf, Error> {
        let path = in_dir(dir, name)?;
        match fs::create_dir(&path) {
            Ok(()) => Ok(path),
            // Not following symbolic links: the server could direct the change to another file.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match fs::symlink_metadata(&path) {
                Ok(m) if m.is_dir() => Ok(path),
                _ => Err(Error::NotDirectory),
            },
            Err(e) => Err(failed("make", &path)(e)),
        }
    }

    async fn create(&self, dir: &PathBuf, name: &[u8]) -> Result<LocalWriter, Error> {
        let path = in_dir(dir, name)?;
        let temporary = in_dir(dir, &temporary_name(name, random()))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(failed("write", &path))?;
        Ok(LocalWriter { file: Arc::new(file), temporary, path })
    }

    async fn write(
        &self,
        file: &LocalWriter,
        offset: u64,
        data: Views,
        _stable: bool,
    ) -> Result<WriteOutcome, Error> {
        let file = file.clone();
        blocking(move || {
            let mut at = offset;
            for piece in &data {
                file.file.write_all_at(piece, at).map_err(failed("write", &file.path))?;
                at += piece.len() as u64;
            }
            Ok(WriteOutcome { stable: true, verifier: [0; 8] })
        })
        .await
    }

    async fn commit(&self, _file: &LocalWriter) -> Result<[u8; 8], Error> {
        Ok([0; 8])
    }

    async fn read_back(&self, file: &LocalWriter) -> Result<LocalReader, Error> {
        self.open(&file.temporary).await
    }

    async fn publish(
        &self,
        file: &LocalWriter,
        meta: &Metadata,
        preserve: Preserve,
    ) -> Result<PathBuf, Error> {
        let file = file.clone();
        let (meta, at) = (*meta, file.path.clone());
        blocking(move || {
            apply(&file.temporary, &meta, preserve)
                .and_then(|()| fs::rename(&file.temporary, &file.path))
                .map_err(failed("finish", &file.path))
        })
        .await?;
        Ok(at)
    }

    async fn discard(&self, file: &LocalWriter) {
        // This is error cleanup: a further error is ignored.
        drop(fs::remove_file(&file.temporary));
    }

    async fn symlink(
        &self,
        dir: &PathBuf,
        name: &[u8],
        text: &[u8],
        meta: &Metadata,
        preserve: Preserve,
    ) -> Result<(), Error> {
        let path = in_dir(dir, name)?;
        let temporary = in_dir(dir, &temporary_name(name, random()))?;
        std::os::unix::fs::symlink(OsStr::from_bytes(text), &temporary).map_err(failed("link", &path))?;
        // Some file systems do not store attributes of symbolic links: ignore the error.
        drop(apply(&temporary, meta, preserve));
        fs::rename(&temporary, &path).map_err(|e| {
            drop(fs::remove_file(&temporary));
            failed("link", &path)(e)
        })
    }

    async fn link(&self, file: &PathBuf, dir: &PathBuf, name: &[u8]) -> Result<(), Error> {
        let path = in_dir(dir, name)?;
        match fs::hard_link(file, &path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let temporary = in_dir(dir, &temporary_name(name, random()))?;
                fs::hard_link(file, &temporary).map_err(failed("link", &path))?;
                let renamed = fs::rename(&temporary, &path).map_err(failed("link", &path));
                // rename(2) of a file over another link to it has no effect and leaves both names.
                drop(fs::remove_file(&temporary));
                renamed
            }
            other => other.map_err(failed("link", &path)),
        }
    }

    async fn set_meta(&self, node: &PathBuf, meta: &Metadata, preserve: Preserve) -> Result<(), Error> {
        apply(node, meta, preserve).map_err(failed("set the attributes of", node))
    }
}
