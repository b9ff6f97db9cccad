//! Operations on extended attributes.

use super::{
    MemoryFs, NAME_MAX,
    inode::{Inode, InodeState},
    permission::{READ, STICKY, WRITE, check_kind, check_owner},
    xattrs::{XATTRS_BYTES, xattr_bytes},
};
use crate::{
    FileKind, FsError, FsResult, Handle, Identity, SetXattr, Wcc, WccAttr, XATTR_LIST_MAX, XATTR_SIZE_MAX,
};

fn check_name(name: &[u8]) -> FsResult<()> {
    match name.len() {
        0 => Err(FsError::Inval),
        _ if name.contains(&0) => Err(FsError::Inval),
        len if len > NAME_MAX => Err(FsError::NameTooLong),
        _ => Ok(()),
    }
}

/// Only files and directories have attributes, because the mode of others has another meaning (xattr(7)).
fn has_xattrs(inode: &Inode) -> bool {
    matches!(inode.kind, FileKind::Regular | FileKind::Directory)
}

fn check_read(inode: &Inode, st: &InodeState, caller: &Identity) -> FsResult<()> {
    if !has_xattrs(inode) {
        return Err(FsError::NoXattr);
    }
    check_kind(st, inode.kind, caller, READ)
}

fn check_change(inode: &Inode, st: &InodeState, caller: &Identity) -> FsResult<()> {
    if !has_xattrs(inode) {
        return Err(FsError::Perm);
    }
    // As in Linux: otherwise each user could fill the attributes of /tmp.
    if inode.is_dir() && st.mode & STICKY != 0 {
        check_owner(st, caller)?;
    }
    check_kind(st, inode.kind, caller, WRITE)
}

impl MemoryFs {
    pub(super) fn xattr_now(&self, caller: &Identity, file: &Handle, name: &[u8]) -> FsResult<Vec<u8>> {
        check_name(name)?;
        let inode = self.inode(file)?;
        let st = inode.read()?;
        check_read(&inode, &st, caller)?;
        let value = st.xattrs.as_ref().and_then(|xattrs| xattrs.get(name));
        value.map(|value| value.to_vec()).ok_or(FsError::NoXattr)
    }

    pub(super) fn list_xattrs_now(&self, caller: &Identity, file: &Handle) -> FsResult<Vec<Vec<u8>>> {
        let inode = self.inode(file)?;
        let st = inode.read()?;
        if !has_xattrs(&inode) {
            return Ok(Vec::new());
        }
        check_read(&inode, &st, caller)?;
        let names = st.xattrs.iter().flat_map(|xattrs| xattrs.names());
        Ok(names.map(|name| name.to_vec()).collect())
    }

    pub(super) fn set_xattr_now(
        &self,
        caller: &Identity,
        file: &Handle,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> FsResult<Wcc> {
        check_name(name)?;
        if value.len() > XATTR_SIZE_MAX {
            return Err(FsError::XattrTooBig);
        }
        let inode = self.inode(file)?;
        let mut st = inode.write()?;
        check_change(&inode, &st, caller)?;
        let old = st.xattrs.as_ref().and_then(|xattrs| xattrs.get(name));
        let refund = match (old, how) {
            (Some(_), SetXattr::Create) => return Err(FsError::Exist),
            (None, SetXattr::Replace) => return Err(FsError::NoXattr),
            (Some(old), _) => xattr_bytes(name, old),
            (None, _) => {
                let listed = st.xattrs.as_ref().map_or(0, |xattrs| xattrs.list_bytes());
                if listed + name.len() + 1 > XATTR_LIST_MAX {
                    return Err(FsError::NoSpc);
                }
                0
            }
        };
        let first = if st.xattrs.is_none() { XATTRS_BYTES } else { 0 };
        let charge = first + xattr_bytes(name, value);
        self.quota.recharge(charge, refund).map_err(|_| FsError::NoSpc)?;
        let before = Some(WccAttr::from(&self.attr(&inode, &st)));
        st.xattrs.get_or_insert_default().insert(name, value);
        st.set_ctime(self.now());
        Ok(Wcc { before, after: Some(self.attr(&inode, &st)) })
    }

    pub(super) fn remove_xattr_now(&self, caller: &Identity, file: &Handle, name: &[u8]) -> FsResult<Wcc> {
        check_name(name)?;
        let inode = self.inode(file)?;
        let mut st = inode.write()?;
        check_change(&inode, &st, caller)?;
        let before = Some(WccAttr::from(&self.attr(&inode, &st)));
        let xattrs = st.xattrs.as_mut().ok_or(FsError::NoXattr)?;
        let value = xattrs.remove(name).ok_or(FsError::NoXattr)?;
        let mut refund = xattr_bytes(name, &value);
        if xattrs.is_empty() {
            st.xattrs = None;
            refund += XATTRS_BYTES;
        }
        self.quota.refund(refund);
        st.set_ctime(self.now());
        Ok(Wcc { before, after: Some(self.attr(&inode, &st)) })
    }
}
