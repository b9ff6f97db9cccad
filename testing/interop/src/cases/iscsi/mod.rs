//! The Linux kernel's iSCSI initiator, and other programs, use Millrace's target, and Millrace's initiator the targets of
//! others.

mod attach;
mod conformance;
mod disk;
mod faults;
mod initiator;
mod kills;
mod lio;
mod programs;
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
        programs::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
