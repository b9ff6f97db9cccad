//! Paths and files with their content in one call.

use millrace_buffer::{Buffer, Views};
use millrace_oncrpc::CallClass;
use millrace_runtime::RuntimeExt;

use super::{Client, File, operations::COMMON_NAME_MAX};
use crate::{
    Error,
    error::named_error,
    ops::{FileHandle, FileType, NameIn, Procedure, ReadOk, SetAttributes},
    stats::add,
    v4::{
        self,
        compounds::{MAX_COMPONENTS, Walk, Walked, Whole, procedure_of},
        status_of,
    },
};

/// Maximum size of the reply in bytes.
const REPLY: usize = 2048;

/// Maximum size of the reply to a [`Walk`], without the data, in bytes: the headers, and for each name the handle and
/// attributes with long names of owners.
const fn walk_reply(names: usize) -> usize {
    512 + names * 1024
}

/// Maximum number of bytes that the call that looks up a file also reads.
const READ_AT_OPEN: u32 = 64 << 10;

impl Client {
    /// Looks up the names of `walk`, into `memory` with the data of a READ; `None` with NFSv3.
    pub(super) async fn walk_names(
        &self,
        walk: &mut Walk<'_>,
        memory: Option<Buffer>,
    ) -> Result<Option<Walked>, Error> {
        let Some(session) = self.session() else { return Ok(None) };
        let class = if walk.read.is_some() { CallClass::Read } else { CallClass::Other };
        let spec = v4::spec("LOOKUP", walk_reply(walk.names.len()), class);
        match session.call(self.credential(), spec, false, walk, memory).await?.result {
            Ok(walked) => Ok(Some(walked)),
            Err((operation, status)) => {
                let name = walk.names.first().copied().unwrap_or_default();
                Err(named_error(Procedure::Lookup, name, status_of(operation, status)?))
            }
        }
    }

    /// Opens the regular file at `path` as [`Self::open`]. With NFSv4 the lookup of a short path without symbolic links
    /// also reads the beginning of the file: returns its data, and whether the file ends after it, unless this client
    /// retains data or has locks of the file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) async fn open_and_read(&self, path: &[u8]) -> Result<(File, Option<ReadOk>), Error> {
        let names = path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let names: Vec<_> = names.take(MAX_COMPONENTS + 1).collect();
        let is_plain = |name: &&[u8]| *name != b".." && name.len() <= COMMON_NAME_MAX;
        if self.session().is_none()
            || !(1..=MAX_COMPONENTS).contains(&names.len())
            || !names.iter().all(is_plain)
        {
            return Ok((self.open(path).await?, None));
        }
        let len = self.rsize().min(READ_AT_OPEN);
        let mut walk = Walk { dir: self.root(), names: &names, read: Some(len) };
        let memory = self.wait_for_buffer(len as usize).await?;
        let walked = self.walk_names(&mut walk, Some(memory)).await.map_err(|e| e.at(path))?;
        let Some(Walked { found, data: Some(data) }) = walked else {
            return Ok((self.open(path).await?, None));
        };
        let Some((handle, _)) = found.last().filter(|(_, a)| a.file_type == FileType::Regular) else {
            return Ok((self.open(path).await?, None));
        };
        let file = File::new(self.clone(), *handle);
        let progresses = data.eof || !data.data.is_empty();
        let current = file.retained_bytes() == 0 && !self.is_locked(*handle)?;
        add(&self.shared.pool.counts.bytes_read, data.data.len());
        Ok((file, (progresses && current && data.data.len() <= len as usize).then_some(data)))
    }

    /// Creates the file `name` in `dir` with the content `data` and `attributes`, or replaces it: writes the data to stable
    /// storage under the name `temporary`, which no other file may have, and renames it. With NFSv4 this is one
    /// COMPOUND. `None`, and no change, with NFSv3 and if the data is larger than [`Self::wsize`] or empty. Returns the
    /// handle of the file.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call. The temporary file is removed after an error, if the server answers.
    pub async fn put_file(
        &self,
        dir: FileHandle,
        (temporary, name): (&[u8], &[u8]),
        data: Views,
        attributes: SetAttributes,
    ) -> Result<Option<FileHandle>, Error> {
        let Some(session) = self.session() else { return Ok(None) };
        let len = data.len();
        if len == 0 || len > self.wsize() as usize {
            return Ok(None);
        }
        let owner = self.runtime().random_u64();
        let temporary = NameIn { dir, name: temporary };
        let mut whole = Whole { temporary, name, data, attributes, owner };
        let spec = v4::spec("WRITE", REPLY, CallClass::Write);
        let result = session.call(self.credential(), spec, true, &mut whole, None).await;
        let failed = match result.map(|answer| answer.result) {
            Ok(Ok(file)) => {
                add(&self.shared.pool.counts.bytes_written, len);
                return Ok(Some(file));
            }
            Ok(Err((operation, status))) => match status_of(operation, status) {
                Ok(status) => named_error(procedure_of(operation), name, status),
                Err(e) => e,
            },
            Err(e) => e,
        };
        if !failed.is_unreachable() {
            // REMOVE fails if the temporary file was not created; that is ignored.
            drop(self.remove(dir, temporary.name).await);
        }
        Err(failed)
    }
}
