//! The errors of requests.

use std::io::ErrorKind;

use millrace_iscsi_initiator::Error;

use crate::{command::Refusal, wire::Errno};

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    /// The reason as text, which clients with structured replies receive.
    pub(crate) text: String,
}

impl From<Refusal> for Failure {
    fn from(Refusal(errno, text): Refusal) -> Self {
        Self { errno, text: text.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let errno = match error.kind() {
            ErrorKind::StorageFull => Errno::NoSpc,
            ErrorKind::ReadOnlyFilesystem => Errno::Perm,
            ErrorKind::InvalidInput | ErrorKind::Unsupported => Errno::Inval,
            ErrorKind::OutOfMemory => Errno::NoMem,
            ErrorKind::NotConnected => Errno::Shutdown,
            _ => Errno::Io,
        };
        Self { errno, text: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_device_have_an_errno_of_the_protocol() {
        let url = || String::from("iscsi://host/iqn.2026-01.example:disk/0");
        let all = [
            (Error::Closed, Errno::Shutdown),
            (Error::DataLost { url: url() }, Errno::Io),
            (Error::Unsupported { url: url(), what: "discard" }, Errno::Inval),
            (Error::OutOfRange { offset: 0, length: 1, capacity: 0 }, Errno::Inval),
        ];
        for (error, errno) in all {
            let failure = Failure::from(error);
            assert_eq!(failure.errno, errno, "{failure:?}");
        }
    }
}
