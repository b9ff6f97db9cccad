//! The directory of a workload: on a server, or local.
//!
//! Every call corresponds to a call of an application. On a server it immediately causes the procedures that
//! it needs: the client library caches no names, attributes or data, so each figure includes the network. In
//! a local directory it is the system call, made by the workload's thread.

use std::{
    fs::{self, OpenOptions, Permissions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::PathBuf,
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_buffer::{Arena, Buffer, Views};
use millrace_client::{
    Error,
    handles::Client,
    ops::{self, CreateHow, FileHandle, SetAttributes, StableHow},
};
use rustix::fs::Access;

use crate::BenchError;

/// Number of calls in flight for a read or write of several calls.
pub(super) const DEPTH: usize = 8;
/// Maximum size of a piece in bytes: of data to write, and of one call on a local file.
const PIECE: usize = 1 << 20;

/// A directory.
#[derive(Clone)]
pub enum Directory {
    /// A directory of a server's export.
    Mount {
        /// The client.
        client: Client,
        /// The directory.
        dir: FileHandle,
    },
    /// A local directory.
    Local {
        /// Memory for data that is read or written.
        arena: Arena,
        /// The directory.
        dir: PathBuf,
    },
}

fn nfs(e: Error) -> BenchError {
    BenchError::Client(e.to_string())
}

impl Directory {
    /// Creates the directory `name` in this one.
    ///
    /// # Errors
    /// The directory exists, or cannot be created.
    pub async fn mkdir(&self, name: &str) -> Result<Self, BenchError> {
        match self {
            Self::Mount { client, dir } => {
                let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
                let made = client.mkdir(*dir, name, attributes).await.map_err(nfs)?;
                Ok(Self::Mount { client: client.clone(), dir: made.handle })
            }
            Self::Local { arena, dir } => {
                let dir = dir.join(name);
                fs::create_dir(&dir).map_err(BenchError::io("create a directory"))?;
                Ok(Self::Local { arena: arena.clone(), dir })
            }
        }
    }

    /// Opens the directory `name` in this one.
    ///
    /// # Errors
    /// The directory does not exist.
    pub async fn enter(&self, name: &str) -> Result<Self, BenchError> {
        match self {
            Self::Mount { client, dir } => {
                let found = client.lookup(*dir, name).await.map_err(nfs)?;
                Ok(Self::Mount { client: client.clone(), dir: found.handle })
            }
            Self::Local { arena, dir } => Ok(Self::Local { arena: arena.clone(), dir: dir.join(name) }),
        }
    }

    /// Opens `name` for reading and writing; creates or truncates it.
    ///
    /// # Errors
    /// The file cannot be created.
    pub async fn create(&self, name: &str) -> Result<Data, BenchError> {
        match self {
            Self::Mount { client, dir } => {
                let how = CreateHow::Unchecked(SetAttributes {
                    mode: Some(0o644),
                    size: Some(0),
                    ..SetAttributes::default()
                });
                let made = client.create(*dir, name, how).await.map_err(nfs)?;
                Ok(Data::Mount(millrace_client::handles::File::new(client.clone(), made.handle)))
            }
            Self::Local { arena, dir } => {
                let mut how = OpenOptions::new();
                how.read(true).write(true).create(true).truncate(true).mode(0o644);
                let file = how.open(dir.join(name)).map_err(BenchError::io("create a file"))?;
                Ok(Data::Local { arena: arena.clone(), file })
            }
        }
    }

    /// Opens the existing file `name` for reading and writing.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub async fn open(&self, name: &str) -> Result<Data, BenchError> {
        match self {
            Self::Mount { client, dir } => {
                let found = client.lookup(*dir, name).await.map_err(nfs)?;
                Ok(Data::Mount(millrace_client::handles::File::new(client.clone(), found.handle)))
            }
            Self::Local { arena, dir } => {
                let mut how = OpenOptions::new();
                let file = how.read(true).write(true).open(dir.join(name));
                Ok(Data::Local { arena: arena.clone(), file: file.map_err(BenchError::io("open a file"))? })
            }
        }
    }

    /// The size of `name`: stat(2), or a LOOKUP.
    ///
    /// # Errors
    /// `name` does not exist.
    pub async fn stat(&self, name: &str) -> Result<u64, BenchError> {
        match self {
            Self::Mount { client, dir } => Ok(client.lookup(*dir, name).await.map_err(nfs)?.attributes.size),
            Self::Local { dir, .. } => {
                let meta = fs::metadata(dir.join(name)).map_err(BenchError::io("stat a file"))?;
                Ok(meta.len())
            }
        }
    }

    /// Checks read and write access to `name`: access(2), or a LOOKUP and an ACCESS.
    ///
    /// # Errors
    /// Access is denied, or `name` does not exist.
    pub async fn access(&self, name: &str) -> Result<(), BenchError> {
        const WANTED: u32 = ops::access::READ | ops::access::MODIFY;
        match self {
            Self::Mount { client, dir } => {
                let object = client.lookup(*dir, name).await.map_err(nfs)?.handle;
                if client.access(object, WANTED).await.map_err(nfs)? == WANTED {
                    return Ok(());
                }
                Err(BenchError::Client(format!("read and write access to {name} is denied")))
            }
            Self::Local { dir, .. } => rustix::fs::access(dir.join(name), Access::READ_OK | Access::WRITE_OK)
                .map_err(|e| BenchError::io("check access to a file")(e.into())),
        }
    }

    /// Sets the permission bits of `name`: chmod(2), or a LOOKUP and a SETATTR.
    ///
    /// # Errors
    /// `name` does not exist, or has another owner.
    pub async fn chmod(&self, name: &str, mode: u32) -> Result<(), BenchError> {
        match self {
            Self::Mount { client, dir } => {
                let object = client.lookup(*dir, name).await.map_err(nfs)?.handle;
                let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                client.setattr(object, attributes, None).await.map(drop).map_err(nfs)
            }
            Self::Local { dir, .. } => fs::set_permissions(dir.join(name), Permissions::from_mode(mode))
                .map_err(BenchError::io("set the mode of a file")),
        }
    }

    /// Lists the names in the directory, without `.` and `..`, in no particular order.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub async fn list(&self) -> Result<Vec<String>, BenchError> {
        match self {
            Self::Mount { client, dir } => {
                let entries = client.readdir(*dir).await.map_err(nfs)?;
                Ok(entries.iter().filter(|e| !e.is_dot()).map(|e| e.name_lossy().into_owned()).collect())
            }
            Self::Local { dir, .. } => fs::read_dir(dir)
                .and_then(|all| all.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect())
                .map_err(BenchError::io("list a directory")),
        }
    }

    /// Creates the hard link `other` to the file `name`.
    ///
    /// # Errors
    /// `name` does not exist, or `other` exists.
    pub async fn link(&self, name: &str, other: &str) -> Result<(), BenchError> {
        match self {
            Self::Mount { client, dir } => {
                let object = client.lookup(*dir, name).await.map_err(nfs)?.handle;
                client.link(object, *dir, other).await.map(drop).map_err(nfs)
            }
            Self::Local { dir, .. } => {
                fs::hard_link(dir.join(name), dir.join(other)).map_err(BenchError::io("link a file"))
            }
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The file does not exist.
    pub async fn remove(&self, name: &str) -> Result<(), BenchError> {
        match self {
            Self::Mount { client, dir } => client.remove(*dir, name).await.map(drop).map_err(nfs),
            Self::Local { dir, .. } => {
                fs::remove_file(dir.join(name)).map_err(BenchError::io("remove a file"))
            }
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The directory does not exist, or is not empty.
    pub async fn rmdir(&self, name: &str) -> Result<(), BenchError> {
        match self {
            Self::Mount { client, dir } => client.rmdir(*dir, name).await.map(drop).map_err(nfs),
            Self::Local { dir, .. } => {
                fs::remove_dir(dir.join(name)).map_err(BenchError::io("remove a directory"))
            }
        }
    }

    /// Removes the directory `name` and its content.
    ///
    /// # Errors
    /// An object cannot be removed.
    pub async fn remove_tree(&self, name: &str) -> Result<(), BenchError> {
        match self {
            Self::Mount { client, dir } => {
                let found = client.lookup(*dir, name).await.map_err(nfs)?.handle;
                empty(client, found).await?;
                client.rmdir(*dir, name).await.map(drop).map_err(nfs)
            }
            Self::Local { dir, .. } => {
                fs::remove_dir_all(dir.join(name)).map_err(BenchError::io("remove a tree"))
            }
        }
    }

    /// Copies `bytes` into memory that can be written several times.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub fn views(&self, bytes: &[u8]) -> Result<Views, BenchError> {
        let arena = self.arena();
        bytes.chunks(PIECE).map(|piece| Ok(arena.copy_from(piece)?)).collect()
    }

    /// Ends the client of a directory on a server.
    pub async fn shutdown(&self) {
        if let Self::Mount { client, .. } = self {
            client.shutdown().await;
        }
    }

    /// The RDMA provider of the connection, for a directory on a server over RDMA.
    pub fn provider(&self) -> Option<&'static str> {
        match self {
            Self::Mount { client, .. } => client.stats().connections.first().and_then(|c| c.provider),
            Self::Local { .. } => None,
        }
    }

    fn arena(&self) -> &Arena {
        match self {
            Self::Mount { client, .. } => client.arena(),
            Self::Local { arena, .. } => arena,
        }
    }
}

/// Removes the content of a directory.
async fn empty(client: &Client, top: FileHandle) -> Result<(), BenchError> {
    // Directories found so far, each with its parent and name; they are removed in reverse order.
    let mut dirs = vec![(top, None)];
    let mut at = 0;
    while let Some((dir, _)) = dirs.get(at) {
        let dir = *dir;
        for entry in client.readdir(dir).await.map_err(nfs)? {
            if entry.is_dot() {
                continue;
            }
            let found = client.lookup(dir, &entry.name).await.map_err(nfs)?;
            if found.attributes.file_type == ops::FileType::Directory {
                dirs.push((found.handle, Some((dir, entry.name))));
            } else {
                client.remove(dir, &entry.name).await.map_err(nfs)?;
            }
        }
        at += 1;
    }
    for (_, parent) in dirs.into_iter().rev() {
        if let Some((dir, name)) = parent {
            client.rmdir(dir, &name).await.map_err(nfs)?;
        }
    }
    Ok(())
}

/// An open file.
pub enum Data {
    /// A file of a server's export.
    Mount(millrace_client::handles::File),
    /// A local file.
    Local {
        /// Memory for data that is read.
        arena: Arena,
        /// The file.
        file: fs::File,
    },
}

impl Data {
    /// Reads `len` bytes from `offset` on with the minimum number of calls. Calls `each` with offset and
    /// content of each piece, in order. Returns the number of bytes, which is less than `len` only at the end
    /// of the file.
    ///
    /// # Errors
    /// A read fails.
    pub async fn read(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, &[u8]),
    ) -> Result<usize, BenchError> {
        match self {
            Self::Mount(file) if len <= file.client().rsize() as usize => {
                let buffer = file.client().buffer(len).map_err(nfs)?;
                let read = file.read_into(offset, buffer).await.map_err(nfs)?;
                each(offset, &read.buffer);
                Ok(read.count)
            }
            Self::Mount(file) => {
                let all = |at: u64, data: Views| {
                    let mut at = at;
                    for view in data.iter() {
                        each(at, view);
                        at += view.len() as u64;
                    }
                };
                let read = file.read_stream(offset, len as u64, DEPTH, all).await.map_err(nfs)?;
                Ok(read as usize)
            }
            Self::Local { arena, file } => {
                let mut done = 0;
                while done < len {
                    let mut buffer: Buffer = arena.alloc((len - done).min(PIECE))?;
                    let at = offset + done as u64;
                    let n = file.read_at(&mut buffer, at).map_err(BenchError::io("read a file"))?;
                    if n == 0 {
                        break;
                    }
                    each(at, buffer.get(..n).unwrap_or_default());
                    done += n;
                }
                Ok(done)
            }
        }
    }

    /// Writes `data` at `offset`, into the server's memory (UNSTABLE) or the page cache.
    ///
    /// # Errors
    /// A write fails.
    pub async fn write(&self, offset: u64, data: &Views) -> Result<(), BenchError> {
        match self {
            Self::Mount(file) => {
                let piece = file.client().wsize() as usize;
                if data.len() <= piece {
                    return file.write_from(offset, data.clone()).await.map_err(nfs);
                }
                let starts = (0..data.len()).step_by(piece);
                stream::iter(starts.map(|at| {
                    let part = data.slice(at, piece.min(data.len() - at));
                    file.write_from(offset + at as u64, part)
                }))
                .buffer_unordered(DEPTH)
                .try_collect()
                .await
                .map_err(nfs)
            }
            Self::Local { file, .. } => write_all_at(file, offset, data),
        }
    }

    /// Writes `data` to stable storage, as with `O_DSYNC`; on a server with as many sequential WRITEs as
    /// needed.
    ///
    /// # Errors
    /// The write fails.
    pub async fn write_stable(&self, offset: u64, data: &Views) -> Result<(), BenchError> {
        match self {
            Self::Mount(file) => {
                let (client, handle) = (file.client(), file.handle());
                let mut done = 0;
                while done < data.len() {
                    let rest = data.slice(done, data.len() - done);
                    let at = offset + done as u64;
                    let part = client.write_from(handle, at, rest, StableHow::DataSync).await;
                    done += part.map_err(nfs)?.count;
                }
                Ok(())
            }
            Self::Local { file, .. } => {
                write_all_at(file, offset, data)?;
                file.sync_data().map_err(BenchError::io("sync a file"))
            }
        }
    }

    /// Makes written data stable: fsync(2), or a COMMIT.
    ///
    /// # Errors
    /// The data cannot be made stable.
    pub async fn commit(&self) -> Result<(), BenchError> {
        match self {
            Self::Mount(file) => file.commit().await.map_err(nfs),
            Self::Local { file, .. } => file.sync_all().map_err(BenchError::io("sync a file")),
        }
    }
}

fn write_all_at(file: &fs::File, offset: u64, data: &Views) -> Result<(), BenchError> {
    let write = |at: u64| -> io::Result<()> {
        let mut at = at;
        for view in data.iter() {
            file.write_all_at(view, at)?;
            at += view.len() as u64;
        }
        Ok(())
    };
    write(offset).map_err(BenchError::io("write a file"))
}
