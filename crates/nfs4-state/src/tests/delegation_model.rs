//! Delegations compared with a reference model: a list of delegations, and the data that their holders have cached.

use millrace_nfs::v4::Stateid;
use millrace_oncrpc::CallbackQueue;
use proptest::prelude::*;

use super::{delegations, *};
use crate::delegation::Use;

const CLIENTS: usize = 3;
const FILES: usize = 2;
const OWNERS: [&str; CLIENTS] = ["a", "b", "c"];
const LEASE: u64 = 90;
const PAUSE: u64 = 30;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Client, file, access, and the kind of the requested delegation.
    Open(usize, usize, u32, DelegationKind),
    /// Client, file.
    Close(usize, usize),
    /// The holder uses its delegation: client, file, whether it writes to its cache.
    Local(usize, usize, bool),
    /// Client, file, whether it is a WRITE, with the stateid of the delegation.
    Delegated(usize, usize, bool),
    /// Client (`None`: NFSv3), file, whether it is a WRITE without an open.
    Anonymous(Option<usize>, usize, bool),
    /// A change by NFSv3 begins, or the one in progress ends.
    Slow(usize),
    /// Client, file: it returns its delegation.
    Return(usize, usize),
    /// Client, any stateid of a delegation: DELEGRETURN, TEST_STATEID and FREE_STATEID of it, whosever it is.
    Old(usize, usize),
    /// The callbacks succeed.
    Answer(bool),
    Restart(usize),
    Renew(usize),
    Wait(u64),
    Expire,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (c, f) = (0..CLIENTS, 0..FILES);
    let cf = (c.clone(), f.clone());
    let kind = prop_oneof![Just(DelegationKind::Read), Just(DelegationKind::Write)];
    let step = prop_oneof![
        10 => (cf.clone(), 1..4_u32, kind).prop_map(|((c, f), a, k)| Step::Open(c, f, a, k)),
        6 => cf.clone().prop_map(|(c, f)| Step::Close(c, f)),
        6 => (cf.clone(), any::<bool>()).prop_map(|((c, f), w)| Step::Local(c, f, w)),
        3 => (cf.clone(), any::<bool>()).prop_map(|((c, f), w)| Step::Delegated(c, f, w)),
        5 => (prop::option::of(c.clone()), f.clone(), any::<bool>())
            .prop_map(|(c, f, w)| Step::Anonymous(c, f, w)),
        1 => f.clone().prop_map(Step::Slow),
        4 => cf.prop_map(|(c, f)| Step::Return(c, f)),
        2 => (c.clone(), 0..20_usize).prop_map(|(c, n)| Step::Old(c, n)),
        3 => any::<bool>().prop_map(Step::Answer),
        1 => c.clone().prop_map(Step::Restart),
        6 => c.prop_map(Step::Renew),
        5 => prop_oneof![3 => Just(5_u64), 2 => Just(20), 1 => Just(89), 1 => Just(100)].prop_map(Step::Wait),
        1 => Just(Step::Expire),
    ];
    prop::collection::vec(step, 1..120)
}

/// A delegation that the server has granted.
#[derive(Debug, Clone)]
struct Held {
    host: usize,
    client: ClientId,
    file: usize,
    kind: DelegationKind,
    id: Stateid,
    recalled: Option<Duration>,
    /// The state of the last CB_RECALL: sent, or not yet repeated after a failure.
    callback: Callback,
    /// The version of the data that the holder has cached.
    cached: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Callback {
    None,
    Sent,
    Failed,
}

/// A request that got DELAY, and is repeated.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    first: Duration,
    last: Duration,
}

struct Model {
    state: State<u64>,
    sessions: Vec<Arc<Session<u64>>>,
    queues: Vec<CallbackQueue>,
    sequences: Vec<u32>,
    renewed: Vec<Duration>,
    now: Duration,
    verifier: u8,
    keys: [Vec<u8>; FILES],
    held: Vec<Held>,
    revoked: Vec<(ClientId, Stateid)>,
    /// Stateids of all delegations ever.
    seen: Vec<Stateid>,
    /// By client and file: access and stateid.
    opens: Vec<Vec<Option<(u32, Stateid)>>>,
    paused: [Duration; FILES],
    slow: [Option<Changing>; FILES],
    /// Number of the last write of each file's data, to the server or to a cache with a write delegation.
    version: [u64; FILES],
    /// The same at the server.
    stored: [u64; FILES],
    /// By requester (NFSv3 last), file, and use.
    waiting: std::collections::BTreeMap<(usize, usize, bool), Waiting>,
    recalls: u64,
    revocations: u64,
}

impl Model {
    fn new() -> Self {
        let state = with_limits(delegations::limits());
        state.enable_delegations(None);
        let (sessions, queues) =
            OWNERS.iter().map(|owner| delegations::reachable(&state, owner, S(0))).unzip();
        // Files that do not keep each other from being delegated.
        let index = |n: u8| state.delegating.contention.index(&[n]);
        let other = (1..=u8::MAX).find(|n| index(*n) != index(0)).unwrap();
        Self {
            sessions,
            queues,
            sequences: vec![0; CLIENTS],
            renewed: vec![S(0); CLIENTS],
            now: S(0),
            verifier: 1,
            keys: [vec![0], vec![other]],
            held: vec![],
            revoked: vec![],
            seen: vec![],
            opens: vec![vec![None; FILES]; CLIENTS],
            paused: [S(0); FILES],
            slow: [None, None],
            version: [0; FILES],
            stored: [0; FILES],
            waiting: Default::default(),
            recalls: 0,
            revocations: 0,
            state,
        }
    }

    fn id(&self, host: usize) -> ClientId {
        self.sessions[host].client().id()
    }

    /// The server removes a client. Its unsaved data is lost: no other client has read it.
    fn forget(&mut self, host: usize) {
        for held in self.held.extract_if(.., |held| held.host == host) {
            if held.recalled.is_some() {
                self.paused[held.file] = self.now + S(PAUSE);
            }
            if held.kind == DelegationKind::Write {
                self.version[held.file] = self.stored[held.file];
            }
        }
        let id = self.id(host);
        self.revoked.retain(|(client, _)| *client != id);
        self.opens[host] = vec![None; FILES];
    }

    fn restart(&mut self, host: usize) {
        self.verifier += 1;
        let id = self.state.exchange_id(&identify(OWNERS[host], self.verifier), self.now).unwrap();
        let created = self.state.create_session(&create(id.client, 1), self.now).unwrap();
        self.forget(host);
        self.sessions[host] = self.state.session(created.session).unwrap();
        self.queues[host] = delegations::connect(&self.sessions[host]);
        self.state.reclaim_complete(self.sessions[host].client()).unwrap();
        (self.sequences[host], self.renewed[host]) = (0, self.now);
    }

    fn renew(&mut self, host: usize) {
        self.sequences[host] += 1;
        if renew(&self.sessions[host], self.sequences[host], self.now).is_err() {
            assert!(self.sessions[host].client().is_removed());
            assert!(!self.held.iter().any(|held| held.host == host), "the model kept the client");
            self.restart(host);
        }
        self.renewed[host] = self.now;
    }

    fn is_expired(&self, host: usize) -> bool {
        self.now - self.renewed[host] > S(LEASE)
    }

    /// Revokes a delegation. SEQUENCE reports it to the holder before the holder uses its cache.
    fn revoke(&mut self, n: usize) {
        let held = self.held.remove(n);
        self.revoked.push((held.client, held.id));
        self.paused[held.file] = self.now + S(PAUSE);
        self.revocations += 1;
        if held.kind == DelegationKind::Write {
            self.version[held.file] = self.stored[held.file];
        }
    }

    /// The result that the server must return for a request that may conflict with delegations of others.
    fn conflict(&mut self, own: Option<usize>, file: usize, wanted: Use) -> Result<(), Status> {
        for held in self.held.iter_mut().filter(|held| held.file == file && Some(held.host) != own) {
            if !conflicts_with(wanted, held.kind) {
                continue;
            }
            if held.recalled.is_none() {
                held.recalled = Some(self.now);
                self.paused[file] = self.paused[file].max(self.now + S(PAUSE));
                self.recalls += 1;
            }
            if held.callback != Callback::Sent {
                held.callback = Callback::None;
            }
        }
        loop {
            let conflicts = |held: &Held| {
                held.file == file && Some(held.host) != own && conflicts_with(wanted, held.kind)
            };
            let all: Vec<_> = (0..self.held.len()).filter(|n| conflicts(&self.held[*n])).collect();
            let overdue =
                |n: &usize| self.held[*n].recalled.is_some_and(|since| self.now >= since + S(LEASE));
            if let Some(n) = all.iter().find(|n| self.is_expired(self.held[**n].host)) {
                self.forget(self.held[*n].host);
            } else if let Some(n) = all.iter().copied().find(overdue) {
                self.revoke(n);
            } else {
                return if all.is_empty() { Ok(()) } else { Err(Status::Delay) };
            }
        }
    }

    /// Checks that a requester who repeats its request waits no longer than a lease.
    fn wait(&mut self, who: usize, file: usize, write: bool, result: Result<(), Status>) {
        let key = (who, file, write);
        if result != Err(Status::Delay) {
            self.waiting.remove(&key);
            return;
        }
        let now = self.now;
        let waiting = self.waiting.entry(key).or_insert(Waiting { first: now, last: now });
        if now - waiting.last >= S(PAUSE) {
            waiting.first = now;
        }
        waiting.last = now;
        assert!(now - waiting.first < S(LEASE), "{who} has waited since {:?}", waiting.first);
    }

    fn open(&mut self, host: usize, file: usize, access: u32, kind: DelegationKind) {
        let wanted = if access & 2 != 0 { Use::Change } else { Use::Read };
        let expected = self.conflict(Some(host), file, wanted);
        let request = OpenRequest {
            owner: b"o",
            file: &self.keys[file],
            access,
            deny: 0,
            reclaim: false,
            reserved: None,
        };
        let result = self.state.open(self.sessions[host].client(), &request, self.now);
        assert_eq!(result.map(drop), expected);
        self.wait(host, file, wanted == Use::Change, expected);
        let Ok(id) = result else { return };
        let opened = &mut self.opens[host][file];
        *opened = Some((access | opened.map_or(0, |(access, _)| access), id));
        self.delegate(host, file, kind);
    }

    fn delegate(&mut self, host: usize, file: usize, kind: DelegationKind) {
        let request =
            DelegationRequest { file: &self.keys[file], kind, reclaim: false, change: 0, times: None };
        let result = self.state.delegate(self.sessions[host].client(), &request, self.now);
        let others = (0..CLIENTS).filter(|other| *other != host);
        let opened = others.filter_map(|other| self.opens[other][file]);
        let in_use =
            opened.fold(false, |used, (access, _)| used || kind == DelegationKind::Write || access & 2 != 0);
        let mut delegated = self.held.iter().filter(|held| held.file == file);
        let own = delegated.clone().find(|held| held.host == host);
        let refused = delegated.any(|held| {
            held.recalled.is_some()
                || (held.host != host
                    && (kind == DelegationKind::Write || held.kind == DelegationKind::Write))
        });
        let busy = self.now < self.paused[file] || self.slow[file].is_some();
        match own {
            Some(own) => assert_eq!(result, Err(NotDelegated::Held(own.kind))),
            None if in_use || refused || busy => assert_eq!(result, Err(NotDelegated::Contention)),
            None => {
                let (client, id) = (self.id(host), result.unwrap());
                assert!(id.seqid == 1 && !self.seen.contains(&id));
                self.seen.push(id);
                let (recalled, callback, cached) = (None, Callback::None, self.stored[file]);
                self.held.push(Held { host, client, file, kind, id, recalled, callback, cached });
            }
        }
    }

    fn close(&mut self, host: usize, file: usize) {
        let Some((_, id)) = self.opens[host][file].take() else { return };
        self.state.close(self.sessions[host].client(), &id, &self.keys[file]).unwrap();
    }

    fn holder(&self, host: usize, file: usize) -> Option<usize> {
        self.held.iter().position(|held| held.host == host && held.file == file)
    }

    /// A holder reads or writes its cache, after a SEQUENCE that reports lost state.
    fn local(&mut self, host: usize, file: usize, write: bool) {
        let Some(n) = self.holder(host, file) else { return };
        let held = &mut self.held[n];
        assert_eq!(held.cached, self.version[file], "a stale cache");
        if write && held.kind == DelegationKind::Write {
            self.version[file] += 1;
            held.cached = self.version[file];
        }
    }

    /// A READ or WRITE with the stateid of the delegation.
    fn delegated(&mut self, host: usize, file: usize, write: bool) {
        let Some(n) = self.holder(host, file) else { return };
        let id = Stateid { seqid: 0, ..self.held[n].id };
        let allowed = !write || self.held[n].kind == DelegationKind::Write;
        let expected = if allowed { Ok(()) } else { Err(Status::OpenMode) };
        let client = self.sessions[host].client();
        assert_eq!(check_access(&self.state, client, &id, &self.keys[file], write, self.now), expected);
        if write && allowed {
            self.stored[file] = self.version[file];
        }
    }

    /// A READ or WRITE without an open.
    fn anonymous(&mut self, host: Option<usize>, file: usize, write: bool) {
        let expected = self.conflict(host, file, if write { Use::Change } else { Use::Read });
        let (key, now) = (&self.keys[file], self.now);
        let result = match host {
            Some(host) => {
                let client = self.sessions[host].client();
                check_access(&self.state, client, &Stateid::ANONYMOUS, key, write, now)
            }
            None if write => self.state.change(None, key, now).map(drop),
            None => self.state.check_read(None, key, now),
        };
        assert_eq!(result, expected);
        self.wait(host.unwrap_or(CLIENTS), file, write, expected);
        if expected.is_err() {
            return;
        }
        let own = host.and_then(|host| self.holder(host, file));
        if own.is_none() {
            assert_eq!(self.stored[file], self.version[file], "the server has older data than a cache");
        }
        if write {
            self.version[file] += 1;
            self.stored[file] = self.version[file];
            own.into_iter().for_each(|n| self.held[n].cached = self.version[file]);
        }
    }

    fn slow(&mut self, file: usize) {
        if self.slow[file].take().is_some() {
            self.version[file] += 1;
            self.stored[file] = self.version[file];
            assert!(!self.held.iter().any(|held| held.file == file), "delegated during a change");
            return;
        }
        let expected = self.conflict(None, file, Use::Change);
        let result = self.state.change(None, &self.keys[file], self.now);
        assert_eq!(result.as_ref().err(), expected.as_ref().err());
        self.wait(CLIENTS, file, true, expected);
        self.slow[file] = result.ok();
    }

    /// DELEGRETURN, after the data is written.
    fn give_back(&mut self, host: usize, file: usize) {
        let Some(n) = self.holder(host, file) else { return };
        let held = self.held.remove(n);
        let client = self.sessions[host].client();
        let returned = self.state.return_delegation(client, &held.id, &self.keys[file], self.now);
        assert_eq!(returned, Ok(()));
        self.stored[file] = self.version[file];
        if held.recalled.is_some() {
            self.paused[file] = self.now + S(PAUSE);
        }
    }

    /// Operations with a stateid that the client may not have, or not any more.
    fn old(&mut self, host: usize, n: usize) {
        let Some(id) = self.seen.get(n).copied() else { return };
        let (client, own) = (self.sessions[host].client(), self.id(host));
        let held = self.held.iter().any(|held| held.id == id && held.client == own);
        let revoked = self.revoked.iter().position(|(client, other)| (*client, *other) == (own, id));
        let expected = match revoked {
            _ if held => Status::Ok,
            Some(_) => Status::DelegRevoked,
            None => Status::BadStateid,
        };
        assert_eq!(self.state.test_stateid(client, &id), expected);
        if !held {
            let returned = self.state.return_delegation(client, &id, &self.keys[0], self.now);
            assert_eq!(returned, Err(expected));
        }
        let freed = match revoked {
            _ if held => Err(Status::LocksHeld),
            Some(n) => {
                self.revoked.remove(n);
                Ok(())
            }
            None => Err(Status::BadStateid),
        };
        assert_eq!(self.state.free_stateid(self.sessions[host].client(), &id), freed);
    }

    /// The server sends the callbacks that it should, once each.
    fn answer(&mut self, accepted: bool) {
        let mut recalls = self.state.take_recalls();
        recalls.retain(|recall| self.state.is_recalled(recall));
        for held in &mut self.held {
            let same = |recall: &&Recall| (recall.client, recall.stateid) == (held.client, held.id);
            let sent = recalls.iter().filter(same).count();
            let due = held.recalled.is_some() && held.callback == Callback::None;
            assert_eq!(sent, usize::from(due), "{held:?}");
            if due {
                held.callback = if accepted { Callback::Sent } else { Callback::Failed };
            }
        }
        recalls.iter().for_each(|recall| self.state.recall_answered(recall, accepted));
    }

    fn expire(&mut self) {
        self.state.expire(self.now);
        let overdue = |held: &Held| held.recalled.is_some_and(|since| self.now >= since + S(LEASE));
        let all: Vec<_> = self.held.iter().filter(|held| overdue(held)).map(|held| held.id).collect();
        for id in all {
            let n = self.held.iter().position(|held| held.id == id).unwrap();
            self.revoke(n);
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Open(c, ..)
            | Step::Close(c, ..)
            | Step::Local(c, ..)
            | Step::Delegated(c, ..)
            | Step::Anonymous(Some(c), ..)
            | Step::Return(c, ..)
            | Step::Old(c, ..)
            | Step::Renew(c) => self.renew(c),
            _ => {}
        }
        match step {
            Step::Open(host, file, access, kind) => self.open(host, file, access, kind),
            Step::Close(host, file) => self.close(host, file),
            Step::Local(host, file, write) => self.local(host, file, write),
            Step::Delegated(host, file, write) => self.delegated(host, file, write),
            Step::Anonymous(host, file, write) => self.anonymous(host, file, write),
            Step::Slow(file) => self.slow(file),
            Step::Return(host, file) => self.give_back(host, file),
            Step::Old(host, n) => self.old(host, n),
            Step::Answer(accepted) => self.answer(accepted),
            Step::Restart(host) => self.restart(host),
            Step::Renew(_) => {}
            Step::Wait(seconds) => self.now += S(seconds),
            Step::Expire => self.expire(),
        }
        self.check();
    }

    /// No two clients have conflicting delegations.
    fn check(&self) {
        for held in &self.held {
            let conflicts = |other: &&Held| {
                let writes = [held.kind, other.kind].contains(&DelegationKind::Write);
                other.file == held.file && other.host != held.host && writes
            };
            assert!(self.held.iter().find(conflicts).is_none(), "{held:?} and another");
            for host in (0..CLIENTS).filter(|host| *host != held.host) {
                let opened = self.opens[host][held.file];
                let excluded =
                    opened.filter(|(access, _)| held.kind == DelegationKind::Write || access & 2 != 0);
                assert_eq!(excluded, None, "{held:?} and an open of {host}");
            }
        }
        let expected = DelegationStats {
            held: self.held.len() as u64,
            recalled: self.recalls,
            revoked: self.revocations,
        };
        assert_eq!(self.state.delegation_stats(), expected);
    }

    /// Ends all clients: nothing remains.
    fn end(self) {
        drop(self.slow);
        self.state.expire(self.now + self.state.limits().courtesy + S(1));
        assert_eq!(self.state.delegation_stats().held, 0);
        assert_eq!(self.state.heap.left(), self.state.limits().heap);
        assert_eq!(self.state.delegating.quota.left(), self.state.limits().delegations);
        for key in &self.keys {
            assert!(self.state.change(None, key, self.now).is_ok());
            assert!(self.state.files.read(key, |_| ()).is_none());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn delegations_are_those_of_the_list(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        model.end();
    }
}

/// Whether a use by another client conflicts with a delegation.
fn conflicts_with(wanted: Use, kind: DelegationKind) -> bool {
    wanted == Use::Change || kind == DelegationKind::Write
}
