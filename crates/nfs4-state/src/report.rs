//! The report on the state of clients for an administrator, in pages.

use std::{net::IpAddr, sync::Arc, time::Duration};

use millrace_nfs::v4::ClientId;

use crate::{
    client::Client,
    files::File,
    state::State,
    table::{DelegationKind, Entry, Kind, Name, Table},
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

    /// The selected stateids of a client with a number above `after`.
    fn of<'t>(&self, table: &'t Table, after: u32) -> impl Iterator<Item = (u32, &'t Entry)> {
        table.after(after).filter(|(_, entry)| self.has_file(&entry.file))
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

    /// At most `limit` of the selected stateids after a position, in the order of their positions.
    pub fn stateid_reports(
        &self,
        selection: Selection<'_>,
        after: Option<StateidPosition>,
        limit: usize,
    ) -> Vec<StateidReport> {
        let mut reports = Vec::new();
        for client in self.selected_clients(selection) {
            let first = match after {
                Some(after) if client.id() < after.client => continue,
                Some(after) if client.id() == after.client => after.number,
                _ => 0,
            };
            let table = client.table.lock();
            let entries = selection.of(&table, first).take(limit - reports.len());
            reports.extend(entries.map(|(number, entry)| self.stateid_report(&client, number, entry)));
            if reports.len() == limit {
                break;
            }
        }
        reports
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
