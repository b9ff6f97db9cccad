//! The system calls that rustix does not offer, or offers only for the whole process.
//!
//! The calls that change credentials are the raw ones: Linux keeps credentials per thread, and the C library's
//! wrappers would change every thread of the process.

#![allow(unsafe_code)] // The FFI corner of `local`; nothing but single system calls.

use std::{
    mem::size_of,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::io::Errno;

/// The most bytes of a kernel file handle (`MAX_HANDLE_SZ`).
const KERNEL_HANDLE_MAX: usize = 128;

/// `struct file_handle` with room for the longest handle.
#[repr(C)]
struct HandleBuffer {
    bytes: u32,
    kind: i32,
    data: [u8; KERNEL_HANDLE_MAX],
}

/// A kernel file handle: what `name_to_handle_at(2)` gives.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelHandle {
    /// The file system's handle type.
    pub(super) kind: i32,
    len: usize,
    data: [u8; KERNEL_HANDLE_MAX],
}

impl KernelHandle {
    /// A handle of `kind` with these bytes; `None` if they are too many.
    pub(super) fn new(kind: i32, bytes: &[u8]) -> Option<Self> {
        let mut data = [0; KERNEL_HANDLE_MAX];
        data.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { kind, len: bytes.len(), data })
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn check(r: libc::c_long) -> Result<libc::c_long, Errno> {
    if r < 0 { Err(errno()) } else { Ok(r) }
}

/// The kernel handle of an open object (`O_PATH` is enough).
pub(super) fn name_to_handle(fd: BorrowedFd<'_>) -> Result<KernelHandle, Errno> {
    let mut buf = HandleBuffer { bytes: KERNEL_HANDLE_MAX as u32, kind: 0, data: [0; KERNEL_HANDLE_MAX] };
    let mut mount = 0;
    // SAFETY: `buf` has the layout of `struct file_handle` followed by the `handle_bytes` bytes that it announces;
    // the path is a C string; both outlive the call.
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

/// Opens a kernel handle on the mount that `mount` is on. Needs `CAP_DAC_READ_SEARCH`.
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
    // SAFETY: a fresh descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(r) })
}

/// Sets this thread's file system user id; true if it has it now.
pub(super) fn set_fs_uid(uid: u32) -> bool {
    // SAFETY: takes numbers and touches no memory. The call cannot report failure; asking with an impossible id
    // gives the present one.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX) as u32 == uid
    }
}

/// Sets this thread's file system group id; true if it has it now.
pub(super) fn set_fs_gid(gid: u32) -> bool {
    // SAFETY: as in `set_fs_uid`.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsgid, u32::MAX) as u32 == gid
    }
}

/// Sets this thread's supplementary groups.
pub(super) fn set_thread_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: the pointer and the count describe `groups`, which the kernel only reads.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

/// Gives this thread a file mode creation mask of its own, of zero; false if the machine does not let us.
pub(super) fn own_zero_umask() -> bool {
    // SAFETY: affects this thread only, which shares its root, working directory and mask with no other afterwards.
    // The mask is changed only once it is ours.
    unsafe {
        let ours = libc::unshare(libc::CLONE_FS) == 0;
        if ours {
            libc::umask(0);
        }
        ours
    }
}

/// Asks the kernel, with this thread's file system ids, whether the object may be accessed (`R_OK`, `W_OK`, `X_OK`).
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

/// The `pathconf` value `name` for an open file, if there is one.
pub(super) fn path_limit(fd: BorrowedFd<'_>, name: i32) -> Option<u64> {
    // SAFETY: takes numbers and touches no memory of ours.
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
/// The user that owns nothing (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;
const CAP_FSETID: u32 = 4;
const CAP_SYS_RESOURCE: u32 = 24;

/// Gives up these capabilities in this thread. A thread without them is left as it is.
pub(super) fn drop_capabilities(capabilities: &[u32]) {
    let header = CapHeader { version: CAP_VERSION, pid: 0 };
    let mut data = [CapData::default(); 2];
    let mask = capabilities.iter().fold(0, |mask, c| mask | 1 << c);
    // SAFETY: header and data have the layout of version 3 (two data elements) and outlive the calls; pid 0 is this
    // thread.
    unsafe {
        if libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) == 0 {
            data[0].effective &= !mask;
            libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr());
        }
    }
}

/// Blocks SIGXFSZ in this thread. The kernel sends it beside EFBIG for a size beyond RLIMIT_FSIZE, and its default
/// action ends the process.
fn block_file_size_signal() {
    // SAFETY: `sigemptyset` makes the set valid; the calls read and write only the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Prepares a thread that acts for callers with their ids. Without CAP_SYS_RESOURCE they do not pass inode quotas or
/// use reserved blocks (knfsd drops it too).
pub(super) fn prepare_name_thread() {
    own_zero_umask();
    block_file_size_signal();
    drop_capabilities(&[CAP_SYS_RESOURCE]);
}

/// Prepares a thread that moves data through open descriptors. With CAP_FSETID a caller's write would keep set-id
/// bits; with CAP_SYS_RESOURCE, or as the superuser, it would pass quotas and use reserved blocks.
pub(super) fn prepare_data_thread() {
    block_file_size_signal();
    drop_capabilities(&[CAP_FSETID, CAP_SYS_RESOURCE]);
    set_fs_uid(OVERFLOW_UID);
}

const _: () = assert!(size_of::<CapData>() == 12 && size_of::<HandleBuffer>() == 8 + KERNEL_HANDLE_MAX);
