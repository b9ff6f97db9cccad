//! Current activity of a server, from two samples of its counters.

mod rates;
mod screen;

pub(crate) use rates::{Counters, Order, Rates, Row};
pub(crate) use screen::draw;

/// Groups of rows: the label of the counters by which they are grouped.
pub(crate) const GROUPS: [&str; 4] = ["client", "export", "nfs4_client", "procedure"];

/// The header of the column of names of a group.
pub(crate) fn title(group: &str) -> &str {
    if group == "nfs4_client" { "NFSv4 client" } else { group }
}
