//! Extended attributes of files and directories, with NFSv4.2 (RFC 8276).

use std::sync::Arc;

use millrace_nfs::v4::{Operation, SetxattrOption, Status};
use millrace_oncrpc::CallClass;

use super::Client;
use crate::{
    Error, Version,
    ops::{FileHandle, Wcc},
    v4::{
        self, Session,
        compounds::{ChangeXattr, Getxattr, Listxattrs},
    },
};

/// Maximum length of a value in bytes (`XATTR_SIZE_MAX` of Linux).
const VALUE_MAX: usize = 64 << 10;
/// Maximum size of all names of an object in bytes, as listxattr(2) counts them: twice that of Linux (`XATTR_LIST_MAX`).
const NAMES_MAX: usize = 128 << 10;
/// Size of the prefix `user.` and of the NUL byte at the end.
const AROUND: usize = 6;
/// Maximum size of the replies in bytes, without values and names: attributes with long names of owners.
const REPLY: usize = 2048;

impl Client {
    /// Whether files and directories of the export have extended attributes: the server reports it (`xattr_support`), and
    /// the version is NFSv4.2.
    pub fn has_xattrs(&self) -> bool {
        self.shared.xattrs
    }

    /// GETXATTR: returns the value of an extended attribute of a file or directory; `None` if it does not exist. Names have
    /// no prefix: `origin` is `user.origin` of Linux.
    ///
    /// # Errors
    /// [`Error::RequiresV4_2`] with earlier versions, which have no extended attributes; [`Error::Xattr`]; the errors of a
    /// call.
    pub async fn xattr(&self, object: FileHandle, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let name = name.as_ref();
        let spec = v4::spec("GETXATTR", REPLY + VALUE_MAX, CallClass::Other);
        let mut call = Getxattr { object, name };
        let answer = self.xattr_session()?.call(self.credential(), spec, false, &mut call, None).await?;
        match answer.result {
            Ok(value) => Ok(Some(value)),
            Err((Operation::Getxattr, Status::NoXattr)) => Ok(None),
            Err(failed) => Err(error(failed, name, object)),
        }
    }

    /// SETXATTR: creates or replaces an extended attribute. Values have at most 64 KiB, and less on many file systems.
    /// Returns the attributes of the object after the change.
    ///
    /// # Errors
    /// As [`Self::xattr`].
    pub async fn set_xattr(
        &self,
        object: FileHandle,
        name: impl AsRef<[u8]>,
        value: &[u8],
        option: SetxattrOption,
    ) -> Result<Wcc, Error> {
        let name = name.as_ref();
        if value.len() > VALUE_MAX {
            return Err(error((Operation::Setxattr, Status::Xattr2Big), name, object));
        }
        let mut call = ChangeXattr { object, name, new: Some((value, option)) };
        let (changed, resent) = self.change_xattr(&mut call).await?;
        match changed {
            // The first transmission has created it.
            Err((_, Status::Exist))
                if resent && self.xattr(object, name).await?.as_deref() == Some(value) =>
            {
                Ok(Wcc::default())
            }
            changed => changed.map_err(|failed| error(failed, name, object)),
        }
    }

    /// REMOVEXATTR: removes an extended attribute. Returns the attributes of the object after the change.
    ///
    /// # Errors
    /// As [`Self::xattr`]; [`Status::NoXattr`] if it does not exist.
    pub async fn remove_xattr(&self, object: FileHandle, name: impl AsRef<[u8]>) -> Result<Wcc, Error> {
        let name = name.as_ref();
        let (changed, resent) = self.change_xattr(&mut ChangeXattr { object, name, new: None }).await?;
        match changed {
            // The first transmission has removed it.
            Err((_, Status::NoXattr)) if resent => Ok(Wcc::default()),
            changed => changed.map_err(|failed| error(failed, name, object)),
        }
    }

    /// Returns the result of a change, and whether the server may have executed it before.
    async fn change_xattr(
        &self,
        call: &mut ChangeXattr<'_>,
    ) -> Result<(Result<Wcc, (Operation, Status)>, bool), Error> {
        let spec = v4::spec(call.operation().name(), REPLY, CallClass::Other);
        let answer = self.xattr_session()?.call(self.credential(), spec, true, call, None).await?;
        Ok((answer.result, answer.resent))
    }

    /// LISTXATTRS: returns the names of the extended attributes of a file or directory, in any order.
    ///
    /// # Errors
    /// As [`Self::xattr`].
    pub async fn list_xattrs(&self, object: FileHandle) -> Result<Vec<Vec<u8>>, Error> {
        let session = self.xattr_session()?;
        let maxcount = self.shared.readdir_size;
        let spec = v4::spec("LISTXATTRS", REPLY + maxcount as usize, CallClass::Other);
        let (mut names, mut size, mut cookie) = (Vec::new(), 0, 0);
        loop {
            let mut call = Listxattrs { object, cookie, maxcount };
            let answer = session.call(self.credential(), spec, false, &mut call, None).await?;
            let page = answer.result.map_err(|failed| error(failed, b"", object))?;
            size += page.names.iter().map(|name| name.len() + AROUND).sum::<usize>();
            let makes_progress = !page.names.is_empty() && page.cookie != cookie;
            if size > NAMES_MAX || !(page.eof || makes_progress) {
                return Err(self.shared.pool.bad_reply("LISTXATTRS", "a list of names that does not end"));
            }
            names.extend(page.names);
            if page.eof {
                return Ok(names);
            }
            cookie = page.cookie;
        }
    }

    fn xattr_session(&self) -> Result<&Arc<Session>, Error> {
        let session = self.session().filter(|_| self.version() == Version::V4_2);
        session.ok_or(Error::RequiresV4_2("access to extended attributes"))
    }
}

/// The error for a failed operation on the attribute with this name; without one, on all attributes of the object.
fn error((operation, status): (Operation, Status), name: &[u8], object: FileHandle) -> Error {
    let name = String::from_utf8_lossy(name).into_owned();
    Error::Xattr { operation, name, object: object.to_string(), status }
}
