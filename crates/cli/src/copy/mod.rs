//! The copy engine: a tree to a tree, whichever side is local.
//!
//! One task walks the source and makes directories; each file is a task of its own, `parallel` of them at a time
//! (`file`); each keeps several records in flight (`data`), up to a budget of all files together. Data stays in
//! arena memory from the read to the write and is not copied between.

mod data;
mod file;
mod local;
mod progress;
mod remote;
mod report;
mod tree;
mod walk;

#[cfg(test)]
mod tests;

pub(crate) use local::{LocalReader, LocalTree, local_meta, meta_of};
pub(crate) use remote::{RemoteTree, to_meta};
pub(crate) use report::{FailedFile, Report};
pub(crate) use tree::{Entry, Keep, Kind, Source, Target, is_safe_name, random};
pub(crate) use walk::{Item, copy};

/// How to copy.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Go into directories.
    pub(crate) recursive: bool,
    /// Read back and compare checksums.
    pub(crate) verify: bool,
    /// Two names of one file stay two names of one file.
    pub(crate) hard_links: bool,
    /// What to keep of the attributes.
    pub(crate) keep: Keep,
    /// Files in flight.
    pub(crate) parallel: usize,
    /// Records in flight, all files together.
    pub(crate) outstanding: usize,
    /// Bytes of one record; `None`: what both sides prefer.
    pub(crate) record: Option<usize>,
    /// No progress bar.
    pub(crate) quiet: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            recursive: true,
            verify: false,
            hard_links: false,
            keep: Keep { owner: false },
            parallel: 16,
            outstanding: 32,
            record: None,
            quiet: true,
        }
    }
}
