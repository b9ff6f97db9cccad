//! Errors of decoding.

/// Why a message is not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends within a field.
    #[error("the message is too short")]
    Short,
    /// The length in the header is not that of the message.
    #[error("the message has {received} bytes, but its header says {stated}")]
    Length {
        /// Length in the header, in bytes.
        stated: u32,
        /// Length of the message, in bytes.
        received: usize,
    },
    /// A string has no NUL byte at its end.
    #[error("a string does not end")]
    NoNul,
    /// The name of a directory entry is empty.
    #[error("a name is empty")]
    NoName,
}
