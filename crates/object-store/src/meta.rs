//! Metadata of objects.

use chrono::{DateTime, Utc};
use millrace_client::ops::Attributes;
use millrace_objects::Version;
use object_store::{ObjectMeta, path::Path};

/// The metadata of the object at `location` with these attributes; without an ETag if the version is not known.
pub(crate) fn of(location: Path, version: Option<&Version>, attributes: &Attributes) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: last_modified(attributes),
        size: attributes.size,
        e_tag: version.map(Version::e_tag),
        version: None,
    }
}

fn last_modified(attributes: &Attributes) -> DateTime<Utc> {
    let (seconds, nanoseconds) = (attributes.mtime.seconds, attributes.mtime.nanoseconds);
    // A server may send more than 10^9 nanoseconds.
    DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_default()
}
