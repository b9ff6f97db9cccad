//! The providers.

pub mod iwarp;
