//! Removal of clients of which an address has too many, or too much state, and requests for slots.

use std::{cmp::Ordering, sync::atomic, time::Duration};

use millrace_nfs::v4::Status;
use millrace_oncrpc::serving::{ClientAddr, ClientQuota};

use crate::{
    client::Client,
    records::{Record, Records},
    state::State,
};

/// Time after a search for a client to remove that has found none, in milliseconds.
const SEARCH_PAUSE: u64 = 100;
/// Time between two requests for slots, in milliseconds.
const REQUEST_PAUSE: u64 = 100;

fn millis(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A request for what other clients have left too little of.
pub(crate) struct Scarce<'a> {
    pub(crate) quota: &'a ClientQuota,
    /// The address that needs it.
    pub(crate) address: ClientAddr,
    pub(crate) items: usize,
    /// The number of items that the removal of a client gives back.
    pub(crate) held: &'a dyn Fn(&Client) -> usize,
}

/// Why a client is removed, the best reason last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// Its address has most, and it has most of that.
    Heaviest,
    /// It has no state, and is of the address that needs room.
    Idle,
    /// It has no state, and is of the address with most.
    IdleOfHeaviest,
    /// Its lease has expired.
    Expired,
    /// It is being removed.
    Removed,
}

impl<R: Clone> State<R> {
    /// Removes a client: one whose lease has expired, of the same address, or of any if the address has little; then one
    /// without state; and if the address has less than half of what another one has, the client of that with most. Such a
    /// client loses state although it has renewed its lease, so that no address can exclude others.
    ///
    /// # Errors
    /// DELAY if there is none, or [`expire`](Self::expire) removes it.
    pub(crate) fn evict(
        &self,
        records: &mut Records,
        scarce: &Scarce<'_>,
        now: Duration,
    ) -> Result<(), Status> {
        let lease = self.limits.lease;
        let heaviest = scarce.quota.heaviest(scarce.address, scarce.items);
        let has_little = heaviest.is_some() || scarce.quota.of(scarce.address) == 0;
        let reason = |record: &Record| {
            let client = &record.client;
            let own = client.address() == scarce.address;
            let of_heaviest = Some(client.address()) == heaviest;
            let is_idle = || !client.lease.is_busy() && client.table.lock().is_empty();
            if client.is_removed() {
                Some(Reason::Removed)
            } else if (own || has_little) && client.lease.has_expired(now, lease) {
                Some(Reason::Expired)
            } else if of_heaviest {
                Some(if is_idle() { Reason::IdleOfHeaviest } else { Reason::Heaviest })
            } else {
                (own && is_idle()).then_some(Reason::Idle)
            }
        };
        let candidates = records.confirmed_after(None).filter_map(|record| {
            let held = (scarce.held)(&record.client);
            let reason = (held > 0).then(|| reason(record)).flatten()?;
            let amount = if reason == Reason::Heaviest { held } else { 0 };
            Some((reason, amount, record.client.lease.age(now), record.client.serial(), &record.client))
        });
        let order = |a: &(_, _, _, _, _), b: &(_, _, _, _, _)| -> Ordering {
            (a.0, a.1, a.2, a.3).cmp(&(b.0, b.1, b.2, b.3))
        };
        let (reason, _, _, _, client) = candidates.max_by(order).ok_or(Status::Delay)?;
        let client = client.clone();
        let ended = match reason {
            Reason::Expired => client.lease.end_if_expired(now, lease),
            // Its requests in progress end first.
            Reason::Heaviest | Reason::IdleOfHeaviest => client.lease.stop(),
            Reason::Idle | Reason::Removed => client.lease.end_if_idle(),
        };
        if !ended {
            return Err(Status::Delay);
        }
        self.remove_unlisted(records, client.id(), now)
    }

    /// Requests the address with most slots to use half of them (`sr_target_highest_slotid`), if it has more than twice
    /// those of `address`, which has fewer than it needs. `bytes` are for the reply of one slot.
    pub(crate) fn ask_for_slots(&self, records: &Records, address: ClientAddr, bytes: usize, now: Duration) {
        let now = millis(now);
        if now < self.next_request.load(atomic::Ordering::Relaxed) {
            return;
        }
        let Some(heaviest) = self.replies.heaviest(address, bytes) else { return };
        self.next_request.store(now.saturating_add(REQUEST_PAUSE), atomic::Ordering::Relaxed);
        let sessions = self.sessions.read();
        for record in records.confirmed_after(None).filter(|record| record.client.address() == heaviest) {
            record
                .sessions
                .iter()
                .filter_map(|id| sessions.get(id))
                .for_each(|session| session.ask_for_half());
        }
    }

    /// Makes room for `bytes` of state of a client, if others have left too little.
    pub(crate) fn make_room_for_state(&self, client: &Client, bytes: usize, now: Duration) {
        if client.heap.permits(bytes) {
            return; // The common case.
        }
        let millis = millis(now);
        if millis < self.next_search.load(atomic::Ordering::Relaxed) {
            return;
        }
        let held = |client: &Client| client.heap.held();
        let scarce = Scarce { quota: &self.heap, address: client.address(), items: bytes, held: &held };
        if self.evict(&mut self.records.lock(), &scarce, now).is_err() {
            self.next_search.store(millis.saturating_add(SEARCH_PAUSE), atomic::Ordering::Relaxed);
        }
    }
}
