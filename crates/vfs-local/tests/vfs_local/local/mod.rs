//! Tests specific to the local file system: confinement, handles across restarts, identity, data.

mod calls;
mod common;
mod confinement;
mod identity;
mod restart;
