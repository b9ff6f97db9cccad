//! Notification of systemd about the state of a service (sd_notify(3)): one datagram for each state.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

/// State: the server is ready.
pub(crate) const READY: &str = "READY=1";
/// State: the server is stopping.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Sends `state` to the service manager's socket NOTIFY_SOCKET, if it is set.
pub(crate) fn set_state(state: &str) {
    if let Some(path) = env::var_os("NOTIFY_SOCKET")
        && let Err(e) = send(path.as_encoded_bytes(), state)
    {
        tracing::warn!("cannot notify the service manager of {state}: {e}");
    }
}

/// Sends a datagram to the socket `name`, which is in the abstract namespace if it begins with `@`.
fn send(name: &[u8], state: &str) -> io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => {
            use std::os::unix::ffi::OsStrExt;
            SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?
        }
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_datagram_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("millrace-test-{}", std::process::id());
        let abstract_one = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, at) in [
            (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
            (UnixDatagram::bind_addr(&abstract_one).unwrap(), format!("@{name}")),
        ] {
            send(at.as_bytes(), READY).unwrap();
            let mut got = [0; 100];
            let n = socket.recv(&mut got).unwrap();
            assert_eq!(&got[..n], b"READY=1");
        }
        assert!(send(dir.path().join("none").to_str().unwrap().as_bytes(), READY).is_err());
    }
}
