//! The Linux kernel's iSCSI initiator uses Millrace's target, and Millrace's initiator the kernel's target.

mod attach;
mod conformance;
mod disk;
mod faults;
mod initiator;
mod kills;
mod lio;
mod reservations;

use super::Case;

pub(super) fn cases() -> Vec<Case> {
    [
        disk::cases(),
        conformance::cases(),
        faults::cases(),
        kills::cases(),
        reservations::cases(),
        lio::cases(),
        attach::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
