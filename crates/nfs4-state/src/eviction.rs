//! Removal of clients of which an address has too many, or too much state, and requests for slots.

use std::{
    ops::RangeInclusive,
    sync::{Arc, atomic},
    time::Duration,
};

use millrace_admission::{ClientAddr, ClientQuota};
use millrace_nfs::v4::Status;

use crate::{
    candidates::{ANY, Examined, Found, VISITS, WITH_STATE, Weight, weight},
    client::Client,
    lease::millis,
    records::Records,
    state::State,
    visits::count_visits,
};

/// Time after a search for a client to remove that has found none, in milliseconds.
const SEARCH_PAUSE: u64 = 100;
/// Time between two requests for slots, in milliseconds.
const REQUEST_PAUSE: u64 = 100;
/// Number of leases after which slots are retired that a client was asked for. An idle Linux client sends a SEQUENCE in each
/// two thirds of a lease: the first reply informs it, and the second SEQUENCE confirms that.
const LEASES: u32 = 2;

/// A request for what other clients have left too little of.
pub(crate) struct Scarce<'a> {
    pub(crate) quota: &'a ClientQuota,
    /// The address that needs it.
    pub(crate) address: ClientAddr,
    pub(crate) items: usize,
    /// The weights of the clients that have items.
    pub(crate) weights: RangeInclusive<Weight>,
}

impl<R: Clone> State<R> {
    /// Removes a client: one whose lease has expired, of the same address, or of any if the address has little; then one
    /// without state; and if the address has less than half of what another one has, a client of that with most. Such a
    /// client loses state although it has renewed its lease, so that no address can exclude others.
    ///
    /// # Errors
    /// DELAY if there is none, [`expire`](Self::expire) removes it, or the search has to be continued.
    pub(crate) fn evict(
        &self,
        records: &mut Records,
        scarce: &Scarce<'_>,
        now: Duration,
    ) -> Result<(), Status> {
        let own = Some(scarce.address);
        let heaviest = scarce.quota.heaviest(scarce.address, scarce.items);
        let has_little = heaviest.is_some() || scarce.quota.of(scarce.address) == 0;
        if let Some(client) = records.ending(|client| scarce.weights.contains(&weight(client.heap.held()))) {
            let client = Arc::clone(client);
            return self.remove_if(client.lease.end_if_idle(), records, &client, now);
        }
        let address = own.filter(|_| !has_little);
        match self.expired(records, address, scarce.weights.clone(), self.limits.lease, now) {
            Ok(Some(client)) => {
                let ended = client.lease.end_if_expired(now, self.limits.lease);
                return self.remove_if(ended, records, &client, now);
            }
            Ok(None) => {}
            // Rather than that another client loses its state.
            Err(status) => return Err(status),
        }
        let is_of_records = scarce.weights.contains(&0);
        if is_of_records {
            let idle =
                |address| self.oldest(records, address, 0..=0, u64::MAX, |client| !client.lease.is_busy());
            let idle_of_heaviest = heaviest.and_then(|address| idle(Some(address)).ok().flatten());
            if let Some(client) = idle_of_heaviest.or_else(|| idle(own).ok().flatten()) {
                return self.remove_if(client.lease.end_if_idle(), records, &client, now);
            }
        }
        let heaviest = heaviest.ok_or(Status::Delay)?;
        let weights = match self.candidates.heaviest(heaviest) {
            Some(most) if !is_of_records => most..=most,
            _ => ANY,
        };
        let client =
            self.oldest(records, Some(heaviest), weights, u64::MAX, |_| true)?.ok_or(Status::Delay)?;
        let ended = client.lease.stop();
        if !ended {
            records.end(client.id()); // Its requests in progress end first.
        }
        self.remove_if(ended, records, &client, now)
    }

    /// A client, of an address or of all, whose lease was renewed longer ago than `time`.
    ///
    /// # Errors
    /// DELAY if the search has to be continued.
    pub(crate) fn expired(
        &self,
        records: &Records,
        address: Option<ClientAddr>,
        weights: RangeInclusive<Weight>,
        time: Duration,
        now: Duration,
    ) -> Result<Option<Arc<Client>>, Status> {
        let Some(before) = now.checked_sub(time) else { return Ok(None) };
        let has_expired = |client: &Client| client.lease.has_expired(now, time);
        self.oldest(records, address, weights, millis(before), has_expired)
    }

    fn oldest(
        &self,
        records: &Records,
        address: Option<ClientAddr>,
        weights: RangeInclusive<Weight>,
        before: u64,
        fits: impl Fn(&Client) -> bool,
    ) -> Result<Option<Arc<Client>>, Status> {
        let examine = |id| {
            let client = records.client(id)?;
            Some(Examined { renewed: client.lease.renewed(), fits: fits(client) })
        };
        match self.candidates.oldest(address, weights, before, examine) {
            Found::Client(id) => Ok(records.client(id).cloned()),
            Found::None => Ok(None),
            Found::Unknown => Err(Status::Delay),
        }
    }

    fn remove_if(
        &self,
        ended: bool,
        records: &mut Records,
        client: &Client,
        now: Duration,
    ) -> Result<(), Status> {
        if ended { self.remove_unlisted(records, client.id(), now) } else { Err(Status::Delay) }
    }

    /// Requests the address with most slots to use half of them (`sr_target_highest_slotid`), if it has more than twice
    /// those of `address`, which has fewer than it needs. `bytes` are for the reply of one slot.
    pub(crate) fn ask_for_slots(
        &self,
        records: &mut Records,
        address: ClientAddr,
        bytes: usize,
        now: Duration,
    ) {
        let time = millis(now);
        if time < self.next_request.load(atomic::Ordering::Relaxed) {
            return;
        }
        let Some(heaviest) = self.replies.heaviest(address, bytes) else { return };
        self.next_request.store(time.saturating_add(REQUEST_PAUSE), atomic::Ordering::Relaxed);
        let end = now + self.limits.lease * LEASES;
        for session in records.next_asked(heaviest).into_iter().filter_map(|id| self.session(id)) {
            if session.ask_for_half(end) {
                self.asked.lock().insert((end, session.id()));
            }
        }
    }

    /// Retires the slots of clients that have not confirmed in time that they use them no more.
    pub(crate) fn retire_slots(&self, now: Duration) {
        for _ in 0..VISITS {
            count_visits(1);
            let mut asked = self.asked.lock();
            let Some((_, id)) = asked.first().copied().filter(|(end, _)| *end <= now) else { return };
            asked.pop_first();
            drop(asked);
            if let Some(again) = self.session(id).and_then(|session| session.retire_overdue(now)) {
                self.asked.lock().insert((again, id));
            }
        }
    }

    /// Makes room for `bytes` of state of a client, if others have left too little.
    pub(crate) fn make_room_for_state(&self, client: &Client, bytes: usize, now: Duration) {
        self.clear_ended(now);
        if client.heap.permits(bytes) || self.has_rests() {
            return; // The common case; or what clients that have ended leave comes first.
        }
        let millis = millis(now);
        if millis < self.next_search.load(atomic::Ordering::Relaxed) {
            return;
        }
        let (address, weights) = (client.address(), WITH_STATE);
        let scarce = Scarce { quota: &self.heap, address, items: bytes, weights };
        if self.evict(&mut self.records.lock(), &scarce, now).is_err() {
            self.next_search.store(millis.saturating_add(SEARCH_PAUSE), atomic::Ordering::Relaxed);
        }
    }
}
