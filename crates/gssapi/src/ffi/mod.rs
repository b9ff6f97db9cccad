//! Declarations of MIT's GSS-API: the structures and functions of libgssapi_krb5 that this crate uses.
//!
//! They correspond to `gssapi.h`, `gssapi_ext.h` and `gssapi_krb5.h` of MIT krb5 1.20. The ABI is stable since 1.11, the
//! first version with `gss_acquire_cred_from`. Neither building nor running Millrace requires the library.

#![allow(unsafe_code)] // Foreign functions.
#![allow(non_camel_case_types)] // The names are the library's.

mod load;
pub(crate) mod types;

#[cfg(test)]
pub(crate) use load::PerMessage;
pub(crate) use load::{Gssapi, gssapi};
