//! Functions that implementations of [`Provider`](crate::Provider) share.

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use millrace_runtime::{Runtime, RuntimeExt, RuntimeRef};

use crate::ConnectionError;

/// Delay before a listener accepts again after it ran out of file descriptors or memory.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Runs the connection set-up `step` for at most `limit`.
///
/// # Errors
/// Those of `step`; [`ConnectionError::TimedOut`] after `limit`.
pub async fn setup_timeout<T>(
    rt: &dyn Runtime,
    limit: Duration,
    step: impl Future<Output = Result<T, ConnectionError>>,
) -> Result<T, ConnectionError> {
    millrace_runtime::timeout(rt, limit, step).await.unwrap_or(Err(ConnectionError::TimedOut(limit)))
}

/// Whether accepting on `addr` failed with `error` because file descriptors or memory are exhausted. If so,
/// waits 100 ms before it returns, so that the caller can accept again.
pub async fn pause_if_exhausted(rt: &RuntimeRef, addr: SocketAddr, error: &io::Error) -> bool {
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    if !error.raw_os_error().is_some_and(|e| exhausted.contains(&e)) {
        return false;
    }
    tracing::warn!(%addr, %error, "cannot accept a connection: out of file descriptors or memory; retrying");
    rt.sleep(EXHAUSTED_PAUSE).await;
    true
}

/// The local address from which packets to `peer` are sent, with port 0. Sends nothing.
///
/// # Errors
/// There is no route to `peer`, or no socket can be created.
pub fn local_address_to(peer: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?; // Connecting a UDP socket sends nothing.
    let mut local = socket.local_addr()?;
    local.set_port(0);
    Ok(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_address_to_loopback_is_loopback() {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert_eq!(local_address_to(loopback(9)).unwrap(), loopback(0));
    }
}
