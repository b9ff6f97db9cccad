//! Control socket of a server. A client sends the line `reload`; the server reads its configuration file
//! again and replies with text that begins with `ok ` or `failed `.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::{fs::FileTypeExt, net},
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_cli_common::failure::Failure;
use rustix::{fs::Mode, process::umask};
use tokio::{
    net::{UnixListener, UnixStream},
    time::timeout,
};

/// Time limit of a reload.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The request.
const RELOAD: &[u8] = b"reload\n";
/// Time limit for a client to send its request after it has connected.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of the reply in bytes.
const MAX_REPLY: u64 = 1 << 20;

/// A control socket, removed when it is dropped.
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Listens at `path`, accessible to the user of this process only. Replaces the socket of a server that
    /// has exited.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        let failed = |what: &str| {
            Failure::new(format!("cannot listen at the control socket {}: {what}", path.display()))
        };
        if net::UnixStream::connect(path).is_ok() {
            return Err(failed("another server uses it; stop that server, or set `control` to another path"));
        }
        if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
            fs::remove_file(path).map_err(|e| failed(&e.to_string()))?;
        }
        // The umask restricts access from the creation of the socket. (No other thread creates files yet.)
        let previous = umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        umask(previous);
        let listener = listener
            .map_err(|e| failed(&format!("{e}; its directory must exist and be writable for this user")))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Waits for the next request. Closes connections without one, such as that of [`Control::bind`] in
    /// another process.
    pub(crate) async fn accept_reload(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if timeout(REQUEST_TIMEOUT, requests_reload(&stream))
                        .await
                        .is_ok_and(|requested| requested)
                    {
                        return stream;
                    }
                }
                Err(e) => {
                    tracing::warn!("control socket: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the client sends the request for a reload.
async fn requests_reload(stream: &UnixStream) -> bool {
    let mut request = [0; RELOAD.len()];
    let mut len = 0;
    while len < request.len() && stream.readable().await.is_ok() {
        match stream.try_read(&mut request[len..]) {
            Ok(0) => return false,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    request == RELOAD
}

/// Sends the result of a reload to the client. Ignores a client that does not receive it.
pub(crate) async fn reply(stream: UnixStream, result: &Result<String, String>) {
    let text = match result {
        Ok(done) => format!("ok {done}"),
        Err(why) => format!("failed {why}"),
    };
    // A reply that exceeds the socket's buffer is truncated.
    if stream.writable().await.is_ok() {
        let _ = stream.try_write(text.as_bytes());
    }
}

/// Requests a reload from the server at `path`, and returns its reply.
pub(crate) fn reload(path: &Path) -> Result<String, Failure> {
    let request = || -> io::Result<String> {
        let mut stream = net::UnixStream::connect(path)?;
        stream.set_read_timeout(Some(RELOAD_TIMEOUT))?;
        stream.write_all(RELOAD)?;
        let mut text = String::new();
        stream.take(MAX_REPLY).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = request().map_err(|e| {
        Failure::new(format!(
            "no server answers at {}: {e}; use the path of `control` in its configuration, or send the \
             server SIGHUP",
            path.display()
        ))
    })?;
    match (text.strip_prefix("ok "), text.strip_prefix("failed ")) {
        (Some(done), _) => Ok(done.to_owned()),
        (_, Some(why)) => Err(Failure::new(format!("the server changed nothing: {why}"))),
        _ => Err(Failure::new(format!("{} is not the control socket of a server", path.display()))),
    }
}
