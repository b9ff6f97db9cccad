//! The records of clients, confirmed and unconfirmed (RFC 8881, 18.35.4), with their sessions.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::Hasher,
    net::IpAddr,
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use millrace_admission::{ClientAddr, ClientQuota};
use millrace_nfs::v4::{ClientId, SessionId, Status, Verifier};
use siphasher::sip::SipHasher13;

use crate::{
    candidates::{Candidates, VISITS},
    client::Client,
    identify::{ClientIdentified, SessionCreated},
    limits::Identity,
    visits::count_visits,
};

/// One incarnation of a client.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) client: Arc<Client>,
    pub(crate) verifier: Verifier,
    pub(crate) principal: Box<[u8]>,
    /// Address that sent the EXCHANGE_ID.
    pub(crate) address: IpAddr,
    /// `csa_sequence` of the next CREATE_SESSION.
    pub(crate) sequence: u32,
    /// Result of the last CREATE_SESSION.
    pub(crate) created: Option<Result<SessionCreated, Status>>,
    pub(crate) sessions: Vec<(u64, SessionId)>,
}

impl Record {
    pub(crate) fn identified(&self, confirmed: bool) -> ClientIdentified {
        let machine = self.client.machine.as_ref().map(|machine| machine.allowed);
        ClientIdentified { client: self.client.id(), sequence: self.sequence, confirmed, machine }
    }
}

/// Client IDs of the records of one `co_ownerid`.
#[derive(Debug, Default, Clone, Copy)]
struct Incarnations {
    confirmed: Option<ClientId>,
    unconfirmed: Option<ClientId>,
}

/// All records.
#[derive(Debug)]
pub(crate) struct Records {
    by_id: BTreeMap<ClientId, Record>,
    by_owner: HashMap<Box<[u8]>, Incarnations>,
    /// The numbers of all clients.
    serials: HashSet<u32>,
    /// The unconfirmed clients, in the order of their creation.
    unconfirmed: BTreeMap<u32, ClientId>,
    /// Those of each address.
    unconfirmed_of: HashMap<ClientAddr, BTreeSet<u32>>,
    /// Number of these, with the oldest.
    unconfirmed_by_number: BTreeSet<(usize, Reverse<u32>)>,
    /// The confirmed records of each address.
    confirmed: Arc<ClientQuota>,
    candidates: Arc<Candidates>,
    /// The clients whose lease has ended and which are not removed yet.
    ending: BTreeSet<ClientId>,
    /// Number of records that were created.
    clients: u64,
    sessions: u64,
    /// The sessions of each address, in the order of their creation.
    sessions_of: HashMap<ClientAddr, BTreeMap<u64, SessionId>>,
    /// The last session that was asked for slots.
    asked: u64,
}

impl Records {
    pub(crate) fn new(confirmed: Arc<ClientQuota>, candidates: Arc<Candidates>) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_owner: HashMap::new(),
            serials: HashSet::new(),
            unconfirmed: BTreeMap::new(),
            unconfirmed_of: HashMap::new(),
            unconfirmed_by_number: BTreeSet::new(),
            confirmed,
            candidates,
            ending: BTreeSet::new(),
            clients: 0,
            sessions: 0,
            sessions_of: HashMap::new(),
            asked: 0,
        }
    }

    /// A client ID and a number that no record has. The ID permits to create sessions of the client, so that no other
    /// client can guess it; nor does an earlier server instance, which had another secret or epoch, have given it to a client.
    pub(crate) fn new_id(&mut self, identity: &Identity) -> (ClientId, u32) {
        loop {
            self.clients += 1;
            let mut hasher = SipHasher13::new_with_key(&identity.secret);
            hasher.write(b"client");
            hasher.write_u32(identity.epoch);
            hasher.write_u64(self.clients);
            let (id, serial) = (ClientId { number: hasher.finish() }, self.clients as u32);
            if !self.by_id.contains_key(&id) && !self.serials.contains(&serial) {
                return (id, serial);
            }
        }
    }

    /// Adds a session of a client. `id_of` derives its ID from its number, which no earlier one had.
    pub(crate) fn add_session(
        &mut self,
        client: ClientId,
        id_of: impl FnOnce(u64) -> SessionId,
    ) -> Option<SessionId> {
        let record = self.by_id.get_mut(&client)?;
        self.sessions += 1;
        let (number, id) = (self.sessions, id_of(self.sessions));
        record.sessions.push((number, id));
        self.sessions_of.entry(record.client.address()).or_default().insert(number, id);
        Some(id)
    }

    /// Removes a session of a client.
    pub(crate) fn remove_session(&mut self, client: ClientId, id: SessionId) {
        let Some(record) = self.by_id.get_mut(&client) else { return };
        let removed: Vec<_> = record.sessions.extract_if(.., |(_, other)| *other == id).collect();
        let address = record.client.address();
        self.end_sessions(address, &removed);
    }

    fn end_sessions(&mut self, address: ClientAddr, sessions: &[(u64, SessionId)]) {
        let Some(of) = self.sessions_of.get_mut(&address) else { return };
        for (number, _) in sessions {
            of.remove(number);
        }
        if of.is_empty() {
            self.sessions_of.remove(&address);
        }
    }

    /// The sessions of an address that are to be asked for slots next. The first ones, which have most, are first.
    pub(crate) fn next_asked(&mut self, address: ClientAddr) -> Vec<SessionId> {
        let Some(of) = self.sessions_of.get(&address) else { return Vec::new() };
        let next = of.range(self.asked + 1..).chain(of.range(..=self.asked)).take(VISITS);
        let (numbers, ids): (Vec<_>, Vec<_>) = next.map(|(number, id)| (*number, *id)).unzip();
        count_visits(ids.len());
        // It begins again with the first after the last one.
        self.asked = numbers.last().copied().filter(|last| of.keys().next_back() != Some(last)).unwrap_or(0);
        ids
    }

    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut Record> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn client(&self, id: ClientId) -> Option<&Arc<Client>> {
        self.by_id.get(&id).map(|record| &record.client)
    }

    /// Records that the lease of a client has ended.
    pub(crate) fn end(&mut self, id: ClientId) {
        if let Some(client) = self.client(id) {
            self.candidates.remove(client.serial());
            self.ending.insert(id);
        }
    }

    /// One of the clients whose lease has ended, that `fits`.
    pub(crate) fn ending(&self, fits: impl Fn(&Client) -> bool) -> Option<&Arc<Client>> {
        let clients = self.all_ending().take(VISITS);
        clients.inspect(|_| count_visits(1)).find(|client| fits(client))
    }

    pub(crate) fn all_ending(&self) -> impl Iterator<Item = &Arc<Client>> {
        self.ending.iter().filter_map(|id| self.client(*id))
    }

    pub(crate) fn is_confirmed(&self, id: ClientId) -> bool {
        self.by_id.get(&id).is_none_or(|record| !self.unconfirmed.contains_key(&record.client.serial()))
    }

    pub(crate) fn confirmed(&mut self, owner: &[u8]) -> Option<&mut Record> {
        let id = self.by_owner.get(owner)?.confirmed?;
        self.by_id.get_mut(&id)
    }

    pub(crate) fn confirmed_clients(&self) -> impl Iterator<Item = &Arc<Client>> {
        self.confirmed_after(None).map(|record| &record.client)
    }

    /// The confirmed ones of the records that follow `cursor`, which then is that of the next ones.
    pub(crate) fn page(&self, cursor: &mut Option<ClientId>) -> Vec<&Arc<Client>> {
        let range = (cursor.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let page: Vec<_> = self.by_id.range(range).take(VISITS).map(|(_, record)| &record.client).collect();
        count_visits(page.len());
        *cursor = page.last().filter(|_| page.len() == VISITS).map(|client| client.id());
        page.into_iter().filter(|client| !self.unconfirmed.contains_key(&client.serial())).collect()
    }

    /// The confirmed records with IDs above `after`, in order.
    pub(crate) fn confirmed_after(&self, after: Option<ClientId>) -> impl Iterator<Item = &Record> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let records = self.by_id.range(range).inspect(|_| count_visits(1)).map(|(_, record)| record);
        records.filter(|record| !self.unconfirmed.contains_key(&record.client.serial()))
    }

    /// Adds an unconfirmed record; replaces another of the same owner, and drops the oldest one of the same address,
    /// or of the address with most, if there are `limit_of_address`, or `limit`, already.
    pub(crate) fn add(&mut self, record: Record, limit_of_address: usize, limit: usize) {
        let id = record.client.id();
        if let Some(old) = self.by_owner.get(record.client.owner()).and_then(|known| known.unconfirmed) {
            self.remove(old);
        }
        let (address, serial) = (record.client.address(), record.client.serial());
        let of_address = self.unconfirmed_of.get(&address).filter(|of| of.len() >= limit_of_address.max(1));
        if let Some(oldest) = of_address.and_then(BTreeSet::first).copied() {
            self.remove_unconfirmed(oldest);
        }
        while self.unconfirmed.len() >= limit.max(1) {
            // The oldest of the address with most, and of all if no address has more than others.
            let Some((_, Reverse(oldest))) = self.unconfirmed_by_number.last().copied() else { break };
            self.remove_unconfirmed(oldest);
        }
        self.by_owner.entry(record.client.owner().into()).or_default().unconfirmed = Some(id);
        self.serials.insert(serial);
        self.unconfirmed.insert(serial, id);
        self.change_unconfirmed_of(address, |of| of.insert(serial));
        self.by_id.insert(id, record);
    }

    /// Confirms a record. The caller has removed the confirmed record of the same owner.
    pub(crate) fn confirm(&mut self, id: ClientId) {
        let Some(record) = self.by_id.get(&id) else { return };
        let (address, serial) = (record.client.address(), record.client.serial());
        let owner = record.client.owner().into();
        let client = Arc::clone(&record.client);
        if self.end_unconfirmed(address, serial) {
            self.confirmed.add(address, 1);
            self.candidates.add(serial, id, address, client.lease.renewed());
        }
        let known = self.by_owner.entry(owner).or_default();
        *known = Incarnations { confirmed: Some(id), unconfirmed: None };
    }

    /// Removes a record and returns it.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Record> {
        let record = self.by_id.remove(&id)?;
        let (address, serial) = (record.client.address(), record.client.serial());
        self.serials.remove(&serial);
        self.ending.remove(&id);
        if !self.end_unconfirmed(address, serial) {
            self.confirmed.give_back(address, 1);
            self.candidates.remove(serial);
        }
        self.end_sessions(address, &record.sessions);
        if let Some(known) = self.by_owner.get_mut(record.client.owner()) {
            known.confirmed = known.confirmed.filter(|other| *other != id);
            known.unconfirmed = known.unconfirmed.filter(|other| *other != id);
            if known.confirmed.is_none() && known.unconfirmed.is_none() {
                self.by_owner.remove(record.client.owner());
            }
        }
        Some(record)
    }

    /// Removes a record from the unconfirmed ones. Returns whether it was one.
    fn end_unconfirmed(&mut self, address: ClientAddr, serial: u32) -> bool {
        self.change_unconfirmed_of(address, |of| of.remove(&serial));
        self.unconfirmed.remove(&serial).is_some()
    }

    fn change_unconfirmed_of(
        &mut self,
        address: ClientAddr,
        change: impl FnOnce(&mut BTreeSet<u32>) -> bool,
    ) {
        let number = |of: &BTreeSet<u32>| of.first().map(|oldest| (of.len(), Reverse(*oldest)));
        let of = self.unconfirmed_of.entry(address).or_default();
        let before = number(of);
        change(of);
        let after = number(of);
        if after.is_none() {
            self.unconfirmed_of.remove(&address);
        }
        if let Some(before) = before {
            self.unconfirmed_by_number.remove(&before);
        }
        self.unconfirmed_by_number.extend(after);
    }

    fn remove_unconfirmed(&mut self, serial: u32) {
        if let Some(id) = self.unconfirmed.get(&serial).copied() {
            self.remove(id);
        }
    }

    /// Removes unconfirmed records that are older than a lease.
    pub(crate) fn remove_stale(&mut self, now: Duration, lease: Duration) {
        for _ in 0..VISITS {
            count_visits(1);
            let oldest = self.unconfirmed.first_key_value().and_then(|(_, id)| self.client(*id));
            let Some(stale) = oldest.filter(|client| client.lease.age(now) > lease) else { break };
            self.remove(stale.id());
        }
    }
}
