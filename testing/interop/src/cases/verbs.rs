//! The verbs provider in a guest over the kernel's software devices: with itself, with the kernel's client,
//! and with the iWARP provider on the host; NFS and iSER.

mod common;
mod disk;
mod one_guest;
mod suites;
mod with_iwarp;

use super::Case;

/// The cases of this group.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = one_guest::cases();
    cases.extend(disk::cases());
    cases.extend(suites::cases());
    cases.extend(with_iwarp::cases());
    cases
}
