//! The files of this machine.

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
use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid};

use super::tree::{
    Entry, Keep, Kind, Meta, Source, Stamp, Target, Time, is_safe_name, random, temporary_name,
};
use crate::problem::Problem;

/// The most bytes that one read or write has.
const RECORD: usize = 1 << 20;

/// The bits that make a program run as its owner or group.
const SET_ID: u32 = 0o6000;

/// The files of this machine, by path.
#[derive(Clone)]
pub(crate) struct LocalTree {
    arena: Arena,
}

/// A file that is open for reading.
pub(crate) type LocalReader = Arc<(File, PathBuf)>;

/// A file that is being written.
#[derive(Clone)]
pub(crate) struct LocalWriter {
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
    /// Data is read into memory of `arena`.
    pub(crate) fn new(arena: Arena) -> Self {
        Self { arena }
    }
}

/// Runs `work`, which may wait for a disk, where it holds nobody up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(Problem::new("the program is ending")))
}

fn failed<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Problem + 'a {
    move |e| Problem::local(what, path, &e)
}

/// Attributes of `path` itself (a symbolic link is not followed).
pub(crate) fn meta_of(path: &Path) -> io::Result<Meta> {
    fs::symlink_metadata(path).map(|m| to_meta(&m))
}

/// Attributes of `path`, or with `follow` of what it links to.
pub(crate) fn local_meta(path: &Path, follow: bool) -> io::Result<Meta> {
    if follow { fs::metadata(path).map(|m| to_meta(&m)) } else { meta_of(path) }
}

/// Attributes from what the machine says.
pub(crate) fn to_meta(m: &fs::Metadata) -> Meta {
    let time = |seconds, nanos: i64| Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
    let t = m.file_type();
    Meta {
        kind: match (t.is_file(), t.is_dir(), t.is_symlink()) {
            (true, ..) => Kind::File,
            (_, true, _) => Kind::Directory,
            (.., true) => Kind::Symlink,
            _ => Kind::Special,
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

/// Sets owner, then mode (which a change of owner may reset), then times, without following a link.
fn apply(path: &Path, meta: &Meta, keep: Keep) -> io::Result<()> {
    if keep.owner {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if meta.kind != Kind::Symlink {
        // The set-id bits lend the owner's rights. That owner is not kept: they would lend ours, by a server's word.
        let mode = if meta.kind == Kind::File && !keep.owner { meta.mode & !SET_ID } else { meta.mode };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let spec = |t: Time| Timespec { tv_sec: t.seconds, tv_nsec: t.nanos.into() };
    let times = Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

fn in_dir(dir: &Path, name: &[u8]) -> Result<PathBuf, Problem> {
    if !is_safe_name(name) {
        return Err(Problem::new(format!(
            "the server gave a name that is not one: {:?}",
            String::from_utf8_lossy(name)
        )));
    }
    Ok(dir.join(OsStr::from_bytes(name)))
}

fn list(dir: &Path) -> io::Result<Vec<Entry<PathBuf>>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = match entry.metadata() {
            Ok(m) => to_meta(&m),
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // Removed meanwhile.
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

    async fn list(&self, dir: &PathBuf) -> Result<Vec<Entry<PathBuf>>, Problem> {
        let dir = dir.clone();
        blocking(move || list(&dir).map_err(failed("list", &dir))).await
    }

    async fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>, Problem> {
        let text = fs::read_link(link).map_err(failed("read", link))?;
        Ok(text.into_os_string().into_vec())
    }

    async fn open(&self, file: &PathBuf) -> Result<LocalReader, Problem> {
        let f = File::open(file).map_err(failed("read", file))?;
        Ok(Arc::new((f, file.clone())))
    }

    async fn read(&self, file: &LocalReader, offset: u64, len: usize) -> Result<Views, Problem> {
        let mut memory = self.arena.alloc(len).map_err(|e| Problem::new(e.to_string()))?;
        let file = Arc::clone(file);
        blocking(move || {
            let mut have = 0;
            while have < len {
                match file.0.read_at(&mut memory[have..], offset + have as u64) {
                    Ok(0) => break,
                    Ok(n) => have += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(Problem::local("read", &file.1, &e)),
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

    async fn make_dir(&self, dir: &PathBuf, name: &[u8]) -> Result<PathBuf, Problem> {
        let path = in_dir(dir, name)?;
        match fs::create_dir(&path) {
            Ok(()) => Ok(path),
            // A symbolic link is not followed: a server could have given it to lead us elsewhere.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match meta_of(&path) {
                Ok(m) if m.kind == Kind::Directory => Ok(path),
                _ => Err(Problem::new(format!("{} is in the way and is not a directory", path.display()))),
            },
            Err(e) => Err(Problem::local("make", &path, &e)),
        }
    }

    async fn create(&self, dir: &PathBuf, name: &[u8]) -> Result<LocalWriter, Problem> {
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
    ) -> Result<Stamp, Problem> {
        let file = file.clone();
        blocking(move || {
            let mut at = offset;
            for piece in &data {
                file.file.write_all_at(piece, at).map_err(failed("write", &file.path))?;
                at += piece.len() as u64;
            }
            Ok(Stamp { stable: true, verifier: [0; 8] })
        })
        .await
    }

    async fn commit(&self, _file: &LocalWriter) -> Result<[u8; 8], Problem> {
        Ok([0; 8])
    }

    async fn read_back(&self, file: &LocalWriter) -> Result<LocalReader, Problem> {
        self.open(&file.temporary).await
    }

    async fn publish(&self, file: &LocalWriter, meta: &Meta, keep: Keep) -> Result<PathBuf, Problem> {
        let file = file.clone();
        let (meta, at) = (*meta, file.path.clone());
        blocking(move || {
            apply(&file.temporary, &meta, keep)
                .and_then(|()| fs::rename(&file.temporary, &file.path))
                .map_err(failed("finish", &file.path))
        })
        .await?;
        Ok(at)
    }

    async fn discard(&self, file: &LocalWriter) {
        // Nothing is left to tell anybody if this fails too.
        drop(fs::remove_file(&file.temporary));
    }

    async fn symlink(
        &self,
        dir: &PathBuf,
        name: &[u8],
        text: &[u8],
        meta: &Meta,
        keep: Keep,
    ) -> Result<(), Problem> {
        let path = in_dir(dir, name)?;
        let temporary = in_dir(dir, &temporary_name(name, random()))?;
        std::os::unix::fs::symlink(OsStr::from_bytes(text), &temporary).map_err(failed("link", &path))?;
        // Not every file system keeps attributes of links; the link is what counts.
        drop(apply(&temporary, meta, keep));
        fs::rename(&temporary, &path).map_err(|e| {
            drop(fs::remove_file(&temporary));
            Problem::local("link", &path, &e)
        })
    }

    async fn link(&self, file: &PathBuf, dir: &PathBuf, name: &[u8]) -> Result<(), Problem> {
        let path = in_dir(dir, name)?;
        match fs::hard_link(file, &path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let temporary = in_dir(dir, &temporary_name(name, random()))?;
                fs::hard_link(file, &temporary).map_err(failed("link", &path))?;
                let renamed = fs::rename(&temporary, &path).map_err(failed("link", &path));
                // Renaming one name of a file over another does nothing and leaves both.
                drop(fs::remove_file(&temporary));
                renamed
            }
            other => other.map_err(failed("link", &path)),
        }
    }

    async fn set_meta(&self, node: &PathBuf, meta: &Meta, keep: Keep) -> Result<(), Problem> {
        apply(node, meta, keep).map_err(failed("set the attributes of", node))
    }
}
