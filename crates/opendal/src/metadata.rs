//! Metadata of files and directories.

use millrace_client::{FileType, ops::Attributes};
use millrace_objects::Version;
use opendal_core::{Metadata, MetadataBuilder, raw::Timestamp};

/// The metadata of a file or directory with these attributes.
pub(crate) fn of(attributes: &Attributes) -> Metadata {
    builder(attributes).build()
}

/// The metadata of a version of a file, with its ETag.
pub(crate) fn of_version(version: &Version) -> Metadata {
    let mut metadata = builder(&version.attributes);
    metadata.etag(version.e_tag());
    metadata.build()
}

fn builder(attributes: &Attributes) -> MetadataBuilder {
    let mut metadata = match attributes.file_type {
        FileType::Directory => MetadataBuilder::dir(),
        _ => MetadataBuilder::file(attributes.size),
    };
    let (seconds, nanoseconds) = (attributes.mtime.seconds, attributes.mtime.nanoseconds);
    // A server may send more than 10^9 nanoseconds.
    if let Ok(time) = Timestamp::new(seconds, i32::try_from(nanoseconds).unwrap_or(0)) {
        metadata.last_modified(time);
    }
    metadata
}
