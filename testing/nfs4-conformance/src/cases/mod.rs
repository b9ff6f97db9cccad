//! The cases, by group (`GROUPS`), one file each.
//!
//! `run` executes the cases of one group on a connection to a server. The tests of the crate `server` and the lab call it.

mod attributes;
mod clients;
mod data;
mod delegations;
mod locks;
mod names;
mod objects;
mod opens;
mod protocol;
mod ranges;
mod read_plus;
mod sessions;
mod slots;
mod xattrs;

use crate::{
    compound::Call,
    group::{Group, Row},
};

/// The names of the groups.
pub const GROUPS: [&str; 14] = [
    "protocol",
    "clients",
    "sessions",
    "slots",
    "names",
    "objects",
    "attributes",
    "opens",
    "data",
    "locks",
    "ranges",
    "read_plus",
    "xattrs",
    "delegations",
];

/// Executes the cases of a group in a new directory of `export`, a path such as `/x`, as the superuser. If a result makes
/// other cases impossible, they are missing, and a row has the reason.
///
/// # Panics
/// If there is no such group, or the server refuses its session or its directory.
pub async fn run(c: &impl Call, export: &str, group: &'static str) -> Vec<Row> {
    let mut g = Group::start(c, export, group).await;
    let cases = async |g: &mut Group<'_, _>| match group {
        "protocol" => protocol::run(g).await,
        "clients" => clients::run(g).await,
        "sessions" => sessions::run(g).await,
        "slots" => slots::run(g).await,
        "names" => names::run(g).await,
        "objects" => objects::run(g).await,
        "attributes" => attributes::run(g).await,
        "opens" => opens::run(g).await,
        "data" => data::run(g).await,
        "locks" => locks::run(g).await,
        "ranges" => ranges::run(g).await,
        "read_plus" => read_plus::run(g).await,
        "xattrs" => xattrs::run(g).await,
        "delegations" => delegations::run(g).await,
        other => panic!("there is no group {other}"),
    };
    g.part("the group", cases).await;
    g.finish()
}
