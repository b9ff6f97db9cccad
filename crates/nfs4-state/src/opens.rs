//! OPEN, OPEN_DOWNGRADE and CLOSE (RFC 8881, 18.16, 18.18, 18.2).

use std::{any::Any, collections::BTreeSet, sync::Arc, time::Duration};

use millrace_nfs::v4::{Stateid, Status};

use crate::{
    client::Client,
    delegate::Holder,
    delegation::Use,
    lock_operations::count_ranges,
    reservation::{ReservedStateid, stateid_bytes},
    share::{Share, Shares},
    state::State,
    table::{Kind, Table, stateid},
    visits::count_visits,
};

/// Arguments of OPEN that concern the state. The caller has looked the file up and checked the access rights.
#[derive(Debug, Clone, Copy)]
pub struct OpenRequest<'a> {
    /// `owner`: the open owner, without the client ID, which the session determines.
    pub owner: &'a [u8],
    /// Key of the file. All handles of a file have the same key.
    pub file: &'a [u8],
    /// `share_access` without the bits for delegations.
    pub access: u32,
    /// `share_deny`.
    pub deny: u32,
    /// CLAIM_PREVIOUS: the client had the open with an earlier server instance.
    pub reclaim: bool,
    /// A stateid that was reserved before the file was created.
    pub reserved: Option<&'a ReservedStateid>,
}

/// The cause that prevents an OPEN.
enum Blocked {
    /// An open of this client.
    Share(Arc<Client>),
    /// A delegation, which is being recalled.
    Delegation(Holder),
}

impl<R: Clone> State<R> {
    /// OPEN. The first OPEN of an owner for a file returns a new stateid. The next ones add their access and denial, and
    /// change the `seqid` of the stateid. A conflict with a client whose lease has expired removes that client.
    ///
    /// # Errors
    /// INVAL for an undefined `access` or `deny`; those of [`admit`](Self::admit); SHARE_DENIED, or RECLAIM_CONFLICT for a
    /// reclaim; SERVERFAULT if the client has too many stateids; DELAY if the server has, while a client with which the
    /// request conflicts is removed, and while a delegation of another client is recalled; EXPIRED if the client is removed.
    pub fn open(
        &self,
        client: &Arc<Client>,
        request: &OpenRequest<'_>,
        now: Duration,
    ) -> Result<Stateid, Status> {
        let share = Share::new(request.access, request.deny)?;
        self.grace.admit(client, request.reclaim, now)?;
        if request.reserved.is_none() {
            self.make_room_for_state(client, stateid_bytes(request.owner), now);
        }
        loop {
            let mut table = client.table.lock();
            match self.try_open(client, table.existing()?, request, share, now)? {
                Ok(stateid) => return Ok(stateid),
                Err(Blocked::Share(holder)) => {
                    drop(table);
                    if !self.remove_expired(&holder, now)? {
                        let conflict =
                            if request.reclaim { Status::ReclaimConflict } else { Status::ShareDenied };
                        return Err(conflict);
                    }
                }
                Err(Blocked::Delegation(_)) if request.reclaim => return Err(Status::ReclaimConflict),
                Err(Blocked::Delegation(holder)) => {
                    drop(table);
                    self.end_conflict(&holder, request.file, now)?;
                }
            }
        }
    }

    /// Opens the file, unless another client excludes it.
    fn try_open(
        &self,
        client: &Arc<Client>,
        table: &mut Table,
        request: &OpenRequest<'_>,
        share: Share,
        now: Duration,
    ) -> Result<Result<Stateid, Blocked>, Status> {
        let own = table.open_of(request.owner, request.file);
        let number = own.unwrap_or_else(|| table.next());
        self.files.update(request.file, |file, key| {
            if let Some(holder) = file.conflict(share, Some((client.id(), number))) {
                return Ok(Err(Blocked::Share(holder.clone())));
            }
            if let Some(holder) = self.recall(file, key, Some(client.id()), Use::of(share), now) {
                return Ok(Err(Blocked::Delegation(holder)));
            }
            if own.is_none() {
                let reserved = request.reserved.and_then(ReservedStateid::take);
                let charge = reserved.map_or_else(|| self.admit_stateid(client, table, request.owner), Ok)?;
                let kind = Kind::Open { shares: Shares::default(), locks: BTreeSet::new(), ranges: 0 };
                table.add(number, key, &Arc::from(request.owner), kind, charge);
            }
            let entry = table.get_mut(number).ok_or(Status::ServerFault)?;
            let Kind::Open { shares, .. } = &mut entry.kind else { return Err(Status::ServerFault) };
            shares.add(share);
            file.set_open(client, number, Some(shares.union()));
            let seqid = if own.is_some() { entry.change() } else { entry.seqid };
            Ok(Ok(stateid(client.id(), number, seqid)))
        })
    }

    /// OPEN_DOWNGRADE: `access` and `deny` must be the union of those of some OPENs of the owner.
    ///
    /// # Errors
    /// Those of a stateid; BAD_STATEID if it is not that of an open of `file`; INVAL.
    pub fn open_downgrade(
        &self,
        client: &Arc<Client>,
        id: &Stateid,
        file: &[u8],
        access: u32,
        deny: u32,
    ) -> Result<Stateid, Status> {
        let share = Share::new(access, deny)?;
        let mut table = client.table.lock();
        let number = table.existing()?.open_number(client.id(), id, file)?;
        let entry = table.get_mut(number).ok_or(Status::BadStateid)?;
        let Kind::Open { shares, .. } = &mut entry.kind else { return Err(Status::BadStateid) };
        *shares = shares.downgraded(share).ok_or(Status::Inval)?;
        self.files.update(file, |file, _| file.set_open(client, number, Some(share)));
        Ok(stateid(client.id(), number, entry.change()))
    }

    /// CLOSE. Byte-range locks that were requested with this open are released. Returns the stateid of the reply, which
    /// is never valid.
    ///
    /// # Errors
    /// Those of a stateid; BAD_STATEID if it is not that of an open of `file`.
    pub fn close(&self, client: &Arc<Client>, id: &Stateid, file: &[u8]) -> Result<Stateid, Status> {
        let mut table = client.table.lock();
        let number = table.existing()?.open_number(client.id(), id, file)?;
        // They are taken from the open, so that the removal of each need not find it there.
        let locks = match table.get_mut(number).map(|entry| &mut entry.kind) {
            Some(Kind::Open { locks, .. }) => std::mem::take(locks),
            _ => BTreeSet::new(),
        };
        let unlocked: usize = self.files.update(file, |file, key| {
            file.set_open(client, number, None);
            file.locks.end_waiting_of(client, number);
            let unlocked = locks.iter().map(|number| file.locks.remove(client, *number)).sum();
            self.notify(file.locks.available(key));
            unlocked
        });
        count_ranges(client, &mut table, number, -(unlocked as isize));
        count_visits(locks.len());
        locks.iter().for_each(|number| table.remove(*number));
        table.remove(number);
        Ok(Stateid::INVALID)
    }

    /// Keeps `hold` while any client has the file open, for example so that it stays usable after it is unlinked. It is
    /// dropped if the file has one already, or is not open. Call this after OPEN.
    pub fn hold(&self, file: &[u8], hold: Box<dyn Any + Send + Sync>) {
        let unneeded = self.files.update(file, |file, _| file.hold(hold));
        drop(unneeded);
    }

    /// Whether a client has the file open.
    #[cfg(test)]
    pub(crate) fn is_open(&self, file: &[u8]) -> bool {
        self.files.read(file, crate::files::File::is_open).unwrap_or(false)
    }
}
