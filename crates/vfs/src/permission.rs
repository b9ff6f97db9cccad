//! Access rights from the permission bits of POSIX.

use crate::{Access, Attr, FileKind, FsError, FsResult, Identity};

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;
const ANY_EXECUTE: u32 = 0o111;

/// Whether `mode`, with owner and group `owner`, grants all of `wanted` ([`READ`], [`WRITE`], [`EXECUTE`]).
/// Root may do everything, except execute a file without any execute bit.
pub(crate) fn mode_allows(
    kind: FileKind,
    mode: u32,
    owner: (u32, u32),
    caller: &Identity,
    wanted: u32,
) -> bool {
    if caller.uid == 0 {
        return wanted & EXECUTE == 0 || kind == FileKind::Directory || mode & ANY_EXECUTE != 0;
    }
    let class = if caller.uid == owner.0 {
        mode >> 6
    } else if caller.in_group(owner.1) {
        mode >> 3
    } else {
        mode
    };
    class & wanted == wanted
}

impl Attr {
    /// The rights of `caller` according to the mode, the owner and the group (RFC 1813 section 3.3.4). Uid 0
    /// has all rights of the object's type, except [`Access::EXECUTE`] on a file without any execute bit.
    pub fn rights(&self, caller: &Identity) -> Access {
        let gives = |wanted, rights| {
            let allowed = mode_allows(self.kind, self.mode, (self.uid, self.gid), caller, wanted);
            if allowed { rights } else { 0 }
        };
        let rights = if self.kind == FileKind::Directory {
            gives(READ, Access::READ)
                | gives(EXECUTE, Access::LOOKUP)
                | gives(WRITE | EXECUTE, Access::MODIFY | Access::EXTEND | Access::DELETE)
        } else {
            gives(READ, Access::READ)
                | gives(WRITE, Access::MODIFY | Access::EXTEND)
                | gives(EXECUTE, Access::EXECUTE)
        };
        Access(rights)
    }

    /// Requires at least one of the rights in `any`, such as [`Access::LOOKUP`] on the directory of a lookup.
    ///
    /// # Errors
    /// [`FsError::Access`].
    pub fn check(&self, caller: &Identity, any: u32) -> FsResult<()> {
        if self.rights(caller).0 & any != 0 { Ok(()) } else { Err(FsError::Access) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(kind: FileKind, mode: u32) -> Attr {
        Attr { uid: 7, gid: 70, ..Attr::new(kind, mode) }
    }

    fn caller(uid: u32, gid: u32) -> Identity {
        Identity { uid, gid, gids: Default::default() }
    }

    #[test]
    fn only_the_first_matching_class_grants_rights() {
        let file = attr(FileKind::Regular, 0o415);
        let rights = |who| file.rights(&who).0;
        assert_eq!(rights(caller(7, 70)), Access::READ);
        assert_eq!(rights(caller(8, 70)), Access::EXECUTE);
        assert_eq!(rights(caller(8, 8)), Access::READ | Access::EXECUTE);
    }

    #[test]
    fn directories_need_search_permission_for_changes() {
        let who = caller(7, 70);
        assert_eq!(attr(FileKind::Directory, 0o200).rights(&who).0, 0);
        let changes = Access::MODIFY | Access::EXTEND | Access::DELETE;
        assert_eq!(attr(FileKind::Directory, 0o300).rights(&who).0, Access::LOOKUP | changes);
        assert_eq!(attr(FileKind::Directory, 0o400).check(&who, Access::LOOKUP), Err(FsError::Access));
    }

    #[test]
    fn root_executes_only_files_with_an_execute_bit() {
        let all = Access::READ | Access::MODIFY | Access::EXTEND;
        assert_eq!(attr(FileKind::Regular, 0).rights(&Identity::root()).0, all);
        assert_eq!(attr(FileKind::Regular, 0o001).rights(&Identity::root()).0, all | Access::EXECUTE);
    }
}
