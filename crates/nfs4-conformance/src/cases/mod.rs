//! The cases, by group (`GROUPS`), one file each.
//!
//! `run` executes the cases of one group on a connection to a server. The tests of the crate `server` call
//! it.

mod attributes;
mod clients;
mod data;
mod locks;
mod names;
mod objects;
mod opens;
mod protocol;
mod ranges;
mod sessions;
mod slots;
mod xattrs;

use crate::{
    compound::Call,
    group::{Group, Row},
};

/// The names of the groups.
pub const GROUPS: [&str; 12] = [
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
    "xattrs",
];

/// Executes the cases of a group in a new directory of `export`, a path such as `/x`, as the superuser.
///
/// # Panics
/// If a result makes the next cases impossible.
pub async fn run(c: &impl Call, export: &str, group: &'static str) -> Vec<Row> {
    let mut g = Group::start(c, export, group).await;
    match group {
        "protocol" => protocol::run(&mut g).await,
        "clients" => clients::run(&mut g).await,
        "sessions" => sessions::run(&mut g).await,
        "slots" => slots::run(&mut g).await,
        "names" => names::run(&mut g).await,
        "objects" => objects::run(&mut g).await,
        "attributes" => attributes::run(&mut g).await,
        "opens" => opens::run(&mut g).await,
        "data" => data::run(&mut g).await,
        "locks" => locks::run(&mut g).await,
        "ranges" => ranges::run(&mut g).await,
        "xattrs" => xattrs::run(&mut g).await,
        other => panic!("there is no group {other}"),
    }
    g.finish()
}
