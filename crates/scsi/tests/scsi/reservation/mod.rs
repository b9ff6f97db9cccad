//! Persistent reservations and RESERVE(6): encodings, service actions, conflicts, records, and a reference model.

mod common;

mod actions;
mod conflicts;
mod encoding;
mod hostile;
mod model;
mod record;
mod registering;
