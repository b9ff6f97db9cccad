use std::{collections::HashMap, net::IpAddr, task::Wake};

use proptest::prelude::*;

use super::*;

const MIB: usize = 1 << 20;
const NO_LIMIT: ConnectionLimits = ConnectionLimits { all: usize::MAX, per_client: usize::MAX };

fn addr(n: u8) -> ClientAddr {
    IpAddr::from([10, 0, 0, n]).into()
}

fn at(seconds: u64) -> Instant {
    Instant::default() + Duration::from_secs(seconds)
}

fn open(ledger: &mut Ledger, client: u8) -> (Entry, Arc<ConnectionState>) {
    let state = Arc::new(ConnectionState::new(at(0)));
    (ledger.admit(addr(client), Arc::clone(&state), at(0)).unwrap().0, state)
}

/// Takes pieces of 64 KiB while they are available, and returns their total.
fn greedy(ledger: &mut Ledger, client: usize) -> usize {
    let mut held = 0;
    while ledger.take(client, held, 64 << 10) {
        held += 64 << 10;
    }
    held
}

#[test]
fn a_single_client_gets_nearly_all_memory_and_later_clients_get_a_share() {
    let memory = 1024 * MIB;
    let mut ledger = Ledger::new(memory, 0, NO_LIMIT);
    let mut held: Vec<usize> = Vec::new();
    for n in 0..5 {
        let (entry, _) = open(&mut ledger, n);
        held.push(greedy(&mut ledger, entry.client));
    }
    assert!(held[0] > memory * 87 / 100, "alone: {} MiB", held[0] / MIB);
    assert!(held[1] > 50 * MIB, "beside one that took all it could: {} MiB", held[1] / MIB);
    assert!(held[4] > 6 * MIB, "beside four of them: {} MiB", held[4] / MIB);
    // When all clients release and take memory in small steps, their shares converge.
    for _ in 0..20_000 {
        for (n, held) in held.iter_mut().enumerate() {
            let client = ledger.by_addr[&addr(n as u8)];
            let step = (64 << 10).min(*held);
            ledger.give(client, step, &mut Vec::new());
            *held -= step;
            while ledger.take(client, *held, 64 << 10) {
                *held += 64 << 10;
            }
        }
    }
    let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
    assert!(*least > 150 * MIB && *most < 190 * MIB, "from {} to {} MiB", least / MIB, most / MIB);
}

#[test]
fn many_connections_of_one_client_get_the_share_of_one() {
    let mut ledger = Ledger::new(1024 * MIB, 0, NO_LIMIT);
    let mut all = 0;
    for _ in 0..200 {
        let (entry, _) = open(&mut ledger, 1);
        all += greedy(&mut ledger, entry.client);
    }
    assert_eq!(ledger.client_in_use(addr(1)), all);
    assert!(all <= 1024 * MIB * 8 / 9, "{} MiB", all / MIB);
    let (entry, _) = open(&mut ledger, 2);
    assert!(greedy(&mut ledger, entry.client) > 50 * MIB);
}

#[test]
fn a_client_without_memory_is_served_before_incremental_requests() {
    let mut ledger = Ledger::new(4 * MIB, 0, NO_LIMIT);
    let crowd: Vec<_> = (0..200).map(|n| open(&mut ledger, n).0.client).collect();
    let mut held: HashMap<usize, usize> = HashMap::new();
    let step = 4 << 10;
    let take = |ledger: &mut Ledger, held: &mut HashMap<usize, usize>| {
        for &client in &crowd {
            let has = held.entry(client).or_default();
            while *has < 5 * step && ledger.take(client, *has, step) {
                *has += step;
            }
        }
    };
    take(&mut ledger, &mut held);
    let (newcomer, _) = open(&mut ledger, 200);
    assert!(!ledger.take(newcomer.client, 0, MIB));
    let key = ledger.wait(newcomer.client, 0, MIB, Waker::noop().clone(), &mut Vec::new()).unwrap();
    let mut woken = Vec::new();
    for round in 0..2000 {
        let client = crowd[round % crowd.len()];
        let has = held.get_mut(&client).unwrap();
        if *has > 0 {
            *has -= step;
            ledger.give(client, step, &mut woken);
        }
        take(&mut ledger, &mut held);
        if !woken.is_empty() {
            break;
        }
    }
    assert_eq!(ledger.poll_grant(key, 0, MIB, Waker::noop(), &mut woken), Some(MIB), "it has no memory");
}

#[test]
fn waiting_connections_are_served_round_robin_by_client() {
    let mut ledger = Ledger::new(MIB, 0, NO_LIMIT);
    let (holder, _) = open(&mut ledger, 0);
    assert!(ledger.take(holder.client, 0, MIB));
    let mut waiters = Vec::new();
    for client in [1, 1, 1, 1, 2, 3] {
        let (entry, _) = open(&mut ledger, client);
        let size = 200 << 10;
        assert!(!ledger.take(entry.client, 0, size));
        waiters.push((
            client,
            ledger.wait(entry.client, 0, size, Waker::noop().clone(), &mut Vec::new()).unwrap(),
        ));
    }
    ledger.give(holder.client, MIB, &mut Vec::new());
    let served: Vec<u8> =
        waiters.iter().filter(|(_, key)| ledger.waiters[*key].granted).map(|(c, _)| *c).collect();
    assert_eq!(served, [1, 2, 3], "every client is served once before one is served twice");
}

#[test]
fn the_longest_idle_connection_of_the_largest_client_is_evicted() {
    let mut ledger = Ledger::new(MIB, 0, ConnectionLimits { all: 5, per_client: usize::MAX });
    let heavy: Vec<_> = (0..4).map(|_| open(&mut ledger, 1)).collect();
    let (quiet, quiet_line) = open(&mut ledger, 2);
    for (n, (_, state)) in heavy.iter().enumerate() {
        state.touch(at(if n == 2 { 50 } else { 60 }));
    }
    let new = || Arc::new(ConnectionState::new(at(60)));
    let (_, evicted) = ledger.admit(addr(3), new(), at(60)).unwrap();
    assert!(Arc::ptr_eq(&evicted.unwrap(), &heavy[2].1), "not the other client's, which is idle longer");
    assert_eq!((ledger.states(addr(1)), ledger.states(addr(2)), ledger.states(addr(3))), (3, 1, 1));
    // A client with as many connections as any other is admitted only if one connection has been idle for
    // some time.
    let (_, evicted) = ledger.admit(addr(3), new(), at(60)).unwrap();
    assert!(heavy.iter().any(|(_, state)| Arc::ptr_eq(state, evicted.as_ref().unwrap())));
    assert_eq!(ledger.admit(addr(3), new(), at(61)).unwrap_err(), AdmissionError::Server);
    assert!(ledger.admit(addr(3), new(), at(100)).is_ok());
    assert_eq!(ledger.connections(), 5);
    // Closing the account of an evicted connection does not count it again.
    for (entry, state) in heavy {
        ledger.close(addr(1), entry, &state, &mut Vec::new());
    }
    ledger.close(addr(2), quiet, &quiet_line, &mut Vec::new());
    assert_eq!(ledger.connections(), 3);
    assert_eq!(ledger.by_addr.len(), 1);
}

#[test]
fn a_client_at_its_limit_loses_one_of_its_connections() {
    let mut ledger = Ledger::new(MIB, 0, ConnectionLimits { all: 10, per_client: 2 });
    let first = open(&mut ledger, 1).1;
    open(&mut ledger, 1);
    let new = || Arc::new(ConnectionState::new(at(5)));
    assert_eq!(ledger.admit(addr(1), new(), at(5)).unwrap_err(), AdmissionError::Client);
    let (_, evicted) = ledger.admit(addr(1), new(), at(20)).unwrap();
    assert!(Arc::ptr_eq(&evicted.unwrap(), &first));
    assert!(ledger.admit(addr(2), new(), at(20)).is_ok());
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Take(usize, usize),
    Anyway(usize, usize),
    Give(usize, usize),
    Ask(usize, usize),
    Forget(usize),
    Reopen(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let account = 0..12_usize;
    let bytes = 1..600_usize;
    let step = prop_oneof![
        6 => (account.clone(), bytes.clone()).prop_map(|(a, b)| Step::Take(a, b)),
        1 => (account.clone(), bytes.clone()).prop_map(|(a, b)| Step::Anyway(a, b)),
        6 => (account.clone(), bytes.clone()).prop_map(|(a, b)| Step::Give(a, b)),
        3 => (account.clone(), bytes).prop_map(|(a, b)| Step::Ask(a, b)),
        1 => account.clone().prop_map(Step::Forget),
        1 => account.prop_map(Step::Reopen),
    ];
    prop::collection::vec(step, 1..200)
}

/// An account from the connection's point of view.
struct ModelAccount {
    client: u8,
    entry: Entry,
    state: Arc<ConnectionState>,
    held: usize,
    waits: Option<(usize, usize, Arc<Count>)>,
}

struct Model {
    ledger: Ledger,
    accounts: Vec<ModelAccount>,
    overdrawn: bool,
}

impl Model {
    fn new() -> Self {
        let mut ledger = Ledger::new(1000, 0, NO_LIMIT);
        let accounts = (0..12)
            .map(|n| {
                let client = n / 3;
                let (entry, state) = open(&mut ledger, client);
                ModelAccount { client, entry, state, held: 0, waits: None }
            })
            .collect();
        Self { ledger, accounts, overdrawn: false }
    }

    fn wake(woken: Vec<Waker>) {
        woken.into_iter().for_each(Waker::wake);
    }

    /// Takes granted bytes.
    fn collect(&mut self, a: usize, bytes: usize) {
        let ModelAccount { held, waits, .. } = &mut self.accounts[a];
        let Some((key, _, count)) = waits else { return };
        let mut woken = Vec::new();
        let waker = Waker::from(Arc::clone(count));
        let got = self.ledger.poll_grant(*key, *held, bytes, &waker, &mut woken);
        match got {
            Some(got) => (*held, *waits) = (*held + got, None),
            None => *waits = Some((*key, bytes, Arc::clone(count))),
        }
        Self::wake(woken);
    }

    fn run(&mut self, step: Step) {
        let mut woken = Vec::new();
        match step {
            Step::Take(a, bytes) if self.accounts[a].waits.is_none() => {
                let ModelAccount { entry, held, .. } = self.accounts[a];
                if self.ledger.take(entry.client, held, bytes) {
                    self.accounts[a].held += bytes;
                } else {
                    let count = Arc::new(Count::default());
                    let waker = Waker::from(Arc::clone(&count));
                    let key = self.ledger.wait(entry.client, held, bytes, waker, &mut Vec::new()).unwrap();
                    self.accounts[a].waits = Some((key, bytes, count));
                }
            }
            Step::Take(..) => {}
            Step::Anyway(a, bytes) => {
                self.ledger.take_unconditionally(self.accounts[a].entry.client, bytes);
                self.accounts[a].held += bytes;
                self.overdrawn = true;
            }
            Step::Give(a, bytes) => {
                let ModelAccount { entry, held, .. } = &mut self.accounts[a];
                let bytes = bytes.min(*held);
                *held -= bytes;
                self.ledger.give(entry.client, bytes, &mut woken);
            }
            Step::Ask(a, bytes) => self.collect(a, bytes),
            Step::Forget(a) => {
                if let Some((key, ..)) = self.accounts[a].waits.take() {
                    self.accounts[a].held += self.ledger.cancel(key, &mut woken);
                }
            }
            Step::Reopen(a) => {
                self.run(Step::Forget(a));
                let ModelAccount { client, entry, held, ref state, .. } = self.accounts[a];
                self.ledger.give(entry.client, held, &mut woken);
                self.ledger.close(addr(client), entry, state, &mut woken);
                let (entry, state) = open(&mut self.ledger, client);
                self.accounts[a] = ModelAccount { client, entry, state, held: 0, waits: None };
            }
        }
        Self::wake(woken);
    }

    fn check(&self) {
        let granted =
            |a: &&ModelAccount| a.waits.as_ref().is_some_and(|(key, ..)| self.ledger.waiters[*key].granted);
        let of = |a: &ModelAccount| {
            a.held + if granted(&a) { self.ledger.waiters[a.waits.as_ref().unwrap().0].bytes } else { 0 }
        };
        assert_eq!(self.ledger.in_use, self.accounts.iter().map(of).sum::<usize>());
        for n in 0..4 {
            let sum = self.accounts.iter().filter(|a| a.client == n).map(of).sum::<usize>();
            assert_eq!(self.ledger.client_in_use(addr(n)), sum);
        }
        assert!(self.overdrawn || self.ledger.in_use <= 1000);
        let waiting = self.accounts.iter().filter(|a| a.waits.is_some() && !granted(a)).count();
        assert_eq!(self.ledger.waiting().0, waiting);
        for a in self.accounts.iter().filter(granted) {
            assert_eq!(a.waits.as_ref().unwrap().2.0.load(Ordering::Relaxed), 1, "granted without a wake-up");
        }
        // No request waits for available memory.
        let first = |a: &&ModelAccount| {
            let waits = a.waits.as_ref().map(|(key, ..)| *key);
            waits.is_some() && self.ledger.clients[a.entry.client].waiting.front().copied() == waits
        };
        for a in self.accounts.iter().filter(first) {
            let key = a.waits.as_ref().unwrap().0;
            let Waiter { held, bytes, .. } = self.ledger.waiters[key];
            let may = self.ledger.permits(a.entry.client, held, bytes);
            assert!(
                !may || self.ledger.starved.is_some_and(|k| k != key),
                "the request could have been granted"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// After each step the sums are consistent and no request waits for memory that it may have; finally all
    /// requests are granted.
    #[test]
    fn accounts_are_consistent_and_all_requests_are_granted(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
            model.check();
        }
        for _ in 0..24 {
            for a in 0..12 {
                if let Some((_, bytes, _)) = model.accounts[a].waits.clone() {
                    model.collect(a, bytes);
                }
                model.run(Step::Give(a, usize::MAX));
                model.check();
            }
        }
        assert!(model.accounts.iter().all(|a| a.waits.is_none() && a.held == 0));
        assert_eq!((model.ledger.in_use, model.ledger.waiting().0), (0, 0));
        assert!(model.ledger.starved.is_none() && model.ledger.round_robin.is_empty());
    }
}

#[test]
fn others_called_covers_a_limited_time() {
    let mut ledger = Ledger::new(MIB, 0, NO_LIMIT);
    let ((one, mine), (same, also_mine)) = (open(&mut ledger, 1), open(&mut ledger, 1));
    let (other, theirs) = open(&mut ledger, 2);
    mine.touch(at(10));
    also_mine.touch(at(10));
    assert!(!ledger.others_called(one.client, at(10)) && !ledger.others_called(same.client, at(10)));
    assert!(ledger.others_called(other.client, at(10)));
    theirs.touch(at(10));
    assert!(ledger.others_called(one.client, at(10)));
    assert!(!ledger.others_called(one.client, at(11)), "the client is idle again");
}

/// The clients that have overdrawn, by the flag that their accounts read.
fn overdrawn(ledger: &Ledger) -> Vec<usize> {
    let all = ledger.clients.iter();
    all.filter(|(_, c)| c.state.overdrawn.load(Ordering::Relaxed)).map(|(id, _)| id).collect()
}

#[test]
fn the_client_with_most_has_overdrawn_while_one_within_its_share_waits() {
    let mut ledger = Ledger::new(16 * MIB, 2 * MIB, NO_LIMIT);
    let [heavy, large, small] = [1, 2, 3].map(|n| open(&mut ledger, n).0.client);
    let wait = |ledger: &mut Ledger, client, held, bytes| {
        ledger.wait(client, held, bytes, Waker::noop().clone(), &mut Vec::new()).unwrap()
    };
    ledger.take_unconditionally(heavy, 8 * MIB);
    ledger.take_unconditionally(large, 6 * MIB);
    let own = wait(&mut ledger, heavy, 8 * MIB, 4 * MIB);
    assert_eq!(overdrawn(&ledger), [], "it waits for its own memory");
    let other = wait(&mut ledger, large, 6 * MIB, 4 * MIB);
    assert_eq!(overdrawn(&ledger), [], "the other one has more than a third");
    let key = wait(&mut ledger, small, 0, 4 * MIB);
    assert_eq!(overdrawn(&ledger), [heavy]);
    ledger.give(heavy, MIB, &mut Vec::new());
    assert_eq!(overdrawn(&ledger), [heavy], "too little is free");
    ledger.give(heavy, MIB, &mut Vec::new());
    assert_eq!(overdrawn(&ledger), [], "the request was granted");
    assert_eq!(ledger.cancel(key, &mut Vec::new()), 4 * MIB);
    ledger.take_unconditionally(heavy, 2 * MIB);
    let key = wait(&mut ledger, small, 4 * MIB, 8 * MIB);
    assert_eq!(overdrawn(&ledger), [heavy], "with 4 MiB of 16 the small one is within its share");
    ledger.give(heavy, 4 * MIB, &mut Vec::new());
    assert_eq!(overdrawn(&ledger), [large], "now this one has most");
    assert_eq!(ledger.cancel(key, &mut Vec::new()), 0);
    assert_eq!(overdrawn(&ledger), [large], "the first one is within its share now, and waits");
    ledger.cancel(own, &mut Vec::new());
    assert_eq!(overdrawn(&ledger), []);
    ledger.cancel(other, &mut Vec::new());
}

#[test]
fn no_client_with_one_call_has_overdrawn() {
    let mut ledger = Ledger::new(16 * MIB, 2 * MIB, NO_LIMIT);
    for n in 0..15 {
        let client = open(&mut ledger, n).0.client;
        ledger.take_unconditionally(client, if n == 7 { 2 * MIB } else { MIB });
    }
    let last = open(&mut ledger, 15).0.client;
    ledger.wait(last, 0, MIB, Waker::noop().clone(), &mut Vec::new()).unwrap();
    assert_eq!(overdrawn(&ledger), []);
    ledger.take_unconditionally(7, 1);
    ledger.wait(last, 0, MIB, Waker::noop().clone(), &mut Vec::new()).unwrap();
    assert_eq!(overdrawn(&ledger), [7]);
}
