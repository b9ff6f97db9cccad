//! Versions of objects.

use std::hash::Hasher;

use millrace_client::ops::{Attributes, FileHandle};
use siphasher::sip128::{Hasher128, SipHasher13};

/// A version of an object.
#[derive(Debug, Clone, Copy)]
pub struct Version {
    /// The handle of its file.
    pub handle: FileHandle,
    /// The attributes of its file.
    pub attributes: Attributes,
}

impl Version {
    /// The ETag: a hash of the file handle, the modification time and the size, in hexadecimal.
    ///
    /// Each version is another file. A server never uses the handle of a removed file for another one (RFC 1813 section
    /// 2.5, RFC 8881 section 4.2), so the ETag changes even if size and time do not. The number of a file, in contrast,
    /// can be used again.
    pub fn e_tag(&self) -> String {
        // The keys are fixed, because clients compare ETags.
        let mut hasher = SipHasher13::new_with_keys(0, 0);
        hasher.write(self.handle.as_bytes());
        hasher.write(&self.attributes.mtime.seconds.to_be_bytes());
        hasher.write(&self.attributes.mtime.nanoseconds.to_be_bytes());
        hasher.write(&self.attributes.size.to_be_bytes());
        format!("{:032x}", hasher.finish128().as_u128())
    }
}
