//! The credentials of a client's calls, and the Kerberos contexts of its callers.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use millrace_buffer::Arena;
use millrace_oncrpc::{
    Credential, EncodedCredential, Protection, Request, SecurityFlavor,
    gss::{CallSeal, GssClient},
};
use millrace_runtime::{RuntimeRef, sync::Mutex};
use millrace_xdr::{Encode, Encoder};

use crate::{Identity, kerberos::Tickets};

/// The credential of a caller.
pub(crate) struct CallCredential {
    encoded: EncodedCredential,
    /// What protects the calls.
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
    /// The security context of the caller, if calls are protected.
    pub(crate) fn gss(&self) -> Option<&Arc<GssClient>> {
        self.gss.as_ref()
    }

    /// What protects the next call, if that is ready.
    pub(crate) fn seal(&self) -> Option<CallSeal> {
        self.gss.as_ref()?.ready()
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
        let gss = GssClient::new(tickets, protection, Arc::clone(&self.rt), self.arena.clone());
        by_uid.insert(uid, Arc::downgrade(&gss));
        gss
    }

    /// Gives up all security contexts. Returns the calls of `program` that end them at the server.
    pub(crate) fn end(&self, program: (u32, u32)) -> Vec<Request> {
        let known: Vec<_> = self.by_uid.lock().values().filter_map(Weak::upgrade).collect();
        known.iter().filter_map(|gss| gss.end(program)).collect()
    }
}
