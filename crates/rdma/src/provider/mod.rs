//! The providers.

pub mod iwarp;
pub mod verbs;
