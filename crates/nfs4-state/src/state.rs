//! The state of a server.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::Hasher,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_admission::ClientQuota;
use millrace_nfs::v4::{ClientId, SessionId, Status};
use parking_lot::{Mutex, RwLock};
use siphasher::sip::SipHasher13;

use crate::{
    candidates::{ANY, Candidates, VISITS},
    client::Client,
    delegating::Delegating,
    files::Files,
    grace::{ClientList, Grace},
    limits::{Identity, Limits},
    locks::LockNotice,
    records::{Record, Records},
    replies::Replies,
    session::Session,
    table::Table,
};

/// Clients, sessions and all state of an NFSv4 server. `R` is the type of the replies that slots keep.
///
/// Locks are taken in the order of the fields.
#[derive(Debug)]
pub struct State<R> {
    /// Exclusive while clients are removed from the list, shared while one is added: an addition of an owner cannot be
    /// undone by the removal of its earlier incarnation.
    pub(crate) listing: RwLock<()>,
    pub(crate) limits: Limits,
    pub(crate) identity: Identity,
    pub(crate) records: Mutex<Records>,
    pub(crate) sessions: RwLock<HashMap<SessionId, Arc<Session<R>>>>,
    // In the order of locks, that of one client's table is here.
    pub(crate) files: Files,
    /// The clients that are removed, with the state that is not.
    pub(crate) rests: Mutex<VecDeque<(Arc<Client>, Table)>>,
    /// Whether there may be some.
    pub(crate) any_rest: AtomicBool,
    /// The heap of the state of all clients.
    pub(crate) heap: Arc<ClientQuota>,
    /// The records of confirmed clients.
    pub(crate) clients: Arc<ClientQuota>,
    /// The confirmed clients in the order of their removal. No lock is taken under its lock.
    pub(crate) candidates: Arc<Candidates>,
    pub(crate) replies: Arc<Replies>,
    /// Time in milliseconds of the next search for a client to remove, after one that has found none.
    pub(crate) next_search: AtomicU64,
    /// Time in milliseconds when clients may be asked for slots again.
    pub(crate) next_request: AtomicU64,
    /// The sessions that were asked for slots, with the time when they lose these.
    pub(crate) asked: Mutex<BTreeSet<(Duration, SessionId)>>,
    pub(crate) notices: Mutex<Vec<LockNotice>>,
    /// Whether there are notices.
    pub(crate) noticed: AtomicBool,
    pub(crate) delegating: Delegating,
    pub(crate) grace: Grace,
    pub(crate) list: Option<Box<dyn ClientList>>,
    /// The clients that are not on the list, because state of them was revoked.
    pub(crate) unlisted: Mutex<Vec<Arc<Client>>>,
}

impl<R: Clone> State<R> {
    /// The state of a server that has no clients yet.
    pub fn new(limits: Limits, identity: Identity) -> Self {
        let clients = Arc::new(ClientQuota::new(limits.clients));
        let candidates = Arc::new(Candidates::default());
        Self {
            listing: RwLock::new(()),
            limits,
            identity,
            records: Mutex::new(Records::new(Arc::clone(&clients), Arc::clone(&candidates))),
            sessions: RwLock::new(HashMap::new()),
            files: Files::new(&identity.secret),
            rests: Mutex::default(),
            any_rest: AtomicBool::new(false),
            heap: Arc::new(ClientQuota::new(limits.heap)),
            replies: Replies::new(&limits, &clients),
            clients,
            candidates,
            next_search: AtomicU64::new(0),
            next_request: AtomicU64::new(0),
            asked: Mutex::default(),
            notices: Mutex::new(Vec::new()),
            noticed: AtomicBool::new(false),
            delegating: Delegating::new(limits.delegations, &identity.secret),
            grace: Grace::new([], Duration::ZERO, limits.lease),
            list: None,
            unlisted: Mutex::default(),
        }
    }

    /// Adds a durable list of clients. `clients` are the owners that an earlier instance has added to it: they may
    /// reclaim their state until `grace_end`, and for one lease more as long as they do so, or until all of them have sent
    /// RECLAIM_COMPLETE. Then [`Self::expire`] and
    /// [`Self::reclaim_complete`] perform the I/O of the list, and all other methods answer DELAY where they would have
    /// to wait for it.
    pub fn with_client_list(
        mut self,
        list: Box<dyn ClientList>,
        clients: impl IntoIterator<Item = Box<[u8]>>,
        grace_end: Duration,
    ) -> Self {
        self.grace = Grace::new(clients, grace_end, self.limits.lease);
        self.list = Some(list);
        self
    }

    /// Whether clients get no new state, because others may reclaim state of an earlier server instance.
    pub fn in_grace(&self) -> bool {
        !self.grace.is_over()
    }

    /// The owners of the clients that the grace period waits for, in order.
    pub fn awaited(&self) -> Vec<Arc<[u8]>> {
        self.grace.awaited()
    }

    /// Whether a client may get new state, or `reclaim` that of an earlier server instance: for an operation that changes
    /// something before it asks for the state. The methods that add state check it, too.
    ///
    /// # Errors
    /// GRACE before the client's RECLAIM_COMPLETE and in the grace period; for a reclaim, RECLAIM_BAD if the client is not
    /// on the list, and NO_GRACE after its RECLAIM_COMPLETE or after the grace period.
    pub fn admit(&self, client: &Client, reclaim: bool, now: Duration) -> Result<(), Status> {
        self.grace.admit(client, reclaim, now)
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Bytes of the heap that the state of all clients occupies, at most.
    pub fn heap_bytes(&self) -> usize {
        self.limits.heap - self.heap.left()
    }

    /// A client, unless it is removed.
    pub fn client(&self, id: ClientId) -> Option<Arc<Client>> {
        self.records.lock().client(id).cloned()
    }

    /// A session, for SEQUENCE and BIND_CONN_TO_SESSION; `None` stands for BADSESSION.
    pub fn session(&self, id: SessionId) -> Option<Arc<Session<R>>> {
        self.sessions.read().get(&id).cloned()
    }

    /// DESTROY_SESSION. Requests in progress are executed to their end.
    ///
    /// # Errors
    /// BADSESSION.
    pub fn destroy_session(&self, id: SessionId) -> Result<(), Status> {
        let mut records = self.records.lock();
        let session = self.session(id).ok_or(Status::BadSession)?;
        records.remove_session(session.client().id(), id);
        self.drop_session(id);
        Ok(())
    }

    /// RECLAIM_COMPLETE for all file systems: the client will reclaim no state of an earlier server instance. This returns
    /// when the client is on the list, unless state of it was revoked.
    ///
    /// # Errors
    /// COMPLETE_ALREADY; DELAY if the client cannot be added to the list, without which it gets no state.
    pub fn reclaim_complete(&self, client: &Client) -> Result<(), Status> {
        let _listing = self.listing.read();
        if client.reclaimed.load(Ordering::Acquire) {
            return Err(Status::CompleteAlready);
        }
        // A client with revoked state is added to the list when it has freed that state.
        if let Some(list) = &self.list
            && !client.unlisted.load(Ordering::Acquire)
        {
            list.add(client.owner(), client.address()).map_err(|_| Status::Delay)?;
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
        if record.client.is_removed() {
            return Err(Status::StaleClientid);
        }
        let busy = !record.sessions.is_empty() || !record.client.table.lock().is_empty();
        if busy || !record.client.lease.end_if_idle() {
            return Err(Status::ClientidBusy);
        }
        // The client has no state that another client waits for.
        let _ = self.remove_unlisted(&mut records, id, Duration::ZERO);
        Ok(())
    }

    /// Ends the grace period if its time has passed, adds clients to the list again that have freed all revoked state,
    /// revokes the delegations that were not returned in time, and removes the client records that [`Limits::lease`] and
    /// [`Limits::courtesy`] permit to remove, and those with which requests have conflicted. The server calls this from
    /// time to time, for example every second.
    ///
    /// Returns whether there is more to remove: the server then calls this again soon.
    pub fn expire(&self, now: Duration) -> bool {
        let _listing = self.listing.write();
        let missing = self.grace.missing(now);
        if !missing.is_empty() && self.unlist(&missing) {
            missing.iter().for_each(|owner| self.grace.complete(owner));
        }
        let courtesy = self.limits.courtesy.max(self.limits.lease);
        let ended: Vec<_> = {
            let mut records = self.records.lock();
            records.remove_stale(now, self.limits.lease);
            for _ in 0..VISITS {
                let Ok(Some(client)) = self.expired(&records, None, ANY, courtesy, now) else { break };
                if client.lease.end_if_expired(now, courtesy) {
                    records.end(client.id());
                }
            }
            let ended = records.all_ending().filter(|client| client.lease.end_if_idle());
            ended.cloned().collect()
        };
        let more = self.revoke_overdue(now);
        self.retire_slots(now);
        self.relist();
        let owners: Vec<Box<[u8]>> = ended.iter().map(|client| client.owner().into()).collect();
        if !owners.is_empty() && self.unlist(&owners) {
            for client in ended {
                self.grace.complete(client.owner());
                let removed = self.records.lock().remove(client.id());
                removed.iter().for_each(|record| self.end_client(record));
            }
        }
        self.clear_ended(now);
        more || self.has_rests()
    }

    /// Removes clients from the list. Returns whether that is durable.
    pub(crate) fn unlist(&self, owners: &[Box<[u8]>]) -> bool {
        self.list.as_ref().is_none_or(|list| list.remove(owners).is_ok())
    }

    /// Removes a client whose lease has ended, with its sessions and a step of its state.
    pub(crate) fn remove_ended(&self, records: &mut Records, id: ClientId, now: Duration) {
        if let Some(record) = records.remove(id) {
            self.end_client(&record);
            self.clear_ended(now);
        }
    }

    /// Ends the sessions and the state of a client whose record is removed.
    fn end_client(&self, record: &Record) {
        for (_, session) in &record.sessions {
            self.drop_session(*session);
        }
        self.end_state(&record.client);
    }

    /// Removes a client whose lease has ended if there is no list, from which it has to be removed first.
    ///
    /// # Errors
    /// DELAY: [`expire`](Self::expire) removes it.
    pub(crate) fn remove_unlisted(
        &self,
        records: &mut Records,
        id: ClientId,
        now: Duration,
    ) -> Result<(), Status> {
        if self.list.is_some() {
            records.end(id);
            return Err(Status::Delay);
        }
        self.remove_ended(records, id, now);
        Ok(())
    }

    /// Removes a client with which a request conflicts, if its lease has expired. Returns whether it is removed.
    ///
    /// # Errors
    /// DELAY: [`expire`](Self::expire) removes it.
    pub(crate) fn remove_expired(&self, client: &Client, now: Duration) -> Result<bool, Status> {
        let ended = client.lease.end_if_expired(now, self.limits.lease);
        if ended {
            // If another thread removes it, this waits for the end of that.
            self.remove_unlisted(&mut self.records.lock(), client.id(), now)?;
            if client.has_rest.load(Ordering::Acquire) {
                self.clear_ended(now);
                return Err(Status::Delay); // With the next request, what conflicts with this one may be removed.
            }
        }
        Ok(ended)
    }

    fn drop_session(&self, id: SessionId) {
        if let Some(session) = self.sessions.write().remove(&id) {
            session.destroy();
        }
    }

    /// A session ID: the client ID, and a keyed hash of the session's number.
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
