//! The socket on which a server listens.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, fchmod},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with},
};

use crate::Error;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The file of a listening socket, which only the user of this process can access. It is removed when this is dropped.
pub(crate) struct SocketFile {
    pub(crate) path: PathBuf,
    /// Device and inode number.
    file: (u64, u64),
}

impl SocketFile {
    /// Listens on `path`. Replaces the socket of a process that has ended.
    pub(crate) fn bind(path: &Path) -> Result<(Self, UnixListener), Error> {
        let failed = |e: Errno| Error::Bind { path: path.to_owned(), source: e.into() };
        let address = SocketAddrUnix::new(path).map_err(|_| failed(Errno::INVAL))?;
        let new = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        };
        let socket = new().map_err(failed)?;
        // Linux creates the file with the mode of the socket, so that at no time another user can connect.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                let kind = fs::symlink_metadata(path).map(|file| file.file_type());
                if kind.is_ok_and(|kind| !kind.is_socket()) {
                    return Err(Error::NotASocket { path: path.to_owned() });
                }
                // A listening socket with a full backlog causes EAGAIN.
                match connect(&new().map_err(failed)?, &address) {
                    Err(Errno::CONNREFUSED | Errno::NOENT) => {}
                    Ok(()) | Err(Errno::AGAIN) => return Err(Error::InUse { path: path.to_owned() }),
                    Err(e) => return Err(failed(e)),
                }
                remove(path).map_err(|e| Error::Bind { path: path.to_owned(), source: e })?;
                bind(&socket, &address)
            }
            done => done,
        }
        .map_err(failed)?;
        listen(&socket, BACKLOG).map_err(failed)?;
        let file = identity(path).map_err(|source| Error::Bind { path: path.to_owned(), source })?;
        Ok((Self { path: path.to_owned(), file }, socket.into()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have replaced the file.
        if identity(&self.path).is_ok_and(|file| file == self.file)
            && let Err(e) = remove(&self.path)
        {
            tracing::warn!("cannot remove the socket {}: {e}", self.path.display());
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_socket_is_private_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let socket = SocketFile::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_socket_is_refused_and_a_stale_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file");
        let socket = SocketFile::bind(&path).unwrap();
        let error = SocketFile::bind(&path).err().unwrap();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        UnixStream::connect(&path).unwrap();
        drop(socket);
        fs::write(&path, "data").unwrap();
        assert!(matches!(SocketFile::bind(&path).err().unwrap(), Error::NotASocket { .. }));
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn the_socket_of_another_process_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let socket = SocketFile::bind(&path).unwrap();
        // The inode number of a removed file may be used again.
        fs::rename(&path, dir.path().join("renamed.sock")).unwrap();
        fs::write(&path, "data").unwrap();
        drop(socket);
        assert!(path.exists());
    }

    #[test]
    fn errors_name_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(120));
        assert!(SocketFile::bind(&long).err().unwrap().to_string().contains("at most 107 bytes"));
        let missing = dir.path().join("missing/disk.sock");
        assert!(SocketFile::bind(&missing).err().unwrap().to_string().contains("create its directory"));
    }
}
