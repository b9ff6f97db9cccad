//! Control socket of a server. A client sends one line, a [`Request`]; the server replies with text that begins with
//! `ok ` or `failed `.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::{fs::FileTypeExt, net},
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_program::failure::Failure;
use rustix::{fs::Mode, process::umask};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use crate::state::StateRequest;

/// Time limit of the server's reply, for the client.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a client to send its request after it has connected, and to receive the reply.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a request in bytes.
const MAX_REQUEST: u64 = 16 << 10;
/// Maximum size of the reply in bytes.
const MAX_REPLY: u64 = 8 << 20;

/// A request to a server: `reload`, or `state ` and a [`StateRequest`] as JSON.
#[derive(Debug)]
pub(crate) enum Request {
    /// The server reads its configuration file again.
    Reload,
    /// The server lists or revokes the state of NFSv4 clients.
    State(StateRequest),
}

impl Request {
    fn parse(line: &str) -> Option<Self> {
        if line == "reload" {
            return Some(Self::Reload);
        }
        serde_json::from_str(line.strip_prefix("state ")?).ok().map(Self::State)
    }

    fn line(&self) -> String {
        match self {
            Self::Reload => "reload\n".into(),
            Self::State(request) => {
                format!("state {}\n", serde_json::to_string(request).unwrap_or_default())
            }
        }
    }
}

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
    pub(crate) async fn accept(&self) -> (UnixStream, Request) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if let Ok(Some(received)) = timeout(CLIENT_TIMEOUT, receive(stream)).await {
                        return received;
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

/// Receives the request of a client.
async fn receive(stream: UnixStream) -> Option<(UnixStream, Request)> {
    let mut reader = BufReader::new(stream.take(MAX_REQUEST));
    let mut line = String::new();
    reader.read_line(&mut line).await.ok()?;
    let request = Request::parse(line.strip_suffix('\n')?)?;
    Some((reader.into_inner().into_inner(), request))
}

/// Sends the result of a request to the client. Ignores a client that does not receive it.
pub(crate) async fn reply(mut stream: UnixStream, result: &Result<String, String>) {
    let text = match result {
        Ok(done) => format!("ok {done}"),
        Err(why) => format!("failed {why}"),
    };
    let _ = timeout(CLIENT_TIMEOUT, stream.write_all(text.as_bytes())).await;
}

/// Sends a request to the server at `path`, and returns the text after `ok `, or the reason of a failure as an error.
pub(crate) fn ask(path: &Path, request: &Request) -> Result<Result<String, String>, Failure> {
    let call = || -> io::Result<String> {
        let mut stream = net::UnixStream::connect(path)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.write_all(request.line().as_bytes())?;
        let mut text = String::new();
        stream.take(MAX_REPLY).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = call().map_err(|e| {
        let signal = if matches!(request, Request::Reload) { ", or send the server SIGHUP" } else { "" };
        Failure::new(format!(
            "no server answers at {}: {e}; use the path of `control` in its configuration{signal}",
            path.display()
        ))
    })?;
    match (text.strip_prefix("ok "), text.strip_prefix("failed ")) {
        (Some(done), _) => Ok(Ok(done.to_owned())),
        (_, Some(why)) => Ok(Err(why.to_owned())),
        _ => Err(Failure::new(format!(
            "{} is not the control socket of a server of this version",
            path.display()
        ))),
    }
}
