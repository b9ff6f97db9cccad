//! Execution of a COMPOUND: session rules, operations, and the reply that the slot keeps.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use millrace_nfs::v4::{CompoundEncoder, MAX_TAG, Opaque, Operation, SequenceArgs, Status};
use millrace_nfs4_state::{MIN_CACHED, Sequence};
use millrace_oncrpc::{CallContext, Fault, MaybeReady, Outcome, Results, Stage};
use millrace_xdr::Encoder;

use super::{
    Env,
    arguments::Arguments,
    compound::{Compound, MINOR_VERSIONS, ReplyLimits, Scope, execute, next_operation},
    object::Caller,
    timer::Timer,
};
use crate::nfs4_clients::Execution;

/// Bytes of a request that its digest covers.
const DIGESTED: usize = 512;

/// The execution of one COMPOUND after another, with the memory of the first one.
trait Slot: Future<Output = Outcome> + Send + Unpin {
    /// Begins the next COMPOUND, when the previous one is complete.
    fn begin(&mut self, env: Arc<Env>, call: CallContext, reply: Encoder);
}

/// A slot. `make` returns the future of a COMPOUND.
struct Reused<M, F> {
    make: M,
    future: Pin<Box<Option<F>>>,
}

impl<M, F> Slot for Reused<M, F>
where
    M: Fn(Arc<Env>, CallContext, Encoder) -> F + Send + Unpin,
    F: Future<Output = Outcome> + Send,
{
    fn begin(&mut self, env: Arc<Env>, call: CallContext, reply: Encoder) {
        self.future.set(Some((self.make)(env, call, reply)));
    }
}

impl<M: Unpin, F: Future<Output = Outcome>> Future for Reused<M, F> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(future) = self.future.as_mut().as_pin_mut() else { return Poll::Pending };
        let outcome = ready!(future.poll(cx));
        self.future.set(None);
        Poll::Ready(outcome)
    }
}

/// A new slot.
fn slot() -> Box<dyn Slot> {
    let make = |env: Arc<Env>, call: CallContext, reply: Encoder| async move {
        let stages = call.stages.clone();
        let outcome = run(&env, call, reply).await;
        stages.end(Stage::FileSystem);
        outcome
    };
    Box::new(Reused { make, future: Box::pin(None) })
}

thread_local! {
    /// The slot of the last COMPOUND of this thread that completed at once, so that the next one allocates nothing.
    static IDLE: Cell<Option<Box<dyn Slot>>> = const { Cell::new(None) };
}

/// Executes the COMPOUND of `call`. It is polled once, which completes most of them; the caller polls a pending one
/// again with its waker. A connection that ends completes its calls first, so that the reply stays in the slot of
/// the session.
pub(super) fn compound(env: &Arc<Env>, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome> {
    let mut execution = IDLE.take().unwrap_or_else(slot);
    execution.begin(Arc::clone(env), call, reply);
    match Pin::new(&mut execution).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => {
            IDLE.set(Some(execution));
            MaybeReady::Ready(outcome)
        }
        Poll::Pending => {
            MaybeReady::Pending(Pin::from(execution as Box<dyn Future<Output = Outcome> + Send>))
        }
    }
}

/// A digest of the request, by which a slot recognizes that a retry is another request.
fn digest(call: &CallContext) -> u64 {
    let args = call.args();
    let length = call.message().stream_len() - args.position();
    let first = args.rest().next().unwrap_or_default();
    mix(length as u64, &first[..first.len().min(DIGESTED)])
}

/// Mixes `bytes` into `digest`, word by word. A digest needs no secret: a client that finds two requests with one digest
/// can only give itself the reply to the other one. Each step is a bijection of the word, so that requests of one length
/// that differ in one word have different digests.
fn mix(mut digest: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    for word in words.iter().chain([&last]) {
        // The golden ratio as an odd fraction of 2^64.
        digest = (digest.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    digest
}

async fn run(env: &Env, call: CallContext, mut reply: Encoder) -> Outcome {
    let digest = digest(&call);
    let request_bytes = call.message().stream_len();
    let bulk = call.plan.bulk;
    let caller = Caller { sender: Arc::clone(&call.sender), counters: &env.counters };
    let stages = call.stages.clone();
    let header = reply.len();
    let mut results = CompoundEncoder::begin(&mut reply, &call.arguments::<Opaque<'_, MAX_TAG>>()?);
    let mut args = Arguments::new(call);
    if !MINOR_VERSIONS.contains(&args.minor_version()) {
        results.reject(&mut reply, Status::MinorVersMismatch);
        return Ok(reply.into());
    }
    if args.count() == 0 {
        results.finish(&mut reply);
        return Ok(reply.into());
    }
    let Some(first) = next_operation(&mut args, &mut reply, &mut results) else {
        results.finish(&mut reply);
        return Ok(reply.into());
    };
    let timer = Timer::start(&env.rt);
    let scope = Scope { env, exports: env.exports.load_full(), caller, minor_version: args.minor_version() };
    let mut compound = Compound::new(scope, reply, bulk, stages, timer);
    if first != Operation::Sequence {
        let result = compound.without_session(first, &mut args).await;
        env.executed(first, result, &mut compound.timer);
        if let Err(status) = result {
            results.fail(&mut compound.reply, status);
        }
        results.finish(&mut compound.reply);
        env.sender.send_waiting();
        env.account(None, None, compound.timer.total(&env.rt));
        return Ok(compound.reply.into());
    }
    let request = Request { digest, bytes: request_bytes, header };
    match in_session(&mut compound, &request, &mut args, results).await {
        Some((execution, cached)) => finish(env, execution, compound.reply, header, cached),
        None => Ok(compound.reply.into()),
    }
}

/// Properties of the request.
struct Request {
    digest: u64,
    /// Size of the call in bytes.
    bytes: usize,
    /// Size of the RPC header of the reply in bytes.
    header: usize,
}

/// Executes a COMPOUND whose first operation is SEQUENCE. Returns the execution that [`finish`] ends, and the maximum size
/// of results that the slot keeps, if it keeps them; `None` if the reply is complete.
async fn in_session(
    compound: &mut Compound<'_>,
    request: &Request,
    args: &mut Arguments,
    mut results: CompoundEncoder,
) -> Option<(Execution, Option<usize>)> {
    let sequenced = match args.get::<SequenceArgs>() {
        Ok(sequence) => compound
            .sequence(&sequence, args.count(), request.bytes, request.digest)
            .map(|sequenced| (sequence, sequenced)),
        Err(_) => Err(Status::BadXdr),
    };
    let result = sequenced.as_ref().map(|_| ()).map_err(|status| *status);
    compound.scope.env.executed(Operation::Sequence, result, &mut compound.timer);
    let (sequence, execution) = match sequenced {
        Ok((sequence, Sequence::Execute(execution, ok))) => {
            compound.put_sequence(&ok);
            (sequence, execution)
        }
        Ok((_, Sequence::Replay(body))) => {
            compound.scope.env.counters.replayed();
            compound.reply.truncate(request.header);
            compound.reply.put_raw(body.results());
            return None;
        }
        Ok((_, Sequence::Uncached(ok))) => {
            compound.scope.env.counters.replayed();
            compound.put_sequence(&ok);
            if args.count() > 1 && next_operation(args, &mut compound.reply, &mut results).is_some() {
                results.fail(&mut compound.reply, Status::RetryUncachedRep);
            }
            results.finish(&mut compound.reply);
            return None;
        }
        Err(status) => {
            results.fail(&mut compound.reply, status);
            results.finish(&mut compound.reply);
            return None;
        }
    };
    let fore = execution.session().fore();
    compound.limits = ReplyLimits {
        size: fore.response_bytes as usize,
        cached: sequence.cache_this.then_some(fore.cached_bytes as usize),
    };
    execute(compound, args, &mut results).await;
    results.finish(&mut compound.reply);
    compound.scope.env.sender.send_waiting();
    let export = compound.current.as_ref().and_then(|object| object.file(Status::Inval).ok());
    let client = compound.usage.as_deref();
    let took = compound.timer.total(&compound.scope.env.rt);
    compound.scope.env.account(export.map(|file| &*file.export), client, took);
    Some((execution, compound.limits.cached))
}

/// Ends the request: the slot keeps the results if the client requested it (`sa_cachethis`) and they have at most `cached`
/// bytes. The result of a LOCK that is denied may be longer.
fn finish(env: &Env, execution: Execution, reply: Encoder, header: usize, cached: Option<usize>) -> Outcome {
    let arena = reply.arena().clone();
    let Ok(message) = reply.finish() else { return Err(Fault::SystemErr) };
    let kept = |most: usize| {
        if !message.payloads.iter().all(|p| p.data.is_empty()) {
            return None;
        }
        let head = message.head.iter().next()?;
        let results = head.slice(header, head.len().checked_sub(header)?);
        if results.len() <= most.max(MIN_CACHED as usize) { env.clients.kept(results, &arena) } else { None }
    };
    execution.finish(cached.and_then(kept));
    Ok(Results::Finished(message))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn requests_that_differ_have_different_digests() {
        let mut seen = HashSet::new();
        for length in 0..=DIGESTED {
            let request = vec![0xa5; length];
            assert!(seen.insert(mix(length as u64, &request)), "{length} bytes");
            for at in 0..length {
                for bit in [0, 7] {
                    let mut other = request.clone();
                    other[at] ^= 1 << bit;
                    assert!(seen.insert(mix(length as u64, &other)), "bit {bit} of byte {at} of {length}");
                }
            }
        }
    }
}
