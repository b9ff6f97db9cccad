//! Current activity of a server, from two samples of its counters.

mod rates;
mod screen;

pub(crate) use rates::{Counters, Order, Rates, Row};
pub(crate) use screen::draw;

/// Groups of rows: the label of the counters by which they are grouped.
pub(crate) const GROUPS: [&str; 3] = ["client", "export", "procedure"];
