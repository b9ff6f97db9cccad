//! Files with their whole content in one call.

use millrace_buffer::Views;
use millrace_nfs::v3::{DirOpArgs, FileHandle, Sattr};
use millrace_oncrpc::CallClass;
use millrace_runtime::RuntimeExt;

use super::{
    Client,
    calling::named_error,
    compounds::{Whole, procedure_of, v3_status},
};
use crate::{Error, nfs4, stats::add};

/// Maximum size of the reply in bytes.
const REPLY: usize = 2048;

impl Client {
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
        attributes: Sattr,
    ) -> Result<Option<FileHandle>, Error> {
        let Some(session) = &self.shared.session else { return Ok(None) };
        let len = data.len();
        if len == 0 || len > self.wsize() as usize {
            return Ok(None);
        }
        let owner = self.runtime().random_u64();
        let temporary = DirOpArgs { dir, name: temporary };
        let whole = Whole { temporary, name, data, attributes, owner };
        let spec = nfs4::spec("WRITE", REPLY, CallClass::Write);
        let result = session.call(self.credential(), spec, true, &whole, None).await;
        let failed = match result.map(|answer| answer.result) {
            Ok(Ok(file)) => {
                add(&self.shared.pool.counts.bytes_written, len);
                return Ok(Some(file));
            }
            Ok(Err((operation, status))) => match v3_status(operation, status) {
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
