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

use millrace_nfs::v4::{ClientId, SessionId, Status, Verifier};
use millrace_oncrpc::serving::{ClientAddr, ClientQuota};
use siphasher::sip::SipHasher13;

use crate::{
    client::Client,
    identify::{ClientIdentified, SessionCreated},
    limits::Identity,
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
    pub(crate) sessions: Vec<SessionId>,
}

impl Record {
    pub(crate) fn identified(&self, confirmed: bool) -> ClientIdentified {
        ClientIdentified { client: self.client.id(), sequence: self.sequence, confirmed }
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
    /// The confirmed records of each address.
    confirmed: Arc<ClientQuota>,
    /// Number of records that were created.
    clients: u64,
    sessions: u64,
}

impl Records {
    pub(crate) fn new(confirmed: Arc<ClientQuota>) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_owner: HashMap::new(),
            serials: HashSet::new(),
            unconfirmed: BTreeMap::new(),
            unconfirmed_of: HashMap::new(),
            confirmed,
            clients: 0,
            sessions: 0,
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

    /// Number of the next session, which no earlier one had.
    pub(crate) fn new_session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut Record> {
        self.by_id.get_mut(&id)
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

    /// The confirmed records with IDs above `after`, in order.
    pub(crate) fn confirmed_after(&self, after: Option<ClientId>) -> impl Iterator<Item = &Record> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let records = self.by_id.range(range).map(|(_, record)| record);
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
            let most = self.unconfirmed_of.values().map(|of| (of.len(), of.first().copied()));
            let Some(oldest) =
                most.max_by_key(|(count, oldest)| (*count, Reverse(*oldest))).and_then(|(_, n)| n)
            else {
                break;
            };
            self.remove_unconfirmed(oldest);
        }
        self.by_owner.entry(record.client.owner().into()).or_default().unconfirmed = Some(id);
        self.serials.insert(serial);
        self.unconfirmed.insert(serial, id);
        self.unconfirmed_of.entry(address).or_default().insert(serial);
        self.by_id.insert(id, record);
    }

    /// Confirms a record. The caller has removed the confirmed record of the same owner.
    pub(crate) fn confirm(&mut self, id: ClientId) {
        let Some(record) = self.by_id.get(&id) else { return };
        let (address, serial) = (record.client.address(), record.client.serial());
        let owner = record.client.owner().into();
        if self.end_unconfirmed(address, serial) {
            self.confirmed.add(address, 1);
        }
        let known = self.by_owner.entry(owner).or_default();
        *known = Incarnations { confirmed: Some(id), unconfirmed: None };
    }

    /// Removes a record and returns it.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Record> {
        let record = self.by_id.remove(&id)?;
        let (address, serial) = (record.client.address(), record.client.serial());
        self.serials.remove(&serial);
        if !self.end_unconfirmed(address, serial) {
            self.confirmed.give_back(address, 1);
        }
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
        if let Some(of) = self.unconfirmed_of.get_mut(&address) {
            of.remove(&serial);
            if of.is_empty() {
                self.unconfirmed_of.remove(&address);
            }
        }
        self.unconfirmed.remove(&serial).is_some()
    }

    fn remove_unconfirmed(&mut self, serial: u32) {
        if let Some(id) = self.unconfirmed.get(&serial).copied() {
            self.remove(id);
        }
    }

    /// Removes the unconfirmed records that are older than a lease.
    pub(crate) fn remove_stale(&mut self, now: Duration, lease: Duration) {
        while let Some(oldest) = self.unconfirmed.first_key_value().map(|(_, id)| *id) {
            if self.by_id.get(&oldest).is_some_and(|record| record.client.lease.age(now) <= lease) {
                break;
            }
            self.remove(oldest);
        }
    }
}
