//! The delegations of one file (RFC 8881, 10.4).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use millrace_nfs::v4::{ClientId, NfsTime};

use crate::{
    client::Client,
    share::{READ, Share, WRITE},
    table::DelegationKind,
    visits::count_visits,
};

/// The state of CB_RECALL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It is sent, or about to be.
    Pending,
    /// The client has accepted it, and will return the delegation.
    Accepted,
    /// The client could not be called, or has not received the delegation yet.
    Failed,
}

/// A recall.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recalled {
    pub(crate) since: Duration,
    pub(crate) notice: Notice,
}

/// The times of a file when they were delegated with it (RFC 9754, 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelegatedTimes {
    /// `time_access`.
    pub access: NfsTime,
    /// `time_modify`.
    pub modify: NfsTime,
}

/// A write delegation of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// The client that holds it.
    pub client: ClientId,
    /// Attribute `change` when the file was delegated.
    pub change: u64,
    /// The times when the file was delegated, if the delegation includes them.
    pub times: Option<DelegatedTimes>,
}

/// A delegation.
#[derive(Debug)]
pub(crate) struct Delegation {
    pub(crate) client: Arc<Client>,
    /// Number of its stateid.
    pub(crate) number: u32,
    pub(crate) kind: DelegationKind,
    pub(crate) recalled: Option<Recalled>,
    /// `change` of the file when it was delegated.
    pub(crate) change: u64,
    /// The times of the file when it was delegated, if the delegation includes them.
    pub(crate) times: Option<DelegatedTimes>,
    /// `change` that another client received last; 0 at first.
    pub(crate) reported: u64,
}

/// The effect of another client's request on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It reads data: write delegations conflict.
    Read,
    /// It changes the file: all delegations conflict.
    Change,
}

impl Use {
    /// The use by an open. A holder of a read delegation may have opened the file for reading without asking.
    pub(crate) fn of(share: Share) -> Self {
        if share.access & WRITE != 0 || share.deny & READ != 0 { Self::Change } else { Self::Read }
    }
}

/// The delegations of a file, at most one for each client.
#[derive(Debug, Default)]
pub(crate) struct Delegations(BTreeMap<ClientId, Delegation>);

impl Delegations {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&Delegation> {
        self.0.get(&client)
    }

    pub(crate) fn get_mut(&mut self, client: ClientId) -> Option<&mut Delegation> {
        self.0.get_mut(&client)
    }

    pub(crate) fn insert(&mut self, delegation: Delegation) {
        self.0.insert(delegation.client.id(), delegation);
    }

    pub(crate) fn remove(&mut self, client: ClientId) -> Option<Delegation> {
        self.0.remove(&client)
    }

    /// Whether one is being recalled. Then all are, except that of the client whose request began it.
    pub(crate) fn is_recalling(&self) -> bool {
        self.0.values().take(2).any(|held| held.recalled.is_some())
    }

    /// The write delegation. There is no other one then.
    pub(crate) fn writer(&self) -> Option<&Delegation> {
        self.0.values().next().filter(|held| held.kind == DelegationKind::Write)
    }

    /// Those of clients other than `own` that conflict with a use.
    pub(crate) fn conflicting(
        &mut self,
        own: Option<ClientId>,
        wanted: Use,
    ) -> impl Iterator<Item = &mut Delegation> {
        let conflicts = wanted == Use::Change || self.writer().is_some();
        let all = self.0.iter_mut().take(if conflicts { usize::MAX } else { 0 });
        let others = all.inspect(|_| count_visits(1)).filter(move |(id, _)| Some(**id) != own);
        others.map(|(_, delegation)| delegation)
    }

    /// Whether there is a conflicting one.
    pub(crate) fn conflict(&self, own: Option<ClientId>, wanted: Use) -> bool {
        (wanted == Use::Change || self.writer().is_some()) && self.0.keys().any(|id| Some(*id) != own)
    }
}
