//! FPDUs that are queued for sending.

/// Maximum number of pieces in one write: IOV_MAX of the kernel.
pub(super) const MAX_PIECES: usize = 1024;
/// Maximum number of frames per write, so that small ones fill the gather list.
pub(super) const BATCH_FRAMES: usize = MAX_PIECES / 2;
/// Maximum length of a payload that is copied next to its header, because a gather entry would cost more.
pub(super) const INLINE_BYTES: usize = 192;

/// An FPDU that is queued for sending.
#[derive(Debug)]
pub(super) struct Frame {
    /// Bytes in scratch before the gathered payload: length, header, and inlined payload.
    pub(super) head: usize,
    /// Length of the gathered payload.
    pub(super) len: usize,
    /// Bytes in scratch after the payload: padding and CRC.
    pub(super) tail: usize,
    /// Position in the work's data at which the gathered payload begins.
    pub(super) start: usize,
    /// The same position, as the index of a view and the offset in that view.
    pub(super) cursor: (usize, usize),
    /// Number of the work to which the frame belongs, counted from the start of the connection.
    pub(super) work: u64,
    /// Whether it is the last frame of its work.
    pub(super) last: bool,
}

impl Frame {
    pub(super) const fn total(&self) -> usize {
        self.head + self.len + self.tail
    }
}
