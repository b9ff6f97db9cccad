//! Current activity of a server, for `millrace top`.
//!
//! `Counters` is a sample of the server's counters, `Rates` the difference of two samples per second, `History` the
//! last of those, and `draw` shows them in the terminal.

mod history;
mod rates;
mod screen;

pub(crate) use history::History;
pub(crate) use rates::{Counters, Order, Rates, Row};
pub(crate) use screen::draw;

/// Groups of rows: the label of the counters by which they are grouped.
pub(crate) const GROUPS: [&str; 4] = ["client", "export", "nfs4_client", "procedure"];

/// The header of the column of names of a group.
pub(crate) fn title(group: &str) -> &str {
    if group == "nfs4_client" { "NFSv4 client" } else { group }
}
