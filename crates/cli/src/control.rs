//! The control socket of a server: whoever connects asks it to read its configuration file again, and gets the answer
//! as text, after `ok ` or `failed `.

use std::{
    fs,
    io::{self, Read},
    os::unix::{fs::PermissionsExt, net},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::{UnixListener, UnixStream};

use crate::failure::Failure;

/// How long a server may take for a reload.
const PATIENCE: Duration = Duration::from_secs(60);
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
        let is_socket = fs::symlink_metadata(path).is_ok_and(|m| {
            use std::os::unix::fs::FileTypeExt;
            m.file_type().is_socket()
        });
        if is_socket {
            fs::remove_file(path).map_err(|e| failed(&e.to_string()))?;
        }
        let listener = UnixListener::bind(path)
            .map_err(|e| failed(&format!("{e}; its directory must be there, and this user's")))?;
        let own = fs::set_permissions(path, fs::Permissions::from_mode(0o600));
        own.map_err(|e| failed(&e.to_string()))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// The next who asks.
    pub(crate) async fn asked(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
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
        let stream = net::UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
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
