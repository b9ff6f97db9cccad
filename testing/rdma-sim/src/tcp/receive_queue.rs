//! Receive queues of an adapter.

use std::collections::VecDeque;

use super::event::Segment;
use crate::event::EndId;

/// Segments that the adapter has received and the host has not processed.
#[derive(Default)]
pub(crate) struct ReceiveQueue {
    pub(super) waiting: VecDeque<(EndId, Segment)>,
    /// Whether an interrupt is pending or the queue is being emptied.
    pub(super) busy: bool,
}
