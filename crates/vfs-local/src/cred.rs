//! Credentials for system calls.

use std::os::fd::BorrowedFd;

use millrace_vfs::{FileKind, FsError, FsResult, Identity, NewNode, SetAttr};
use rustix::{fs::Statx, io::Errno};

use super::{attr, sys};

/// Read permission.
pub(super) const R: u32 = 4;
/// Write permission.
pub(super) const W: u32 = 2;
/// Execute (search) permission.
pub(super) const X: u32 = 1;
/// Set-user-ID bit.
const SET_UID: u32 = 0o4000;
/// Set-group-ID bit.
const SET_GID: u32 = 0o2000;

/// How callers' credentials are applied.
#[derive(Debug, Clone)]
pub(super) enum Credentials {
    /// By the kernel: a thread takes the caller's IDs for the duration of the call.
    Kernel {
        /// The server's supplementary groups, to be restored.
        groups: Vec<u32>,
        /// The server's group, to be restored.
        gid: u32,
    },
    /// All calls run as the server's user, after POSIX permission checks for the caller. The server's user
    /// may be root, for whom the kernel checks nothing.
    Checked {
        /// The server's user, which is exempt from checks.
        uid: u32,
    },
}

impl Credentials {
    /// Checked mode, as the server's user.
    pub(super) fn server_user() -> Self {
        Self::Checked { uid: rustix::process::geteuid().as_raw() }
    }

    /// Kernel mode if this process runs as root, otherwise checked mode. `None` if it runs as root but may
    /// not change IDs.
    pub(super) fn detect() -> Option<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()).collect();
        if uid != 0 {
            return Some(Self::Checked { uid });
        }
        let kernel = Self::Kernel { groups, gid };
        // On a separate thread, because the test may leave other IDs.
        let probe = Identity { uid: 1, gid: 1, gids: [2].into_iter().collect() };
        let works = std::thread::scope(|s| {
            s.spawn(|| kernel.as_caller(&probe, || Ok(())).is_ok()).join().unwrap_or(false)
        });
        works.then_some(kernel)
    }

    /// Whether the kernel applies credentials.
    pub(super) fn by_kernel(&self) -> bool {
        matches!(self, Self::Kernel { .. })
    }

    /// Runs `f` with the caller's credentials, or in checked mode with the server's. Call on a pool thread (`pool.rs`).
    pub(super) fn as_caller<T>(&self, caller: &Identity, f: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
        let Self::Kernel { groups, gid } = self else { return f() };
        if sys::set_thread_groups(&caller.gids).is_err() {
            return Err(FsError::Perm);
        }
        let _restore = Restore { groups, gid: *gid };
        if !(sys::set_fs_gid(caller.gid) && sys::set_fs_uid(caller.uid)) {
            tracing::warn!(uid = caller.uid, gid = caller.gid, "cannot set the caller's credentials");
            return Err(FsError::Perm);
        }
        f()
    }

    /// Whether the mode bits grant `caller` all of `want`; for checked mode.
    fn mode_allows(&self, caller: &Identity, st: &Statx, want: u32) -> bool {
        self.is_superuser(caller) || granted_by_mode(caller, st) & want == want
    }

    /// Whether `caller` may do everything that the server may: root, and in checked mode the server's user.
    fn is_superuser(&self, caller: &Identity) -> bool {
        caller.uid == 0 || matches!(self, Self::Checked { uid } if *uid == caller.uid)
    }

    /// Whether no checks are needed for `caller` beyond those of the kernel.
    fn is_left_to_kernel(&self, caller: &Identity) -> bool {
        self.by_kernel() || self.is_superuser(caller)
    }

    /// Checked mode: rejects changes of owner or group that only root may make (chown(2)). Ownership has been
    /// checked before.
    pub(super) fn precheck_owner(&self, caller: &Identity, st: &Statx, set: &SetAttr) -> FsResult<()> {
        let keeps_owner = set.uid.is_none_or(|uid| uid == st.stx_uid);
        let own_group = set.gid.is_none_or(|gid| gid == st.stx_gid || caller.in_group(gid));
        if self.is_left_to_kernel(caller) || (keeps_owner && own_group) { Ok(()) } else { Err(FsError::Perm) }
    }

    /// Checked mode: `mode` without the bits that an owner may not set on an object of group `gid`
    /// (chmod(2)).
    pub(super) fn settable_mode(&self, caller: &Identity, gid: u32, mode: u32) -> u32 {
        if self.is_left_to_kernel(caller) || caller.in_group(gid) { mode } else { mode & !SET_GID }
    }

    /// Checked mode: `mode` without set-ID bits. A new object belongs to the server's user, and would run
    /// with that user's credentials.
    pub(super) fn creatable_mode(&self, caller: &Identity, mode: u32) -> u32 {
        if self.is_left_to_kernel(caller) { mode } else { mode & !(SET_UID | SET_GID) }
    }

    /// Checked mode: the mode without set-ID bits, if a write by `caller` must clear them.
    pub(super) fn mode_after_change(&self, caller: &Identity, st: &Statx) -> Option<u32> {
        let mode = attr::mode(st);
        let executed_as_group = mode & (SET_GID | X << 3) == SET_GID | X << 3;
        let falls = if executed_as_group { SET_UID | SET_GID } else { SET_UID };
        (!self.is_left_to_kernel(caller) && mode & falls != 0).then_some(mode & !falls)
    }

    /// Checked mode: only root may create devices (mknod(2)).
    pub(super) fn precheck_mknod(&self, caller: &Identity, new: &NewNode) -> FsResult<()> {
        let device = matches!(new, NewNode::Block(..) | NewNode::Character(..));
        if !device || self.is_left_to_kernel(caller) { Ok(()) } else { Err(FsError::Perm) }
    }

    /// Checked mode: requires that the mode bits grant `caller` all of `want`. Otherwise the kernel checks.
    pub(super) fn precheck(&self, caller: &Identity, st: &Statx, want: u32) -> FsResult<()> {
        if self.by_kernel() || self.mode_allows(caller, st, want) { Ok(()) } else { Err(FsError::Access) }
    }

    /// Checked mode: the sticky bit's restriction on removing `entry` from `dir`.
    pub(super) fn precheck_sticky(&self, caller: &Identity, dir: &Statx, entry: &Statx) -> FsResult<()> {
        const STICKY: u32 = 0o1000;
        let free = attr::mode(dir) & STICKY == 0 || self.owns(caller, dir) || self.owns(caller, entry);
        if self.by_kernel() || free { Ok(()) } else { Err(FsError::Perm) }
    }

    /// Whether `caller` has the rights of the owner.
    pub(super) fn owns(&self, caller: &Identity, st: &Statx) -> bool {
        caller.uid == st.stx_uid || self.is_superuser(caller)
    }

    /// The identity with which attributes of a new object are set: that of its owner.
    pub(super) fn owner_of_new(&self, caller: &Identity) -> Identity {
        match self {
            Self::Kernel { .. } => caller.clone(),
            Self::Checked { uid } => Identity { uid: *uid, ..caller.clone() },
        }
    }

    /// Returns which rights in `want` `caller` has, according to the kernel if it applies credentials.
    pub(super) fn allowed(
        &self,
        caller: &Identity,
        fd: BorrowedFd<'_>,
        st: &Statx,
        want: u32,
    ) -> FsResult<u32> {
        let bits = [R, W, X].into_iter().filter(|b| want & b != 0);
        self.as_caller(caller, || {
            let mut granted = 0;
            for bit in bits {
                // R_OK, W_OK and X_OK equal the permission bits.
                match sys::may_access(fd, bit as i32) {
                    Ok(()) if self.by_kernel() || self.mode_allows(caller, st, bit) => granted |= bit,
                    Ok(()) | Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => {}
                    // faccessat2 is not available (before Linux 5.8, or blocked by seccomp): use the mode
                    // bits.
                    Err(Errno::NOSYS | Errno::INVAL) => {
                        granted |= if caller.uid == 0 { bit } else { granted_by_mode(caller, st) & bit };
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(granted)
        })
    }

    /// Checks that `caller` may read or write the file's data. The owner always may, as in other NFS servers,
    /// since the relevant check was made when the client opened the file. Execute permission allows reading,
    /// since executing requires it.
    pub(super) fn may_transfer(
        &self,
        caller: &Identity,
        fd: BorrowedFd<'_>,
        st: &Statx,
        write: bool,
    ) -> FsResult<()> {
        match attr::kind(st)? {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDir),
            _ => return Err(FsError::Inval),
        }
        let want = if write { W } else { R | X };
        if self.owns(caller, st) || self.allowed(caller, fd, st, want)? != 0 {
            Ok(())
        } else {
            Err(FsError::Access)
        }
    }
}

/// Rights of `caller` according to the owner, group or other bits.
fn granted_by_mode(caller: &Identity, st: &Statx) -> u32 {
    let mode = attr::mode(st);
    let class = if caller.uid == st.stx_uid {
        mode >> 6
    } else if caller.in_group(st.stx_gid) {
        mode >> 3
    } else {
        mode
    };
    class & 7
}

/// Restores the server's own credentials when dropped.
struct Restore<'a> {
    groups: &'a [u32],
    gid: u32,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        // The user first: this restores the capabilities that the rest needs.
        let back =
            sys::set_fs_uid(0) && sys::set_fs_gid(self.gid) && sys::set_thread_groups(self.groups).is_ok();
        if !back {
            // Continuing would run later calls with wrong credentials.
            tracing::error!("cannot restore the server's own credentials; aborting");
            std::process::abort();
        }
    }
}
