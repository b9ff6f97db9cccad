//! A Linux kernel mounts `millrace serve`, over RDMA by siw and over TCP.

mod mount;
mod refused;
mod restart;
mod tree;

use super::Case;

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = tree::cases();
    cases.extend(restart::cases());
    cases.extend(refused::cases());
    cases
}
