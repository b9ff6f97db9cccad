//! Byte-exact and property tests.
