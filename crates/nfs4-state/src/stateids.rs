//! Checks of stateids: READ, WRITE, SETATTR, TEST_STATEID, FREE_STATEID (RFC 8881, 8.2, 18.38, 18.48).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_nfs::v4::{Stateid, Status};

use crate::{
    client::Client,
    contention::Changing,
    files::transfer,
    share::{READ, Share, WRITE},
    state::State,
    table::{DelegationKind, Entry, Kind, Table},
};

/// The permission that a stateid gives.
enum Permission {
    /// The access.
    Yes,
    /// The access if no open denies it.
    UnlessDenied,
}

impl<R: Clone> State<R> {
    /// Whether [`Self::check_access`] permits the access to each file: `id` is special, no open denies access, no client can
    /// have a conflicting delegation, and the grace period is over. This is the common case of special stateids, and needs
    /// neither the key of a file nor the time.
    pub fn permits_access_to_all(&self, id: &Stateid, write: bool) -> bool {
        let delegating = &self.delegating;
        let delegated =
            if write { delegating.is_enabled() } else { delegating.writers.load(Ordering::SeqCst) != 0 };
        matches!(*id, Stateid::ANONYMOUS | Stateid::READ_BYPASS)
            && !delegated
            && !self.files.deny_access()
            && !self.in_grace()
    }

    /// Checks the stateid of a READ, or of a WRITE or a SETATTR of the size (`write`), for the file with key `file`. The
    /// caller has replaced the current stateid.
    ///
    /// A READ with an open for writing only is permitted unless another open denies it, because a client may have to
    /// read in order to write a part of a page (RFC 8881, 18.22.3).
    ///
    /// # Errors
    /// If the stateid is special, or of an open as above: GRACE in the grace period, LOCKED if an open denies the access,
    /// DELAY while the client of that open is removed, or a conflicting delegation is recalled. OPENMODE if the open is not for writing; BAD_STATEID, OLD_STATEID,
    /// ADMIN_REVOKED, DELEG_REVOKED, and EXPIRED if the client is removed.
    pub fn check_access(
        &self,
        client: &Client,
        id: &Stateid,
        file: &[u8],
        write: bool,
        now: Duration,
    ) -> Result<Changing, Status> {
        let permission = match *id {
            Stateid::ANONYMOUS => Permission::UnlessDenied,
            Stateid::READ_BYPASS if write => Permission::UnlessDenied,
            Stateid::READ_BYPASS => {
                self.check_read(Some(client.id()), file, now)?;
                return Ok(Changing::default());
            }
            _ => permission(client, client.table.lock().existing()?, id, file, write)?,
        };
        match permission {
            // A conflicting delegation has been recalled before the file was opened.
            Permission::Yes => Ok(Changing::default()),
            Permission::UnlessDenied => {
                self.check_denied(file, transfer(write), now)?;
                match write {
                    true => self.change(Some(client.id()), file, now),
                    false => {
                        self.check_read(Some(client.id()), file, now)?;
                        Ok(Changing::default())
                    }
                }
            }
        }
    }

    /// Fails with LOCKED if an open of a client that exists denies the access.
    fn check_denied(&self, file: &[u8], share: Share, now: Duration) -> Result<(), Status> {
        // A client may still reclaim an open that denies it.
        if self.in_grace() {
            return Err(Status::Grace);
        }
        loop {
            let holder = self.files.read(file, |file| file.conflict(share, None).cloned()).flatten();
            match holder {
                None => return Ok(()),
                Some(holder) if self.remove_expired(&holder, now)? => {}
                Some(_) => return Err(Status::Locked),
            }
        }
    }

    /// TEST_STATEID: the status of one stateid.
    pub fn test_stateid(&self, client: &Client, id: &Stateid) -> Status {
        let mut table = client.table.lock();
        match table.existing().and_then(|table| table.resolve(client.id(), id)) {
            Ok((_, entry)) => entry.check().err().unwrap_or(Status::Ok),
            Err(status) => status,
        }
    }

    /// FREE_STATEID: frees the stateid of a lock owner without locks, or one that is revoked.
    ///
    /// # Errors
    /// Those of a stateid; LOCKS_HELD for a stateid of an open or of locks.
    pub fn free_stateid(&self, client: &Arc<Client>, id: &Stateid) -> Result<(), Status> {
        let mut table = client.table.lock();
        let (number, entry) = table.existing()?.resolve(client.id(), id)?;
        if !entry.revoked {
            let file = entry.file.clone();
            let free = matches!(entry.kind, Kind::Locks(_))
                && self.files.update(&file, |file, _| {
                    let free = file.locks.count(client, number) == 0;
                    if free {
                        file.locks.remove(client, number);
                    }
                    free
                });
            if !free {
                return Err(Status::LocksHeld);
            }
        }
        table.remove(number);
        client.set_revoked(table.revoked());
        Ok(())
    }
}

/// The shares of the open that a stateid belongs to, or those that a delegation includes.
fn shares_of(table: &Table, entry: &Entry) -> Result<Share, Status> {
    match &entry.kind {
        Kind::Open { shares, .. } => Ok(shares.union()),
        Kind::Locks(open) => match table.get(*open) {
            Some(Entry { kind: Kind::Open { shares, .. }, .. }) => Ok(shares.union()),
            _ => Err(Status::BadStateid),
        },
        Kind::Delegation(DelegationKind::Read) => Ok(transfer(false)),
        Kind::Delegation(DelegationKind::Write) => Ok(transfer(false).union(transfer(true))),
    }
}

fn permission(
    client: &Client,
    table: &Table,
    id: &Stateid,
    file: &[u8],
    write: bool,
) -> Result<Permission, Status> {
    let (_, entry) = table.resolve(client.id(), id)?;
    entry.check()?;
    if *entry.file != *file {
        return Err(Status::BadStateid);
    }
    match (shares_of(table, entry)?.access, write) {
        (access, false) if access & READ != 0 => Ok(Permission::Yes),
        (access, true) if access & WRITE != 0 => Ok(Permission::Yes),
        (_, false) => Ok(Permission::UnlessDenied),
        (_, true) => Err(Status::OpenMode),
    }
}
