//! Metadata of objects.

use std::hash::Hasher;

use chrono::{DateTime, Utc};
use millrace_client::nfs::v3::{Fattr, FileHandle};
use object_store::{ObjectMeta, path::Path};
use siphasher::sip128::{Hasher128, SipHasher13};

/// The metadata of the object at `location` with these attributes.
pub(crate) fn of(location: Path, handle: Option<FileHandle>, attributes: &Fattr) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: last_modified(attributes),
        size: attributes.size,
        e_tag: handle.map(|handle| e_tag(handle, attributes)),
        version: None,
    }
}

fn last_modified(attributes: &Fattr) -> DateTime<Utc> {
    let (seconds, nanoseconds) = (attributes.mtime.seconds.into(), attributes.mtime.nanoseconds);
    // A server may send more than 10^9 nanoseconds.
    DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_default()
}

/// The ETag: a hash of the file handle, the modification time and the size.
///
/// Each put creates another file. A server never uses the handle of a removed file for another one (RFC 1813 section
/// 2.5, RFC 8881 section 4.2), so the ETag changes even if size and time do not; the number of a file can be used again.
pub(crate) fn e_tag(handle: FileHandle, attributes: &Fattr) -> String {
    // The keys are fixed, because clients compare ETags.
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(handle.as_bytes());
    hasher.write_u32(attributes.mtime.seconds.to_be());
    hasher.write_u32(attributes.mtime.nanoseconds.to_be());
    hasher.write_u64(attributes.size.to_be());
    format!("{:032x}", hasher.finish128().as_u128())
}
