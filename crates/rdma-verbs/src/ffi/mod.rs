//! rdma-core as it is: the structures and functions of libibverbs and librdmacm that the provider uses, and no more.
//!
//! They were written down from the headers of rdma-core 44, whose ABI has been stable since version 1.1 of its symbols;
//! `layout` holds them against sizes and offsets that a C compiler gave for those headers. The libraries are loaded
//! when first needed, so neither building nor running Millrace needs them.

#![allow(unsafe_code)] // Foreign functions.
#![allow(non_camel_case_types)] // The names are rdma-core's.
#![allow(dead_code)] // Structures are complete where C needs them so, whether every field is used or not.

pub(super) mod cm;
pub(super) mod inline;
#[cfg(target_arch = "x86_64")]
mod layout;
mod load;
pub(super) mod verbs;

pub use load::LoadError;
pub(super) use load::{Libraries, libraries};
