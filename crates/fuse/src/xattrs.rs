//! Extended attributes, with NFSv4.2.

use std::sync::Arc;

use millrace_client::{SetxattrOption, handles::Client, ops::FileType};
use rustix::io::Errno;

use crate::{error::errno, fs::Fs};

/// The namespace of NFS, the prefix of names on Linux.
pub(crate) const USER: &[u8] = b"user.";

impl Fs {
    /// The value of an extended attribute.
    pub(crate) async fn xattr(&self, client: &Client, number: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(number)?;
        let value = client.xattr(inode.handle, name).await.map_err(|e| errno(&e))?;
        value.ok_or(Errno::NODATA)
    }

    /// The names of the extended attributes with their namespace, each with a NUL byte at its end.
    pub(crate) async fn list_xattrs(&self, client: &Client, number: u64) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(number)?;
        // Others have no attributes of users (xattr(7)).
        if !matches!(inode.kind, FileType::Regular | FileType::Directory) {
            return Ok(Vec::new());
        }
        let names = client.list_xattrs(inode.handle).await.map_err(|e| errno(&e))?;
        Ok(names.iter().flat_map(|name| [USER, name, b"\0"].concat()).collect())
    }

    /// Sets an extended attribute; without a value, removes it.
    pub(crate) async fn change_xattr(
        self: &Arc<Self>,
        client: &Client,
        number: u64,
        name: &[u8],
        new: Option<(&[u8], SetxattrOption)>,
    ) -> Result<(), Errno> {
        let inode = self.inode(number)?;
        let changed = {
            let _change = inode.begin_change(&self.clock);
            let changed = match new {
                Some((value, option)) => client.set_xattr(inode.handle, name, value, option).await,
                None => client.remove_xattr(inode.handle, name).await,
            };
            let changed = changed.map_err(|e| errno(&e))?;
            inode.note_change(&self.clock, &changed);
            changed
        };
        let issued = self.clock.tick();
        if let Some(attributes) = changed.after {
            self.update_from_server(&inode, issued, attributes);
        }
        Ok(())
    }
}
