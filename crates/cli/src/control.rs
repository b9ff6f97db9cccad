//! The control socket of a server: whoever sends the line `reload` asks it to read its configuration file again, and gets
//! the answer as text, after `ok ` or `failed `.

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

/// How long a server may take for a reload.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is asked.
const RELOAD: &[u8] = b"reload\n";
/// How long who connects may take to ask.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// The longest answer.
const MAX_ANSWER: u64 = 1 << 20;

/// A control socket, removed when it is dropped.
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Listens at `path`, for this process' user only. What a server that is gone left there is replaced.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        let failed = |what: &str| {
            Failure::new(format!("cannot listen at the control socket {}: {what}", path.display()))
        };
        if net::UnixStream::connect(path).is_ok() {
            return Err(failed("another server does; stop it, or give `control` another path"));
        }
        if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
            fs::remove_file(path).map_err(|e| failed(&e.to_string()))?;
        }
        // Nobody else may connect, from the first moment on. (The server's threads, which make files, come later.)
        let usual = umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        umask(usual);
        let listener =
            listener.map_err(|e| failed(&format!("{e}; its directory must be there, and this user's")))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// The next who asks. Who connects and asks nothing, as a server does that looks whether another is there, is let go.
    pub(crate) async fn asked(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if timeout(ASK_LIMIT, asks(&stream)).await.is_ok_and(|asks| asks) {
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

/// Whether a reload is asked for.
async fn asks(stream: &UnixStream) -> bool {
    let mut said = [0; RELOAD.len()];
    let mut len = 0;
    while len < said.len() && stream.readable().await.is_ok() {
        match stream.try_read(&mut said[len..]) {
            Ok(0) => return false,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    said == RELOAD
}

/// Tells who asked what came of it; one who does not listen is let go.
pub(crate) async fn answer(stream: UnixStream, result: &Result<String, String>) {
    let text = match result {
        Ok(done) => format!("ok {done}"),
        Err(why) => format!("failed {why}"),
    };
    // An answer fits into the socket's buffer; if not, it is cut off.
    if stream.writable().await.is_ok() {
        let _ = stream.try_write(text.as_bytes());
    }
}

/// Has the server at `path` read its configuration again, and gives its answer.
pub(crate) fn reload(path: &Path) -> Result<String, Failure> {
    let ask = || -> io::Result<String> {
        let mut stream = net::UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(RELOAD)?;
        let mut text = String::new();
        stream.take(MAX_ANSWER).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = ask().map_err(|e| {
        Failure::new(format!(
            "no server answers at {}: {e}; name the socket that `control` in its configuration says, or send the \
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
