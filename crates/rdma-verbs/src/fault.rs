//! Errors of a connection for completion statuses and failed calls.

use std::io;

use millrace_rdma::ConnectionError;

use super::ffi::verbs::{IBV_WC_LOC_QP_OP_ERR, IBV_WC_WR_FLUSH_ERR};

/// The error of a connection for a work completion with the status `status` (`ibv_wc_status`). `None` for
/// work that was flushed or could not be sent, whose cause is reported elsewhere.
pub(super) fn of_status(status: u32, vendor: u32) -> Option<ConnectionError> {
    let io = |text: &str| Some(ConnectionError::Io(text.into()));
    match status {
        // siw reports IBV_WC_LOC_QP_OP_ERR for unsent work, as after the peer has closed the connection.
        IBV_WC_WR_FLUSH_ERR | IBV_WC_LOC_QP_OP_ERR => None,
        1 => Some(ConnectionError::PeerMisbehaved("a message is longer than its receive".into())),
        4 => Some(ConnectionError::Local("the adapter cannot access the memory of a work request".into())),
        6 => Some(ConnectionError::Local("the adapter cannot bind a memory window".into())),
        9 => Some(ConnectionError::Terminated("the peer rejected a request as invalid".into())),
        10 => Some(ConnectionError::Terminated(
            "the peer denied access to its memory (wrong tag, bounds or rights)".into(),
        )),
        11 => Some(ConnectionError::Terminated("the peer failed to execute a request".into())),
        12 => io("the peer does not respond: it or the network path is down"),
        13 => io("the peer has no receive posted for the message"),
        21 => Some(ConnectionError::Io(format!("the adapter failed (vendor error {vendor:#x})"))),
        other => Some(ConnectionError::Io(format!(
            "the adapter ended the connection (completion status {other}, vendor error {vendor:#x})"
        ))),
    }
}

/// Error for a peer that sends more messages than receives were posted for it on a shared queue.
pub(super) fn too_many_messages() -> ConnectionError {
    ConnectionError::PeerMisbehaved("the peer sent more messages than receives were posted for it".into())
}

/// Error if the adapter flushed work, and neither adapter nor peer report the cause.
pub(super) fn flushed() -> ConnectionError {
    ConnectionError::Io(
        "the adapter ended the connection: the peer violated the protocol, accessed memory without the right to, or has failed".into(),
    )
}

/// Error for a failed call of rdma-core, with a hint.
pub(super) fn of_call(what: &str, e: &io::Error) -> ConnectionError {
    let hint = match e.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => {
            "; the limit of locked memory may be too low: raise it (ulimit -l, or LimitMEMLOCK of the service)"
        }
        Some(libc::EIO) => "; the device was removed or has failed (run `millrace devices` to list devices)",
        Some(libc::EACCES | libc::EPERM) => {
            "; this user has no permission for the device's node in /dev/infiniband"
        }
        Some(libc::ENODEV) => {
            "; no RDMA device has that address, or it was removed (run `millrace devices` to list devices)"
        }
        _ => "",
    };
    ConnectionError::Local(format!("cannot {what}: {e}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_a_remedy() {
        let text = |errno| of_call("do it", &io::Error::from_raw_os_error(errno)).to_string();
        assert!(text(libc::ENOMEM).contains("ulimit -l"));
        assert!(text(libc::EIO).contains("removed"));
        assert!(text(libc::EPERM).contains("/dev/infiniband"));
    }

    #[test]
    fn flushed_work_is_not_reported_as_the_cause() {
        assert!(of_status(IBV_WC_WR_FLUSH_ERR, 0).is_none());
        assert!(of_status(IBV_WC_LOC_QP_OP_ERR, 0).is_none());
        assert!(matches!(of_status(10, 0), Some(ConnectionError::Terminated(_))));
        assert!(matches!(of_status(99, 7), Some(ConnectionError::Io(t)) if t.contains("99")));
    }
}
