//! The confirmed clients in the order in which they are removed to make room.
//!
//! SEQUENCE renews a lease without a lock, so that the time of renewal in this order may be an earlier one. A search
//! compares it with the lease, and gives a client that has renewed it since then its place again.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    ops::{Bound, RangeInclusive},
};

use millrace_admission::ClientAddr;
use millrace_nfs::v4::ClientId;
use parking_lot::Mutex;

use crate::visits::count_visits;

/// Number of clients that a search visits, at most.
pub(crate) const VISITS: usize = 64;

/// The heap of a client's state as a power of two, so that most changes of its state do not change its place: 0 for a
/// client without state.
pub(crate) type Weight = u8;
/// All weights.
pub(crate) const ANY: RangeInclusive<Weight> = 0..=Weight::MAX;
/// Those of clients with state.
pub(crate) const WITH_STATE: RangeInclusive<Weight> = 1..=Weight::MAX;

pub(crate) fn weight(bytes: usize) -> Weight {
    (usize::BITS - bytes.leading_zeros()) as Weight
}

/// The clients of one weight with the oldest renewal come first, in milliseconds; of these the one that was added last.
type Age = (u64, Reverse<u32>);
type Key = (Weight, Age);

#[derive(Debug)]
struct Place {
    id: ClientId,
    address: ClientAddr,
    key: Key,
}

#[derive(Debug, Default)]
struct Order {
    /// The places of the clients by their serial numbers.
    places: HashMap<u32, Place>,
    all: BTreeSet<Key>,
    /// Those of each address.
    of: HashMap<ClientAddr, BTreeSet<Key>>,
}

impl Order {
    fn insert(&mut self, serial: u32, place: Place) {
        self.all.insert(place.key);
        self.of.entry(place.address).or_default().insert(place.key);
        self.places.insert(serial, place);
    }

    fn remove(&mut self, serial: u32) -> Option<Place> {
        let place = self.places.remove(&serial)?;
        self.all.remove(&place.key);
        if let Some(of) = self.of.get_mut(&place.address) {
            of.remove(&place.key);
            if of.is_empty() {
                self.of.remove(&place.address);
            }
        }
        Some(place)
    }

    fn change(&mut self, serial: u32, change: impl FnOnce(Key) -> Key) {
        let Some(place) = self.places.get(&serial) else { return };
        let key = change(place.key);
        if key != place.key
            && let Some(place) = self.remove(serial)
        {
            self.insert(serial, Place { key, ..place });
        }
    }

    fn keys(&self, address: Option<ClientAddr>) -> Option<&BTreeSet<Key>> {
        address.map_or(Some(&self.all), |address| self.of.get(&address))
    }

    /// The first client after an age, of an address or of all, with one of the weights.
    fn next(
        &self,
        address: Option<ClientAddr>,
        weights: RangeInclusive<Weight>,
        after: Option<Age>,
    ) -> Option<(Age, ClientId)> {
        let keys = self.keys(address)?;
        let (mut weight, last) = weights.into_inner();
        let mut first: Option<Age> = None;
        loop {
            count_visits(1);
            let from = after.map_or(Bound::Included((weight, (0, Reverse(u32::MAX)))), |age| {
                Bound::Excluded((weight, age))
            });
            let Some((found, age)) = keys.range((from, Bound::Unbounded)).next().copied() else { break };
            if found > last {
                break;
            }
            if found > weight && after.is_some() {
                weight = found; // There may be one before it that is not after the age.
                continue;
            }
            first = Some(first.map_or(age, |first| first.min(age)));
            let Some(next) = found.checked_add(1).filter(|next| *next <= last) else { break };
            weight = next;
        }
        let age = first?;
        let (_, Reverse(serial)) = age;
        self.places.get(&serial).map(|place| (age, place.id))
    }
}

/// The confirmed clients, by address, state and last renewal.
#[derive(Debug, Default)]
pub(crate) struct Candidates(Mutex<Order>);

/// What a search has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Client(ClientId),
    None,
    /// There may be one: the next search continues this one.
    Unknown,
}

/// A client as a search finds it.
pub(crate) struct Examined {
    /// Time of the last renewal in milliseconds.
    pub(crate) renewed: u64,
    /// Whether it may be removed.
    pub(crate) fits: bool,
}

impl Candidates {
    /// Adds a client without state.
    pub(crate) fn add(&self, serial: u32, id: ClientId, address: ClientAddr, renewed: u64) {
        self.0.lock().insert(serial, Place { id, address, key: (0, (renewed, Reverse(serial))) });
    }

    pub(crate) fn remove(&self, serial: u32) {
        self.0.lock().remove(serial);
    }

    /// Places a client anew whose heap has changed; `held` returns the present one.
    pub(crate) fn weigh(&self, serial: u32, held: impl FnOnce() -> usize) {
        self.0.lock().change(serial, |(_, age)| (weight(held()), age));
    }

    /// The largest weight of the clients of an address.
    pub(crate) fn heaviest(&self, address: ClientAddr) -> Option<Weight> {
        self.0.lock().of.get(&address)?.last().map(|(weight, _)| *weight)
    }

    /// The client of an address, or of all, with one of the weights, that fits and has renewed its lease first, before a
    /// time in milliseconds. If too many have renewed it since the last search, it is the first one of some.
    pub(crate) fn oldest(
        &self,
        address: Option<ClientAddr>,
        weights: RangeInclusive<Weight>,
        before: u64,
        examine: impl Fn(ClientId) -> Option<Examined>,
    ) -> Found {
        let mut order = self.0.lock();
        let (mut after, mut is_changed) = (None, false);
        let mut some: Option<(Age, ClientId)> = None;
        for _ in 0..VISITS {
            let next = order.next(address, weights.clone(), after);
            let Some((age, id)) = next.filter(|((renewed, _), _)| *renewed < before) else {
                return Found::None;
            };
            count_visits(1);
            let Some(Examined { renewed, fits }) = examine(id) else {
                after = Some(age);
                continue;
            };
            let (was, serial) = age;
            if renewed == was {
                if fits {
                    return Found::Client(id);
                }
                after = Some(age);
                continue;
            }
            let present = (renewed, serial);
            order.change(serial.0, |(weight, _)| (weight, present));
            is_changed = true;
            if renewed < before && some.is_none_or(|(first, _)| present < first) && fits {
                some = Some((present, id));
            }
        }
        match some {
            Some((_, id)) => Found::Client(id),
            None if is_changed => Found::Unknown,
            None => Found::None,
        }
    }
}
