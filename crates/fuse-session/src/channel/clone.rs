//! Additional descriptors of a FUSE session.
#![allow(unsafe_code)]

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::device::DEVICE;

/// FUSE_DEV_IOC_CLONE.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Opens the device again, for the session of `device`. Requests that are read from the new descriptor are answered on
/// it.
///
/// # Errors
/// Those of open(2) and ioctl(2).
pub(super) fn clone(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let new = OwnedFd::from(OpenOptions::new().read(true).write(true).open(DEVICE)?);
    let number = device.as_raw_fd() as u32; // A valid descriptor is not negative.
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the number of a descriptor, through the pointer, although its opcode is
    // one of those that write.
    unsafe { ioctl(new.as_fd(), Setter::<CLONE, u32>::new(number)) }?;
    Ok(new)
}
