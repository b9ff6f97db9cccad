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
use millrace_oncrpc::{CallContext, Fault, MaybeReady, Outcome, Results};
use millrace_xdr::{Arena, Encoder};

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
    Box::new(Reused { make: run, future: Box::pin(None) })
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
    let mut mix = |word| {
        // The golden ratio as an odd fraction of 2^64.
        digest = (digest.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    };
    words.iter().for_each(|word| mix(*word));
    mix(last);
    digest
}

/// Executes a COMPOUND. What precedes and follows its operations waits for nothing, and changes the request in place: to
/// move the request from one function to the next took 700 instructions of a READ.
async fn run(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let mut request = Request::new(&env, call, reply);
    match request.begin() {
        Begun::Complete => {}
        Begun::Sequence => {
            execute(&mut request.compound, &mut request.args, &mut request.results).await;
            request.end();
        }
        Begun::WithoutSession(operation) => {
            request.without_session(operation).await;
            request.end();
        }
    }
    let Request { compound: Compound { reply, limits, .. }, header, execution, .. } = request;
    match execution {
        Some(execution) => finish(&env, execution, reply, header, limits.cached),
        None => Ok(reply.into()),
    }
}

/// A COMPOUND and its reply.
struct Request<'c> {
    compound: Compound<'c>,
    args: Arguments,
    results: CompoundEncoder,
    /// Size of the call in bytes.
    bytes: usize,
    digest: u64,
    /// Size of the RPC header of the reply in bytes.
    header: usize,
    /// That of SEQUENCE.
    execution: Option<Execution>,
}

/// What remains of a COMPOUND after its first operation.
enum Begun {
    /// Nothing: the results are complete.
    Complete,
    /// The operations after SEQUENCE.
    Sequence,
    /// The first operation, which is not SEQUENCE.
    WithoutSession(Operation),
}

impl<'c> Request<'c> {
    fn new(env: &'c Env, call: CallContext, mut reply: Encoder) -> Self {
        let (digest, bytes, header) = (digest(&call), call.message().stream_len(), reply.len());
        // The plan of the call has decoded the tag before.
        let tag = call.args().get::<Opaque<'_, MAX_TAG>>().unwrap_or_default();
        let results = CompoundEncoder::begin(&mut reply, &tag);
        let caller = Caller { sender: Arc::clone(&call.sender), counters: &env.counters, is_machine: false };
        let minor_version = call.plan.operations.minor_version;
        let scope = Scope { env, exports: env.exports.load_full(), caller, minor_version };
        let bulk = call.plan.bulk as usize;
        let compound = Compound::new(scope, reply, bulk, Timer::start(&env.rt));
        Self { compound, args: Arguments::new(call), results, bytes, digest, header, execution: None }
    }

    /// Takes the first operation, and executes it if it is SEQUENCE.
    fn begin(&mut self) -> Begun {
        let Self { compound, args, results, .. } = self;
        if !MINOR_VERSIONS.contains(&compound.scope.minor_version) {
            results.reject(&mut compound.reply, Status::MinorVersMismatch);
            return Begun::Complete;
        }
        let first = if args.count() == 0 { None } else { next_operation(args, &mut compound.reply, results) };
        match first {
            Some(Operation::Sequence) => self.sequence(),
            Some(operation) => Begun::WithoutSession(operation),
            None => {
                results.finish(&mut compound.reply);
                Begun::Complete
            }
        }
    }

    fn sequence(&mut self) -> Begun {
        let Self { compound, args, results, .. } = self;
        let count = args.count();
        let sequenced = match args.get::<SequenceArgs>() {
            Ok(sequence) => compound
                .sequence(&sequence, count, self.bytes, self.digest)
                .map(|sequenced| (sequence, sequenced)),
            Err(_) => Err(Status::BadXdr),
        };
        let result = sequenced.as_ref().map(|_| ()).map_err(|status| *status);
        compound.scope.env.executed(Operation::Sequence, result, &mut compound.timer);
        match sequenced {
            Ok((sequence, Sequence::Execute(execution, ok))) => {
                compound.reply.put(&ok);
                let fore = execution.session().fore();
                let overhead = compound.scope.caller.reply_overhead();
                let without = |bytes: u32| (bytes as usize).saturating_sub(overhead);
                compound.limits = ReplyLimits {
                    size: without(fore.response_bytes),
                    cached: sequence.cache_this.then_some(without(fore.cached_bytes)),
                };
                self.execution = Some(execution);
                compound.scope.caller.is_machine = compound.is_of_machine(args);
                return Begun::Sequence;
            }
            Ok((_, Sequence::Replay(body))) => {
                compound.scope.env.counters.replayed();
                compound.reply.truncate(self.header);
                compound.reply.put_raw(body.results());
                return Begun::Complete;
            }
            Ok((_, Sequence::Uncached(ok))) => {
                compound.scope.env.counters.replayed();
                compound.reply.put(&ok);
                if count > 1 && next_operation(args, &mut compound.reply, results).is_some() {
                    results.fail(&mut compound.reply, Status::RetryUncachedRep);
                }
            }
            Err(status) => results.fail(&mut compound.reply, status),
        }
        results.finish(&mut compound.reply);
        Begun::Complete
    }

    /// Executes the first operation, which is not SEQUENCE.
    async fn without_session(&mut self, operation: Operation) {
        let Self { compound, args, results, .. } = self;
        let result = compound.without_session(operation, args).await;
        compound.scope.env.executed(operation, result, &mut compound.timer);
        if let Err(status) = result {
            results.fail(&mut compound.reply, status);
        }
    }

    /// Completes the results of executed operations, and counts the COMPOUND.
    fn end(&mut self) {
        let Self { compound, results, .. } = self;
        results.finish(&mut compound.reply);
        let env = compound.scope.env;
        env.sender.send_waiting();
        let export = compound.current.as_ref().and_then(|object| object.file(Status::Inval).ok());
        env.account(
            export.map(|file| &*file.export),
            compound.usage.as_deref(),
            compound.timer.total(&env.rt),
        );
    }
}

/// Ends the execution with the results after the RPC header of `reply`, which are kept if they have at most `cached` bytes. The
/// result of a LOCK that is denied may be longer.
fn finish(env: &Env, execution: Execution, reply: Encoder, header: usize, cached: Option<usize>) -> Outcome {
    let kept_in = cached.map(|most| (most.max(MIN_CACHED as usize), reply.arena().clone()));
    let Ok(message) = reply.finish() else { return Err(Fault::SystemErr) };
    let kept = |(most, arena): (usize, Arena)| {
        if !message.payloads.iter().all(|p| p.data.is_empty()) {
            return None;
        }
        let head = message.head.iter().next()?;
        let results = head.slice(header, head.len().checked_sub(header)?);
        if results.len() <= most { env.clients.kept(results, &arena) } else { None }
    };
    execution.finish(kept_in.and_then(kept));
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
