//! SCSI disks (SPC-4, SBC-3) on files of any [`FileSystem`](millrace_vfs::FileSystem).

pub mod reservation;
