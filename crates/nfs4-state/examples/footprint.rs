//! Prints the memory of the state of clients, and the time of a check of a stateid, for numbers of opens, locks and
//! clients: whether the memory of an entry and the time depend on the number of entries.
//!
//! ```sh
//! cargo run --release -p millrace-nfs4-state --example footprint [opens|locks|clients NUMBER]
//! ```
//!
//! Instructions do not depend on the load of the machine; callgrind counts those of the checks in a build with
//! `--profile profiling`, with `--toggle-collect='*open_checks*'` or `'*lock_checks*'`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // A program for measurements.

use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_counting_allocator::held_bytes;
use millrace_nfs::v4::Stateid;
use millrace_nfs4_state::{
    ChannelAttributes, CreateSession, ExchangeId, Identity, Limits, LockKind, LockRequest, Locker,
    OpenRequest, Session, State,
};

const NOW: Duration = Duration::ZERO;
/// Checks of which the time is the mean.
const CHECKS: u64 = 100_000;
/// Length of the key of a file on the server, in bytes.
const KEY: usize = 32;

fn state() -> State<Arc<[u8]>> {
    let limits = Limits {
        clients: 1 << 16,
        unconfirmed: 1 << 16,
        stateids_per_client: 1 << 21,
        ranges_per_open: usize::MAX,
        heap: usize::MAX,
        total_cached_bytes: 4 << 30,
        ..Limits::default()
    };
    State::new(limits, Identity { epoch: 1, secret: [0; 16] })
}

/// What a Linux client asks for.
const CHANNEL: ChannelAttributes = ChannelAttributes {
    header_pad: 0,
    request_bytes: 1_049_620,
    response_bytes: 1_049_480,
    cached_bytes: 3428,
    operations: 8,
    slots: 64,
};

fn client(state: &State<Arc<[u8]>>, owner: &str) -> Arc<Session<Arc<[u8]>>> {
    let address = Ipv4Addr::LOCALHOST.into();
    let args = ExchangeId {
        owner: owner.as_bytes(),
        verifier: [1; 8],
        update: false,
        principal: b"root",
        is_protected: false,
        machine: None,
        address,
    };
    let client = state.exchange_id(&args, NOW).unwrap().client;
    let (fore, back) = (CHANNEL, ChannelAttributes { slots: 16, operations: 2, ..CHANNEL });
    let args = CreateSession { client, sequence: 1, back_channel: true, fore, back, principal: b"root" };
    let session = state.session(state.create_session(&args, NOW).unwrap().session).unwrap();
    state.reclaim_complete(session.client()).unwrap();
    session
}

/// The key of a file.
fn key(number: u64) -> [u8; KEY] {
    let mut key = [0; KEY];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

fn report(what: &str, number: u64, bytes: i64, took: Duration) {
    let each = took.as_nanos() / u128::from(CHECKS);
    println!("{number:>9} {what:<24} {:>6} bytes each, {each:>5} ns for a check", bytes / number as i64);
}

/// The time of [`CHECKS`] checks of stateids.
#[inline(never)]
fn open_checks(
    state: &State<Arc<[u8]>>,
    session: &Session<Arc<[u8]>>,
    stateid: &dyn Fn(u64) -> (u64, Stateid),
) -> Duration {
    let began = Instant::now();
    for n in 0..CHECKS {
        let (file, stateid) = stateid(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        drop(state.check_access(session.client(), &stateid, &key(file), true, NOW).unwrap());
    }
    began.elapsed()
}

/// Opens of different files by one owner.
fn opens(number: u64) {
    let state = state();
    let session = client(&state, "client");
    let before = held_bytes();
    let mut stateids = Vec::with_capacity(number as usize);
    let of_vector = held_bytes() - before;
    for n in 0..number {
        let file = key(n);
        let request = OpenRequest {
            owner: b"open owner",
            file: &file,
            access: 3,
            deny: 0,
            reclaim: false,
            reserved: None,
        };
        stateids.push(state.open(session.client(), &request, NOW).unwrap());
    }
    let bytes = held_bytes() - before - of_vector;
    let took = open_checks(&state, &session, &|n| (n % number, stateids[(n % number) as usize]));
    report("opens", number, bytes, took);
}

/// Locks of different ranges in `files` files.
fn locks(number: u64, files: u64) {
    let state = state();
    let session = client(&state, "client");
    let opens: Vec<_> = (0..files)
        .map(|n| {
            let file = key(n);
            let request = OpenRequest {
                owner: b"open owner",
                file: &file,
                access: 3,
                deny: 0,
                reclaim: false,
                reserved: None,
            };
            state.open(session.client(), &request, NOW).unwrap()
        })
        .collect();
    let mut stateids = opens.clone();
    let before = held_bytes();
    for n in 0..number {
        let at = (n % files) as usize;
        let locker = Locker::Open { open: &opens[at], owner: b"lock owner" };
        let (kind, blocking, reclaim) = (LockKind::Write, false, false);
        let (offset, length) = (n / files * 2, 1);
        let file = key(n % files);
        let request = LockRequest { locker, file: &file, kind, blocking, reclaim, offset, length };
        stateids[at] = state.lock(session.client(), &request, NOW).unwrap();
    }
    let bytes = held_bytes() - before;
    let took = lock_checks(&state, &session, number, files);
    report(&format!("locks in {files} files"), number, bytes, took);
}

/// The time of [`CHECKS`] LOCKTs that a lock denies.
#[inline(never)]
fn lock_checks(state: &State<Arc<[u8]>>, session: &Session<Arc<[u8]>>, number: u64, files: u64) -> Duration {
    let began = Instant::now();
    for n in 0..CHECKS {
        let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (file, offset) = (key(n % files), n % (number / files) * 2);
        let tested = state.test_lock(session.client(), b"other", &file, LockKind::Read, (offset, 1), NOW);
        assert!(tested.is_err());
    }
    began.elapsed()
}

/// Clients with a session each that have sent RECLAIM_COMPLETE.
fn clients(number: u64) {
    let state = state();
    let before = held_bytes();
    let mut last = None;
    for n in 0..number {
        last = Some(client(&state, &format!("Linux NFSv4.2 client-{n}")).id());
    }
    let bytes = held_bytes() - before;
    let began = Instant::now();
    for _ in 0..CHECKS {
        assert!(last.is_some_and(|id| state.session(id).is_some()));
    }
    report("idle clients", number, bytes, began.elapsed());
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, number] = &arguments[..] {
        let number = number.parse().expect("a number");
        return match &what[..] {
            "opens" => opens(number),
            "locks" => locks(number, 1),
            "clients" => clients(number),
            _ => panic!("the entries are opens, locks or clients"),
        };
    }
    for number in [1000, 10_000, 100_000] {
        opens(number);
    }
    for number in [1000, 10_000, 100_000, 1_000_000] {
        locks(number, 1);
    }
    for number in [10_000, 100_000, 1_000_000] {
        locks(number, 1000);
    }
    for number in [100, 1000, 10_000] {
        clients(number);
    }
}
