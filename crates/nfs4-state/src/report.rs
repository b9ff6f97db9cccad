//! The report on the state of clients for an administrator, in pages.

use std::{net::IpAddr, sync::Arc, time::Duration};

use millrace_nfs::v4::ClientId;

use crate::{
    candidates::VISITS,
    client::Client,
    files::File,
    state::State,
    table::{DelegationKind, Entry, Kind, Name},
    visits::{STEP, count_visits},
};

/// Which state an administrator lists or revokes.
#[derive(Debug, Clone, Copy)]
pub enum Selection<'a> {
    /// That of a client.
    Client(ClientId),
    /// That of the files whose keys begin with these bytes.
    Prefix(&'a [u8]),
    /// That of the file with this key.
    File(&'a [u8]),
}

impl Selection<'_> {
    fn has_file(&self, key: &[u8]) -> bool {
        match self {
            Self::Client(_) => true,
            Self::Prefix(prefix) => key.starts_with(prefix),
            Self::File(file) => key == *file,
        }
    }

    /// Whether a stateid of a selected client is selected and not revoked.
    pub(crate) fn includes(&self, entry: &Entry) -> bool {
        !entry.revoked && self.has_file(&entry.file)
    }
}

/// A confirmed client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientReport {
    /// The client ID.
    pub id: ClientId,
    /// `co_ownerid`.
    pub owner: Box<[u8]>,
    /// Address that sent the EXCHANGE_ID.
    pub address: IpAddr,
    /// Time since the last renewal of the lease.
    pub lease_age: Duration,
    /// Number of sessions.
    pub sessions: usize,
    /// Number of stateids of opens.
    pub opens: usize,
    /// Number of locked byte ranges.
    pub locks: usize,
    /// Number of stateids that are revoked and not freed.
    pub revoked: usize,
}

/// Numbers of the confirmed clients, and of the state of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateTotals {
    /// Confirmed clients.
    pub clients: usize,
    /// Stateids of opens that are not revoked.
    pub opens: usize,
    /// Locked byte ranges.
    pub locks: usize,
}

/// A position in the stateids of all clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateidPosition {
    /// The client.
    pub client: ClientId,
    /// Number of the stateid, which is not 0.
    pub number: u32,
}

impl StateidPosition {
    /// The position of the stateid with this number, of the client with this client ID.
    pub const fn new(client: u64, number: u32) -> Self {
        Self { client: ClientId { number: client }, number }
    }
}

/// What a step of a list of stateids has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateidPage {
    /// Selected stateids, in the order of their positions.
    pub stateids: Vec<StateidReport>,
    /// Where the next step continues; `None` at the end of the list.
    pub next: Option<StateidPosition>,
}

/// The kind of state that a stateid identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateidKind {
    /// An open.
    Open {
        /// `share_access`: bits of OPEN4_SHARE_ACCESS_BOTH.
        access: u32,
        /// `share_deny`: bits of OPEN4_SHARE_DENY_BOTH.
        deny: u32,
    },
    /// The locks of a lock owner.
    Locks {
        /// Number of locked byte ranges.
        ranges: usize,
    },
    /// A delegation, which has no owner.
    Delegation(DelegationKind),
}

/// A stateid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateidReport {
    /// Its position.
    pub at: StateidPosition,
    /// Key of the file.
    pub file: Arc<[u8]>,
    /// The open owner or lock owner.
    pub owner: Arc<[u8]>,
    /// The kind of state.
    pub kind: StateidKind,
    /// Whether it is revoked, and not freed.
    pub revoked: bool,
}

impl<R: Clone> State<R> {
    /// At most `limit` confirmed clients with IDs above `after`, in the order of their IDs.
    pub fn client_reports(&self, after: Option<ClientId>, limit: usize, now: Duration) -> Vec<ClientReport> {
        let records = self.records.lock();
        let confirmed = records.confirmed_after(after).take(limit);
        confirmed
            .map(|record| {
                let (client, table) = (&record.client, record.client.table.lock());
                ClientReport {
                    id: client.id(),
                    owner: client.owner().into(),
                    address: record.address,
                    lease_age: client.lease.age(now),
                    sessions: record.sessions.len(),
                    opens: table.opens(),
                    locks: table.ranges,
                    revoked: table.revoked().count(),
                }
            })
            .collect()
    }

    /// Numbers of the confirmed clients, and of their state. This visits each client; others wait for some of them only.
    pub fn totals(&self) -> StateTotals {
        let (mut totals, mut after) = (StateTotals::default(), None);
        loop {
            let page: Vec<_> = {
                let records = self.records.lock();
                records.confirmed_after(after).take(VISITS).map(|record| Arc::clone(&record.client)).collect()
            };
            let Some(last) = page.last() else { return totals };
            after = Some(last.id());
            totals.clients += page.len();
            for client in &page {
                let table = client.table.lock();
                totals.opens += table.opens();
                totals.locks += table.ranges;
            }
        }
    }

    /// At most `limit` of the selected stateids after a position. This is a step, which finds few or none where few are
    /// selected.
    pub fn stateid_reports(
        &self,
        selection: Selection<'_>,
        after: Option<StateidPosition>,
        limit: usize,
    ) -> StateidPage {
        let (mut stateids, mut visits, mut at) = (Vec::new(), 0, after);
        let clients = self.clients_from(selection, after.map(|after| after.client));
        for client in &clients {
            let number = after.filter(|after| after.client == client.id()).map_or(0, |after| after.number);
            let table = client.table.lock();
            for (number, entry) in table.after(number) {
                if visits == STEP || stateids.len() == limit {
                    return StateidPage { stateids, next: at };
                }
                visits += 1;
                count_visits(1);
                at = Some(StateidPosition { client: client.id(), number });
                if selection.has_file(&entry.file) {
                    stateids.push(self.stateid_report(client, number, entry));
                }
            }
            at = Some(StateidPosition { client: client.id(), number: u32::MAX });
        }
        StateidPage { stateids, next: at.filter(|_| clients.len() >= VISITS) }
    }

    /// Some of the clients that may have selected state, in the order of their IDs, from a client on.
    fn clients_from(&self, selection: Selection<'_>, first: Option<ClientId>) -> Vec<Arc<Client>> {
        if let Selection::Client(_) = selection {
            let selected = self.selected_clients(selection).into_iter();
            return selected.filter(|client| first.is_none_or(|first| client.id() >= first)).collect();
        }
        let records = self.records.lock();
        let of_first = first.filter(|id| records.is_confirmed(*id)).and_then(|id| records.client(id));
        let others = records.confirmed_after(first).map(|record| &record.client);
        of_first.into_iter().chain(others).take(VISITS).cloned().collect()
    }

    /// The clients that may have selected state, in the order of their IDs.
    pub(crate) fn selected_clients(&self, selection: Selection<'_>) -> Vec<Arc<Client>> {
        let records = self.records.lock();
        match selection {
            Selection::Client(id) => {
                records.client(id).filter(|_| records.is_confirmed(id)).cloned().into_iter().collect()
            }
            _ => records.confirmed_clients().cloned().collect(),
        }
    }

    fn stateid_report(&self, client: &Client, number: u32, entry: &Entry) -> StateidReport {
        let kind = match &entry.kind {
            Kind::Open { shares, .. } => {
                let share = shares.union();
                StateidKind::Open { access: share.access.into(), deny: share.deny.into() }
            }
            Kind::Locks(_) => {
                let count = |file: &File| file.locks.count(client, number);
                StateidKind::Locks { ranges: self.files.read(&entry.file, count).unwrap_or(0) }
            }
            Kind::Delegation(kind) => StateidKind::Delegation(*kind),
        };
        let (file, owner) = (Name::clone(&entry.file), Name::clone(&entry.owner));
        let at = StateidPosition { client: client.id(), number };
        StateidReport { at, file, owner, kind, revoked: entry.revoked }
    }
}
