//! The providers, and what they have in common.

pub mod iwarp;
pub mod sim;
pub mod verbs;

use std::{future::Future, io, net::SocketAddr, time::Duration};

use millrace_runtime::{Runtime, RuntimeExt, RuntimeRef};

use crate::ConnectionError;

/// Pause after the machine had no file descriptor or memory for a connection.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// What `step` of a set-up gives, if it ends within `limit`.
async fn in_time<T>(
    rt: &dyn Runtime,
    limit: Duration,
    step: impl Future<Output = Result<T, ConnectionError>>,
) -> Result<T, ConnectionError> {
    millrace_runtime::timeout(rt, limit, step).await.unwrap_or(Err(ConnectionError::TimedOut(limit)))
}

/// Whether the machine had no file descriptor or memory for a connection to the listener on `addr`; then after a
/// pause, in which it may get some.
async fn pause_if_exhausted(rt: &RuntimeRef, addr: SocketAddr, error: &io::Error) -> bool {
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    if !error.raw_os_error().is_some_and(|e| exhausted.contains(&e)) {
        return false;
    }
    tracing::warn!(%addr, %error, "cannot accept a connection now");
    rt.sleep(EXHAUSTED_PAUSE).await;
    true
}
