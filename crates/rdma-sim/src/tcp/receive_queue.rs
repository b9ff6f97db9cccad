//! What an adapter has received, and its host has not taken yet.

use std::collections::VecDeque;

use super::event::Segment;
use crate::event::EndId;

/// A receive queue of an adapter.
#[derive(Default)]
pub(crate) struct ReceiveQueue {
    pub(super) waiting: VecDeque<(EndId, Segment)>,
    /// An interrupt is on its way, or the queue is being emptied.
    pub(super) busy: bool,
}
