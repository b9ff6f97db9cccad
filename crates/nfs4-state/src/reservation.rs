//! Admission of stateids, by the limits of a client and by the heap of its address.

use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use millrace_nfs::v4::Status;
use parking_lot::Mutex;

use crate::{
    client::Client,
    heap::{Charge, STATEID},
    state::State,
    table::Table,
};

/// The status for a client that has as much as one client, or one of its opens, may have. Only that client can change
/// that, so that DELAY would have it try again without end; no error of NFSv4.1 is for resources. Linux returns EREMOTEIO.
pub(crate) const FULL: Status = Status::ServerFault;

/// Heap of a stateid of an owner.
pub(crate) fn stateid_bytes(owner: &[u8]) -> usize {
    STATEID + owner.len()
}

/// A stateid that a client may add: an OPEN that creates its file reserves it before, so that the file is not created
/// in vain.
#[derive(Debug)]
pub struct ReservedStateid {
    client: Arc<Client>,
    charge: Mutex<Option<Charge>>,
}

impl ReservedStateid {
    pub(crate) fn take(&self) -> Option<Charge> {
        self.charge.lock().take()
    }
}

impl Drop for ReservedStateid {
    fn drop(&mut self) {
        self.client.reserved.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<R: Clone> State<R> {
    /// Reserves a stateid for an OPEN of `owner`, which may use it in [`OpenRequest`](crate::OpenRequest).
    ///
    /// # Errors
    /// SERVERFAULT if the client has too many, DELAY if its address has; EXPIRED if the client is removed.
    pub fn reserve_stateid(
        &self,
        client: &Arc<Client>,
        owner: &[u8],
        now: Duration,
    ) -> Result<ReservedStateid, Status> {
        self.make_room_for_state(client, stateid_bytes(owner), now);
        let mut table = client.table.lock();
        let charge = self.admit_stateid(client, table.existing()?, owner)?;
        client.reserved.fetch_add(1, Ordering::Relaxed);
        Ok(ReservedStateid { client: Arc::clone(client), charge: Mutex::new(Some(charge)) })
    }

    /// Admits one more stateid of a client, whose table is locked.
    ///
    /// # Errors
    /// SERVERFAULT if the client has too many, DELAY if its address has.
    pub(crate) fn admit_stateid(
        &self,
        client: &Client,
        table: &Table,
        owner: &[u8],
    ) -> Result<Charge, Status> {
        let count = table.len() + client.reserved.load(Ordering::Relaxed);
        if count >= self.limits.stateids_per_client {
            return Err(FULL);
        }
        client.heap.charge(stateid_bytes(owner)).ok_or(Status::Delay)
    }
}
