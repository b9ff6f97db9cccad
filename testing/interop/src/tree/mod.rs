//! The directory trees that cases transfer, and their comparison.

mod make;
mod manifest;

pub(crate) use make::make;
pub(crate) use manifest::Manifest;
