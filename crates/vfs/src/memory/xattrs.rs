//! The extended attributes of an object.

use std::collections::BTreeMap;

/// Heap memory of the map of an object's extended attributes, which is allocated with the first one.
pub(super) const XATTRS_BYTES: u64 = 512;
/// Heap memory of an extended attribute without the bytes of its name and value: both allocations, and an entry in the
/// map.
const XATTR_BYTES: u64 = 192;

/// Charge of an extended attribute.
pub(super) fn xattr_bytes(name: &[u8], value: &[u8]) -> u64 {
    XATTR_BYTES + (name.len() + value.len()) as u64
}

/// The attributes of an object that has some, by name.
#[derive(Default)]
pub(super) struct Xattrs(BTreeMap<Box<[u8]>, Box<[u8]>>);

impl Xattrs {
    pub(super) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.get(name).map(|value| &**value)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.keys().map(|name| &**name)
    }

    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        self.0.insert(name.into(), value.into());
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Box<[u8]>> {
        self.0.remove(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Charge of all attributes.
    pub(super) fn bytes(&self) -> u64 {
        XATTRS_BYTES + self.0.iter().map(|(name, value)| xattr_bytes(name, value)).sum::<u64>()
    }

    /// Bytes of the list of names, with a terminator for each, as listxattr(2) counts them.
    pub(super) fn list_bytes(&self) -> usize {
        self.names().map(|name| name.len() + 1).sum()
    }
}
