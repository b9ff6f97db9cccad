//! Who calls: one client for each identity, over the same connections.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use client::{Client, Identity};
use parking_lot::Mutex;

/// How long the groups of a process are believed.
const LIFE: Duration = Duration::from_secs(10);
/// Identities that are remembered at a time.
const MOST: usize = 1024;

pub(crate) struct Callers {
    client: Client,
    own: Identity,
    known: Mutex<HashMap<Who, (Client, Instant)>>,
}

/// User, group and thread, as the kernel tells them.
type Who = (u32, u32, u32);

impl Callers {
    pub(crate) fn new(client: Client, own: Identity) -> Self {
        Self { client, own, known: Mutex::default() }
    }

    /// The client whose calls are those of the mounting process.
    pub(crate) fn own(&self) -> &Client {
        &self.client
    }

    /// The client for a request. The kernel tells user, group and thread; further groups are the process's.
    pub(crate) fn get(&self, uid: u32, gid: u32, tid: u32) -> Client {
        if (uid, gid) == (self.own.uid, self.own.gid) {
            return self.client.clone();
        }
        let key = (uid, gid, tid);
        if let Some((client, since)) = self.known.lock().get(&key)
            && since.elapsed() < LIFE
        {
            return client.clone();
        }
        // Without the lock: others need not wait while the kernel is asked.
        let gids = Identity::groups_of(&tid.to_string());
        let who = Identity { uid, gid, gids, machine: self.own.machine.clone() };
        let client = self.client.as_caller(&who);
        let mut known = self.known.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, (client.clone(), Instant::now()));
        client
    }
}
