//! The exclusive creation of a file: with a verifier, by which the server recognizes a retransmission, also after a
//! restart.
//!
//! Servers may store the verifier in attributes of the file, which the client then sets with SETATTR. The result of OPEN
//! names the attributes that were set and those that hold the verifier (RFC 8881 section 18.16.3), so NFSv4 needs no SETATTR
//! if the server stores the verifier elsewhere. Otherwise SETATTR is another call after the reply: in the COMPOUND of OPEN it
//! would replace the verifier before the client has the reply, which a retransmission may have to ask for.

use millrace_runtime::RuntimeExt;

use super::{Client, Object};
use crate::{
    Error,
    ops::{CreateExclusive, CreateHow, CreatedExclusive, FileHandle, Procedure, SetAttributes, Status},
};

impl Client {
    /// CREATE with a verifier, and SETATTR if attributes are left to set: creates a regular file with `mode`, and fails if
    /// the name exists. Of several clients one creates the file, also if calls are retransmitted and the server restarts.
    ///
    /// With a server that does not support exclusive creation, the file is created with [`CreateHow::Guarded`].
    ///
    /// # Errors
    /// [`Error::Nfs`] with [`Status::Exist`] if the name exists, and others; the errors of a call. If SETATTR fails, the
    /// file exists, and may have another mode.
    pub async fn create_new(
        &self,
        dir: FileHandle,
        name: impl AsRef<[u8]>,
        mode: u32,
    ) -> Result<Object, Error> {
        let (name, mode) = (name.as_ref(), mode & 0o7777);
        let mut args = CreateExclusive {
            at: self.place(Procedure::Create, dir, name).await?,
            verifier: self.runtime().random_u64().to_ne_bytes(),
            mode: self.shared.exclusive_mode.then_some(mode),
            owner: self.runtime().random_u64(),
        };
        let mut result = self.call(&mut args, None).await?.result;
        if args.mode.is_some() && matches!(result, Err(Status::Inval | Status::NotSupp)) {
            // Another file system below the export may support fewer attributes.
            args.mode = None;
            result = self.call(&mut args, None).await?.result;
        }
        if matches!(result, Err(Status::NotSupp)) {
            let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            return self.create(dir, name, CreateHow::Guarded(set)).await;
        }
        let (result, left) = match result {
            Ok(CreatedExclusive { created, left }) => (Ok(created), left.attributes(mode)),
            Err(status) => (Err(status), SetAttributes::default()),
        };
        let mut object = self.created(Procedure::Create, dir, name, result).await?;
        if left != SetAttributes::default() {
            object.attributes = self.set_attributes(object.handle, left).await?;
        }
        Ok(object)
    }
}
