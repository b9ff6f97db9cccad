//! Calls of the procedures, each as a COMPOUND.

use std::sync::Arc;

use millrace_buffer::Buffer;
use millrace_nfs::v4::READ_DATA_OFFSET;
use millrace_oncrpc::SUCCESS_HEADER_BYTES;

use super::{Session, compound::Compound, session::spec, status::status_of};
use crate::{
    Error,
    credential::CallCredential,
    exchange::Answer,
    ops::{Call, Procedure, Status, class, is_unrepeatable},
    pool::CallSpec,
};

/// Bytes of a successful reply to READ before the data.
const READ_DATA: usize = SUCCESS_HEADER_BYTES + READ_DATA_OFFSET;

/// Maximum size of the reply to a COMPOUND in bytes, without the data of READ, the target of a symbolic link and the
/// entries of a directory: the RPC header, SEQUENCE, a handle, and twice the attributes of an object with long names of owners.
const COMPOUND_REPLY: usize = 2048;

/// Makes a call as a COMPOUND of NFSv4.
pub(crate) async fn call<C: Call + Compound<Ok = <C as Call>::Ok>>(
    session: &Arc<Session>,
    credential: &CallCredential,
    args: &mut C,
    payload: Option<Buffer>,
) -> Result<Answer<Result<<C as Call>::Ok, Status>>, Error> {
    let procedure = C::PROCEDURE;
    let variable = match procedure {
        Procedure::Readlink => millrace_nfs::v3::MAX_PATH,
        _ => args.entries().unwrap_or_default() as usize,
    };
    let max_head = COMPOUND_REPLY + variable;
    let payload_offset = if procedure == Procedure::Read { READ_DATA } else { 0 };
    let spec = CallSpec { payload_offset, ..spec(procedure.name(), max_head, class(procedure)) };
    let answer = session.call(credential, spec, is_unrepeatable(procedure), args, payload).await?;
    let result = match answer.result {
        Ok(ok) => Ok(ok),
        Err((operation, status)) => Err(status_of(operation, status)?),
    };
    Ok(Answer { result, resent: answer.resent })
}
