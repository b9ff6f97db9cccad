//! NFS version 3: the procedures on the wire (RFC 1813), and calls of them.

mod convert;
mod procedures;

use millrace_buffer::Buffer;
use millrace_nfs::v3;
use millrace_oncrpc::{Reply, SUCCESS_HEADER_BYTES};
use millrace_xdr::{Decoder, Encoder, XdrError};
pub(crate) use procedures::Procedure;

use crate::{
    Error,
    credential::CallCredential,
    exchange::{Answer, Verdict, WithoutSlot},
    ops::{self, Status, class, is_unrepeatable},
    pool::{CallSpec, Pool, Retry},
    retry::Event,
};

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

/// Makes a call. Repeats it while the server returns JUKEBOX.
pub(crate) async fn call<C: Procedure>(
    pool: &Pool,
    credential: &CallCredential,
    args: &C,
    payload: Option<Buffer>,
) -> Result<Answer<Result<C::Ok, Status>>, Error> {
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
    let evaluate = |reply: Reply| match decode::<C>(&mut reply.results()) {
        Ok(Err(Status::Jukebox)) => {
            let again = Verdict::again(Event::Delayed { changed: false }, "the server asks to retry later");
            Ok(again.or(Err(Status::Jukebox)))
        }
        Ok(result) => Ok(Verdict::done(result)),
        Err(e) => Err(pool.bad_reply(spec.name, e)),
    };
    let mut exchange = WithoutSlot { spec, credential, args: |e: &mut Encoder| args.encode(e), evaluate };
    pool.call(&mut Retry::new(pool, spec.name), &mut exchange, payload).await
}
