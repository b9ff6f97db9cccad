//! The directory trees that cases move about, and what has to arrive.

mod make;
mod manifest;

pub(crate) use make::make;
pub(crate) use manifest::Manifest;
