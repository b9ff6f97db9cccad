//! The division of records and sessions among clients.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use millrace_runtime::sync::Mutex;

use crate::ClientAddr;

/// A client may have this many times the free items. One client gets at most three quarters, the next one three quarters of
/// the rest, and there is always room for others.
const PART: usize = 3;

/// A limited number of items that outlive calls, for example records, sessions or bytes of state. A client gets at most
/// what it leaves free, times three.
///
/// When clients have left too little, the one with most has to give some back ([`heaviest`](Self::heaviest)).
pub struct ClientQuota {
    limit: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    total: usize,
    of: HashMap<ClientAddr, usize>,
    /// The same clients, those with most last.
    by_number: BTreeSet<(usize, ClientAddr)>,
}

impl fmt::Debug for ClientQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientQuota").field("limit", &self.limit).field("left", &self.left()).finish()
    }
}

impl ClientQuota {
    /// A quota of `limit` items, all of which are free.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: Mutex::default() }
    }

    /// The number of items.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The number of free items.
    pub fn left(&self) -> usize {
        self.limit.saturating_sub(self.used.lock().total)
    }

    /// The number of items of a client.
    pub fn of(&self, client: ClientAddr) -> usize {
        self.used.lock().of(client)
    }

    /// Whether a client may have `items` more.
    pub fn permits(&self, client: ClientAddr, items: usize) -> bool {
        self.used.lock().permits(client, items, self.limit)
    }

    /// The number of items that a client may have in addition, so that it has at most three times what is then left, if
    /// `reserved` ones are for others.
    pub fn room(&self, client: ClientAddr, reserved: usize) -> usize {
        let used = self.used.lock();
        let left = self.limit.saturating_sub(used.total).saturating_sub(reserved);
        left.saturating_mul(PART).saturating_sub(used.of(client)) / (PART + 1)
    }

    /// Takes items, if the client may have them.
    #[must_use = "the items are taken only if this is true"]
    pub fn take(&self, client: ClientAddr, items: usize) -> bool {
        let mut used = self.used.lock();
        let permitted = used.permits(client, items, self.limit);
        if permitted {
            used.add(client, items);
        }
        permitted
    }

    /// Takes items although the limits may not permit it: the caller has asked before ([`permits`](Self::permits)), or
    /// they replace others.
    pub fn add(&self, client: ClientAddr, items: usize) {
        self.used.lock().add(client, items);
    }

    /// Gives items back.
    pub fn give_back(&self, client: ClientAddr, items: usize) {
        let mut used = self.used.lock();
        let before = used.of(client);
        used.set(client, before, before.saturating_sub(items));
    }

    /// The client that has to give items back for `client`, which needs `items`: the one with most, unless `client` would
    /// then have half as many or more.
    pub fn heaviest(&self, client: ClientAddr, items: usize) -> Option<ClientAddr> {
        let used = self.used.lock();
        let needed = used.of(client).saturating_add(items);
        used.by_number.last().filter(|(of, _)| *of > needed.saturating_mul(2)).map(|(_, other)| *other)
    }
}

impl Used {
    fn of(&self, client: ClientAddr) -> usize {
        self.of.get(&client).copied().unwrap_or_default()
    }

    fn permits(&self, client: ClientAddr, items: usize, limit: usize) -> bool {
        let left = limit.saturating_sub(self.total);
        items <= left && (items == 0 || self.of(client) < left.saturating_mul(PART))
    }

    fn add(&mut self, client: ClientAddr, items: usize) {
        let before = self.of(client);
        self.set(client, before, before + items);
    }

    fn set(&mut self, client: ClientAddr, before: usize, items: usize) {
        if items == before {
            return;
        }
        self.total = self.total - before + items;
        self.by_number.remove(&(before, client));
        if items == 0 {
            self.of.remove(&client);
        } else {
            self.of.insert(client, items);
            self.by_number.insert((items, client));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(n: u8) -> ClientAddr {
        IpAddr::from(Ipv4Addr::new(10, 0, 0, n)).into()
    }

    fn take_all(quota: &ClientQuota, n: u8) -> usize {
        (0..).take_while(|_| quota.take(client(n), 1)).count()
    }

    #[test]
    fn each_client_leaves_a_part_to_the_next() {
        let quota = ClientQuota::new(1024);
        let taken: Vec<_> = (1..=6).map(|n| take_all(&quota, n)).collect();
        assert_eq!(taken, [768, 192, 48, 12, 3, 1]);
        assert!(!quota.take(client(7), 1), "nothing is left");
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let quota = ClientQuota::new(16);
        assert_eq!(take_all(&quota, 1), 12);
        quota.give_back(client(1), 2);
        assert_eq!((quota.left(), quota.of(client(1))), (6, 10));
        assert_eq!(take_all(&quota, 1), 2);
        quota.give_back(client(1), 100);
        assert_eq!((quota.left(), quota.of(client(1))), (16, 0));
        quota.add(client(2), 20);
        assert_eq!(quota.left(), 0);
        quota.give_back(client(2), 20);
        assert_eq!((quota.left(), quota.limit()), (16, 16));
        assert!(quota.permits(client(2), 16) && !quota.permits(client(2), 17));
    }

    #[test]
    fn the_client_with_most_gives_back_to_those_with_less_than_half() {
        let quota = ClientQuota::new(16);
        assert_eq!(quota.heaviest(client(1), 1), None);
        assert_eq!(take_all(&quota, 1), 12);
        assert_eq!(quota.heaviest(client(1), 1), None, "not to itself");
        assert!(quota.take(client(2), 3));
        assert_eq!(quota.heaviest(client(2), 1), Some(client(1)));
        assert_eq!(quota.heaviest(client(2), 3), None, "it would have half of that");
        assert_eq!(quota.heaviest(client(3), 1), Some(client(1)));
    }

    #[test]
    fn the_room_of_a_client_is_three_quarters_of_what_is_left() {
        let quota = ClientQuota::new(64);
        assert_eq!((quota.room(client(1), 0), quota.room(client(1), 16)), (48, 36));
        quota.add(client(1), 36);
        assert_eq!((quota.room(client(1), 16), quota.room(client(2), 16)), (0, 9));
    }
}
