//! Extended attributes of the namespace `user` (xattr(7)), with the callers' credentials.

use std::{os::fd::AsFd, sync::Arc};

use millrace_vfs::{
    FileKind, FsError, FsResult, Handle, Identity, SetXattr, Wcc, XATTR_LIST_MAX, XATTR_SIZE_MAX,
};
use rustix::{
    fs::{Statx, XattrFlags},
    io::Errno,
};

use super::{
    attr,
    cred::{R, W},
    node::{Node, proc_name},
    setup::Export,
};

/// The namespace.
const USER: &[u8] = b"user.";
/// Maximum length of a name with its namespace in bytes (`XATTR_NAME_MAX`).
const NAME_MAX: usize = 255;
/// Names, without the namespace, of the server's own attributes: clients neither see nor change them.
const OWN: &[u8] = b"millrace.";

/// The name with its namespace.
fn full_name(name: &[u8]) -> FsResult<Vec<u8>> {
    if name.is_empty() || name.contains(&0) {
        return Err(FsError::Inval);
    }
    let full = [USER, name].concat();
    if full.len() > NAME_MAX { Err(FsError::NameTooLong) } else { Ok(full) }
}

fn error(e: Errno) -> FsError {
    match e {
        Errno::NODATA => FsError::NoXattr,
        Errno::TOOBIG => FsError::XattrTooBig,
        // ERANGE concerns the name: the buffers hold the largest values.
        Errno::RANGE => FsError::NameTooLong,
        e => e.into(),
    }
}

impl Export {
    /// The object, if it can have attributes.
    fn with_xattrs(&self, file: &Handle, otherwise: FsError) -> FsResult<(Arc<Node>, Statx)> {
        let node = self.tree.open(file)?;
        let st = attr::live_stat(node.as_fd())?;
        let has = matches!(node.kind(), FileKind::Regular | FileKind::Directory);
        if has { Ok((node, st)) } else { Err(otherwise) }
    }

    pub(super) fn xattr(&self, caller: &Identity, file: &Handle, name: &[u8]) -> FsResult<Vec<u8>> {
        let (full, (node, st)) = (full_name(name)?, self.with_xattrs(file, FsError::NoXattr)?);
        self.creds.precheck(caller, &st, R)?;
        if name.starts_with(OWN) {
            return Err(FsError::NoXattr);
        }
        let path = proc_name(node.as_fd());
        self.creds.as_caller(caller, || {
            let mut value = Vec::with_capacity(XATTR_SIZE_MAX);
            let spare = rustix::buffer::spare_capacity(&mut value);
            rustix::fs::getxattr(path.as_str(), full.as_slice(), spare).map_err(error)?;
            Ok(value)
        })
    }

    pub(super) fn list_xattrs(&self, caller: &Identity, file: &Handle) -> FsResult<Vec<Vec<u8>>> {
        let node = self.tree.open(file)?;
        let st = attr::live_stat(node.as_fd())?;
        if !matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
            return Ok(Vec::new());
        }
        // The kernel checks no permission for listxattr(2).
        if self.creds.allowed(caller, node.as_fd(), &st, R)? == 0 {
            return Err(FsError::Access);
        }
        let mut list: Vec<u8> = Vec::with_capacity(XATTR_LIST_MAX);
        let path = proc_name(node.as_fd());
        rustix::fs::listxattr(path.as_str(), rustix::buffer::spare_capacity(&mut list)).map_err(error)?;
        let names = list.split(|byte| *byte == 0).filter_map(|name| name.strip_prefix(USER));
        Ok(names.filter(|name| !name.starts_with(OWN)).map(<[u8]>::to_vec).collect())
    }

    /// Sets an attribute, or removes it without a value.
    pub(super) fn change_xattr(
        &self,
        caller: &Identity,
        file: &Handle,
        name: &[u8],
        new: Option<(&[u8], SetXattr)>,
    ) -> FsResult<Wcc> {
        self.writable()?;
        let (full, (node, st)) = (full_name(name)?, self.with_xattrs(file, FsError::Perm)?);
        self.creds.precheck(caller, &st, W)?;
        if name.starts_with(OWN) {
            return Err(if new.is_some() { FsError::Perm } else { FsError::NoXattr });
        }
        let path = proc_name(node.as_fd());
        self.creds.as_caller(caller, || match new {
            Some((value, how)) => {
                let flags = match how {
                    SetXattr::Either => XattrFlags::empty(),
                    SetXattr::Create => XattrFlags::CREATE,
                    SetXattr::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::setxattr(path.as_str(), full.as_slice(), value, flags).map_err(error)
            }
            None => rustix::fs::removexattr(path.as_str(), full.as_slice()).map_err(error),
        })?;
        self.sync_object(&node)?;
        self.after(&attr::stat(node.as_fd())?)
    }
}
