//! Log entries about clients that come and go. One that stays for less than the time between two searches for expired
//! clients, such as a command, has none.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use millrace_nfs::v4::ClientId;
use millrace_nfs4_state::Client;
use millrace_runtime::sync::Mutex;

use super::names;

/// The confirmed clients, each with whether the log names it.
#[derive(Default)]
pub(super) struct Presence(Mutex<HashMap<ClientId, (Arc<Client>, bool)>>);

impl Presence {
    /// Adds the client of a new session, unless there are `max` already.
    pub(super) fn add(&self, client: &Arc<Client>, max: usize) {
        let mut clients = self.0.lock();
        let has_room = clients.len() < max;
        if let (true, Entry::Vacant(new)) = (has_room, clients.entry(client.id())) {
            new.insert((Arc::clone(client), false));
        }
    }

    /// Logs the clients that are new and those that have gone.
    pub(super) fn report(&self) {
        let mut changes = Vec::new();
        self.0.lock().retain(|_, (client, is_logged)| {
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
