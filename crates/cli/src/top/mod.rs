//! What a server is doing now, from two looks at its counters.

mod rates;
mod screen;

pub(crate) use rates::{Counters, Order, Rates, Row};
pub(crate) use screen::draw;

/// The groups that are shown, with the label that the counters have for them.
pub(crate) const GROUPS: [&str; 3] = ["client", "export", "procedure"];
