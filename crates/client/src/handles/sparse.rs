//! Space and holes of files, with NFSv4.2.

use std::{io::ErrorKind, ops::Range};

use millrace_nfs::v4::{ContentType, Status, share_access};
use millrace_oncrpc::CallClass;

use super::Client;
use crate::{
    Error, Version,
    ops::{FileHandle, SpaceChange, Wcc},
    v4::{
        self,
        compound::Compound,
        compounds::{ChangeSpace, Seek},
    },
};

/// Maximum size of the replies in bytes: attributes with long names of owners.
const REPLY: usize = 2048;

/// What [`Client::seek`] searches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SeekTarget {
    /// Data.
    Data,
    /// A hole; the end of the file is one.
    Hole,
}

impl Client {
    /// Changes the space of `range`. First commits the data that an open [`super::File`] of this client retains for the
    /// file, because a later rewrite of data that a restarted server has lost would follow the change.
    ///
    /// # Errors
    /// [`Error::RequiresV4_2`]; [`Error::InvalidInput`] for an empty range; [`Error::Nfs4`], with NOTSUPP if the file
    /// system of the server cannot do it; the errors of [`super::File::commit`] and of a call.
    pub async fn change_space(
        &self,
        file: FileHandle,
        range: Range<u64>,
        change: SpaceChange,
    ) -> Result<Wcc, Error> {
        if range.is_empty() {
            return Err(Error::InvalidInput("the range is empty".into()));
        }
        let (me, whole, since) = (self.clone(), range.clone(), self.lock_epoch(file));
        let call = async move {
            let state = me.open_state(file, share_access::WRITE, Some(since))?;
            let name = if change == SpaceChange::Allocate { "ALLOCATE" } else { "DEALLOCATE" };
            me.call_v4_2(name, true, &mut ChangeSpace { file, state, range: whole, change }).await
        };
        let Some(open) = self.shared.open_files.get(file) else { return call.await };
        open.commit().await?;
        let replaced = if change == SpaceChange::Allocate { range.end..range.end } else { range.clone() };
        open.replace(range, call, move |_| replaced).await
    }

    /// Searches for data or a hole from `offset`. Returns its first offset; `None` if there is none, or if `offset` is
    /// not below the size. Does not include data that the server has lost and an open [`super::File`] retains: commit
    /// it first.
    ///
    /// # Errors
    /// [`Error::RequiresV4_2`]; [`Error::Nfs4`], with NOTSUPP if the server does not support it; the errors of a call.
    pub async fn seek(
        &self,
        file: FileHandle,
        offset: u64,
        target: SeekTarget,
    ) -> Result<Option<u64>, Error> {
        let what = match target {
            SeekTarget::Data => ContentType::Data,
            SeekTarget::Hole => ContentType::Hole,
        };
        let state = self.open_state(file, share_access::READ, None)?;
        match self.call_v4_2("SEEK", false, &mut Seek { file, state, offset, what }).await {
            Ok(ok) if ok.eof && target == SeekTarget::Data => Ok(None),
            Ok(ok) if ok.offset < offset => {
                Err(self.shared.pool.bad_reply("SEEK", "an offset before that of the call"))
            }
            Ok(ok) => Ok(Some(ok.offset)),
            Err(Error::Nfs4 { status: Status::NxIo, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The parts of `file` below `size` that have data, in order; the others are holes. `None` if the server does not
    /// support the search. As [`Self::seek`], it does not include retained data that the server has lost.
    ///
    /// # Errors
    /// The errors of a call.
    pub async fn extents(&self, file: FileHandle, size: u64) -> Result<Option<Vec<Range<u64>>>, Error> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match self.seek(file, at, SeekTarget::Data).await {
                Ok(Some(start)) if start < size => start,
                Ok(_) => break,
                Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(None),
                Err(e) => return Err(e),
            };
            let end = self.seek(file, start, SeekTarget::Hole).await?.unwrap_or(size).min(size);
            if end <= start {
                return Ok(None); // It was changed meanwhile.
            }
            out.push(start..end);
            at = end;
        }
        Ok(Some(out))
    }

    /// Makes a call of NFSv4.2.
    async fn call_v4_2<C: Compound>(
        &self,
        name: &'static str,
        cache_this: bool,
        call: &mut C,
    ) -> Result<C::Ok, Error> {
        let session = self.session().filter(|_| self.version() == Version::V4_2);
        let session = session.ok_or(Error::RequiresV4_2(name))?;
        let spec = v4::spec(name, REPLY, CallClass::Other);
        let answer = session.call(self.credential(), spec, cache_this, call, None).await?;
        answer.result.map_err(|(operation, status)| Error::Nfs4 { operation, status })
    }
}
