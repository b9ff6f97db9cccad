//! System calls that rustix does not provide, or provides only for the whole process.
//!
//! Credentials are changed by raw system calls: Linux keeps credentials per thread, but the C library's
//! wrappers change all threads of the process.

#![allow(unsafe_code)] // FFI of `local`: single system calls only.

use std::{
    mem::size_of,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::io::Errno;

/// Maximum length of a kernel file handle in bytes (`MAX_HANDLE_SZ`).
const KERNEL_HANDLE_MAX: usize = 128;

/// `struct file_handle` with space for the longest handle.
#[repr(C)]
struct HandleBuffer {
    bytes: u32,
    kind: i32,
    data: [u8; KERNEL_HANDLE_MAX],
}

/// A kernel file handle, from `name_to_handle_at(2)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelHandle {
    /// Handle type, specific to the file system.
    pub(super) kind: i32,
    len: usize,
    data: [u8; KERNEL_HANDLE_MAX],
}

impl KernelHandle {
    /// Creates a handle; `None` if `bytes` is too long.
    pub(super) fn new(kind: i32, bytes: &[u8]) -> Option<Self> {
        let mut data = [0; KERNEL_HANDLE_MAX];
        data.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { kind, len: bytes.len(), data })
    }

    /// The bytes of the handle.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// `struct file_clone_range` of ioctl_ficlonerange(2).
#[repr(C)]
struct FileCloneRange {
    source: i64,
    source_offset: u64,
    length: u64,
    destination_offset: u64,
}

/// `FICLONERANGE`: `_IOW(0x94, 13, struct file_clone_range)`.
const FICLONERANGE: libc::c_ulong = 0x4020_940d;

/// Makes a range of `destination` share the storage of `source`. A length of 0 means to the end of the source.
pub(super) fn clone_range(
    source: (BorrowedFd<'_>, u64),
    destination: (BorrowedFd<'_>, u64),
    length: u64,
) -> Result<(), Errno> {
    let range = FileCloneRange {
        source: source.0.as_raw_fd().into(),
        source_offset: source.1,
        length,
        destination_offset: destination.1,
    };
    // SAFETY: the kernel reads the structure, which lives until the call returns.
    let r = unsafe { libc::ioctl(destination.0.as_raw_fd(), FICLONERANGE as _, &raw const range) };
    check(r.into()).map(drop)
}

fn check(r: libc::c_long) -> Result<libc::c_long, Errno> {
    if r < 0 { Err(errno()) } else { Ok(r) }
}

/// Returns the kernel handle of an open object (also one opened with `O_PATH`).
pub(super) fn name_to_handle(fd: BorrowedFd<'_>) -> Result<KernelHandle, Errno> {
    let mut buf = HandleBuffer { bytes: KERNEL_HANDLE_MAX as u32, kind: 0, data: [0; KERNEL_HANDLE_MAX] };
    let mut mount = 0;
    // SAFETY: `buf` has the layout of `struct file_handle` followed by the `handle_bytes` bytes that it
    // announces; the path is a C string; both outlive the call.
    let r = unsafe {
        libc::name_to_handle_at(
            fd.as_raw_fd(),
            c"".as_ptr(),
            (&raw mut buf).cast::<libc::file_handle>(),
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    check(r.into())?;
    let len = usize::try_from(buf.bytes).ok().filter(|l| *l <= KERNEL_HANDLE_MAX).ok_or(Errno::OVERFLOW)?;
    Ok(KernelHandle { kind: buf.kind, len, data: buf.data })
}

/// Opens a kernel handle on the mount of `mount`. Requires `CAP_DAC_READ_SEARCH`.
pub(super) fn open_by_handle(
    mount: BorrowedFd<'_>,
    handle: &KernelHandle,
    flags: i32,
) -> Result<OwnedFd, Errno> {
    let mut buf = HandleBuffer { bytes: handle.len as u32, kind: handle.kind, data: handle.data };
    // SAFETY: as in `name_to_handle`; `bytes` is at most the length of `data`.
    let r = unsafe {
        libc::open_by_handle_at(
            mount.as_raw_fd(),
            (&raw mut buf).cast::<libc::file_handle>(),
            flags | libc::O_CLOEXEC,
        )
    };
    check(r.into())?;
    // SAFETY: a new descriptor with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(r) })
}

/// Sets the file system user ID of this thread. Returns whether it is in effect.
pub(super) fn set_fs_uid(uid: u32) -> bool {
    // SAFETY: takes numbers and accesses no memory. The call does not report failure; calling it with an
    // invalid ID returns the current one.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX) as u32 == uid
    }
}

/// Sets the file system group ID of this thread. Returns whether it is in effect.
pub(super) fn set_fs_gid(gid: u32) -> bool {
    // SAFETY: as in `set_fs_uid`.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsgid, u32::MAX) as u32 == gid
    }
}

/// Sets the supplementary groups of this thread.
pub(super) fn set_thread_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: the pointer and the count describe `groups`, which the kernel only reads.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

/// Unshares this thread's umask and sets it to zero. Returns `false` if that is not permitted.
pub(super) fn own_zero_umask() -> bool {
    // SAFETY: affects only this thread, which afterwards shares root, working directory and umask with no
    // other. The umask is changed only after that.
    unsafe {
        let is_unshared = libc::unshare(libc::CLONE_FS) == 0;
        if is_unshared {
            libc::umask(0);
        }
        is_unshared
    }
}

/// Checks access to an object (`R_OK`, `W_OK`, `X_OK`) with this thread's file system IDs.
pub(super) fn may_access(fd: BorrowedFd<'_>, mode: i32) -> Result<(), Errno> {
    // SAFETY: the path is a C string that outlives the call.
    let r = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            mode,
            libc::AT_EMPTY_PATH | libc::AT_EACCESS,
        )
    };
    check(r).map(drop)
}

/// The value `name` of fpathconf(3), if defined.
pub(super) fn path_limit(fd: BorrowedFd<'_>, name: i32) -> Option<u64> {
    // SAFETY: takes numbers and accesses no memory of this process.
    u64::try_from(unsafe { libc::fpathconf(fd.as_raw_fd(), name) }).ok()
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`.
const CAP_VERSION: u32 = 0x2008_0522;
/// A user that owns nothing (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;
const CAP_FSETID: u32 = 4;
const CAP_SYS_RESOURCE: u32 = 24;

/// Drops these effective capabilities of this thread, if it has them.
pub(super) fn drop_capabilities(capabilities: &[u32]) {
    let header = CapHeader { version: CAP_VERSION, pid: 0 };
    let mut data = [CapData::default(); 2];
    let mask = capabilities.iter().fold(0, |mask, c| mask | 1 << c);
    // SAFETY: header and data have the layout of version 3 (two data elements) and outlive the calls; pid 0
    // is this thread.
    unsafe {
        if libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) == 0 {
            data[0].effective &= !mask;
            libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr());
        }
    }
}

/// Blocks SIGXFSZ in this thread. The kernel sends it along with EFBIG if a size exceeds RLIMIT_FSIZE, and by
/// default it terminates the process.
fn block_file_size_signal() {
    // SAFETY: `sigemptyset` makes the set valid; the calls read and write only the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Prepares a thread that uses callers' credentials. Without CAP_SYS_RESOURCE, inode quotas and reserved
/// blocks apply (knfsd drops it too).
pub(super) fn prepare_name_thread() {
    own_zero_umask();
    block_file_size_signal();
    drop_capabilities(&[CAP_SYS_RESOURCE]);
}

/// Prepares a thread that transfers data through open descriptors. With CAP_FSETID writes would not clear
/// set-ID bits; with CAP_SYS_RESOURCE quotas would not apply, and with it or as root `reserved_blocks` could be used.
///
/// On other file systems the thread stays root, because they may check the file's path even for statx(2) on a descriptor
/// (mergerfs).
pub(super) fn prepare_data_thread(reserved_blocks: bool) {
    block_file_size_signal();
    drop_capabilities(&[CAP_FSETID, CAP_SYS_RESOURCE]);
    if reserved_blocks {
        set_fs_uid(OVERFLOW_UID);
    }
}

const _: () = assert!(size_of::<CapData>() == 12 && size_of::<HandleBuffer>() == 8 + KERNEL_HANDLE_MAX);
