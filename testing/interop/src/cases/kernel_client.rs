//! A Linux kernel mounts `millrace serve`, over RDMA by siw and over TCP.

mod behaviour;
mod fuse_locks;
pub(super) mod mount;
mod nfs4;
mod nfs4_delegations;
mod nfs4_opens;
mod nfs4_ranges;
mod nfs4_xattrs;
mod refused;
mod restart;
mod tar;
mod together;
mod tree;
mod two_mounts;

use super::Case;

/// The cases of this group.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = refused::cases();
    cases.extend(tree::cases());
    cases.extend(restart::cases());
    cases.extend(behaviour::cases());
    cases.extend(tar::cases());
    cases.extend(together::cases());
    cases.extend(two_mounts::cases());
    cases.extend(fuse_locks::cases());
    cases.extend(nfs4::cases());
    cases.extend(nfs4_delegations::cases());
    cases.extend(nfs4_opens::cases());
    cases.extend(nfs4_ranges::cases());
    cases.extend(nfs4_xattrs::cases());
    cases
}
