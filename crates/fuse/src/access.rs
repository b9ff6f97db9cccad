//! Access rights to files.

use millrace_client::{
    handles::Client,
    ops::{NfsTime, access},
};
use rustix::fs::OFlags;

/// `FMODE_EXEC`: set in the flags of an open for execve(2); internal to the kernel.
const FMODE_EXEC: u32 = 0x20;

/// Access rights for files. All are requested at once, so that later opens need no further request.
pub(crate) const FILE_ACCESS: u32 = access::READ | access::MODIFY | access::EXTEND | access::EXECUTE;

/// Access rights granted by the server.
pub(crate) struct GrantedAccess {
    pub(crate) caller: Client,
    pub(crate) wanted: u32,
    pub(crate) granted: u32,
    /// ctime of the file when they were granted.
    pub(crate) ctime: NfsTime,
}

/// Access rights that an open requires: all of the first mask, any of the second.
pub(crate) fn required_access(flags: OFlags) -> (u32, u32) {
    let execution = flags.bits() & FMODE_EXEC != 0;
    match flags & OFlags::RWMODE {
        OFlags::WRONLY => (access::MODIFY, 0),
        OFlags::RDWR => (access::READ | access::MODIFY, 0),
        _ if execution => (0, access::READ | access::EXECUTE),
        _ => (access::READ, 0),
    }
}
