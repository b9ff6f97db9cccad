//! Commands and replies for an initiator.
