//! Tests with the library and a key distribution center.

mod contexts;
mod tokens;
