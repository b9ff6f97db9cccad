//! Who may do what, POSIX style.

use super::inode::State;
use crate::{Access, FileKind, FsError, FsResult, Identity};

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;
pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;
const ANY_EXECUTE: u32 = 0o111;

fn is_root(who: &Identity) -> bool {
    who.uid == 0
}

/// Whether the mode bits give `who` all of `wanted`. Root may do everything but execute what nobody may.
fn has(st: &State, kind: FileKind, who: &Identity, wanted: u32) -> bool {
    if is_root(who) {
        return wanted & EXECUTE == 0 || kind == FileKind::Directory || st.mode & ANY_EXECUTE != 0;
    }
    let class = if who.uid == st.uid {
        st.mode >> 6
    } else if who.in_group(st.gid) {
        st.mode >> 3
    } else {
        st.mode
    };
    class & wanted == wanted
}

fn granted(yes: bool) -> FsResult<()> {
    if yes { Ok(()) } else { Err(FsError::Access) }
}

/// A directory's rights: [`READ`] to list it, [`EXECUTE`] to look names up, both and [`WRITE`] to change it.
pub(super) fn check_dir(st: &State, who: &Identity, wanted: u32) -> FsResult<()> {
    granted(has(st, FileKind::Directory, who, wanted))
}

/// Reading a file's data. Its owner always may, since the right was checked when the file was opened (RFC 1813
/// section 4.4), and whoever may execute it, since executing is reading.
pub(super) fn check_read(st: &State, who: &Identity) -> FsResult<()> {
    let kind = FileKind::Regular;
    granted(who.uid == st.uid || has(st, kind, who, READ) || has(st, kind, who, EXECUTE))
}

/// Writing a file's data; its owner always may, as for reading.
pub(super) fn check_write(st: &State, who: &Identity) -> FsResult<()> {
    granted(who.uid == st.uid || has(st, FileKind::Regular, who, WRITE))
}

/// What only the owner and root may do.
pub(super) fn check_owner(st: &State, who: &Identity) -> FsResult<()> {
    if is_root(who) || who.uid == st.uid { Ok(()) } else { Err(FsError::Perm) }
}

/// What only root may do.
pub(super) fn check_root(who: &Identity) -> FsResult<()> {
    if is_root(who) { Ok(()) } else { Err(FsError::Perm) }
}

/// Whether `who` may give a file to `gid`, being its owner.
pub(super) fn check_group(who: &Identity, gid: u32) -> FsResult<()> {
    if is_root(who) || who.in_group(gid) { Ok(()) } else { Err(FsError::Perm) }
}

/// In a sticky directory an entry goes only by the hand of its owner, the directory's owner or root.
pub(super) fn check_sticky(dir: &State, entry_uid: u32, who: &Identity) -> FsResult<()> {
    let free = dir.mode & STICKY == 0 || is_root(who) || who.uid == dir.uid || who.uid == entry_uid;
    if free { Ok(()) } else { Err(FsError::Perm) }
}

/// `mode` after `who` changed the data of a file: without the set-id bits, unless root did.
pub(super) fn mode_after_write(mode: u32, who: &Identity) -> u32 {
    if is_root(who) { mode } else { without_set_id(mode) }
}

/// `mode` without set-uid, and without set-gid where that grants a group (with no group execute bit it does not).
pub(super) fn without_set_id(mode: u32) -> u32 {
    let gone = if mode & GROUP_EXECUTE != 0 { SET_UID | SET_GID } else { SET_UID };
    mode & !gone
}

/// `mode` as `who` may set it on an object of group `gid`: set-gid only for members of the group.
pub(super) fn mode_settable(mode: u32, gid: u32, who: &Identity) -> u32 {
    let mode = mode & 0o7777;
    if is_root(who) || who.in_group(gid) { mode } else { mode & !SET_GID }
}

/// The rights of RFC 1813 section 3.3.4 that the mode bits give.
pub(super) fn rights(st: &State, kind: FileKind, who: &Identity) -> u32 {
    let gives = |wanted, rights| if has(st, kind, who, wanted) { rights } else { 0 };
    if kind == FileKind::Directory {
        gives(READ, Access::READ)
            | gives(EXECUTE, Access::LOOKUP)
            | gives(WRITE | EXECUTE, Access::MODIFY | Access::EXTEND | Access::DELETE)
    } else {
        gives(READ, Access::READ)
            | gives(WRITE, Access::MODIFY | Access::EXTEND)
            | gives(EXECUTE, Access::EXECUTE)
    }
}
