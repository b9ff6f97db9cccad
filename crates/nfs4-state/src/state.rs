//! The state of a server.

use std::{
    collections::HashMap,
    hash::Hasher,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_nfs::v4::{ClientId, SessionId, Status};
use parking_lot::{Mutex, RwLock};
use siphasher::sip::SipHasher13;

use crate::{
    back_channel::BackChannel,
    budget::Budget,
    client::Client,
    files::Files,
    grace::{ClientList, Grace},
    limits::{Identity, Limits},
    locks::LockNotice,
    records::Records,
    session::Session,
};

/// Clients, sessions and all state of an NFSv4 server. `R` is the type of the replies that slots keep.
///
/// Locks are taken in the order of the fields.
#[derive(Debug)]
pub struct State<R> {
    pub(crate) limits: Limits,
    pub(crate) identity: Identity,
    pub(crate) records: Mutex<Records>,
    pub(crate) sessions: RwLock<HashMap<SessionId, Arc<Session<R>>>>,
    // Here belongs the lock of one client's table.
    pub(crate) files: Files,
    /// Stateids of all clients.
    pub(crate) stateids: Budget,
    /// Locked byte ranges of all clients.
    pub(crate) ranges: Budget,
    pub(crate) notices: Mutex<Vec<LockNotice>>,
    /// Whether there are notices.
    pub(crate) noticed: AtomicBool,
    pub(crate) grace: Grace,
    list: Option<Box<dyn ClientList>>,
}

impl<R: Clone> State<R> {
    /// The state of a server that has no clients yet.
    pub fn new(limits: Limits, identity: Identity) -> Self {
        Self {
            limits,
            identity,
            records: Mutex::new(Records::default()),
            sessions: RwLock::new(HashMap::new()),
            files: Files::new(),
            stateids: Budget::new(limits.stateids),
            ranges: Budget::new(limits.ranges),
            notices: Mutex::new(Vec::new()),
            noticed: AtomicBool::new(false),
            grace: Grace::new([], Duration::ZERO),
            list: None,
        }
    }

    /// Adds a durable list of clients. `clients` are the owners that an earlier instance has added to it: they may
    /// reclaim their state until `grace_end`, or until all of them have sent RECLAIM_COMPLETE.
    pub fn with_client_list(
        mut self,
        list: Box<dyn ClientList>,
        clients: impl IntoIterator<Item = Box<[u8]>>,
        grace_end: Duration,
    ) -> Self {
        self.grace = Grace::new(clients, grace_end);
        self.list = Some(list);
        self
    }

    /// Whether clients may reclaim state of an earlier server instance.
    pub fn in_grace(&self, now: Duration) -> bool {
        self.grace.lasts(now)
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A session, for SEQUENCE and BIND_CONN_TO_SESSION; `None` stands for BADSESSION.
    pub fn session(&self, id: SessionId) -> Option<Arc<Session<R>>> {
        self.sessions.read().get(&id).cloned()
    }

    /// A back channel of a client on which callbacks can be sent.
    pub fn back_channel(&self, client: ClientId) -> Option<Arc<BackChannel>> {
        let mut records = self.records.lock();
        let ids = &records.get_mut(client)?.sessions;
        let backs = ids.iter().filter_map(|id| self.session(*id)?.back().cloned());
        backs.into_iter().find(|back| back.is_up())
    }

    /// DESTROY_SESSION. Requests in progress are executed to their end.
    ///
    /// # Errors
    /// BADSESSION.
    pub fn destroy_session(&self, id: SessionId) -> Result<(), Status> {
        let mut records = self.records.lock();
        let session = self.session(id).ok_or(Status::BadSession)?;
        if let Some(record) = records.get_mut(session.client().id()) {
            record.sessions.retain(|other| *other != id);
        }
        self.drop_session(&mut records, id);
        Ok(())
    }

    /// RECLAIM_COMPLETE for all file systems: the client will reclaim no state of an earlier server instance.
    ///
    /// # Errors
    /// COMPLETE_ALREADY; SERVERFAULT if the client cannot be added to the durable list, without which it gets no state.
    pub fn reclaim_complete(&self, client: &Client) -> Result<(), Status> {
        if client.reclaimed.load(Ordering::Acquire) {
            return Err(Status::CompleteAlready);
        }
        if let Some(list) = &self.list {
            list.add(client.owner()).map_err(|_| Status::ServerFault)?;
        }
        client.reclaimed.store(true, Ordering::Release);
        self.grace.complete(client.owner());
        Ok(())
    }

    /// DESTROY_CLIENTID.
    ///
    /// # Errors
    /// STALE_CLIENTID; CLIENTID_BUSY if the client has a session, state, or requests in progress.
    pub fn destroy_client(&self, id: ClientId) -> Result<(), Status> {
        let mut records = self.records.lock();
        let record = records.get_mut(id).ok_or(Status::StaleClientid)?;
        let busy = !record.sessions.is_empty() || !record.client.table.lock().is_empty();
        if busy || !record.client.lease.end_if_idle() {
            return Err(Status::ClientidBusy);
        }
        self.remove_ended(&mut records, id);
        Ok(())
    }

    /// Removes the client records that [`Limits::lease`] and [`Limits::courtesy`] permit to remove. The server calls
    /// this from time to time, for example every tenth of a lease.
    pub fn expire(&self, now: Duration) {
        for owner in self.grace.expire(now) {
            self.list.iter().for_each(|list| list.remove(&owner));
        }
        let mut records = self.records.lock();
        records.remove_stale(now, self.limits.lease);
        let courtesy = self.limits.courtesy.max(self.limits.lease);
        let ended = records.confirmed_clients().filter(|client| client.lease.end_if_expired(now, courtesy));
        let ended: Vec<_> = ended.map(|client| client.id()).collect();
        for id in ended {
            self.remove_ended(&mut records, id);
        }
    }

    /// Removes a client whose lease has ended, with its sessions and its state.
    pub(crate) fn remove_ended(&self, records: &mut Records, id: ClientId) {
        let Some(record) = records.remove(id) else { return };
        for session in &record.sessions {
            self.drop_session(records, *session);
        }
        if record.client.reclaimed.load(Ordering::Acquire) {
            self.list.iter().for_each(|list| list.remove(record.client.owner()));
        }
        let table = record.client.table.lock().end();
        for file in table.files() {
            self.files.update(&file, |file, key| {
                file.remove_client(&record.client);
                self.notify(file.locks.available(key));
            });
        }
        self.ranges.change(-(table.ranges as isize));
        self.stateids.give_back(table.len());
    }

    /// Removes a client with which a request conflicts, if its lease has expired. Returns whether it is removed.
    pub(crate) fn remove_expired(&self, client: &Client, now: Duration) -> bool {
        let ended = client.lease.end_if_expired(now, self.limits.lease);
        if ended {
            // If another thread removes it, this waits for the end of that.
            self.remove_ended(&mut self.records.lock(), client.id());
        }
        ended
    }

    fn drop_session(&self, records: &mut Records, id: SessionId) {
        if let Some(session) = self.sessions.write().remove(&id) {
            records.cached_bytes -= session.fore().total_cached_bytes();
            session.destroy();
        }
    }

    /// A session ID: the epoch, the client's number, and a keyed hash of the session's number.
    pub(crate) fn session_id(&self, client: ClientId, number: u64) -> SessionId {
        let mut hasher = SipHasher13::new_with_key(&self.identity.secret);
        hasher.write_u64(client.number);
        hasher.write_u64(number);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&client.number.to_be_bytes());
        id[8..].copy_from_slice(&hasher.finish().to_be_bytes());
        SessionId(id)
    }
}
