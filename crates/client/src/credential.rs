//! The credentials of a client's calls, and the Kerberos contexts of its callers.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
    time::Duration,
};

use millrace_buffer::Arena;
use millrace_oncrpc::{
    Credential, EncodedCredential, Protection, Request, SecurityFlavor, Transport,
    gss::{CallSeal, GssClient, GssError, InitiatorThreads},
};
use millrace_runtime::{RuntimeRef, sync::Mutex};
use millrace_xdr::{Encode, Encoder};

use crate::{Identity, kerberos::Tickets};

/// Threads of this process on which contexts are initiated: an eighth of those that Tokio has for work that blocks, so that
/// stuck ones do not stop other work. Each user has one at most.
static INITIATOR_THREADS: LazyLock<InitiatorThreads> = LazyLock::new(|| InitiatorThreads::new(64));

/// The credential of a caller.
pub(crate) struct CallCredential {
    /// AUTH_NONE of calls with Kerberos: what protects a call replaces it.
    encoded: EncodedCredential,
    /// The security context of the caller; `None` with AUTH_SYS.
    gss: Option<Arc<GssClient>>,
}

impl Encode for CallCredential {
    fn encode(&self, e: &mut Encoder) {
        self.encoded.encode(e);
    }
}

impl PartialEq for CallCredential {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.gss, &other.gss) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => true,
            _ => false,
        };
        same && self.encoded == other.encoded
    }
}

impl CallCredential {
    /// What protects the next call of `program`, a number and a version, on `transport`; `None`: the flavor needs nothing. The
    /// call waits for its security context for at most `limit`.
    ///
    /// # Errors
    /// [`GssError`]
    pub(crate) async fn seal(
        &self,
        transport: &Arc<dyn Transport>,
        program: (u32, u32),
        limit: impl FnOnce() -> Duration,
    ) -> Result<Option<CallSeal>, GssError> {
        let Some(gss) = &self.gss else { return Ok(None) };
        match gss.ready(transport, program) {
            Some(seal) => Ok(Some(seal)),
            // Boxed, because it is rare and would enlarge every call.
            None => Box::pin(gss.seal(transport, program, limit())).await.map(Some),
        }
    }

    /// As [`Self::seal`], for a call at the end of the client, which waits for nothing. `None`: the flavor needs it, and there
    /// is no context.
    pub(crate) fn seal_last(&self) -> Option<Option<CallSeal>> {
        match &self.gss {
            None => Some(None),
            Some(gss) => gss.seal_last().map(Some),
        }
    }
}

/// The callers of a client. Those with the same user share a security context on all connections; it lives as long as a
/// credential of the user does.
pub(crate) struct Callers {
    flavor: SecurityFlavor,
    /// The host of the server, as the URL names it.
    host: String,
    rt: RuntimeRef,
    arena: Arena,
    by_uid: Mutex<HashMap<u32, Weak<GssClient>>>,
}

impl Callers {
    pub(crate) fn new(flavor: SecurityFlavor, host: String, rt: RuntimeRef, arena: Arena) -> Self {
        Self { flavor, host, rt, arena, by_uid: Mutex::default() }
    }

    /// The flavor of the calls.
    pub(crate) fn flavor(&self) -> SecurityFlavor {
        self.flavor
    }

    /// The credential of a caller.
    pub(crate) fn credential(&self, who: &Identity) -> CallCredential {
        match self.flavor {
            SecurityFlavor::Sys => CallCredential { encoded: who.credential().encoded(), gss: None },
            SecurityFlavor::Kerberos(protection) => {
                let gss = Some(self.gss(who.uid, protection));
                CallCredential { encoded: Credential::None.encoded(), gss }
            }
        }
    }

    fn gss(&self, uid: u32, protection: Protection) -> Arc<GssClient> {
        let mut by_uid = self.by_uid.lock();
        if let Some(known) = by_uid.get(&uid).and_then(Weak::upgrade) {
            return known;
        }
        by_uid.retain(|_, known| known.strong_count() > 0);
        let tickets = Arc::new(Tickets::new(&self.host, uid));
        let (threads, rt) = (INITIATOR_THREADS.clone(), Arc::clone(&self.rt));
        let gss = GssClient::new(tickets, threads, protection, rt, self.arena.clone());
        by_uid.insert(uid, Arc::downgrade(&gss));
        gss
    }

    /// Gives up all security contexts. Returns the calls of `program` that end them at the server.
    pub(crate) fn end(&self, program: (u32, u32)) -> Vec<Request> {
        let known: Vec<_> = self.by_uid.lock().values().filter_map(Weak::upgrade).collect();
        known.iter().filter_map(|gss| gss.end(program)).collect()
    }
}
