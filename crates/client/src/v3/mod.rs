//! NFS version 3: the procedures on the wire (RFC 1813), and calls of them.

mod convert;
mod procedures;

use millrace_buffer::Buffer;
use millrace_nfs::v3;
use millrace_oncrpc::{EncodedCredential, SUCCESS_HEADER_BYTES, Stage};
use millrace_xdr::{Decoder, Encode, Encoder, XdrError};
pub(crate) use procedures::Procedure;

use crate::{
    Error,
    ops::{self, Answer, Status, class, is_unrepeatable},
    pool::{Attempt, CallSpec, Pool},
};

struct Arguments<'a, C>(&'a C);

impl<C: Procedure> Encode for Arguments<'_, C> {
    fn encode(&self, e: &mut Encoder) {
        self.0.encode(e);
    }
}

/// Decodes the results without the data of the error case, which the client does not use.
fn decode<C: Procedure>(d: &mut Decoder<'_>) -> Result<Result<C::Ok, Status>, XdrError> {
    match d.get()? {
        Status::Ok => C::decode(d).map(Ok),
        status => Ok(Err(status)),
    }
}

/// Bytes of a successful reply to READ before the data: the header, the status, the attributes of the file, `count`,
/// `eof`, and the length of the data (RFC 1813 section 3.3.6).
const READ_DATA: usize = SUCCESS_HEADER_BYTES + 4 + 4 + 84 + 4 + 4 + 4;

/// Makes a call. Retries after a delay while the server returns JUKEBOX.
pub(crate) async fn call<C: Procedure>(
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
        payload_offset: if procedure == ops::Procedure::Read { READ_DATA } else { 0 },
        keep_xid: is_unrepeatable(procedure),
        class: class(procedure),
    };
    let payload_len = payload.as_ref().map(|b| b.len());
    let mut attempt = None;
    loop {
        let payload = pool.take_payload(&mut payload, payload_len).await?;
        let answered = pool.call(spec, credential, &Arguments(args), payload).await?;
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
