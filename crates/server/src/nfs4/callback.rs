//! Callbacks: CB_NOTIFY_LOCK on the back channels of sessions.

use std::{sync::Arc, time::Duration};

use millrace_nfs::v4::{
    CALLBACK_VERSION, CB_COMPOUND, CallbackArgs, CallbackOperation, CallbackSecurity, CbNotifyLockArgs,
    CbSequenceArgs, CbSequenceOk, CompoundRes, List, Opaque, StateOwner, Status, decode_result,
};
use millrace_nfs4_state::{CallbackSlot, LockNotice};
use millrace_oncrpc::{AuthSys, Credential, EncodedCredential, Message, Reply, RpcError, call_header};
use millrace_runtime::RuntimeRef;
use millrace_vfs::Handle;
use millrace_xdr::{Arena, Encoder, XdrError};

use super::{Env, stateids::split_key};
use crate::{handle::HandleBytes, metrics::ShardCounters};

/// Time limit of a callback.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes that suffice for a callback without credential.
const CALL: usize = 1024;

/// The credential for callbacks. `None` if the client offers neither AUTH_SYS nor AUTH_NONE.
pub(super) fn credential(security: &[CallbackSecurity<'_>]) -> Option<EncodedCredential> {
    let credential = security.iter().find_map(|offered| match offered {
        CallbackSecurity::None => Some(Credential::None),
        CallbackSecurity::Sys(sys) => Some(Credential::Sys(AuthSys {
            stamp: sys.stamp,
            machine: sys.machine_name.iter().copied().collect(),
            uid: sys.uid,
            gid: sys.gid,
            gids: sys.gids.iter().copied().collect(),
        })),
        CallbackSecurity::Gss(_) => None,
    })?;
    Some(credential.encoded())
}

/// Notifies clients of available locks that they wait for. A client without a notice asks again by itself.
pub(super) fn notify_locks(env: &Env, arena: &Arena) {
    for notice in env.clients.state.take_lock_notices() {
        let Some(handle) = handle(env, &notice) else { continue };
        let Some(slot) = env.clients.state.back_channel(notice.client).and_then(|back| back.begin()) else {
            tracing::debug!("a waiting client is not notified: its back channel is down or busy");
            continue;
        };
        let (rt, counters) = (Arc::clone(&env.rt), Arc::clone(&env.counters));
        let callback = Callback { slot, rt, counters, arena: arena.clone() };
        env.rt.spawn("NFSv4 callback", Box::pin(callback.notify_lock(handle, notice)));
    }
}

/// The NFS handle of the file, if its export exists.
fn handle(env: &Env, notice: &LockNotice) -> Option<HandleBytes> {
    let (export, handle) = split_key(&notice.file)?;
    let exports = env.exports.load_full();
    Some(exports.by_id(export)?.seal(&Handle::new(handle)?))
}

/// A callback in progress, which occupies a slot.
struct Callback {
    slot: CallbackSlot,
    rt: RuntimeRef,
    counters: Arc<ShardCounters>,
    arena: Arena,
}

impl Callback {
    async fn notify_lock(mut self, handle: HandleBytes, notice: LockNotice) {
        let operation = CallbackOperation::NotifyLock;
        let args = CbNotifyLockArgs {
            handle: Opaque(&handle),
            owner: StateOwner { client_id: notice.client, owner: Opaque(&notice.owner) },
        };
        let encode = |e: &mut Encoder| {
            e.put(&operation);
            e.put(&args);
        };
        match self.execute(operation, encode).await {
            Ok(status) => {
                self.counters.lock_notified();
                tracing::debug!(?operation, ?status, "callback answered");
            }
            Err(why) => tracing::debug!(?operation, "callback failed: {why}"),
        }
    }

    /// Sends a callback of one operation after CB_SEQUENCE. Returns the operation's status.
    async fn execute(
        &mut self,
        operation: CallbackOperation,
        encode: impl Fn(&mut Encoder),
    ) -> Result<Status, String> {
        let mut sequence = Status::Ok;
        // The second attempt follows a callback whose result was lost, so that its number is used.
        for _ in 0..2 {
            let channel = self.slot.channel();
            let connection = channel.connection().ok_or("the back channel is down")?;
            let message = self.message(&encode).map_err(|e| e.to_string())?;
            let reply = connection.call(message, &self.rt, LIMIT).await.map_err(|error| {
                if !matches!(error, RpcError::Local(_)) {
                    channel.remove(&connection); // SEQUENCE tells the client to bind one again.
                }
                error.to_string()
            })?;
            let results = decode(&reply, operation).map_err(|e| {
                channel.remove(&connection);
                format!("malformed reply: {e}")
            })?;
            match results {
                Ok(status) => {
                    self.slot.advance();
                    return Ok(status);
                }
                Err(Status::RetryUncachedRep | Status::SeqFalseRetry | Status::SeqMisordered) => {
                    self.slot.advance();
                    sequence = Status::SeqMisordered;
                }
                Err(Status::Delay) => return Err("the client is busy".into()),
                Err(status) => {
                    channel.set_fault();
                    return Err(format!("CB_SEQUENCE failed: {status:?}"));
                }
            }
        }
        self.slot.channel().set_fault();
        Err(format!("CB_SEQUENCE failed: {sequence:?}"))
    }

    /// The call with CB_SEQUENCE and an operation.
    fn message(&self, encode: impl Fn(&mut Encoder)) -> Result<Message, millrace_xdr::OutOfMemory> {
        let (slot, target) = (&self.slot, self.slot.target());
        let mut e = Encoder::try_new(&self.arena, CALL)?;
        call_header(&mut e, target.program, CALLBACK_VERSION, CB_COMPOUND, &target.credential);
        let minor_version = target.minor_version;
        e.put(&CallbackArgs { tag: Opaque(b""), minor_version, callback_ident: 0, operations: 2 });
        e.put(&CallbackOperation::Sequence);
        e.put(&CbSequenceArgs {
            session: slot.channel().session(),
            sequence: slot.sequence(),
            slot: slot.number(),
            highest_slot: slot.number(),
            cache_this: false,
            referring_calls: List::default(),
        });
        encode(&mut e);
        e.finish()
    }
}

/// The status of the operation after CB_SEQUENCE, or else that of CB_SEQUENCE.
fn decode(reply: &Reply, operation: CallbackOperation) -> Result<Result<Status, Status>, XdrError> {
    let mut d = reply.results();
    let results: CompoundRes<'_> = d.get()?;
    if results.results == 0 {
        return Ok(Err(results.status));
    }
    if let Err(status) = decode_result::<CbSequenceOk>(&mut d, CallbackOperation::Sequence)? {
        return Ok(Err(status));
    }
    Ok(Ok(decode_result::<()>(&mut d, operation)?.err().unwrap_or(Status::Ok)))
}
