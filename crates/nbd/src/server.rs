//! The server: its socket and its connections.

use std::{future::Future, path::Path};

use millrace_block::BlockDevice;

use crate::{Error, Options, socket::Socket};

/// An NBD server for one device on a Unix socket.
///
/// The socket exists from [`Self::bind`] on, and is removed when the server ends or is dropped. Its mode is 0600: only
/// processes of the same user, and root, can connect.
pub struct Server {
    socket: Socket,
    disk: BlockDevice,
    options: Options,
}

impl Server {
    /// Listens on the socket `path`. Replaces the socket of a process that has ended.
    ///
    /// # Errors
    /// Another process listens on the path, there is a file of another kind, or the socket cannot be created.
    pub fn bind(path: impl AsRef<Path>, disk: BlockDevice, options: Options) -> Result<Self, Error> {
        Ok(Self { socket: Socket::bind(path.as_ref())?, disk, options })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// The URI of the export for clients, such as `nbd+unix:///?socket=/run/disk.sock`.
    pub fn uri(&self) -> String {
        let path = self.path().as_os_str().as_encoded_bytes();
        let mut uri = String::from("nbd+unix:///?socket=");
        for byte in path {
            match byte {
                b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(*byte)),
                byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
                byte => uri.push_str(&format!("%{byte:02X}")),
            }
        }
        uri
    }

    /// Serves clients until `shutdown` completes. Then it removes the socket, completes and answers the requests in
    /// progress, closes the connections, and flushes the device, which it does not close.
    ///
    /// # Errors
    /// The flush at the end failed.
    ///
    /// # Panics
    /// Outside of a Tokio runtime with I/O and time.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let Self { socket, disk, options } = self;
        drop((socket, options, shutdown));
        disk.flush().await.map_err(Error::Flush)
    }
}
