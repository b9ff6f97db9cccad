//! Declarations of rdma-core: the structures and functions of libibverbs and librdmacm that the provider
//! uses.
//!
//! They correspond to the headers of rdma-core 44; the ABI has been stable since symbol version 1.1. `layout`
//! compares them with sizes and offsets that a C compiler computed for those headers. The libraries are
//! loaded on first use, so neither building nor running Millrace requires them.

#![allow(unsafe_code)] // Foreign functions.
#![allow(non_camel_case_types)] // The names are rdma-core's.
#![allow(dead_code)] // Structures contain all fields that C requires, used or not.

pub(super) mod cm;
pub(super) mod inline;
#[cfg(target_arch = "x86_64")]
mod layout;
mod load;
pub(super) mod verbs;

pub use load::LoadError;
pub(super) use load::{Libraries, libraries};
