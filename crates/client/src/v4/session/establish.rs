//! Creates the client ID and sessions, with calls outside of sessions (RFC 8881 sections 18.35 and 18.36).

use std::sync::atomic::Ordering;

use millrace_nfs::v4::{ClientId, CreateSessionOk, Operation, Status};
use millrace_oncrpc::{AcceptError, CallClass, RpcError};

use super::{ClientRecord, Granted, OVERHEAD, STATE_REPLY, Session, spec};
use crate::{
    Error,
    pool::Retry,
    v4::{
        ChangeProof,
        calls::{CreateSession, DestroySession, ExchangeId},
        compound::{Compound, Failure, Request, Results},
    },
};

impl Session {
    /// Creates a session, with a new client ID if the server rejects the current one (STALE_CLIENTID).
    pub(super) async fn create_session(
        &self,
        record: &mut ClientRecord,
        retry: &mut Retry<'_>,
    ) -> Result<(), Error> {
        if let Some(old) = self.slots.session() {
            // The server has probably lost the old session.
            self.call_without_session(Operation::DestroySession, &DestroySession(old), retry).await?.ok();
        }
        let mut forgotten = false;
        loop {
            let (client_id, sequence) = match record.client {
                Some(client) => client,
                None => self.exchange_id(record, retry).await?,
            };
            let create = CreateSession { client_id, sequence, fore: self.fore };
            match self.call_without_session(Operation::CreateSession, &create, retry).await? {
                Ok(ok) => {
                    record.client = Some((client_id, sequence.wrapping_add(1)));
                    return self.use_session(&ok);
                }
                Err((_, Status::StaleClientid | Status::SeqMisordered)) => {
                    record.client = None;
                    if std::mem::replace(&mut forgotten, true) {
                        retry.pause("the server forgot the client ID again").await?;
                    }
                }
                Err((_, Status::Delay)) => retry.pause("the server asks to retry later").await?,
                Err((operation, status)) => return Err(Error::Nfs4 { operation, status }),
            }
        }
    }

    /// Requests a client ID (EXCHANGE_ID). Returns it with the sequence number of the next CREATE_SESSION.
    async fn exchange_id(
        &self,
        record: &mut ClientRecord,
        retry: &mut Retry<'_>,
    ) -> Result<(ClientId, u32), Error> {
        let exchange = ExchangeId { verifier: self.verifier, owner: self.owner.as_bytes() };
        loop {
            match self.call_without_session(Operation::ExchangeId, &exchange, retry).await? {
                Ok(ok) => {
                    // The server has no state for an unconfirmed client ID: the client must reclaim it.
                    record.reclaimed &= ok.confirmed;
                    if !ok.confirmed {
                        self.delegations.lose_all();
                    }
                    let client = (ok.client_id, ok.sequence);
                    record.client = Some(client);
                    return Ok(client);
                }
                Err((_, Status::Delay)) => retry.pause("the server asks to retry later").await?,
                Err((operation, status)) => return Err(Error::Nfs4 { operation, status }),
            }
        }
    }

    /// Uses a new session from now on.
    fn use_session(&self, ok: &CreateSessionOk) -> Result<(), Error> {
        let granted = Granted {
            request: ok.fore.max_request_size.min(self.fore.max_request_size),
            reply: ok.fore.max_response_size.min(self.fore.max_response_size),
        };
        if granted.request < 2 * OVERHEAD || granted.reply < 2 * OVERHEAD {
            return Err(self.pool.bad_reply("CREATE_SESSION", "a session for messages of less than 8 KiB"));
        }
        *self.granted.lock() = granted;
        let slots = ok.fore.max_requests.min(self.fore.max_requests);
        self.target.store(slots, Ordering::Relaxed);
        self.back_channel.begin(ok.session);
        self.slots.begin(ok.session, slots);
        tracing::debug!(server = self.pool.server(), slots, ?granted, "new NFSv4 session");
        Ok(())
    }

    /// Makes a call of one operation outside of sessions. The first call of a client is not retried: a server that closes the
    /// connection probably has another transport at this port.
    async fn call_without_session<C: Compound>(
        &self,
        operation: Operation,
        compound: &C,
        retry: &mut Retry<'_>,
    ) -> Result<Result<C::Ok, (Operation, Status)>, Error> {
        let name = operation.name();
        let request = Request::without_session(self.minor_version, compound);
        let spec = spec(name, STATE_REPLY, CallClass::Other);
        let is_first = operation == Operation::ExchangeId && self.target.load(Ordering::Relaxed) == 0;
        let reply = match self.pool.any_transport().filter(|_| is_first) {
            Some(transport) => self.pool.first_call(&transport, spec, &self.credential, &request).await?,
            None => self.pool.call_without_slot(spec, &self.credential, &request, retry).await?,
        };
        let bad = |reason: String| self.pool.bad_reply(name, reason);
        let mut results =
            Results::new(reply.results(), ChangeProof::Nothing).map_err(|e| bad(e.to_string()))?;
        if let Some(status) = results.rejected() {
            return Ok(Err((operation, status)));
        }
        match compound.results(&mut results) {
            Ok(value) => Ok(Ok(value)),
            Err(Failure::Status(operation, status)) => Ok(Err((operation, status))),
            Err(Failure::Invalid(reason)) => Err(bad(reason)),
        }
    }
}

/// Whether the server lacks NFS version 4 or the minor version.
pub(crate) fn is_unsupported(error: &Error) -> bool {
    match error {
        Error::Nfs4 { status, .. } => *status == Status::MinorVersMismatch,
        Error::Rpc { error: RpcError::Accept(e), .. } => {
            matches!(e, AcceptError::ProgUnavail | AcceptError::ProgMismatch { .. })
        }
        _ => false,
    }
}
