//! READ, WRITE, COMMIT, READLINK.
//!
//! The data of READ is passed from the file system to the reply as views, and that of WRITE from the message
//! to the file system as the views in which the transport placed it, without copies. Nothing is allocated if
//! the file system answers immediately.

use std::sync::Arc;

use millrace_nfs::v3::{
    CommitArgs, CommitOk, Procedure, ReadArgs, ReadOk, ReadlinkArgs, Status, Verifier, WriteArgs, WriteOk,
};
use millrace_nfs4_state::Changing;
use millrace_oncrpc::{CallContext, MaybeReady, Results};
use millrace_vfs::{Arena, FsError, FsResult, Op, Read, Views, Written};
use millrace_xdr::Encoder;

use super::{
    Env, convert, done,
    outcome::{Executed, ProcedureOutcome},
    target::Target,
};
use crate::drc::Disposition;

/// Upper limit of file offsets (the largest `off_t` plus one).
const OFFSET_LIMIT: u64 = 1 << 63;

pub(super) fn read(
    env: &Arc<Env>,
    call: CallContext,
    reply: Encoder,
) -> MaybeReady<'static, ProcedureOutcome> {
    let args: ReadArgs = match call.arguments() {
        Ok(args) => args,
        Err(fault) => return MaybeReady::Ready(fault.into()),
    };
    let t = match env.resolve(&call, &args) {
        Ok(t) => t,
        Err(refused) => return MaybeReady::Ready(env.refuse(&args, refused, reply)),
    };
    let op = match check_read(env, &t, args.offset) {
        Ok(to_limit) => t.fs().read(&t.caller, &t.file, args.offset, args.count.min(env.rtmax).min(to_limit)),
        Err(e) => Op::Ready(Err(e)),
    };
    match op {
        Op::Ready(Ok(r)) => {
            let reply = read_done(env, &t, reply, r);
            MaybeReady::Ready(ProcedureOutcome::new(Ok(reply.into()), t))
        }
        other => {
            let env = Arc::clone(env);
            MaybeReady::wait(async move {
                let r = other.await;
                let outcome = finish_read(&env, &t, r, reply).await;
                ProcedureOutcome::new(outcome.map(Results::from), t)
            })
        }
    }
}

/// Checks a READ. Returns the number of bytes up to the limit of offsets.
fn check_read(env: &Env, t: &Target, offset: u64) -> FsResult<u32> {
    let to_limit = OFFSET_LIMIT.checked_sub(offset).filter(|n| *n > 0).ok_or(FsError::Inval)?;
    env.check_read(t)?;
    Ok(u32::try_from(to_limit).unwrap_or(u32::MAX))
}

fn read_done(env: &Env, t: &Target, mut reply: Encoder, r: Read) -> Encoder {
    let count = r.data.len() as u32; // `count` is at most rtmax.
    env.read(&t.export, u64::from(count));
    reply.put(&Status::Ok);
    ReadOk { attributes: Some(convert::fattr(&r.attr)), count, eof: r.eof, data: r.data }
        .encode_into(&mut reply);
    reply
}

async fn finish_read(env: &Env, t: &Target, r: FsResult<Read>, reply: Encoder) -> Executed {
    match r {
        Ok(r) => Ok(read_done(env, t, reply, r)),
        Err(e) => env.failed(Procedure::Read, reply, convert::status(e), &t.attr().await),
    }
}

pub(super) fn write(
    env: &Arc<Env>,
    call: CallContext,
    reply: Encoder,
) -> MaybeReady<'static, ProcedureOutcome> {
    let args: WriteArgs = match call.arguments() {
        Ok(args) => args,
        Err(fault) => return MaybeReady::Ready(fault.into()),
    };
    let t = match env.resolve(&call, &args) {
        Ok(t) => t,
        Err(refused) => return MaybeReady::Ready(env.refuse(&args, refused, reply)),
    };
    let (entry, reply) = match env.drc.look_up_or_start(&call, reply) {
        Disposition::Execute(entry, reply) => (entry, reply),
        Disposition::Retransmission(outcome) => return env.retransmission(outcome),
        Disposition::TryLater(reply) => return MaybeReady::Ready(env.try_later(&args, reply)),
    };
    // Drops the message's references to the data, so that the file system can be its only owner.
    drop(call);
    let WriteArgs { offset, count, stable, mut data, .. } = args;
    data.truncate(env.wtmax as usize);
    // Read before the write: if data is lost before the reply is built, the reply must not contain the
    // verifier of the instance after the loss.
    let verifier = t.fs().write_verifier();
    let checked = check_write(&t, offset, count, &data, env.wtmax).and_then(|()| env.change(&t));
    let (op, changing) = match checked {
        Ok(changing) => {
            (t.fs().write(&t.caller, &t.file, offset, data, convert::stability(stable)), changing)
        }
        Err(e) => (Op::Ready(Err(e)), Changing::default()),
    };
    match op {
        Op::Ready(Ok(w)) => {
            let outcome = write_done(env, &t, reply, &w, verifier);
            MaybeReady::Ready(ProcedureOutcome::new(entry.finish(outcome), t))
        }
        other => {
            let env = Arc::clone(env);
            MaybeReady::wait(async move {
                let written = other.await;
                drop(changing);
                let outcome = match written {
                    Ok(w) => write_done(&env, &t, reply, &w, verifier),
                    Err(e) => env.failed(Procedure::Write, reply, convert::status(e), &t.wcc().await),
                };
                ProcedureOutcome::new(entry.finish(outcome), t)
            })
        }
    }
}

/// Checks the arguments of a WRITE. `data` is truncated to `wtmax`; longer data becomes a short write (RFC
/// 1813 section 3.3.7).
fn check_write(t: &Target, offset: u64, count: u32, data: &Views, wtmax: u32) -> FsResult<()> {
    t.writable()?;
    if count.min(wtmax) as usize != data.len() {
        return Err(FsError::Inval);
    }
    match offset.checked_add(data.len() as u64) {
        Some(end) if end <= t.export.info().max_file_size => Ok(()),
        _ => Err(FsError::FBig),
    }
}

fn write_done(env: &Env, t: &Target, reply: Encoder, w: &Written, verifier: Verifier) -> Executed {
    env.written(&t.export, u64::from(w.count));
    let committed = convert::stable_how(w.committed);
    done(reply, &WriteOk { file: convert::wcc(&w.wcc), count: w.count, committed, verifier })
}

pub(super) async fn commit(env: &Env, t: &Target, args: CommitArgs, reply: Encoder) -> Executed {
    // Not even an export that has become read-only refuses it: it may concern data that was written before.
    let committed = match args.offset < OFFSET_LIMIT {
        true => t.fs().commit(&t.caller, &t.file, args.offset, args.count).await,
        false => Err(FsError::Inval),
    };
    match committed {
        // Read after the commit: an earlier loss has changed the verifier.
        Ok(wcc) => done(reply, &CommitOk { file: convert::wcc(&wcc), verifier: t.fs().write_verifier() }),
        Err(e) => env.failed(Procedure::Commit, reply, convert::status(e), &t.wcc().await),
    }
}

pub(super) async fn readlink(env: &Env, t: &Target, _: ReadlinkArgs, mut reply: Encoder) -> Executed {
    let read = t.fs().readlink(&t.caller, &t.file).await;
    match read.and_then(|(text, attr)| Ok((text_view(reply.arena(), &text)?, attr))) {
        Ok((text, attr)) => {
            reply.put(&Status::Ok);
            reply.put(&Some(convert::fattr(&attr)));
            reply.put_payload(text);
            Ok(reply)
        }
        Err(e) => env.failed(Procedure::Readlink, reply, convert::status(e), &t.attr().await),
    }
}

/// Copies a link's text to memory of the arena, from which transports can send it. The copy is not counted,
/// because the text is metadata of an inode.
fn text_view(arena: &Arena, text: &[u8]) -> FsResult<Views> {
    let mut b = arena.alloc(text.len()).map_err(|_| FsError::Jukebox)?;
    b.copy_from_slice(text);
    Ok(b.freeze().into())
}
