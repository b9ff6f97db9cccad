//! The present clients: the protection of their connections, and log entries about those that come and go. One that stays for less than the time between two searches for expired
//! clients, such as a command, has none.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use millrace_nfs::v4::ClientId;
use millrace_nfs4_state::Client;
use millrace_oncrpc::{Sender, TransportSecurity};
use millrace_runtime::sync::Mutex;

use super::names;

/// The protection of a client's connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Protection {
    /// That of the transport.
    pub security: TransportSecurity,
    /// The subject of the client's certificate (RFC 4514).
    pub subject: Option<Arc<str>>,
}

impl From<&Sender> for Protection {
    fn from(sender: &Sender) -> Self {
        let subject = sender.certificate.as_ref().map(|certificate| Arc::clone(&certificate.subject));
        Self { security: sender.peer.security, subject }
    }
}

/// The confirmed clients.
#[derive(Default)]
pub(super) struct Presence(Mutex<HashMap<ClientId, Present>>);

struct Present {
    client: Arc<Client>,
    protection: Protection,
    /// Whether the log names it.
    is_logged: bool,
}

impl Presence {
    /// Adds the client of a session that a connection begins to use, unless there are `max` already.
    pub(super) fn add(&self, client: &Arc<Client>, protection: Protection, max: usize) {
        let mut clients = self.0.lock();
        let has_room = clients.len() < max;
        match clients.entry(client.id()) {
            Entry::Occupied(mut present) => present.get_mut().protection = protection,
            Entry::Vacant(new) if has_room => {
                new.insert(Present { client: Arc::clone(client), protection, is_logged: false });
            }
            Entry::Vacant(_) => {}
        }
    }

    /// The protection of a client's connection that was the last to begin to use its session.
    pub(super) fn protection(&self, client: ClientId) -> Option<Protection> {
        self.0.lock().get(&client).map(|present| present.protection.clone())
    }

    /// Logs the clients that are new and those that have gone.
    pub(super) fn report(&self) {
        let mut changes = Vec::new();
        self.0.lock().retain(|_, Present { client, is_logged, .. }| {
            let has_gone = client.is_removed();
            if has_gone == *is_logged {
                changes.push((Arc::clone(client), has_gone));
            }
            *is_logged = true;
            !has_gone
        });
        // Without the lock, which a new session needs: the log may be slow.
        for (client, has_gone) in changes {
            let name = names(&[client.owner()]);
            tracing::info!(name, "NFSv4 client has {}", if has_gone { "gone" } else { "come" });
        }
    }
}
