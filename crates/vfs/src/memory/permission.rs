//! POSIX permission checks.

use super::inode::InodeState;
pub(super) use crate::permission::{EXECUTE, READ, WRITE};
use crate::{FileKind, FsError, FsResult, Identity, permission};

pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;

fn is_root(caller: &Identity) -> bool {
    caller.uid == 0
}

fn mode_allows(st: &InodeState, kind: FileKind, caller: &Identity, wanted: u32) -> bool {
    permission::mode_allows(kind, st.mode, (st.uid, st.gid), caller, wanted)
}

fn allow(yes: bool) -> FsResult<()> {
    if yes { Ok(()) } else { Err(FsError::Access) }
}

/// Checks directory access: [`READ`] to list, [`EXECUTE`] to look up names, [`WRITE`] and [`EXECUTE`] to
/// change.
pub(super) fn check_dir(st: &InodeState, caller: &Identity, wanted: u32) -> FsResult<()> {
    allow(mode_allows(st, FileKind::Directory, caller, wanted))
}

/// Checks the mode of an object.
pub(super) fn check_kind(st: &InodeState, kind: FileKind, caller: &Identity, wanted: u32) -> FsResult<()> {
    allow(mode_allows(st, kind, caller, wanted))
}

/// Checks READ. Allowed for the owner, since the client has checked access at open (RFC 1813 section 4.4),
/// and with execute permission, since executing requires reading.
pub(super) fn check_read(st: &InodeState, caller: &Identity) -> FsResult<()> {
    let kind = FileKind::Regular;
    allow(
        caller.uid == st.uid || mode_allows(st, kind, caller, READ) || mode_allows(st, kind, caller, EXECUTE),
    )
}

/// Checks WRITE. Allowed for the owner, as for READ.
pub(super) fn check_write(st: &InodeState, caller: &Identity) -> FsResult<()> {
    allow(caller.uid == st.uid || mode_allows(st, FileKind::Regular, caller, WRITE))
}

/// Requires the owner or root.
pub(super) fn check_owner(st: &InodeState, caller: &Identity) -> FsResult<()> {
    if is_root(caller) || caller.uid == st.uid { Ok(()) } else { Err(FsError::Perm) }
}

/// Requires root.
pub(super) fn check_root(caller: &Identity) -> FsResult<()> {
    if is_root(caller) { Ok(()) } else { Err(FsError::Perm) }
}

/// Whether `caller`, as owner, may change the group to `gid`.
pub(super) fn check_group(caller: &Identity, gid: u32) -> FsResult<()> {
    if is_root(caller) || caller.in_group(gid) { Ok(()) } else { Err(FsError::Perm) }
}

/// Sticky directory: an entry may be removed only by its owner, the directory's owner, or root.
pub(super) fn check_sticky(dir: &InodeState, entry_uid: u32, caller: &Identity) -> FsResult<()> {
    let free = dir.mode & STICKY == 0 || is_root(caller) || caller.uid == dir.uid || caller.uid == entry_uid;
    if free { Ok(()) } else { Err(FsError::Perm) }
}

/// Mode after `caller` has written data: clears set-ID bits unless it is root.
pub(super) fn mode_after_write(mode: u32, caller: &Identity) -> u32 {
    if is_root(caller) { mode } else { without_set_id(mode) }
}

/// Clears set-UID, and set-GID if group execute is set (otherwise set-GID does not grant a group).
pub(super) fn without_set_id(mode: u32) -> u32 {
    let cleared = if mode & GROUP_EXECUTE != 0 { SET_UID | SET_GID } else { SET_UID };
    mode & !cleared
}

/// The mode that `caller` may set on an object of group `gid`: set-GID requires membership.
pub(super) fn settable_mode(mode: u32, gid: u32, caller: &Identity) -> u32 {
    let mode = mode & 0o7777;
    if is_root(caller) || caller.in_group(gid) { mode } else { mode & !SET_GID }
}
