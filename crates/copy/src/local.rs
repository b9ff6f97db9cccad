//! The local file system.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    ops::Range,
    os::fd::AsRawFd,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use millrace_buffer::{Arena, Views};
use millrace_client::temporary_name;
use rustix::{
    fs::{
        AtFlags, CWD, Gid, Mode, OFlags, SeekFrom, StatxAttributes, StatxFlags, Timespec, Timestamps, Uid,
        seek, statx,
    },
    io::Errno,
};

use crate::{
    Error, Preserve,
    tree::{
        Directory, Entries, Entry, Existing, FileKind, Item, Metadata, Source, Target, Timestamp,
        WriteOutcome, Xattrs, random,
    },
    xattrs,
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

/// A local file that is open for reading.
#[derive(Debug, Clone)]
pub struct LocalReader {
    file: Arc<File>,
    path: PathBuf,
    /// Whether it is a pipe or device, or the standard input.
    is_stream: bool,
}

/// A local file that is being written.
#[derive(Debug, Clone)]
pub struct LocalWriter {
    file: Arc<File>,
    path: PathBuf,
    state: WriterState,
}

#[derive(Debug, Clone)]
enum WriterState {
    /// A new file, under this temporary name.
    Temporary(PathBuf),
    /// An existing file.
    InPlace,
    /// A device or named pipe, or the standard output.
    Stream,
}

#[cfg(test)]
impl LocalWriter {
    /// The open file.
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

    /// Returns the pipe or device at `path`, or the standard stream of this process that it names, to be read to its end
    /// and copied to a file `name` with the mode of a new file and the current time. `None` if `path` is another object.
    pub fn stream(path: &Path, name: impl Into<Vec<u8>>) -> Option<Self> {
        let is_special = || fs::metadata(path).is_ok_and(|m| Metadata::from(&m).kind == FileKind::Special);
        if standard_stream_index(path).is_none() && !is_special() {
            return None;
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
        let now = Timestamp { seconds, nanos: since_epoch.subsec_nanos() };
        let meta = Metadata {
            kind: FileKind::File,
            mode: 0o666 & !umask(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            size: 0, // Unknown.
            used: 0,
            nlink: 1,
            atime: now,
            mtime: now,
            ctime: now,
            id: (0, 0),
        };
        Some(Self { path: path.display().to_string(), name: name.into(), node: path.to_owned(), meta })
    }
}

impl Existing<PathBuf> {
    /// Returns the object that the symbolic link `path` refers to; `None` if `path` is no symbolic link. A standard stream
    /// of this process is [`FileKind::Special`], also if it is redirected to a file: its content is not removed.
    ///
    /// # Errors
    /// The object does not exist, or its attributes cannot be read.
    pub fn through_link(path: &Path) -> io::Result<Option<Self>> {
        let meta = match standard_stream(path)? {
            Some(stream) => Metadata { kind: FileKind::Special, ..Metadata::from(&stream.metadata()?) },
            None if path.is_symlink() => Metadata::from(&fs::metadata(path)?),
            None => return Ok(None),
        };
        Ok(Some(Self { node: path.to_owned(), meta, through_link: true }))
    }
}

/// The file mode creation mask of this process (umask(2)).
pub fn umask() -> u32 {
    // It can only be read by setting it: meanwhile, other threads create private files.
    let mask = rustix::process::umask(Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    mask.as_raw_mode()
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
            used: m.blocks().saturating_mul(512),
            nlink: u32::try_from(m.nlink()).unwrap_or(u32::MAX),
            atime: time(m.atime(), m.atime_nsec()),
            mtime: time(m.mtime(), m.mtime_nsec()),
            ctime: time(m.ctime(), m.ctime_nsec()),
            id: (m.dev(), m.ino()),
        }
    }
}

/// Without the owner, set-user-ID and set-group-ID bits from a server would grant this user's rights.
fn kept(meta: &Metadata, preserve: Preserve) -> Metadata {
    let cleared = if meta.kind == FileKind::File && !preserve.owner { SET_ID } else { 0 };
    Metadata { mode: meta.mode & !cleared, ..*meta }
}

/// Sets owner, then mode (which a change of owner may reset), then times, without following a link.
fn apply(path: &Path, meta: &Metadata, preserve: Preserve) -> io::Result<()> {
    if preserve.owner {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if meta.kind != FileKind::Symlink {
        // fchmodat(2) follows a link that another process has put in place of the object.
        let object =
            rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let name = format!("/proc/self/fd/{}", object.as_raw_fd());
        fs::set_permissions(name, fs::Permissions::from_mode(kept(meta, preserve).mode))?;
    }
    rustix::fs::utimensat(CWD, path, &times(meta), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

fn times(meta: &Metadata) -> Timestamps {
    let spec = |t: Timestamp| Timespec { tv_sec: t.seconds, tv_nsec: t.nanos.into() };
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}

/// Sets times, and the owner if requested, of an existing file.
fn apply_in_place(file: &File, meta: &Metadata, preserve: Preserve) -> io::Result<()> {
    if preserve.owner {
        rustix::fs::fchown(file, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)))?;
    }
    match rustix::fs::futimens(file, &times(meta)) {
        // Who may write a file of another owner may not set its times.
        Err(Errno::PERM | Errno::ACCESS) => Ok(()),
        set => Ok(set?),
    }
}

/// The number of the standard stream that `path` names.
fn standard_stream_index(path: &Path) -> Option<usize> {
    let names = ["/dev/fd/0", "/dev/fd/1", "/dev/fd/2", "/dev/stdin", "/dev/stdout", "/dev/stderr"];
    names.iter().position(|name| Path::new(name) == path).map(|index| index % 3)
}

/// The standard stream of this process that `path` names. Its descriptor is duplicated, because opening the path again would
/// truncate a file to which the shell appends, and fails for a socket.
///
/// # Errors
/// The descriptor cannot be duplicated.
pub fn standard_stream(path: &Path) -> io::Result<Option<File>> {
    let Some(index) = standard_stream_index(path) else { return Ok(None) };
    let stream = match index {
        0 => rustix::stdio::stdin(),
        1 => rustix::stdio::stdout(),
        _ => rustix::stdio::stderr(),
    };
    Ok(Some(stream.try_clone_to_owned()?.into()))
}

/// The parts of `file` below `size` with data; `None` if the file system does not report them.
fn extents(file: &File, size: u64) -> io::Result<Option<Vec<Range<u64>>>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break, // No data after `at`.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        if start >= size {
            break;
        }
        let end = seek(file, SeekFrom::Hole(start))?.min(size);
        if start < at || end <= start {
            return Ok(None); // It was changed meanwhile.
        }
        out.push(start..end);
        at = end;
    }
    Ok(Some(out))
}

/// Opens an existing file or special file, without its content.
fn open_existing(existing: &Existing<PathBuf>) -> Result<LocalWriter, Error> {
    let path = existing.node.clone();
    let opened = || -> io::Result<(File, WriterState)> {
        if let Some(stream) = standard_stream(&path)? {
            return Ok((stream, WriterState::Stream));
        }
        if fs::metadata(&path)?.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is a socket"));
        }
        // The name of a file in a copied directory may have become a link.
        let follow = if existing.through_link { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | follow;
        let file = File::from(rustix::fs::open(&path, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Ok((file, WriterState::Stream));
        }
        file.set_len(0)?;
        Ok((file, WriterState::InPlace))
    };
    let (file, state) = opened().map_err(failed("write", &path))?;
    Ok(LocalWriter { file: Arc::new(file), path, state })
}

fn in_dir(dir: &Path, name: &[u8]) -> Result<PathBuf, Error> {
    if !crate::is_valid_name(name) {
        return Err(Error::InvalidName(String::from_utf8_lossy(name).into_owned()));
    }
    Ok(dir.join(OsStr::from_bytes(name)))
}

fn list(dir: &Path) -> io::Result<Entries<PathBuf>> {
    let mut out = Entries { found: Vec::new(), failed: Vec::new() };
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (node, name) = (entry.path(), entry.file_name().into_vec());
        match entry.metadata() {
            Ok(m) => out.found.push(Entry { node, name, meta: (&m).into() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {} // Removed concurrently.
            Err(e) => out.failed.push((name, failed("read", &node)(e))),
        }
    }
    out.found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

impl Source for LocalTree {
    type Node = PathBuf;
    type Reader = LocalReader;

    async fn list(&self, dir: &PathBuf) -> Result<Entries<PathBuf>, Error> {
        let dir = dir.clone();
        blocking(move || list(&dir).map_err(failed("list", &dir))).await
    }

    async fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>, Error> {
        let text = fs::read_link(link).map_err(failed("read", link))?;
        Ok(text.into_os_string().into_vec())
    }

    async fn xattrs(&self, object: &PathBuf, keep: bool) -> Result<Xattrs, Error> {
        xattrs::of(object, keep)
    }

    async fn open(&self, file: &PathBuf) -> Result<LocalReader, Error> {
        let path = file.clone();
        // Opening a named pipe waits for a process that writes to it.
        blocking(move || {
            let open = || -> io::Result<(File, bool)> {
                if let Some(stream) = standard_stream(&path)? {
                    return Ok((stream, true));
                }
                if fs::metadata(&path)?.file_type().is_socket() {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, "it is a socket"));
                }
                let file = File::open(&path)?;
                let is_stream = !file.metadata()?.is_file();
                Ok((file, is_stream))
            };
            let (file, is_stream) = open().map_err(failed("read", &path))?;
            Ok(LocalReader { file: Arc::new(file), path, is_stream })
        })
        .await
    }

    async fn extents(&self, file: &LocalReader, size: u64) -> Result<Option<Vec<Range<u64>>>, Error> {
        let file = file.clone();
        blocking(move || extents(&file.file, size).map_err(failed("read", &file.path))).await
    }

    fn is_stream(&self, file: &LocalReader) -> bool {
        file.is_stream
    }

    async fn read(&self, file: &LocalReader, offset: u64, len: usize) -> Result<Views, Error> {
        let mut memory = self
            .arena
            .alloc(len)
            .map_err(|e| failed("read", &file.path)(io::Error::new(io::ErrorKind::OutOfMemory, e)))?;
        let file = file.clone();
        blocking(move || {
            let mut have = 0;
            while have < len {
                let read = match file.is_stream {
                    true => (&*file.file).read(&mut memory[have..]),
                    false => file.file.read_at(&mut memory[have..], offset + have as u64),
                };
                match read {
                    Ok(0) => break,
                    Ok(n) => have += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(failed("read", &file.path)(e)),
                }
            }
            memory.set_len(have);
            Ok(Views::from(memory.freeze()))
        })
        .await
    }

    fn id_space(&self) -> Option<String> {
        Some("the local file system".into())
    }

    fn preferred_record(&self) -> usize {
        RECORD
    }
}

/// Removes an object of the directory that was listed, also if another process has put a link to another one in its place.
fn remove(dir: &Directory<PathBuf>, name: &[u8], kind: FileKind) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(&dir.node, flags, Mode::empty())?);
    let is = opened.metadata()?;
    if dir.id != Some((is.dev(), is.ino())) {
        return Err(io::Error::other("its directory was replaced by another one"));
    }
    let flags = if kind == FileKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match rustix::fs::unlinkat(&opened, name, flags) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

impl Target for LocalTree {
    type Writer = LocalWriter;

    fn kept(&self, meta: &Metadata, preserve: Preserve) -> Metadata {
        kept(meta, preserve)
    }

    async fn remove(&self, dir: &Directory<PathBuf>, name: &[u8], kind: FileKind) -> Result<(), Error> {
        let (path, dir, name) = (in_dir(&dir.node, name)?, dir.clone(), name.to_vec());
        blocking(move || remove(&dir, &name, kind).map_err(failed("remove", &path))).await
    }

    async fn is_mount_point(&self, dir: &PathBuf) -> Result<bool, Error> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let root = StatxAttributes::MOUNT_ROOT; // Linux 5.8; before, only the ID of the file system is known.
        match statx(CWD, dir, flags, StatxFlags::empty()) {
            Ok(stat) => Ok(stat.stx_attributes.contains(root)),
            Err(Errno::NOSYS) => Ok(false),
            Err(e) => Err(failed("remove", dir)(e.into())),
        }
    }

    async fn make_dir(&self, dir: &PathBuf, name: &[u8], mode: u32) -> Result<Directory<PathBuf>, Error> {
        let path = in_dir(dir, name)?;
        match fs::DirBuilder::new().mode(mode).create(&path) {
            Ok(()) => {
                let id = fs::symlink_metadata(&path).ok().map(|m| (m.dev(), m.ino()));
                Ok(Directory { node: path, created: true, id })
            }
            // Not following symbolic links: the server could direct the change to another file.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match fs::symlink_metadata(&path) {
                Ok(m) if m.is_dir() => {
                    Ok(Directory { node: path, created: false, id: Some((m.dev(), m.ino())) })
                }
                _ => Err(Error::NotDirectory),
            },
            Err(e) => Err(failed("make", &path)(e)),
        }
    }

    async fn find(&self, dir: &PathBuf, name: &[u8]) -> Result<Option<Existing<PathBuf>>, Error> {
        let path = in_dir(dir, name)?;
        match fs::symlink_metadata(&path) {
            Ok(m) => Ok(Some(Existing { node: path, meta: (&m).into(), through_link: false })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed("write", &path)(e)),
        }
    }

    async fn open_existing(&self, existing: &Existing<PathBuf>) -> Result<LocalWriter, Error> {
        let existing = existing.clone();
        // Opening a named pipe waits for a process that reads from it.
        blocking(move || open_existing(&existing)).await
    }

    fn is_written_in_order(&self, file: &LocalWriter) -> bool {
        matches!(file.state, WriterState::Stream)
    }

    async fn set_xattrs(&self, file: &LocalWriter, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<bool, Error> {
        match file.state {
            WriterState::Stream => Ok(false),
            _ => xattrs::set(&file.path, &file.file, xattrs),
        }
    }

    async fn set_directory_xattrs(
        &self,
        dir: &PathBuf,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<bool, Error> {
        xattrs::set_directory(dir, xattrs)
    }

    async fn set_size(&self, file: &LocalWriter, size: u64) -> Result<(), Error> {
        file.file.set_len(size).map_err(failed("write", &file.path))
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
        Ok(LocalWriter { file: Arc::new(file), path, state: WriterState::Temporary(temporary) })
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
                let written = match file.state {
                    WriterState::Stream => (&*file.file).write_all(piece),
                    _ => file.file.write_all_at(piece, at),
                };
                written.map_err(failed("write", &file.path))?;
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
        match &file.state {
            WriterState::Temporary(path) => self.open(path).await,
            WriterState::InPlace => self.open(&file.path).await,
            WriterState::Stream => {
                Err(Error::SpecialTarget("a device or pipe, whose data cannot be verified"))
            }
        }
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
            let finished = match &file.state {
                WriterState::Temporary(temporary) => {
                    apply(temporary, &meta, preserve).and_then(|()| fs::rename(temporary, &file.path))
                }
                WriterState::InPlace => apply_in_place(&file.file, &meta, preserve),
                WriterState::Stream => Ok(()),
            };
            finished.map_err(failed("finish", &file.path))
        })
        .await?;
        Ok(at)
    }

    async fn discard(&self, file: &LocalWriter) {
        if let WriterState::Temporary(temporary) = &file.state {
            // This is error cleanup: a further error is ignored.
            drop(fs::remove_file(temporary));
        }
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
