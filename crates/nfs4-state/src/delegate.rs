//! Grant, check, return and revocation of delegations (RFC 8881, 10.4, 18.6, 18.16).

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_nfs::v4::{ClientId, Stateid, Status};

use crate::{
    client::Client,
    contention::Changing,
    delegation::{DelegatedTimes, Delegation, Notice, Recalled, Use, Writer},
    files::File,
    heap::Charge,
    share::{Share, WRITE},
    state::State,
    table::{DelegationKind, Kind, Name, Table, stateid},
};

/// A request for a delegation of a file that the client has opened.
#[derive(Debug, Clone, Copy)]
pub struct DelegationRequest<'a> {
    /// Key of the file, which the client has just opened.
    pub file: &'a [u8],
    /// The kind.
    pub kind: DelegationKind,
    /// CLAIM_PREVIOUS: the client had the delegation with an earlier server instance.
    pub reclaim: bool,
    /// Attribute `change` of the file.
    pub change: u64,
    /// The times of the file, if the delegation is to include them: only a write delegation does.
    pub times: Option<DelegatedTimes>,
}

/// Why a file is not delegated (`why_no_delegation4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotDelegated {
    /// Other clients use the file, or have used it a short time ago.
    Contention,
    /// There are too many delegations, or the client cannot be called back.
    Resource,
    /// The client has a delegation of this kind.
    Held(DelegationKind),
}

/// The client with a conflicting delegation.
#[derive(Debug)]
pub(crate) struct Holder {
    client: Arc<Client>,
    number: u32,
    /// The client has not returned the delegation in time.
    overdue: bool,
}

impl<R: Clone> State<R> {
    /// Permits delegations from now on, or at a server that has answered requests before, a lease later: changes that
    /// are not counted end before. They are never forbidden again, but the caller need not request any.
    pub fn enable_delegations(&self, running_since: Option<Duration>) {
        let from = running_since.map_or(Duration::ZERO, |now| now + self.limits.lease).as_millis();
        let from = u64::try_from(from).unwrap_or(u64::MAX - 1);
        // Delegations may be enabled already.
        let _ = self.delegating.from.compare_exchange(u64::MAX, from, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether files may be delegated, now or later.
    pub fn may_delegate(&self) -> bool {
        self.delegating.is_enabled()
    }

    /// Delegates a file that the client has opened. The stateid has the `seqid` 1.
    ///
    /// # Errors
    /// The reason why it is not delegated.
    pub fn delegate(
        &self,
        client: &Arc<Client>,
        request: &DelegationRequest<'_>,
        now: Duration,
    ) -> Result<Stateid, NotDelegated> {
        let early = now.as_millis() < u128::from(self.delegating.from.load(Ordering::Acquire));
        if !self.delegating.is_enabled() || (!request.reclaim && (early || self.in_grace())) {
            return Err(NotDelegated::Contention);
        }
        if !client.can_be_called() {
            return Err(NotDelegated::Resource);
        }
        let mut table = client.table.lock();
        let table = table.existing().map_err(|_| NotDelegated::Resource)?;
        let number = table.next();
        self.files.update(request.file, |file, key| {
            let charge = self.admit_delegation(client, table, file, request, now)?;
            let DelegationRequest { kind, change, times, .. } = *request;
            let client = client.clone();
            let (holder, recalled) = (client.clone(), None);
            let delegation =
                Delegation { client: holder, number, kind, recalled, change, times, reported: 0 };
            self.delegating.add(file, delegation);
            // A change that has begun before is counted; one that begins now finds the delegation.
            if self.delegating.contention.is_changing(request.file) {
                self.delegating.remove(file, &client);
                return Err(NotDelegated::Contention);
            }
            table.add(number, key, &Name::from(&[][..]), Kind::Delegation(kind), charge);
            Ok(stateid(client.id(), number, 1))
        })
    }

    /// Counts a delegation of a client, if the limits permit it.
    fn admit_delegation(
        &self,
        client: &Client,
        table: &Table,
        file: &File,
        request: &DelegationRequest<'_>,
        now: Duration,
    ) -> Result<Charge, NotDelegated> {
        let id = client.id();
        if let Some(own) = file.delegations.get(id) {
            return Err(NotDelegated::Held(own.kind));
        }
        let (writing, wanted) = match request.kind {
            DelegationKind::Read => (true, Use::Read),
            DelegationKind::Write => (false, Use::Change),
        };
        // A request that waits for recalls need not wait for later delegations, too.
        let paused = !request.reclaim && self.delegating.contention.is_paused(request.file, now);
        let paused = paused || file.delegations.is_recalling();
        if paused || file.is_open_by_others(id, writing) || file.delegations.conflict(Some(id), wanted) {
            return Err(NotDelegated::Contention);
        }
        let few = client.delegations.load(Ordering::Relaxed) < self.limits.delegations_per_client;
        let charge = self.admit_stateid(client, table, &[]).map_err(|_| NotDelegated::Resource)?;
        let admitted = few && self.delegating.quota.take(client.address(), 1);
        if admitted { Ok(charge) } else { Err(NotDelegated::Resource) }
    }

    /// CLAIM_DELEGATE_CUR and CLAIM_DELEG_CUR_FH: checks that `id` is a delegation of `file` that includes an open with
    /// `access`.
    ///
    /// # Errors
    /// Those of a stateid; BAD_STATEID if it is not that of a delegation of `file`; DELEG_REVOKED; OPENMODE.
    pub fn check_delegation(
        &self,
        client: &Client,
        id: &Stateid,
        file: &[u8],
        access: u32,
    ) -> Result<(), Status> {
        let mut table = client.table.lock();
        let (_, kind) = delegation_of(table.existing()?, client.id(), id, file)?;
        let writes = Share::new(access, 0)?.access & WRITE != 0;
        if writes && kind == DelegationKind::Read { Err(Status::OpenMode) } else { Ok(()) }
    }

    /// The times of a file when it was delegated to a client, which now sets them by SETATTR.
    ///
    /// # Errors
    /// Those of a stateid; BAD_STATEID if it is not that of a delegation of `file` with the times; DELEG_REVOKED.
    pub fn delegated_times(
        &self,
        client: &Client,
        id: &Stateid,
        file: &[u8],
    ) -> Result<DelegatedTimes, Status> {
        delegation_of(client.table.lock().existing()?, client.id(), id, file)?;
        let times =
            self.files.read(file, |file| file.delegations.get(client.id()).and_then(|held| held.times));
        times.flatten().ok_or(Status::BadStateid)
    }

    /// DELEGRETURN.
    ///
    /// # Errors
    /// Those of a stateid; BAD_STATEID if it is not that of a delegation of `file`; DELEG_REVOKED.
    pub fn return_delegation(
        &self,
        client: &Client,
        id: &Stateid,
        file: &[u8],
        now: Duration,
    ) -> Result<(), Status> {
        let mut table = client.table.lock();
        let (number, _) = delegation_of(table.existing()?, client.id(), id, file)?;
        self.files.update(file, |file, key| self.end_delegation(file, key, client, now));
        table.remove(number);
        Ok(())
    }

    /// Begins a change of a file by a request without an open, for example SETATTR, REMOVE, or WRITE of NFSv3. The file
    /// is not delegated before the result is dropped. `client`: the client, for which its own delegation is no conflict.
    ///
    /// # Errors
    /// DELAY while a delegation is recalled.
    pub fn change(&self, client: Option<ClientId>, file: &[u8], now: Duration) -> Result<Changing, Status> {
        if !self.delegating.is_enabled() {
            return Ok(Changing::default());
        }
        let changing = self.delegating.contention.begin(file);
        self.check_use(client, file, Use::Change, now)?;
        Ok(changing)
    }

    /// Checks a READ of a file by a request without an open. `client`: as for [`change`](Self::change).
    ///
    /// # Errors
    /// DELAY while a write delegation is recalled.
    pub fn check_read(&self, client: Option<ClientId>, file: &[u8], now: Duration) -> Result<(), Status> {
        self.check_use(client, file, Use::Read, now)
    }

    fn check_use(
        &self,
        client: Option<ClientId>,
        file: &[u8],
        wanted: Use,
        now: Duration,
    ) -> Result<(), Status> {
        let delegating = &self.delegating;
        let count = if wanted == Use::Read { &delegating.writers } else { &delegating.held };
        while count.load(Ordering::SeqCst) != 0 {
            if !self.files.read(file, |file| file.delegations.conflict(client, wanted)).unwrap_or(false) {
                break;
            }
            let holder = self.files.update(file, |file, key| self.recall(file, key, client, wanted, now));
            let Some(holder) = holder else { break };
            self.end_conflict(&holder, file, now)?;
        }
        Ok(())
    }

    /// Recalls the delegations of files whose keys are selected: those of `kind`, and for [`DelegationKind::Read`] all.
    pub fn recall_all(&self, kind: DelegationKind, selects: impl Fn(&[u8]) -> bool, now: Duration) {
        let wanted = if kind == DelegationKind::Write { Use::Read } else { Use::Change };
        self.files.for_each(|file, key| {
            if selects(key) {
                self.recall(file, key, None, wanted, now);
            }
        });
    }

    /// Recalls the delegations that conflict with a use by a client. Returns the holder of one; if possible, of one that
    /// can be ended at once.
    pub(crate) fn recall(
        &self,
        file: &mut File,
        key: &Name,
        own: Option<ClientId>,
        wanted: Use,
        now: Duration,
    ) -> Option<Holder> {
        let mut found: Option<Holder> = None;
        for delegation in file.delegations.conflicting(own, wanted) {
            if delegation.recalled.is_none() {
                self.delegating.contention.pause(key, now + self.limits.delegation_pause);
            }
            let since = delegation.recalled.map_or(now, |recalled| recalled.since);
            if delegation.recalled.is_none_or(|recalled| recalled.notice == Notice::Failed) {
                self.delegating.recalls.begin(delegation, key, now);
                delegation.recalled = Some(Recalled { since, notice: Notice::Pending });
            }
            let overdue = now >= since + self.limits.lease;
            let ends = overdue || delegation.client.lease.has_expired(now, self.limits.lease);
            if found.is_none() || ends {
                found =
                    Some(Holder { client: delegation.client.clone(), number: delegation.number, overdue });
            }
        }
        found
    }

    /// Ends a conflicting delegation, if its client has had time enough or its lease has expired.
    ///
    /// # Errors
    /// DELAY otherwise, and if [`expire`](Self::expire) ends it.
    pub(crate) fn end_conflict(&self, holder: &Holder, file: &[u8], now: Duration) -> Result<(), Status> {
        if self.remove_expired(&holder.client, now)? {
            return Ok(());
        }
        // After a restart the client could reclaim the delegation if it was still on the list.
        if !holder.overdue || self.list.is_some() {
            return Err(Status::Delay);
        }
        self.revoke_delegation(&holder.client, holder.number, file, now);
        Ok(())
    }

    /// Revokes the delegations that were not returned in time. If there is a list of clients, their clients leave it
    /// until they have freed the stateids: after a restart they could reclaim what they have lost.
    ///
    /// Returns whether there may be more.
    pub(crate) fn revoke_overdue(&self, now: Duration) -> bool {
        let Some(before) = now.checked_sub(self.limits.lease) else { return false };
        let (mut overdue, more) = self.delegating.recalls.take_overdue(before);
        overdue.retain(|recall| {
            let held = self.files.read(&recall.file, |file| {
                let delegation = file.delegations.get(recall.client.id());
                delegation.is_some_and(|delegation| delegation.number == recall.number)
            });
            held == Some(true)
        });
        let owners: BTreeSet<Box<[u8]>> =
            overdue.iter().map(|recall| Box::from(recall.client.owner())).collect();
        if overdue.is_empty() {
            return more;
        }
        if !self.unlist(&Vec::from_iter(owners)) {
            overdue.into_iter().rev().for_each(|recall| self.delegating.recalls.retry(recall));
            return false;
        }
        for recall in overdue {
            self.set_unlisted(&recall.client);
            self.revoke_delegation(&recall.client, recall.number, &recall.file, now);
        }
        more
    }

    /// Ends the delegation of a client. If it was recalled, the file is delegated again only after the requests that
    /// wait for the recall.
    pub(crate) fn end_delegation(&self, file: &mut File, key: &Name, client: &Client, now: Duration) {
        if self.delegating.remove(file, client).is_some_and(|delegation| delegation.recalled.is_some()) {
            self.delegating.contention.pause(key, now + self.limits.delegation_pause);
        }
    }

    fn revoke_delegation(&self, client: &Arc<Client>, number: u32, file: &[u8], now: Duration) {
        let mut table = client.table.lock();
        let revoked = self.files.update(file, |file, key| {
            let same = file.delegations.get(client.id()).is_some_and(|held| held.number == number);
            if same {
                self.end_delegation(file, key, client, now);
            }
            same
        });
        if revoked {
            table.revoke(number);
            client.set_revoked(table.revoked());
            self.delegating.recalls.count_revoked();
        }
    }

    /// The write delegation of the file that another client than `client` has.
    pub fn writer(&self, client: Option<ClientId>, file: &[u8]) -> Option<Writer> {
        if self.delegating.writers.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let writer = self.files.read(file, |file| {
            let held = file.delegations.writer().filter(|held| Some(held.client.id()) != client)?;
            Some(Writer { client: held.client.id(), change: held.change, times: held.times })
        });
        writer.flatten()
    }

    /// The attribute `change` that another client receives of a file whose holder has modified it (RFC 8881, 10.4.3): more
    /// than `change` and than what was reported before. Without a modification it is what was reported before.
    pub fn reported_change(&self, holder: ClientId, file: &[u8], change: u64, modified: bool) -> u64 {
        if self.files.read(file, |file| file.delegations.get(holder).is_none()).unwrap_or(true) {
            return change;
        }
        self.files.update(file, |file, _| {
            let Some(held) = file.delegations.get_mut(holder) else { return change };
            held.reported = held.reported.max(change).saturating_add(modified.into());
            held.reported
        })
    }
}

/// The number and the kind of the delegation of `file` that a stateid names.
fn delegation_of(
    table: &Table,
    client: ClientId,
    id: &Stateid,
    file: &[u8],
) -> Result<(u32, DelegationKind), Status> {
    let (number, entry) = table.resolve(client, id)?;
    let Kind::Delegation(kind) = entry.kind else { return Err(Status::BadStateid) };
    entry.check()?;
    if *entry.file == *file { Ok((number, kind)) } else { Err(Status::BadStateid) }
}
