//! The holder's end of a delegation.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll},
};

use futures::{StreamExt, channel::oneshot};
use millrace_nfs::v4::{DelegreturnArgs, Operation, Stateid, Status};
use millrace_oncrpc::CallClass;
use millrace_runtime::Uncancelled;

use crate::{
    Error,
    credential::CallCredential,
    v4::{
        compound::{Compound, Failure, Operations, Results},
        delegations::Trust,
        lock_calls::{Free, latest},
        session::{Session, spec},
    },
};

/// Maximum size of a reply in bytes.
const REPLY: usize = 1024;
/// Maximum number of delegations that are returned at a time when the client ends.
const RETURNS: usize = 32;

/// A read delegation of a file: while it [is valid](Self::is_valid), no other client has changed the file or its names
/// since its attributes were [returned](crate::handles::Client::delegate). Dropping it returns it to the server.
pub struct Delegation {
    session: Arc<Session>,
    /// Credentials of the request for it.
    credential: Arc<CallCredential>,
    file: Vec<u8>,
    stateid: Stateid,
    trust: Arc<Trust>,
    uses: Arc<AtomicU64>,
}

impl Delegation {
    /// Whether the holder may use what it has cached of the file.
    pub fn is_valid(&self) -> bool {
        if self.trust.has_ended() {
            return false;
        }
        self.trust.touch(&self.uses);
        self.session.pool.rt.now() < self.session.delegations.trusted_until(self.session.lease())
    }

    /// Returns the delegation to the server, and waits for it. Dropping the future does not stop the return.
    pub async fn give_back(self) {
        let rt = Arc::clone(&self.session.pool.rt);
        if let Some(returning) = self.returning() {
            Uncancelled::new(&rt, "return delegation", returning).await;
        }
    }

    /// The return of the delegation; `None` if the server does not have it.
    fn returning(&self) -> Option<impl Future<Output = ()> + Send + 'static> {
        if !self.session.delegations.give_up(&self.file, &self.stateid) {
            return None;
        }
        let (session, credential) = (Arc::clone(&self.session), Arc::clone(&self.credential));
        let (file, stateid) = (self.file.clone(), self.stateid);
        Some(async move { session.return_delegation(&credential, &file, stateid).await })
    }
}

impl Drop for Delegation {
    fn drop(&mut self) {
        if let Some(returning) = self.returning() {
            self.session.pool.rt.spawn("return delegation", Box::pin(returning));
        }
    }
}

impl std::fmt::Debug for Delegation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Delegation({:?})", self.stateid)
    }
}

/// Completes when a delegation has ended, and its holder must drop it: the server waits for that.
#[derive(Debug)]
pub struct Recalled(oneshot::Receiver<()>);

impl Future for Recalled {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.get_mut().0).poll(cx).map(drop)
    }
}

/// DELEGRETURN.
struct Return<'a> {
    file: &'a [u8],
    stateid: Stateid,
}

impl Compound for Return<'_> {
    type Ok = ();

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.file).put(Operation::Delegreturn, &DelegreturnArgs { stateid: latest(self.stateid) });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<(), Failure> {
        r.done(Operation::Putfh)?;
        r.done(Operation::Delegreturn)
    }
}

impl Session {
    /// Records a delegation that the server has granted.
    pub(crate) fn hold(
        self: &Arc<Self>,
        credential: &Arc<CallCredential>,
        file: &[u8],
        stateid: Stateid,
    ) -> (Delegation, Recalled) {
        let new = self.delegations.granted(file, stateid);
        let delegation = Delegation {
            session: Arc::clone(self),
            credential: Arc::clone(credential),
            file: file.to_vec(),
            stateid,
            trust: new.trust,
            uses: new.uses,
        };
        (delegation, Recalled(new.ended))
    }

    async fn return_delegation(self: &Arc<Self>, credential: &CallCredential, file: &[u8], stateid: Stateid) {
        let spec = |operation: Operation| spec(operation.name(), REPLY, CallClass::Other);
        let mut call = Return { file, stateid };
        let returned = self.call(credential, spec(Operation::Delegreturn), true, &mut call, None).await;
        if let Ok(Err((_, Status::DelegRevoked | Status::AdminRevoked | Status::Expired))) =
            returned.map(|answer| answer.result)
        {
            // The server reports revoked state until the client has freed it.
            let freed: Result<_, Error> =
                self.call(credential, spec(Operation::FreeStateid), true, &mut Free(stateid), None).await;
            drop(freed);
        }
        self.delegations.remove(file, &stateid);
    }

    /// Returns all delegations, whose holders must not trust them any more.
    pub(crate) async fn return_delegations(self: &Arc<Self>) {
        let held = self.delegations.take_all();
        let credential = &self.credential;
        futures::stream::iter(held)
            .for_each_concurrent(RETURNS, |(file, stateid)| async move {
                self.return_delegation(credential, &file, stateid).await;
            })
            .await;
    }
}
