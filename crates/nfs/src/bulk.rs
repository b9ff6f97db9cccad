//! Bulk data in results.

/// The bulk data of a result, as a call requests it. A server limits it further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bulk {
    /// Up to this many bytes of a file.
    Data(u32),
    /// Up to this many bytes of a list: entries of a directory, or names of extended attributes.
    List(u32),
    /// The target of a symbolic link.
    Target,
    /// The value of an extended attribute.
    Value,
}
