//! The records of clients, confirmed and unconfirmed (RFC 8881, 18.35.4), with their sessions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    net::IpAddr,
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use millrace_nfs::v4::{ClientId, SessionId, Status, Verifier};

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
#[derive(Debug, Default)]
pub(crate) struct Records {
    by_id: BTreeMap<ClientId, Record>,
    by_owner: HashMap<Box<[u8]>, Incarnations>,
    /// The unconfirmed clients, in the order of their creation.
    unconfirmed: BTreeSet<ClientId>,
    /// Number of confirmed records of each address.
    of_address: HashMap<IpAddr, usize>,
    clients: u32,
    sessions: u64,
    /// Bytes that replies in the slots of all sessions may occupy.
    pub(crate) cached_bytes: u64,
}

impl Records {
    /// A client ID that no record has: the epoch, and a number.
    pub(crate) fn new_id(&mut self, identity: &Identity) -> ClientId {
        loop {
            self.clients = self.clients.wrapping_add(1);
            let number = u64::from(identity.epoch) << 32 | u64::from(self.clients);
            if !self.by_id.contains_key(&ClientId { number }) {
                return ClientId { number };
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
        !self.unconfirmed.contains(&id)
    }

    /// Number of confirmed clients.
    pub(crate) fn confirmed_len(&self) -> usize {
        self.by_id.len() - self.unconfirmed.len()
    }

    /// Number of confirmed clients of an address.
    pub(crate) fn confirmed_of(&self, address: IpAddr) -> usize {
        self.of_address.get(&address).copied().unwrap_or_default()
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
        self.by_id.range(range).filter(|(id, _)| self.is_confirmed(**id)).map(|(_, record)| record)
    }

    /// Adds an unconfirmed record; replaces another of the same owner, and drops the oldest one of the same address,
    /// or of all, if there are `limit_of_address`, or `limit`, already.
    pub(crate) fn add(&mut self, record: Record, limit_of_address: usize, limit: usize) {
        let id = record.client.id();
        if let Some(old) = self.by_owner.get(record.client.owner()).and_then(|known| known.unconfirmed) {
            self.remove(old);
        }
        let same = |id: &&ClientId| self.by_id.get(id).is_some_and(|other| other.address == record.address);
        let of_address = self.unconfirmed.iter().filter(same);
        let (count, oldest) = of_address.fold((0, None), |(n, first), id| (n + 1, first.or(Some(*id))));
        if let Some(oldest) = oldest.filter(|_| count >= limit_of_address.max(1)) {
            self.remove(oldest);
        }
        while self.unconfirmed.len() >= limit.max(1) {
            let Some(oldest) = self.unconfirmed.first().copied() else { break };
            self.remove(oldest);
        }
        self.by_owner.entry(record.client.owner().into()).or_default().unconfirmed = Some(id);
        self.unconfirmed.insert(id);
        self.by_id.insert(id, record);
    }

    /// Confirms a record. The caller has removed the confirmed record of the same owner.
    pub(crate) fn confirm(&mut self, id: ClientId) {
        let Some(record) = self.by_id.get(&id) else { return };
        if self.unconfirmed.remove(&id) {
            *self.of_address.entry(record.address).or_default() += 1;
        }
        let known = self.by_owner.entry(record.client.owner().into()).or_default();
        *known = Incarnations { confirmed: Some(id), unconfirmed: None };
    }

    /// Removes a record and returns it.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Record> {
        let record = self.by_id.remove(&id)?;
        if !self.unconfirmed.remove(&id)
            && let Entry::Occupied(mut count) = self.of_address.entry(record.address)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
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

    /// Removes the unconfirmed records that are older than a lease.
    pub(crate) fn remove_stale(&mut self, now: Duration, lease: Duration) {
        while let Some(oldest) = self.unconfirmed.first().copied() {
            if self.by_id.get(&oldest).is_some_and(|record| record.client.lease.age(now) <= lease) {
                break;
            }
            self.remove(oldest);
        }
    }
}
