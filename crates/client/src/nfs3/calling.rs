//! Calls of the procedures, with each version, and their errors.

use std::sync::Arc;

use millrace_buffer::Buffer;
use millrace_nfs::v3::{self, Procedure, Status};
use millrace_oncrpc::{CallClass, EncodedCredential, Stage};
use millrace_xdr::{Decoder, XdrError};

use super::{call::Call, compounds::v3_status};
use crate::{
    Error,
    nfs4::{self, Session},
    pool::{Attempt, CallSpec, Pool},
};

/// The reply to an NFS call.
pub(crate) struct Answer<O> {
    /// The results, or the status.
    pub(crate) result: Result<O, Status>,
    /// Whether the call was retransmitted.
    pub(crate) resent: bool,
}

/// Decodes the results without the data of the error case, which the client does not use.
fn decode<C: Call>(d: &mut Decoder<'_>) -> Result<Result<C::Ok, Status>, XdrError> {
    match d.get()? {
        Status::Ok => C::decode(d).map(Ok),
        status => Ok(Err(status)),
    }
}

/// Bytes of a reply before the results: XID, type and state of the reply, verifier AUTH_NONE, and state of acceptance
/// (RFC 5531 section 9).
const REPLY_HEADER: usize = 24;

/// Bytes of a successful reply to READ before the data: the header, the status, the attributes of the file, `count`,
/// `eof`, and the length of the data (RFC 1813 section 3.3.6).
const READ3_DATA: usize = REPLY_HEADER + 4 + 4 + 84 + 4 + 4 + 4;

/// As [`READ3_DATA`], in a COMPOUND: the header, status, empty tag and number of the results, SEQUENCE (8 + 36), PUTFH (8),
/// and READ (8, `eof`, and the length of the data; RFC 8881 sections 16.2.3, 18.46.2, 18.22.2).
const READ4_DATA: usize = REPLY_HEADER + 12 + 44 + 8 + 16;

/// Makes a call of NFSv3. Retries after a delay while the server returns JUKEBOX.
pub(super) async fn call_v3<C: Call>(
    pool: &Pool,
    credential: &EncodedCredential,
    args: &C,
    mut payload: Option<Buffer>,
) -> Result<Answer<C::Ok>, Error> {
    let procedure = C::PROCEDURE;
    let spec = CallSpec {
        program: v3::PROGRAM,
        version: v3::VERSION,
        procedure: procedure.number(),
        name: procedure.name(),
        max_head: args.entries().map_or(procedure.max_reply_head(), v3::readdir_reply_head),
        payload_offset: if procedure == Procedure::Read { READ3_DATA } else { 0 },
        keep_xid: is_unrepeatable(procedure),
        class: class(procedure),
    };
    let payload_len = payload.as_ref().map(|b| b.len());
    let mut attempt = None;
    loop {
        let payload = pool.take_payload(&mut payload, payload_len).await?;
        let answered = pool.call(spec, credential, args, payload).await?;
        let decoded = decode::<C>(&mut answered.reply.results());
        answered.stages.end(Stage::Delivery);
        pool.sampler.finish(answered.stages);
        let result = decoded.map_err(|e| pool.bad_reply(procedure.name(), e))?;
        if matches!(result, Err(Status::Jukebox)) {
            let attempt = attempt.get_or_insert_with(|| Attempt::new(pool, procedure.name()));
            if attempt.pause(String::new()).await.is_ok() {
                continue;
            }
        }
        return Ok(Answer { result, resent: answered.resent });
    }
}

/// Whether the server must recognize a retransmission. WRITE is idempotent, but see [`crate::retransmission`].
fn is_unrepeatable(procedure: Procedure) -> bool {
    !procedure.is_idempotent() || procedure == Procedure::Write
}

fn class(procedure: Procedure) -> CallClass {
    match procedure {
        Procedure::Read => CallClass::Read,
        Procedure::Write => CallClass::Write,
        _ => CallClass::Other,
    }
}

/// Maximum size of the reply to a COMPOUND in bytes, without the data of READ, the target of a symbolic link and the
/// entries of a directory: the RPC header, SEQUENCE, a handle, and twice the attributes of an object with long names of owners.
const COMPOUND_REPLY: usize = 2048;

/// Makes a call as a COMPOUND of NFSv4.
pub(super) async fn call_v4<C: Call>(
    session: &Arc<Session>,
    credential: &EncodedCredential,
    args: &C,
    payload: Option<Buffer>,
) -> Result<Answer<C::Ok>, Error> {
    let procedure = C::PROCEDURE;
    let variable = match procedure {
        Procedure::Readlink => v3::MAX_PATH,
        _ => args.entries().unwrap_or_default() as usize,
    };
    let max_head = COMPOUND_REPLY + variable;
    let payload_offset = if procedure == Procedure::Read { READ4_DATA } else { 0 };
    let spec = CallSpec { payload_offset, ..nfs4::spec(procedure.name(), max_head, class(procedure)) };
    let answer = session.call(credential, spec, is_unrepeatable(procedure), args, payload).await?;
    let result = match answer.result {
        Ok(ok) => Ok(ok),
        Err((operation, status)) => Err(v3_status(operation, status)?),
    };
    Ok(Answer { result, resent: answer.resent })
}

/// The error for a status of a call on `object`.
pub(crate) fn nfs_error(procedure: Procedure, object: impl ToString, status: Status) -> Error {
    Error::Nfs { procedure, object: object.to_string(), status }
}

/// As [`nfs_error`], for a name.
pub(crate) fn named_error(procedure: Procedure, name: &[u8], status: Status) -> Error {
    Error::Nfs { procedure, object: format!("{:?}", String::from_utf8_lossy(name)), status }
}
