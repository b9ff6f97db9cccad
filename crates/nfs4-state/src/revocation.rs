//! Revocation of state by an administrator (RFC 8881, 8.5).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_nfs::v4::Status;

use crate::{
    client::Client, lock_operations::count_ranges, report::Selection, state::State, table::Kind, visits::STEP,
};

/// Whether state of a client is selected. Its table is locked for a step only.
fn has_selected(client: &Client, selection: Selection<'_>) -> bool {
    let mut after = Some(0);
    while let Some(first) = after.take() {
        let table = client.table.lock();
        let mut step = table.after(first).take(STEP).inspect(|(number, _)| after = Some(*number));
        if step.any(|(_, entry)| selection.includes(entry)) {
            return true;
        }
    }
    false
}

impl<R: Clone> State<R> {
    /// Revokes state, and returns the number of its stateids. Until the clients free them, their use fails with
    /// ADMIN_REVOKED (delegations: DELEG_REVOKED), and the flags of SEQUENCE report them. This performs the I/O of the
    /// list of clients: until a client has freed what was revoked, it is not on the list, and can therefore reclaim
    /// nothing after a restart. Otherwise a client without this notification could reclaim a lock that another client
    /// had in the meantime (RFC 8881, 8.4.3).
    ///
    /// # Errors
    /// STALE_CLIENTID if the selected client does not exist; DELAY if the list cannot be written, and nothing is revoked.
    pub fn revoke(&self, selection: Selection<'_>) -> Result<usize, Status> {
        let _listing = self.listing.write();
        let mut clients = self.selected_clients(selection);
        if clients.is_empty() && matches!(selection, Selection::Client(_)) {
            return Err(Status::StaleClientid);
        }
        clients.retain(|client| has_selected(client, selection));
        let owners: Vec<Box<[u8]>> = clients.iter().map(|client| client.owner().into()).collect();
        if owners.is_empty() {
            return Ok(0);
        }
        if !self.unlist(&owners) {
            return Err(Status::Delay);
        }
        Ok(clients.iter().map(|client| self.revoke_of(client, selection)).sum())
    }

    /// Revokes the selected state of a client in steps, between which the table is not locked.
    fn revoke_of(&self, client: &Arc<Client>, selection: Selection<'_>) -> usize {
        self.set_unlisted(client);
        let (mut revoked, mut after) = (0, 0);
        loop {
            let mut table = client.table.lock();
            let step: Vec<u32> = table.after(after).take(STEP).map(|(number, _)| number).collect();
            let Some(last) = step.last() else { return revoked };
            after = *last;
            for number in step {
                let Some(entry) = table.get(number).filter(|entry| selection.includes(entry)) else {
                    continue;
                };
                let open = if let Kind::Locks(open) = entry.kind { open } else { number };
                let (unlocked, _) = self.end_in_file(client, number, entry, Duration::ZERO);
                count_ranges(client, &mut table, open, -(unlocked as isize));
                table.revoke(number);
                revoked += 1;
            }
            client.set_revoked(table.revoked());
        }
    }

    /// Records that a client is not on the list any more.
    pub(crate) fn set_unlisted(&self, client: &Arc<Client>) {
        if !client.unlisted.swap(true, Ordering::AcqRel) {
            self.unlisted.lock().push(Arc::clone(client));
        }
    }

    /// Adds the clients to the list again that have freed all that was revoked. The caller holds `listing`.
    pub(crate) fn relist(&self) {
        let mut clients = std::mem::take(&mut *self.unlisted.lock());
        clients.retain(|client| {
            let returns =
                client.reclaimed.load(Ordering::Acquire) && client.table.lock().revoked().count() == 0;
            let is_listed = !client.is_removed()
                && returns
                && self.list.as_ref().is_none_or(|list| list.add(client.owner(), client.address()).is_ok());
            if is_listed {
                client.unlisted.store(false, Ordering::Release);
            }
            !is_listed && !client.is_removed()
        });
        self.unlisted.lock().append(&mut clients);
    }
}
