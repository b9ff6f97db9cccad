//! FPDUs in the making.

/// The most pieces in one write: the kernel's own limit, IOV_MAX.
pub(super) const MAX_PIECES: usize = 1024;
/// Frames gathered for one write: as many small ones as the gather list holds.
pub(super) const BATCH_FRAMES: usize = MAX_PIECES / 2;
/// A payload up to this long is copied next to its header: a gather entry costs more.
pub(super) const INLINE_BYTES: usize = 192;

/// An FPDU in the making.
#[derive(Debug)]
pub(super) struct Frame {
    /// Bytes in scratch before the gathered payload: length, header, and inlined payload.
    pub(super) head: usize,
    /// Gathered payload.
    pub(super) len: usize,
    /// Bytes in scratch after it: padding and CRC.
    pub(super) tail: usize,
    /// Where in its work's data the gathered payload begins.
    pub(super) start: usize,
    /// Which view of the data that is, and where in the view.
    pub(super) cursor: (usize, usize),
    /// Which work it belongs to, counted from the connection's start.
    pub(super) work: u64,
    /// Whether its work is done with it.
    pub(super) last: bool,
}

impl Frame {
    pub(super) const fn total(&self) -> usize {
        self.head + self.len + self.tail
    }
}
