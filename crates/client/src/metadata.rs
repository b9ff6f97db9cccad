//! File attributes of the path-level API.

use std::time::{Duration, SystemTime};

use crate::{
    Error, Version,
    ops::{Attributes, FileType, NfsTime, SetTime},
};

/// Attributes of a file system object (`fattr3`, RFC 1813 section 2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(Attributes);

impl From<Attributes> for Metadata {
    fn from(attributes: Attributes) -> Self {
        Self(attributes)
    }
}

impl Metadata {
    /// The type of the object.
    pub fn file_type(&self) -> FileType {
        self.0.file_type
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.file_type == FileType::Regular
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.file_type == FileType::Directory
    }

    /// Whether it is a symbolic link. Only [`crate::Client::symlink_metadata`] and
    /// [`crate::DirEntry::metadata`] return the attributes of a link.
    pub fn is_symlink(&self) -> bool {
        self.0.file_type == FileType::Symlink
    }

    /// The size in bytes.
    // An `is_empty` would refer to the file, not to the Metadata.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// The permission bits: `rwx` for owner, group and others (`0o777`), sticky (`0o1000`), set-group-id
    /// (`0o2000`) and set-user-id (`0o4000`).
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// The user ID of the owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group ID.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// The number of hard links.
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// The file ID: the number of the object in its file system.
    pub fn ino(&self) -> u64 {
        self.0.fileid
    }

    /// The time of the last access.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }

    /// The time of the last change of the data.
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }

    /// The time of the last change of data or attributes (`ctime`).
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.ctime)
    }

    /// The attributes of the protocol.
    pub fn attributes(&self) -> &Attributes {
        &self.0
    }
}

/// Times to set with [`crate::Client::set_times`] and [`crate::File::set_times`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// No times.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time of the last access.
    pub fn set_accessed(mut self, time: SystemTime) -> Self {
        self.accessed = Some(time);
        self
    }

    /// Sets the time of the last change of the data.
    pub fn set_modified(mut self, time: SystemTime) -> Self {
        self.modified = Some(time);
        self
    }

    /// Converts to the access and modification times of SETATTR.
    pub(crate) fn to_nfs(self, version: Version) -> Result<(SetTime, SetTime), Error> {
        Ok((set_time(self.accessed, version)?, set_time(self.modified, version)?))
    }
}

fn set_time(time: Option<SystemTime>, version: Version) -> Result<SetTime, Error> {
    time.map_or(Ok(SetTime::DontChange), |time| Ok(SetTime::ClientTime(nfs_time(time, version)?)))
}

fn system_time(time: NfsTime) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let at = if time.seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    at.and_then(|at| at.checked_add(Duration::from_nanos(time.nanoseconds.into()))).unwrap_or(epoch)
}

/// Converts a time. NFSv3 has 32 bits for the seconds since 1970 (RFC 1813 section 2.5, `nfstime3`).
fn nfs_time(time: SystemTime, version: Version) -> Result<NfsTime, Error> {
    let invalid = |text: &str| Error::InvalidInput(text.into());
    let no_time = || invalid("the time has more than 64 bits for the seconds since 1970");
    let seconds = |d: Duration| i64::try_from(d.as_secs()).map_err(|_| no_time());
    let time = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => NfsTime { seconds: seconds(after)?, nanoseconds: after.subsec_nanos() },
        Err(e) => {
            let (before, nanos) = (seconds(e.duration())?, e.duration().subsec_nanos());
            let (borrowed, nanoseconds) = if nanos == 0 { (0, 0) } else { (1, 1_000_000_000 - nanos) };
            NfsTime { seconds: (-before).checked_sub(borrowed).ok_or_else(no_time)?, nanoseconds }
        }
    };
    if version == Version::V3 && !time.is_in_v3() {
        return Err(invalid("NFSv3 cannot store a time before 1970 or after the year 2106: use vers=4.2"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted_in_both_directions() {
        for nanos in [0, 1, 999_999_999] {
            for seconds in [-315_619_200, -1, 0, 1, 4_294_967_295, 4_294_967_296, 7_258_118_400] {
                let time = NfsTime { seconds, nanoseconds: nanos };
                assert_eq!(nfs_time(system_time(time), Version::V4_1).unwrap(), time);
                assert_eq!(nfs_time(system_time(time), Version::V3).is_ok(), time.is_in_v3(), "{time:?}");
            }
        }
        for seconds in [i64::MIN, i64::MAX] {
            let _ = system_time(NfsTime { seconds, nanoseconds: u32::MAX });
        }
    }
}
