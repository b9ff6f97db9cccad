//! Why a command ends without GOOD status.

use millrace_runtime::MaybeReady;
use millrace_vfs::FsError;

use crate::sense::{AdditionalSense, Sense, SenseKey, Status};

/// The end of a command without GOOD status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// CHECK CONDITION with this sense data.
    Check(Sense),
    /// Another status, without sense data.
    Status(Status),
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

/// Result of a part of a command.
pub(crate) type Outcome<T> = Result<T, Failure>;
/// Result of a part of a command that may wait.
pub(crate) type Step<T> = MaybeReady<'static, Outcome<T>>;

/// The access in which a file system error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Failure {
    /// The failure for an error of the file system.
    pub(crate) fn of_file(error: FsError, direction: Direction) -> Self {
        let (key, additional) = match (error, direction) {
            (FsError::Jukebox, _) => return Self::Status(Status::Busy),
            (FsError::Stale | FsError::BadHandle | FsError::NoEnt | FsError::NxIo | FsError::NoDev, _) => {
                (SenseKey::NotReady, AdditionalSense::NOT_READY)
            }
            (FsError::NoSpc | FsError::DQuot | FsError::FBig, _) => {
                (SenseKey::DataProtect, AdditionalSense::SPACE_ALLOCATION_FAILED)
            }
            (FsError::RoFs | FsError::Access | FsError::Perm, Direction::Write) => {
                (SenseKey::DataProtect, AdditionalSense::WRITE_PROTECTED)
            }
            (FsError::ServerFault, _) => (SenseKey::HardwareError, AdditionalSense::INTERNAL_FAILURE),
            (_, Direction::Read) => (SenseKey::MediumError, AdditionalSense::READ_ERROR),
            (_, Direction::Write) => (SenseKey::MediumError, AdditionalSense::WRITE_ERROR),
        };
        Self::Check(Sense::new(key, additional))
    }
}
