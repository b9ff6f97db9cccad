//! The server: its socket and its connections.

use std::{future::Future, os::unix::net, path::Path, pin::pin, time::Duration};

use futures::future::{Either, select};
use millrace_iscsi_initiator::BlockDevice;
use millrace_runtime::tokio_rt::{TokioRuntime, UnixByteStream};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{ConnectionError, Error, Export, Options, socket::SocketFile};

/// Time that connections have to end when the server does: a client may not receive its replies.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted: the process may have no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An NBD server for one device on a Unix socket.
///
/// The socket exists from [`Self::bind`] on, and is removed when the server ends or is dropped. Its mode is 0600: only
/// processes of the same user, and root, can connect.
pub struct Server {
    file: SocketFile,
    listener: net::UnixListener,
    disk: BlockDevice,
    options: Options,
}

impl Server {
    /// Listens on the socket `path`. Replaces the socket of a process that has ended.
    ///
    /// # Errors
    /// Another process listens on the path, there is a file of another kind, or the socket cannot be created.
    pub fn bind(path: impl AsRef<Path>, disk: BlockDevice, options: Options) -> Result<Self, Error> {
        let (file, listener) = SocketFile::bind(path.as_ref())?;
        Ok(Self { file, listener, disk, options })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.file.path
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
        let Self { file, listener, disk, options } = self;
        let listener = UnixListener::from_std(listener)
            .map_err(|source| Error::Bind { path: file.path.clone(), source })?;
        let export = Export::new(disk.clone(), TokioRuntime::current(), &options);
        let (stop, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        {
            let mut shutdown = pin!(shutdown);
            loop {
                let stream = match select(pin!(accept(&listener)), shutdown.as_mut()).await {
                    Either::Left((stream, _)) => stream,
                    Either::Right(_) => break,
                };
                while connections.try_join_next().is_some() {}
                if connections.len() >= options.connections {
                    tracing::warn!("refused an NBD client: there are {} connections", connections.len());
                    continue;
                }
                connections.spawn(serve_client(export.clone(), stream, stopped.clone()));
            }
        }
        drop((file, listener, stop));
        let ended = async { while connections.join_next().await.is_some() {} };
        if timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("{} NBD clients did not receive their replies in time", connections.len());
            connections.abort_all();
        }
        disk.flush().await.map_err(Error::Flush)
    }
}

/// The next connection.
async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(e) => {
                tracing::warn!("cannot accept an NBD connection: {e}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a client until it disconnects, or the sender of `stopped` is dropped.
async fn serve_client(export: Export, stream: UnixStream, mut stopped: watch::Receiver<()>) {
    let stop = async { while stopped.changed().await.is_ok() {} };
    let stream = Box::new(UnixByteStream::from(stream));
    match export.serve(stream, stop).await {
        Ok(()) => {}
        Err(e @ ConnectionError::Stream(_)) => tracing::debug!("NBD client: {e}"),
        Err(e) => tracing::warn!("closed an NBD connection: {e}"),
    }
}
