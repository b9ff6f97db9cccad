//! In whose name a system call is made.

use std::os::fd::BorrowedFd;

use rustix::{fs::Statx, io::Errno};

use super::{attr, sys};
use crate::{FileKind, FsError, FsResult, Identity, NewNode, SetAttr};

/// Read permission.
pub(super) const R: u32 = 4;
/// Write permission.
pub(super) const W: u32 = 2;
/// Execute (search) permission.
pub(super) const X: u32 = 1;
/// The set-user-id bit.
const SET_UID: u32 = 0o4000;
/// The set-group-id bit.
const SET_GID: u32 = 0o2000;

/// How callers' identities are applied.
#[derive(Debug, Clone)]
pub(super) enum Credentials {
    /// The kernel applies them: a thread takes the caller's ids for the call.
    Kernel {
        /// The server's supplementary groups, to return to.
        groups: Vec<u32>,
        /// The server's group.
        gid: u32,
    },
    /// Every call is made as the server's user, after the rules of POSIX were checked for the caller. The server's user
    /// may be root, whom the kernel refuses nothing.
    Checked {
        /// The server's user, who may do what the server may.
        uid: u32,
    },
}

impl Credentials {
    /// Checked, as the server's user.
    pub(super) fn server_user() -> Self {
        Self::Checked { uid: rustix::process::geteuid().as_raw() }
    }

    /// The kernel's if this process is the superuser's, checked ones if it is another user's. `None` if it is the
    /// superuser's and may not take callers' ids.
    pub(super) fn detect() -> Option<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()).collect();
        if uid != 0 {
            return Some(Self::Checked { uid });
        }
        let kernel = Self::Kernel { groups, gid };
        // Tried on a thread of its own, which ends with whatever ids the trial left.
        let probe = Identity { uid: 1, gid: 1, gids: [2].into_iter().collect() };
        let works = std::thread::scope(|s| {
            s.spawn(|| kernel.as_caller(&probe, || Ok(())).is_ok()).join().unwrap_or(false)
        });
        works.then_some(kernel)
    }

    /// Whether the kernel applies identities.
    pub(super) fn by_kernel(&self) -> bool {
        matches!(self, Self::Kernel { .. })
    }

    /// Runs `f` in the caller's name: with its ids, or, if we cannot take them, in the server's.
    pub(super) fn as_caller<T>(&self, who: &Identity, f: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
        let Self::Kernel { groups, gid } = self else { return f() };
        if sys::set_thread_groups(&who.gids).is_err() {
            return Err(FsError::Perm);
        }
        let _restore = Restore { groups, gid: *gid };
        if !(sys::set_fs_gid(who.gid) && sys::set_fs_uid(who.uid)) {
            tracing::warn!(uid = who.uid, gid = who.gid, "the caller's identity cannot be taken");
            return Err(FsError::Perm);
        }
        f()
    }

    /// Whether mode bits alone (no identity change) give `who` all of `want`; for identities that are checked by us.
    fn mode_allows(&self, who: &Identity, st: &Statx, want: u32) -> bool {
        self.is_superuser(who) || granted_by_mode(who, st) & want == want
    }

    /// Whether what the server may do is what `who` may do: the superuser, and in checked mode the server's user.
    fn is_superuser(&self, who: &Identity) -> bool {
        who.uid == 0 || matches!(self, Self::Checked { uid } if *uid == who.uid)
    }

    /// Whether the kernel's rules, or none, hold for `who`; else we check them.
    fn is_left_to_kernel(&self, who: &Identity) -> bool {
        self.by_kernel() || self.is_superuser(who)
    }

    /// In checked mode: refuses an owner's change of owner or group that is the superuser's alone (chown(2)). Others
    /// than owners are refused before.
    pub(super) fn precheck_owner(&self, who: &Identity, st: &Statx, set: &SetAttr) -> FsResult<()> {
        let keeps_owner = set.uid.is_none_or(|uid| uid == st.stx_uid);
        let own_group = set.gid.is_none_or(|gid| gid == st.stx_gid || who.in_group(gid));
        if self.is_left_to_kernel(who) || (keeps_owner && own_group) { Ok(()) } else { Err(FsError::Perm) }
    }

    /// In checked mode: `mode` without what an owner may not set, for an object of group `gid` (chmod(2)).
    pub(super) fn settable(&self, who: &Identity, gid: u32, mode: u32) -> u32 {
        if self.is_left_to_kernel(who) || who.in_group(gid) { mode } else { mode & !SET_GID }
    }

    /// In checked mode: `mode` without what the maker of an object may not set. The object is the server's user's, and
    /// with a set-id bit it would act as that user.
    pub(super) fn makeable(&self, who: &Identity, mode: u32) -> u32 {
        if self.is_left_to_kernel(who) { mode } else { mode & !(SET_UID | SET_GID) }
    }

    /// In checked mode: the mode without set-id bits, if a change of the file's content by `who` takes them away.
    pub(super) fn mode_after_change(&self, who: &Identity, st: &Statx) -> Option<u32> {
        let mode = attr::mode(st);
        let executed_as_group = mode & (SET_GID | X << 3) == SET_GID | X << 3;
        let falls = if executed_as_group { SET_UID | SET_GID } else { SET_UID };
        (!self.is_left_to_kernel(who) && mode & falls != 0).then_some(mode & !falls)
    }

    /// In checked mode: refuses devices to others than the superuser (mknod(2)).
    pub(super) fn precheck_make(&self, who: &Identity, new: &NewNode) -> FsResult<()> {
        let device = matches!(new, NewNode::Block(..) | NewNode::Character(..));
        if !device || self.is_left_to_kernel(who) { Ok(()) } else { Err(FsError::Perm) }
    }

    /// In checked mode: refuses unless the mode bits give `who` all of `want`. The kernel does it itself otherwise.
    pub(super) fn precheck(&self, who: &Identity, st: &Statx, want: u32) -> FsResult<()> {
        if self.by_kernel() || self.mode_allows(who, st, want) { Ok(()) } else { Err(FsError::Access) }
    }

    /// In checked mode: the sticky bit's rule for taking `entry` away from the directory `dir`.
    pub(super) fn precheck_sticky(&self, who: &Identity, dir: &Statx, entry: &Statx) -> FsResult<()> {
        const STICKY: u32 = 0o1000;
        let free = attr::mode(dir) & STICKY == 0 || self.owns(who, dir) || self.owns(who, entry);
        if self.by_kernel() || free { Ok(()) } else { Err(FsError::Perm) }
    }

    /// Whether `who` has an owner's rights over the object.
    pub(super) fn owns(&self, who: &Identity, st: &Statx) -> bool {
        who.uid == st.stx_uid || self.is_superuser(who)
    }

    /// In whose name the attributes of an object that `who` just made are set: its owner's.
    pub(super) fn maker(&self, who: &Identity) -> Identity {
        match self {
            Self::Kernel { .. } => who.clone(),
            Self::Checked { uid } => Identity { uid: *uid, ..who.clone() },
        }
    }

    /// Which of the rights in `want` `who` has, by the kernel's own rules where it applies identities.
    pub(super) fn allowed(&self, who: &Identity, fd: BorrowedFd<'_>, st: &Statx, want: u32) -> FsResult<u32> {
        let bits = [R, W, X].into_iter().filter(|b| want & b != 0);
        self.as_caller(who, || {
            let mut got = 0;
            for bit in bits {
                // R_OK, W_OK and X_OK have the values of the permission bits.
                match sys::may_access(fd, bit as i32) {
                    Ok(()) if self.by_kernel() || self.mode_allows(who, st, bit) => got |= bit,
                    Ok(()) | Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => {}
                    // No such call here (before Linux 5.8, or filtered): the mode bits decide.
                    Err(Errno::NOSYS | Errno::INVAL) => {
                        got |= if who.uid == 0 { bit } else { granted_by_mode(who, st) & bit };
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(got)
        })
    }

    /// Whether `who` may read (or write) the file's data. The owner always may, as NFS servers do, since the check
    /// that counts was made when the client opened the file; and a file that may be executed may be read, since
    /// reading is how a client executes it.
    pub(super) fn may_transfer(
        &self,
        who: &Identity,
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
        if self.owns(who, st) || self.allowed(who, fd, st, want)? != 0 {
            Ok(())
        } else {
            Err(FsError::Access)
        }
    }
}

/// The rights of `who` by owner, group or other bits.
fn granted_by_mode(who: &Identity, st: &Statx) -> u32 {
    let mode = attr::mode(st);
    let class = if who.uid == st.stx_uid {
        mode >> 6
    } else if who.in_group(st.stx_gid) {
        mode >> 3
    } else {
        mode
    };
    class & 7
}

/// Returns this thread to the server's own ids when dropped.
struct Restore<'a> {
    groups: &'a [u32],
    gid: u32,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        // The user first: it brings back the capabilities that the rest needs.
        let back =
            sys::set_fs_uid(0) && sys::set_fs_gid(self.gid) && sys::set_thread_groups(self.groups).is_ok();
        if !back {
            // Going on would do later callers' work in a wrong name.
            tracing::error!("the server's own identity cannot be taken again; stopping");
            std::process::abort();
        }
    }
}
