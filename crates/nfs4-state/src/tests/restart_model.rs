//! Clients that reclaim opens and locks after restarts of the server, compared with what each of them was granted.

use std::collections::{BTreeMap, BTreeSet};

use millrace_nfs::v4::Stateid;
use proptest::prelude::*;

use super::{grace::List, *};
use crate::{candidates::WITH_STATE, eviction::Scarce};

const HOSTS: [&str; 3] = ["a", "b", "c"];
const FILES: usize = 2;
/// Parts of a file that can be locked. The share reservation is like a lock of the slot [`OPEN`].
const SLOTS: usize = 2;
const OPEN: usize = SLOTS;
const GRACE: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Host, file, slot, whether the lock is exclusive.
    Lock(usize, usize, usize, bool),
    Unlock(usize, usize, usize),
    Close(usize, usize),
    Renew(usize),
    /// The host establishes a session with the present server instance.
    Connect(usize),
    /// The host reclaims the next open or lock.
    Reclaim(usize),
    Complete(usize),
    /// The host connects, reclaims everything, and sends RECLAIM_COMPLETE.
    Recover(usize),
    /// The host restarts without its state.
    Reboot(usize),
    /// The host destroys its client ID if it has nothing.
    Leave(usize),
    /// An administrator revokes the state of the host.
    Revoke(usize),
    /// The host is notified that state is revoked, and frees it.
    Notice(usize),
    /// Another address needs what the hosts have too much of.
    Evict,
    /// The server restarts.
    Crash,
    Expire,
    Wait(u64),
    /// Whether the list can be written.
    Disk(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (h, f) = (0..HOSTS.len(), 0..FILES);
    let step = prop_oneof![
        12 => (h.clone(), f.clone(), 0..=OPEN, prop::bool::weighted(0.7))
            .prop_map(|(h, f, slot, exclusive)| Step::Lock(h, f, slot, exclusive)),
        2 => (h.clone(), f.clone(), 0..SLOTS).prop_map(|(h, f, slot)| Step::Unlock(h, f, slot)),
        1 => (h.clone(), f).prop_map(|(h, f)| Step::Close(h, f)),
        3 => h.clone().prop_map(Step::Renew),
        3 => h.clone().prop_map(Step::Connect),
        3 => h.clone().prop_map(Step::Reclaim),
        3 => h.clone().prop_map(Step::Complete),
        8 => h.clone().prop_map(Step::Recover),
        1 => h.clone().prop_map(Step::Reboot),
        1 => h.clone().prop_map(Step::Leave),
        2 => h.clone().prop_map(Step::Revoke),
        1 => h.prop_map(Step::Notice),
        2 => Just(Step::Evict),
        4 => Just(Step::Crash),
        6 => Just(Step::Expire),
        5 => prop_oneof![1 => Just(20_u64), 1 => Just(50), 2 => Just(91)].prop_map(Step::Wait),
        1 => prop::bool::weighted(0.3).prop_map(Step::Disk),
    ];
    prop::collection::vec(step, 1..120)
}

/// Locks that a host has by its own record.
#[derive(Debug, Clone, Copy)]
struct Held {
    exclusive: bool,
    /// Number of grants of the model when it was granted last.
    since: usize,
    /// The host has to reclaim it.
    pending: bool,
    /// The server instance has revoked it; the host has no notification yet.
    revoked: bool,
}

#[derive(Debug)]
struct Grant {
    host: usize,
    at: (usize, usize),
    exclusive: bool,
}

struct Host {
    verifier: u8,
    /// The session, unless the host has received an error for it.
    session: Option<Arc<Session<u64>>>,
    sequence: u32,
    /// The server instance of the session.
    epoch: u32,
    complete: bool,
    /// It has restarted, and the server may have the state of before.
    rebooted: bool,
    /// It is not on the list, because its state was revoked.
    unlisted: bool,
    opens: [Stateid; FILES],
    /// By file and slot.
    held: BTreeMap<(usize, usize), Held>,
}

impl Host {
    /// The host has received BADSESSION.
    fn disconnect(&mut self) {
        self.session = None;
        self.held.values_mut().for_each(|held| (held.pending, held.revoked) = (true, false));
    }

    fn has_revoked(&self) -> bool {
        self.held.values().any(|held| held.revoked)
    }

    /// Whether the server instance of an epoch has removed the host's client, or is about to remove it.
    fn is_removed(&self, epoch: u32) -> bool {
        let client = self.session.as_ref().map(|session| session.client());
        client.is_none_or(|client| client.is_removed()) || self.epoch != epoch
    }
}

struct Model {
    state: State<u64>,
    list: Arc<List>,
    epoch: u32,
    now: Duration,
    grace_end: Duration,
    /// Time after which nothing extends it.
    grace_last: Duration,
    /// Hosts that may reclaim, and have not sent RECLAIM_COMPLETE.
    waiting: BTreeSet<String>,
    hosts: [Host; HOSTS.len()],
    grants: Vec<Grant>,
}

fn host_address(n: usize, epoch: u32) -> IpAddr {
    Ipv4Addr::new(10, 0, n as u8, (epoch / 2) as u8).into()
}

fn start(list: &Arc<List>, epoch: u32, grace_end: Duration) -> State<u64> {
    let owners: Vec<Box<[u8]>> = list.owners().into_iter().map(|owner| owner.into_bytes().into()).collect();
    let state = State::new(limits(), Identity { epoch, secret: [3; 16] });
    state.with_client_list(Box::new(list.clone()), owners, grace_end)
}

fn lock_request<'a>(
    open: &'a Stateid,
    file: &'a [u8],
    slot: usize,
    exclusive: bool,
    reclaim: bool,
) -> LockRequest<'a> {
    LockRequest {
        locker: Locker::Open { open, owner: b"l" },
        file,
        kind: if exclusive { LockKind::Write } else { LockKind::Read },
        blocking: false,
        reclaim,
        offset: slot as u64 * 10,
        length: 10,
    }
}

impl Model {
    fn new() -> Self {
        let list = Arc::new(List::default());
        let hosts = std::array::from_fn(|_| Host {
            verifier: 1,
            session: None,
            sequence: 0,
            epoch: 0,
            complete: false,
            rebooted: false,
            unlisted: false,
            opens: [Stateid::ANONYMOUS; FILES],
            held: BTreeMap::new(),
        });
        let (epoch, now) = (1, S(0));
        let state = start(&list, epoch, now);
        Self {
            state,
            list,
            epoch,
            now,
            grace_end: now,
            grace_last: now,
            waiting: BTreeSet::new(),
            hosts,
            grants: vec![],
        }
    }

    fn crash(&mut self) {
        self.epoch += 1;
        self.grace_end = self.now + GRACE;
        self.grace_last = self.grace_end + GRACE;
        self.waiting = self.list.owners().into_iter().collect();
        self.state = start(&self.list, self.epoch, self.grace_end);
    }

    /// Sends a SEQUENCE. Returns the session if it is usable.
    fn renew(&mut self, host: usize) -> Option<Arc<Session<u64>>> {
        let (now, host) = (self.now, &mut self.hosts[host]);
        let session = host.session.clone()?;
        let known = self.state.session(session.id()).is_some();
        host.sequence += 1;
        if known && renew(&session, host.sequence, now).is_ok() {
            return Some(session);
        }
        host.disconnect();
        None
    }

    fn connect(&mut self, n: usize) {
        if self.renew(n).is_some() {
            return;
        }
        let host = &mut self.hosts[n];
        // Hosts get other addresses from time to time.
        let args = ExchangeId { address: host_address(n, self.epoch), ..identify(HOSTS[n], host.verifier) };
        let id = self.state.exchange_id(&args, self.now).unwrap();
        assert!(!id.confirmed, "the host has no session, because its client was removed");
        match self.state.create_session(&create(id.client, id.sequence), self.now) {
            Ok(created) => {
                host.session = self.state.session(created.session);
                (host.sequence, host.complete, host.rebooted) = (0, false, false);
                (host.unlisted, host.epoch) = (false, self.epoch);
            }
            Err(status) => assert_eq!(status, Status::Delay, "its earlier client is being removed"),
        }
    }

    fn request(
        &self,
        session: &Session<u64>,
        n: usize,
        at: (usize, usize),
        exclusive: bool,
        reclaim: bool,
    ) -> Result<Option<Stateid>, Status> {
        let (file, slot) = at;
        if slot == OPEN {
            let deny = if exclusive { 3 } else { 0 };
            let request =
                OpenRequest { owner: b"o", file: &[file as u8], access: 3, deny, reclaim, reserved: None };
            return self.state.open(session.client(), &request, self.now).map(Some);
        }
        let file = [file as u8];
        let request = lock_request(&self.hosts[n].opens[at.0], &file, slot, exclusive, reclaim);
        match self.state.lock(session.client(), &request, self.now) {
            Ok(_) => Ok(None),
            Err(LockError::Denied(_)) => Err(Status::Denied),
            Err(LockError::Status(status)) => Err(status),
        }
    }

    /// Hosts that have a conflicting lock by their own records, and need not reclaim it.
    fn excluding(&self, n: usize, at: (usize, usize), exclusive: bool) -> Vec<usize> {
        let excludes = |other: &usize| {
            let held = self.hosts[*other].held.get(&at);
            let held = held.filter(|held| !held.pending && !held.revoked);
            *other != n && held.is_some_and(|held| held.exclusive || exclusive)
        };
        (0..HOSTS.len()).filter(excludes).collect()
    }

    fn revoke(&mut self, n: usize) {
        let Some(session) = self.hosts[n].session.clone() else { return };
        let id = session.client().id();
        let held = |model: &Self| model.hosts[n].held.values().any(|held| !held.pending && !held.revoked);
        match self.state.revoke(Selection::Client(id)) {
            Ok(0) => assert!(!held(self) || self.hosts[n].is_removed(self.epoch)),
            Ok(_) => {
                let host = &mut self.hosts[n];
                host.held.values_mut().filter(|held| !held.pending).for_each(|held| held.revoked = true);
                host.unlisted = true;
                let listed = self.list.owners().iter().any(|owner| owner == HOSTS[n]);
                assert!(!listed, "it could reclaim what others get");
            }
            Err(Status::StaleClientid) => assert!(self.hosts[n].is_removed(self.epoch)),
            Err(status) => assert!(status == Status::Delay && self.list.is_broken()),
        }
    }

    /// The host frees what is revoked. What it does later does not refer to it.
    fn notice(&mut self, n: usize) {
        if !self.hosts[n].has_revoked() {
            return;
        }
        let Some(session) = self.renew(n) else { return };
        let client = session.client();
        let all = self.state.stateid_reports(Selection::Client(client.id()), None, usize::MAX);
        for report in all.stateids.iter().filter(|report| report.revoked) {
            let stateid = table::stateid(client.id(), report.at.number, 0);
            assert_eq!(self.state.test_stateid(client, &stateid), Status::AdminRevoked);
            self.state.free_stateid(client, &stateid).unwrap();
        }
        let host = &mut self.hosts[n];
        // Without its open, a lock cannot be reclaimed.
        let closed: Vec<_> = (0..FILES)
            .filter(|file| host.held.get(&(*file, OPEN)).is_some_and(|held| held.revoked))
            .collect();
        host.held.retain(|at, held| !held.revoked && !closed.contains(&at.0));
    }

    /// A new open or lock.
    fn lock(&mut self, n: usize, at: (usize, usize), exclusive: bool) {
        self.notice(n);
        if at.1 != OPEN && self.hosts[n].held.get(&(at.0, OPEN)).is_none_or(|held| held.pending) {
            self.lock(n, (at.0, OPEN), false);
            if !self.hosts[n].held.contains_key(&(at.0, OPEN)) {
                return;
            }
        }
        let Some(session) = self.renew(n) else { return };
        if self.hosts[n].held.get(&(at.0, OPEN)).is_some_and(|held| held.pending) {
            return; // The open must be reclaimed first.
        }
        let result = self.request(&session, n, at, exclusive, false);
        if !self.hosts[n].complete || !self.waiting.is_empty() {
            assert_eq!(result, Err(Status::Grace));
            return;
        }
        let excluding = self.excluding(n, at, exclusive);
        let is_removed = |other: &usize| self.hosts[*other].is_removed(self.epoch);
        let rebooted = self.hosts.iter().any(|host| host.rebooted);
        let disconnected = self.hosts.iter().any(|host| host.session.is_none());
        match result {
            Ok(stateid) => {
                assert!(excluding.iter().all(is_removed), "{excluding:?} have it, too");
                let held = self.hosts[n].held.get(&at);
                let exclusive = match at.1 {
                    OPEN => exclusive || held.is_some_and(|held| held.exclusive), // Opens add up.
                    _ => exclusive,
                };
                self.grants.push(Grant { host: n, at, exclusive });
                let held = Held { exclusive, since: self.grants.len(), pending: false, revoked: false };
                self.hosts[n].held.insert(at, held);
                stateid.into_iter().for_each(|stateid| self.hosts[n].opens[at.0] = stateid);
            }
            Err(Status::Denied | Status::ShareDenied) => assert!(!excluding.is_empty() || rebooted),
            Err(status) => {
                assert_eq!(status, Status::Delay);
                assert!(excluding.iter().any(is_removed) || disconnected, "no client is being removed");
            }
        }
    }

    fn unlock(&mut self, n: usize, at: (usize, usize)) {
        self.notice(n);
        let Some(session) = self.renew(n) else { return };
        if self.hosts[n].held.get(&at).is_none_or(|held| held.pending) {
            return;
        }
        if !self.hosts[n].complete || !self.waiting.is_empty() {
            return;
        }
        // LOCK of the same bytes returns the stateid.
        let (file, exclusive) = ([at.0 as u8], self.hosts[n].held[&at].exclusive);
        let request = lock_request(&self.hosts[n].opens[at.0], &file, at.1, exclusive, false);
        let locked = self.state.lock(session.client(), &request, self.now).unwrap();
        self.state
            .unlock(session.client(), &locked, &file, (request.offset, request.length), self.now)
            .unwrap();
        self.hosts[n].held.remove(&at);
    }

    fn close(&mut self, n: usize, file: usize) {
        self.notice(n);
        let Some(session) = self.renew(n) else { return };
        let host = &mut self.hosts[n];
        if host.held.get(&(file, OPEN)).is_some_and(|held| !held.pending) {
            self.state.close(session.client(), &host.opens[file], &[file as u8]).unwrap();
            host.held.retain(|at, _| at.0 != file);
        }
    }

    /// The next open or lock that a host has to reclaim: the open of a file before its locks.
    fn next(&self, n: usize) -> Option<((usize, usize), Held)> {
        let pending = self.hosts[n].held.iter().filter(|(_, held)| held.pending);
        pending.map(|(at, held)| (*at, *held)).max_by_key(|(at, _)| *at)
    }

    /// Reclaims the next open or lock. The host may do so if it is on the list, and before the end of the time; then no
    /// other host has been granted what excludes it since.
    fn reclaim(&mut self, n: usize) {
        self.notice(n);
        let Some(session) = self.renew(n) else { return };
        let Some((at, held)) = self.next(n) else { return };
        if self.hosts[n].complete {
            return;
        }
        let result = self.request(&session, n, at, held.exclusive, true);
        let permitted = self.waiting.contains(HOSTS[n]) && self.now < self.grace_end;
        if !permitted {
            assert!(matches!(result, Err(Status::NoGrace | Status::ReclaimBad)), "{result:?}");
            let open = at.1 == OPEN;
            self.hosts[n].held.retain(|other, _| *other != at && !(open && other.0 == at.0));
            return;
        }
        let later = &self.grants[held.since..];
        let excludes =
            |grant: &&Grant| grant.host != n && grant.at == at && (grant.exclusive || held.exclusive);
        assert!(later.iter().find(excludes).is_none(), "{:?} since {held:?}", later.iter().find(excludes));
        let stateid = result.unwrap();
        self.grace_end = self.grace_end.max(self.grace_last.min(self.now + GRACE / 3));
        let host = &mut self.hosts[n];
        host.held.insert(at, Held { pending: false, ..held });
        stateid.into_iter().for_each(|stateid| host.opens[at.0] = stateid);
    }

    fn complete(&mut self, n: usize) {
        let Some(session) = self.renew(n) else { return };
        let host = &mut self.hosts[n];
        let result = self.state.reclaim_complete(session.client());
        if host.complete {
            assert_eq!(result, Err(Status::CompleteAlready));
        } else if self.list.is_broken() && !host.unlisted {
            assert_eq!(result, Err(Status::Delay));
        } else {
            assert_eq!(result, Ok(()));
            host.complete = true;
            self.waiting.remove(HOSTS[n]);
            host.held.retain(|_, held| !held.pending); // The host reports the others as lost.
            let charged = (!host.unlisted).then(|| host_address(n, self.epoch).into());
            assert_eq!(self.list.address(HOSTS[n]), charged);
        }
    }

    fn recover(&mut self, n: usize) {
        self.connect(n);
        while self.hosts[n].session.is_some() && !self.hosts[n].complete && self.next(n).is_some() {
            self.reclaim(n);
        }
        if !self.hosts[n].complete {
            self.complete(n);
        }
    }

    fn reboot(&mut self, n: usize) {
        let host = &mut self.hosts[n];
        host.disconnect();
        host.held.clear();
        (host.verifier, host.rebooted) = (host.verifier + 1, true);
    }

    fn leave(&mut self, n: usize) {
        self.notice(n);
        let Some(session) = self.renew(n) else { return };
        if self.hosts[n].complete && self.hosts[n].held.is_empty() {
            self.state.destroy_session(session.id()).unwrap();
            self.state.destroy_client(session.client().id()).unwrap();
            self.hosts[n].disconnect();
        }
    }

    /// Ends a client of those with most state, although its lease may be valid. Others get what it has when it is not on
    /// the list any more.
    fn evict(&mut self) {
        let address = address(99).into();
        let scarce = Scarce { quota: &self.state.heap, address, items: 1, weights: WITH_STATE };
        let evicted = self.state.evict(&mut self.state.records.lock(), &scarce, self.now);
        assert_eq!(evicted, Err(Status::Delay));
    }

    fn expire(&mut self) {
        let is_removed = |client: &&Arc<Client>| client.is_removed();
        let ended: Vec<_> = {
            let records = self.state.records.lock();
            records.confirmed_clients().filter(is_removed).map(|client| client.owner().to_vec()).collect()
        };
        self.state.expire(self.now);
        if self.list.is_broken() {
            return;
        }
        self.waiting.retain(|name| !ended.iter().any(|owner| owner == name.as_bytes()));
        if self.now > self.grace_end {
            self.waiting.clear();
        }
        for (n, host) in self.hosts.iter_mut().enumerate() {
            if host.unlisted && host.complete && !host.has_revoked() && !host.is_removed(self.epoch) {
                host.unlisted = false;
                let charged = Some(host_address(n, self.epoch).into());
                assert_eq!(self.list.address(HOSTS[n]), charged, "it has freed everything");
            }
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Lock(n, file, slot, exclusive) => self.lock(n, (file, slot), exclusive),
            Step::Unlock(n, file, slot) => self.unlock(n, (file, slot)),
            Step::Close(n, file) => self.close(n, file),
            Step::Renew(n) => drop(self.renew(n)),
            Step::Connect(n) => self.connect(n),
            Step::Reclaim(n) => self.reclaim(n),
            Step::Complete(n) => self.complete(n),
            Step::Recover(n) => self.recover(n),
            Step::Reboot(n) => self.reboot(n),
            Step::Leave(n) => self.leave(n),
            Step::Revoke(n) => self.revoke(n),
            Step::Notice(n) => self.notice(n),
            Step::Evict => self.evict(),
            Step::Crash => self.crash(),
            Step::Expire => self.expire(),
            Step::Wait(seconds) => self.now += S(seconds),
            Step::Disk(writable) => self.list.set_broken(!writable),
        }
        assert_eq!(self.state.in_grace(), !self.waiting.is_empty());
    }

    /// With a disk, what a host had is available when its lease has expired.
    fn end(mut self) {
        self.list.set_broken(false);
        self.now += 2 * GRACE + S(2);
        self.expire();
        let new = ready(&self.state, "new", self.now);
        for file in 0..FILES as u8 {
            let request = OpenRequest {
                owner: b"o",
                file: &[file],
                access: 3,
                deny: 3,
                reclaim: false,
                reserved: None,
            };
            let open = || self.state.open(new.client(), &request, self.now).map(|_| ());
            let mut opened = open();
            for _ in HOSTS {
                if opened == Err(Status::Delay) {
                    self.state.expire(self.now);
                    opened = open();
                }
            }
            assert_eq!(opened, Ok(()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16384, ..ProptestConfig::default() })]

    #[test]
    fn what_is_reclaimed_was_not_granted_to_others(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        model.end();
    }
}
