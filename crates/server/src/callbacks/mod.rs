//! Callbacks to NFSv4 clients on the back channels of their sessions: locks that get available, and delegations
//! ([`delegations`]).

mod delegations;

use std::{sync::Arc, time::Duration};

use millrace_nfs::v4::{
    CALLBACK_VERSION, CB_COMPOUND, CallbackArgs, CallbackOperation, CallbackSecurity, CbNotifyLockArgs,
    CbSequenceArgs, CbSequenceOk, ClientId, CompoundRes, List, Opaque, StateOwner, Status, decode_result,
};
use millrace_nfs4_state::{BackChannel, CallbackSlot, LockNotice, PendingCallback};
use millrace_oncrpc::{
    AuthSys, Callbacks, Credential, EncodedCredential, Message, Reply, RpcError, call_header,
};
use millrace_runtime::{RuntimeExt, RuntimeRef};
use millrace_vfs::Handle;
use millrace_xdr::{Arena, Decode, Encoder, OutOfMemory, XdrError};

use crate::{
    export::ExportTable, file_key::split_key, handle::HandleBytes, metrics::ShardCounters,
    nfs4_clients::Clients,
};

/// Time limit of a callback.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of attempts at a callback that the client cannot receive or execute now.
const ATTEMPTS: u32 = 6;
/// Delay before the second attempt. It doubles with each further one.
const DELAY: Duration = Duration::from_millis(100);
/// Bytes that suffice for a callback without credential.
const CALL: usize = 1024;

/// The credential for callbacks. `None` if the client offers neither AUTH_SYS nor AUTH_NONE.
pub(crate) fn credential(security: &[CallbackSecurity<'_>]) -> Option<EncodedCredential> {
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

/// Sends callbacks.
#[derive(Clone)]
pub(crate) struct CallbackSender {
    pub(crate) clients: Arc<Clients>,
    pub(crate) exports: Arc<ExportTable>,
    pub(crate) rt: RuntimeRef,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) arena: Arena,
}

impl CallbackSender {
    /// Sends the callbacks for which requests are the reason, without waiting for them.
    pub(crate) fn send_waiting(&self) {
        self.notify_locks();
        self.recall_delegations();
    }

    /// Notifies clients of available locks that they wait for. A client without a notice repeats its request.
    fn notify_locks(&self) {
        for notice in self.clients.state.take_lock_notices() {
            let Some(handle) = self.handle(&notice.file) else { continue };
            if let Some(callback) = self.callback(notice.client) {
                self.rt.spawn("NFSv4 callback", Box::pin(callback.notify_lock(handle, notice)));
            }
        }
    }

    /// The NFS handle of the file with a key, if its export exists.
    fn handle(&self, key: &[u8]) -> Option<HandleBytes> {
        let (export, handle) = split_key(key)?;
        let exports = self.exports.load_full();
        Some(exports.by_id(export)?.seal(&Handle::new(handle)?))
    }

    /// A callback to a client.
    fn callback(&self, client: ClientId) -> Option<Callback> {
        let pending = self.clients.state.callback(client);
        if pending.is_none() {
            tracing::debug!("a client is not called: it has too many callbacks, or is removed");
        }
        Some(Callback { pending: pending?, sender: self.clone() })
    }
}

/// Why a client has not executed a callback.
enum Failure {
    /// Another attempt may succeed.
    Again(String),
    /// Another attempt would fail as well.
    Final(String),
}

/// A callback that is sent, repeated, or waits for a slot.
struct Callback {
    pending: PendingCallback,
    sender: CallbackSender,
}

impl Callback {
    async fn notify_lock(self, handle: HandleBytes, notice: LockNotice) {
        let operation = CallbackOperation::NotifyLock;
        let args = CbNotifyLockArgs {
            handle: Opaque(&handle),
            owner: StateOwner { client_id: notice.client, owner: Opaque(&notice.owner) },
        };
        let encode = |e: &mut Encoder| {
            e.put(&operation);
            e.put(&args);
        };
        match self.execute(operation, &[], encode).await {
            Ok(status) => {
                self.sender.counters.lock_notified();
                tracing::debug!(?operation, ?status, "callback answered");
            }
            Err(why) => tracing::debug!(?operation, "callback failed: {why}"),
        }
    }

    /// Sends a callback of one operation after CB_SEQUENCE, repeatedly while the client delays it or cannot be
    /// reached, and while the operation fails with a status in `repeated`. Returns the operation's status.
    async fn execute(
        &self,
        operation: CallbackOperation,
        repeated: &[Status],
        encode: impl Fn(&mut Encoder),
    ) -> Result<Status, String> {
        let mut attempts = 1;
        loop {
            match self.attempt::<()>(operation, LIMIT, &encode).await {
                Ok(Err(status)) if repeated.contains(&status) && attempts < ATTEMPTS => {
                    tracing::debug!(?operation, ?status, "callback is repeated");
                    self.sender.rt.sleep(DELAY * 2_u32.pow(attempts - 1)).await;
                    attempts += 1;
                }
                Ok(result) => return Ok(result.err().unwrap_or(Status::Ok)),
                Err(Failure::Again(why)) if attempts < ATTEMPTS => {
                    tracing::debug!(?operation, "callback not executed: {why}");
                    self.sender.rt.sleep(DELAY * 2_u32.pow(attempts - 1)).await;
                    attempts += 1;
                }
                Err(Failure::Again(why) | Failure::Final(why)) => return Err(why),
            }
        }
    }

    /// Sends a callback once. Returns the result of the operation.
    async fn attempt<T: for<'a> Decode<'a>>(
        &self,
        operation: CallbackOperation,
        limit: Duration,
        encode: impl Fn(&mut Encoder),
    ) -> Result<Result<T, Status>, Failure> {
        let again = |why: &str| Failure::Again(why.into());
        let mut slot = self.pending.slot().ok_or_else(|| again("the back channel is down or busy"))?;
        let mut sequence = Status::Ok;
        // The second message follows a callback whose result was lost, so that its number is used.
        for _ in 0..2 {
            let message = self.message(&slot, &encode)?;
            let reply = self.send(slot.channel(), message, limit).await?;
            let results = decode::<T>(&reply.0, operation).map_err(|e| {
                slot.channel().remove(&reply.1);
                Failure::Again(format!("malformed reply: {e}"))
            })?;
            match results {
                Ok(Err(Status::Delay)) => {
                    slot.advance();
                    return Err(again("the client is busy"));
                }
                Ok(result) => {
                    slot.advance();
                    return Ok(result);
                }
                Err(Status::Delay) => return Err(again("the client is busy")),
                Err(Status::RetryUncachedRep | Status::SeqFalseRetry | Status::SeqMisordered) => {
                    slot.advance();
                    sequence = Status::SeqMisordered;
                }
                Err(status) => {
                    sequence = status;
                    break;
                }
            }
        }
        slot.channel().set_fault();
        Err(Failure::Final(format!("CB_SEQUENCE failed: {sequence:?}")))
    }

    /// Sends a message on a connection of the back channel. Returns the reply and the connection.
    async fn send(
        &self,
        channel: &BackChannel,
        message: Message,
        limit: Duration,
    ) -> Result<(Reply, Callbacks), Failure> {
        let connection =
            channel.connection().ok_or_else(|| Failure::Again("the back channel is down".into()))?;
        match connection.call(message, &self.sender.rt, limit).await {
            Ok(reply) => Ok((reply, connection)),
            Err(error) => {
                if !matches!(error, RpcError::Local(_)) {
                    channel.remove(&connection); // The flags of SEQUENCE then report the lost path.
                }
                Err(Failure::Again(error.to_string()))
            }
        }
    }

    /// The call with CB_SEQUENCE and an operation.
    fn message(&self, slot: &CallbackSlot, encode: impl Fn(&mut Encoder)) -> Result<Message, Failure> {
        let target = slot.target();
        let memory = |e: OutOfMemory| Failure::Again(e.to_string());
        let mut e = Encoder::try_new(&self.sender.arena, CALL).map_err(memory)?;
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
        let message = e.finish().map_err(memory)?;
        let (length, limit) = (message.stream_len(), slot.channel().attributes().request_bytes);
        if length > limit as usize {
            return Err(Failure::Final(format!(
                "{length} bytes are more than the client's limit of {limit}"
            )));
        }
        Ok(message)
    }
}

/// The result of the operation after CB_SEQUENCE, or else the status of CB_SEQUENCE.
fn decode<T: for<'a> Decode<'a>>(
    reply: &Reply,
    operation: CallbackOperation,
) -> Result<Result<Result<T, Status>, Status>, XdrError> {
    let mut d = reply.results();
    let results: CompoundRes<'_> = d.get()?;
    if results.results == 0 {
        return Ok(Err(results.status));
    }
    if let Err(status) = decode_result::<CbSequenceOk>(&mut d, CallbackOperation::Sequence)? {
        return Ok(Err(status));
    }
    Ok(Ok(decode_result(&mut d, operation)?))
}
