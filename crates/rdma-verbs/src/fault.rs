//! What the adapter's reports mean for a connection.

use std::io;

use millrace_rdma::ConnectionError;

use super::ffi::verbs::{IBV_WC_LOC_QP_OP_ERR, IBV_WC_WR_FLUSH_ERR};

/// Why a connection ends whose work was completed with the status `status` (`ibv_wc_status`); `None` for work that was
/// merely flushed, or could not be sent: the reason is somewhere else.
pub(super) fn of_status(status: u32, vendor: u32) -> Option<ConnectionError> {
    let io = |text: &str| Some(ConnectionError::Io(text.into()));
    match status {
        // With the second, siw completes what it could not send, as after the peer has closed the connection.
        IBV_WC_WR_FLUSH_ERR | IBV_WC_LOC_QP_OP_ERR => None,
        1 => Some(ConnectionError::PeerMisbehaved("its message is longer than the receive for it".into())),
        4 => Some(ConnectionError::Local("the adapter may not use the memory of a work request".into())),
        6 => Some(ConnectionError::Local("the adapter refused to bind a memory window".into())),
        9 => Some(ConnectionError::Terminated("it refused a request as invalid".into())),
        10 => Some(ConnectionError::Terminated(
            "it refused access to its memory (tag, bounds or rights are wrong)".into(),
        )),
        11 => Some(ConnectionError::Terminated("it could not carry out a request".into())),
        12 => io("the peer does not answer: it or the way to it is down"),
        13 => io("the peer has no receive posted for our message"),
        21 => Some(ConnectionError::Io(format!("the adapter failed (vendor error {vendor:#x})"))),
        other => Some(ConnectionError::Io(format!(
            "the adapter ended the connection (completion status {other}, vendor error {vendor:#x})"
        ))),
    }
}

/// Of a shared receive queue a peer may use no more than was posted for it.
pub(super) fn too_many_messages() -> ConnectionError {
    ConnectionError::PeerMisbehaved("it sent more messages than there were receives for".into())
}

/// The adapter flushed our work, and neither it nor the peer says why.
pub(super) fn flushed() -> ConnectionError {
    ConnectionError::Io(
        "the adapter ended the connection: the peer broke the protocol, used memory that it may not, or is gone".into(),
    )
}

/// A call of rdma-core failed.
pub(super) fn of_call(what: &str, e: &io::Error) -> ConnectionError {
    let hint = match e.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => {
            "; the limit of locked memory may be too low (ulimit -l, LimitMEMLOCK of the service): raise it"
        }
        Some(libc::EIO) => {
            "; the device was removed or has failed (`millrace devices` lists those that are there)"
        }
        Some(libc::EACCES | libc::EPERM) => "; this user may not use the device's node in /dev/infiniband",
        Some(libc::ENODEV) => {
            "; no RDMA device has that address, or it was removed (`millrace devices` lists them)"
        }
        _ => "",
    };
    ConnectionError::Local(format!("cannot {what}: {e}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_a_person_can_do() {
        let text = |errno| of_call("do it", &io::Error::from_raw_os_error(errno)).to_string();
        assert!(text(libc::ENOMEM).contains("ulimit -l"));
        assert!(text(libc::EIO).contains("removed"));
        assert!(text(libc::EPERM).contains("/dev/infiniband"));
    }

    #[test]
    fn flushed_work_is_not_the_reason_of_an_end() {
        assert!(of_status(IBV_WC_WR_FLUSH_ERR, 0).is_none());
        assert!(of_status(IBV_WC_LOC_QP_OP_ERR, 0).is_none());
        assert!(matches!(of_status(10, 0), Some(ConnectionError::Terminated(_))));
        assert!(matches!(of_status(99, 7), Some(ConnectionError::Io(t)) if t.contains("99")));
    }
}
