//! LOCK, LOCKT, LOCKU; TEST_STATEID and FREE_STATEID; and the current stateid.

use millrace_nfs::v4::*;

use crate::{
    compound::{Call, Op, Session, getattr, lookup, op, open, putfh},
    group::{Group, OTHERS, not_a_file},
    operations::{
        close, free, lock, lock_more, lockt, locku, opened, restorefh, savefh, setattr, size, write,
    },
};

const WHOLE: (u64, u64) = (0, u64::MAX);
const UNKNOWN: Stateid = Stateid { seqid: 1, other: [0xde; 12] };

/// Ranges with the status of a request for them.
const RANGES: [(&str, Status, (u64, u64)); 8] = [
    ("no bytes", Status::Inval, (0, 0)),
    ("no bytes at the end of all files", Status::Inval, (u64::MAX, 0)),
    ("bytes beyond 2^64", Status::Inval, (u64::MAX, 1)),
    ("more bytes beyond 2^64", Status::Inval, (2, u64::MAX - 1)),
    ("the last bytes", Status::Ok, (u64::MAX - 1, 1)),
    ("bytes beyond 2^63", Status::Ok, (1 << 63, 10)),
    ("all bytes from the last one", Status::Ok, (u64::MAX, u64::MAX)),
    ("all bytes", Status::Ok, WHOLE),
];

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    g.populate().await;
    ranges(g).await;
    objects(g).await;
    stateids(g).await;
    conflicts(g).await;
    freed(g).await;
    tested(g).await;
    current(g).await;
}

async fn ranges(g: &mut Group<'_, impl Call>) {
    let (stateid, file) = g.open("ranges", 3).await;
    for (case, expected, range) in RANGES {
        let test = [putfh(&file), lockt(b"l", LockType::Write, range)];
        g.check(&format!("LOCKT of {case}"), expected, test).await;
        let lock = [putfh(&file), lock(stateid, b"l", LockType::Write, range)];
        g.check(&format!("LOCK of {case}"), expected, lock).await;
    }
    let locked = g.send([putfh(&file), lock(stateid, b"l", LockType::Write, WHOLE)]).await;
    let held = locked.skip(&[Operation::Putfh]).take::<StateidOk>(Operation::Lock).stateid;
    let held = Stateid { seqid: 0, ..held };
    for (case, expected, range) in RANGES {
        g.check(&format!("LOCKU of {case}"), expected, [putfh(&file), locku(held, range)]).await;
    }
    g.check("LOCKU of bytes without a lock", Status::Ok, [putfh(&file), locku(held, (5, 5))]).await;
    assert_eq!(g.s.status(g.c, [putfh(&file), close(stateid)]).await, Status::Ok);
}

async fn objects(g: &mut Group<'_, impl Call>) {
    let range = (0, 10);
    let ops = || -> [(&str, Op); 3] {
        [
            ("LOCK", lock(UNKNOWN, b"l", LockType::Read, range)),
            ("LOCKT", lockt(b"l", LockType::Read, range)),
            ("LOCKU", locku(UNKNOWN, range)),
        ]
    };
    for (name, on) in ops() {
        let alone = g.s.status(g.c, [on]).await;
        g.record(&format!("{name} without file handle"), Status::NoFileHandle, alone);
    }
    for kind in OTHERS.into_iter().chain(["dir"]) {
        let on = [lookup(kind), lockt(b"l", LockType::Read, range)];
        g.check(&format!("LOCKT of a {kind}"), not_a_file(kind), on).await;
    }
}

async fn stateids(g: &mut Group<'_, impl Call>) {
    let (c, range) = (g.c, (0, 10));
    let (read, file) = opened(c, &g.s, &g.dir, open(b"reading", "file", 1, 0, false)).await.unwrap();
    let (first, _) = g.open("file", 1).await;
    let (both, _) = g.open("file", 3).await;
    let (other, _) = g.open("another", 3).await;
    let foreign = Session::new(c, b"locks of another client").await;
    let (theirs, _) = opened(c, &foreign, &g.dir, open(b"o", "file", 3, 0, false)).await.unwrap();
    let locked = g.send([putfh(&file), lock(both, b"l", LockType::Read, range)]).await;
    let held = locked.skip(&[Operation::Putfh]).take::<StateidOk>(Operation::Lock).stateid;
    g.record("the seqid of a lock", 1, held.seqid);
    let write = LockType::Write;
    for (case, expected, on) in [
        ("LOCK for writing with an open for reading", Status::OpenMode, lock(read, b"r", write, range)),
        ("LOCK for reading with an open for reading", Status::Ok, lock(read, b"r", LockType::Read, range)),
        ("LOCK with an old stateid", Status::OldStateid, lock(first, b"l", LockType::Read, range)),
        ("LOCK with an unknown stateid", Status::BadStateid, lock(UNKNOWN, b"l", write, range)),
        ("LOCK with the stateid of another file", Status::BadStateid, lock(other, b"l", write, range)),
        ("LOCK with the stateid of another client", Status::BadStateid, lock(theirs, b"l", write, range)),
        ("LOCK with the anonymous stateid", Status::BadStateid, lock(Stateid::ANONYMOUS, b"l", write, range)),
        ("LOCK with the bypass stateid", Status::BadStateid, lock(Stateid::READ_BYPASS, b"l", write, range)),
        ("LOCK with a lock's stateid as an open", Status::BadStateid, lock(held, b"m", write, range)),
        ("LOCK with an open's stateid as a lock", Status::BadStateid, lock_more(both, write, range)),
        ("LOCK of more with an unknown stateid", Status::BadStateid, lock_more(UNKNOWN, write, range)),
        ("LOCK of more", Status::Ok, lock_more(held, LockType::Read, (10, 10))),
        ("LOCK of more with an old stateid", Status::OldStateid, lock_more(held, LockType::Read, (20, 10))),
        ("LOCKU with an old stateid", Status::OldStateid, locku(held, range)),
        ("LOCKU with an unknown stateid", Status::BadStateid, locku(UNKNOWN, range)),
        ("LOCKU with an open's stateid", Status::BadStateid, locku(both, range)),
        ("LOCKU with the anonymous stateid", Status::BadStateid, locku(Stateid::ANONYMOUS, range)),
    ] {
        g.check(case, expected, [putfh(&file), on]).await;
    }
    let (_, elsewhere) = g.open("another", 3).await;
    let latest = Stateid { seqid: 0, ..held };
    let on = [putfh(&elsewhere), locku(latest, range)];
    g.check("LOCKU with the stateid of another file", Status::BadStateid, on).await;
    let locker = Locker::New {
        open_seqid: 0,
        open_stateid: Stateid { seqid: 0, ..both },
        lock_seqid: 0,
        owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(b"late") },
    };
    let reclaim = LockArgs { lock_type: LockType::Read, reclaim: true, offset: 0, length: 5, locker };
    let late = [putfh(&file), op(Operation::Lock, reclaim)];
    g.check("LOCK reclaims after RECLAIM_COMPLETE", Status::NoGrace, late).await;
    for stateid in [read, both] {
        let latest = Stateid { seqid: 0, ..stateid };
        assert_eq!(g.s.status(c, [putfh(&file), close(latest)]).await, Status::Ok);
    }
    assert_eq!(foreign.status(c, [putfh(&file), close(theirs)]).await, Status::Ok);
}

/// The lock types of two owners, of one client and of two.
async fn conflicts(g: &mut Group<'_, impl Call>) {
    use LockType::{Read, ReadWaiting, Write, WriteWaiting};
    let c = g.c;
    let foreign = Session::new(c, b"locks of another client").await;
    for held in [Read, ReadWaiting, Write, WriteWaiting] {
        let (stateid, file) = g.open("conflicts", 3).await;
        let (theirs, _) = opened(c, &foreign, &g.dir, open(b"o", "conflicts", 3, 0, false)).await.unwrap();
        let first = [putfh(&file), lock(stateid, b"first", held, (100, 100))];
        assert_eq!(g.s.status(c, first).await, Status::Ok);
        for wanted in [Read, Write] {
            let shared = matches!(held, Read | ReadWaiting) && wanted == Read;
            let denied = if shared { Status::Ok } else { Status::Denied };
            for (range, expected) in [
                ((150, 10), denied),
                ((0, 101), denied),
                ((199, u64::MAX), denied),
                (WHOLE, denied),
                ((0, 100), Status::Ok),
                ((200, 100), Status::Ok),
            ] {
                let case = format!("{wanted:?} {range:?} while {held:?} (100, 100) is locked");
                let test = [putfh(&file), lockt(b"second", wanted, range)];
                g.check(&format!("LOCKT {case}, another owner"), expected, test).await;
                let got = foreign.status(c, [putfh(&file), lockt(b"first", wanted, range)]).await;
                g.record(&format!("LOCKT {case}, another client"), expected, got);
                let own = [putfh(&file), lockt(b"first", wanted, range)];
                g.check(&format!("LOCKT {case}, the owner"), Status::Ok, own).await;
                let take = [putfh(&file), lock(stateid, b"second", wanted, range)];
                g.check(&format!("LOCK {case}, another owner"), expected, take).await;
                let undo = g.send([putfh(&file), lock(stateid, b"second", wanted, (1000, 1))]).await;
                let second = undo.skip(&[Operation::Putfh]).take::<StateidOk>(Operation::Lock).stateid;
                assert_eq!(g.s.status(c, [putfh(&file), locku(second, WHOLE)]).await, Status::Ok);
            }
        }
        let again = [putfh(&file), lock(stateid, b"first", Write, (100, 50))];
        g.check(&format!("LOCK of the owner's own bytes, {held:?} before"), Status::Ok, again).await;
        assert_eq!(g.s.status(c, [putfh(&file), close(stateid)]).await, Status::Ok);
        assert_eq!(foreign.status(c, [putfh(&file), close(theirs)]).await, Status::Ok);
    }
}

async fn freed(g: &mut Group<'_, impl Call>) {
    let (stateid, file) = g.open("freed", 3).await;
    let locked = g.send([putfh(&file), lock(stateid, b"l", LockType::Write, (0, 10))]).await;
    let held = locked.skip(&[Operation::Putfh]).take::<StateidOk>(Operation::Lock).stateid;
    let held = Stateid { seqid: 0, ..held };
    for (case, expected, on) in [
        ("FREE_STATEID of an open", Status::LocksHeld, free(stateid)),
        ("FREE_STATEID of a lock", Status::LocksHeld, free(held)),
        ("FREE_STATEID of an unknown stateid", Status::BadStateid, free(UNKNOWN)),
        ("FREE_STATEID of the anonymous stateid", Status::BadStateid, free(Stateid::ANONYMOUS)),
        ("FREE_STATEID of the bypass stateid", Status::BadStateid, free(Stateid::READ_BYPASS)),
        ("FREE_STATEID of the current stateid of no operation", Status::BadStateid, free(Stateid::CURRENT)),
        ("LOCKU of all", Status::Ok, locku(held, WHOLE)),
        ("FREE_STATEID of a lock owner without locks", Status::Ok, free(held)),
        ("FREE_STATEID twice", Status::BadStateid, free(held)),
        ("LOCKU after FREE_STATEID", Status::BadStateid, locku(held, WHOLE)),
        ("CLOSE", Status::Ok, close(stateid)),
        ("FREE_STATEID of a closed file", Status::BadStateid, free(stateid)),
    ] {
        g.check(case, expected, [putfh(&file), on]).await;
    }
}

async fn tested(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (first, _) = g.open("tested", 1).await;
    let (second, file) = g.open("tested", 2).await;
    let foreign = Session::new(c, b"locks of another client").await;
    let (theirs, _) = opened(c, &foreign, &g.dir, open(b"o", "tested", 3, 0, false)).await.unwrap();
    let cases = [
        ("an open", Status::Ok, second),
        ("a seqid of 0", Status::Ok, Stateid { seqid: 0, ..second }),
        ("an old stateid", Status::OldStateid, first),
        ("a seqid of the future", Status::BadStateid, Stateid { seqid: 9, ..second }),
        ("an unknown stateid", Status::BadStateid, UNKNOWN),
        ("the anonymous stateid", Status::BadStateid, Stateid::ANONYMOUS),
        ("the bypass stateid", Status::BadStateid, Stateid::READ_BYPASS),
        ("the invalid stateid", Status::BadStateid, Stateid::INVALID),
        ("the stateid of another client", Status::BadStateid, theirs),
    ];
    let stateids = List(cases.iter().map(|(_, _, stateid)| *stateid).collect());
    let results = g.send([op(Operation::TestStateid, TestStateidArgs { stateids })]).await;
    let statuses = results.take::<TestStateidOk>(Operation::TestStateid).statuses.0;
    for ((case, expected, _), got) in cases.into_iter().zip(statuses) {
        g.record(&format!("TEST_STATEID of {case}"), expected, got);
    }
    let none = op(Operation::TestStateid, TestStateidArgs { stateids: List(vec![]) });
    g.record("TEST_STATEID of nothing", Status::Ok, g.s.status(c, [none]).await);
    assert_eq!(g.s.status(c, [putfh(&file), close(second)]).await, Status::Ok);
    assert_eq!(foreign.status(c, [putfh(&file), close(theirs)]).await, Status::Ok);
}

/// The current stateid (RFC 8881 section 16.2.3.1.2).
async fn current(g: &mut Group<'_, impl Call>) {
    let (c, now) = (g.c, Stateid::CURRENT);
    let dir = g.dir.clone();
    let open = || open(b"owner", "current", 3, 0, true);
    let data = || write(c, now, 5, b"data");
    let locked = || lock(now, b"l", LockType::Write, WHOLE);
    for (case, expected, ops) in [
        ("OPEN and CLOSE", Status::Ok, vec![open(), close(now)]),
        ("OPEN, WRITE and CLOSE", Status::Ok, vec![open(), data(), close(now)]),
        ("OPEN, SETATTR of the size and CLOSE", Status::Ok, vec![open(), setattr(now, size(8)), close(now)]),
        ("OPEN, LOCK, WRITE and LOCKU", Status::Ok, vec![open(), locked(), data(), locku(now, WHOLE)]),
        (
            "OPEN and LOOKUP and CLOSE",
            Status::BadStateid,
            vec![open(), putfh(&dir), lookup("current"), close(now)],
        ),
        ("PUTFH and CLOSE", Status::BadStateid, vec![lookup("current"), close(now)]),
        ("OPEN and FREE_STATEID", Status::LocksHeld, vec![open(), free(now)]),
        ("OPEN and PUTFH, then WRITE", Status::BadStateid, vec![open(), putfh(&dir), data()]),
        (
            "OPEN, SAVEFH, PUTFH, RESTOREFH and CLOSE",
            Status::Ok,
            vec![open(), savefh(), putfh(&dir), restorefh(), close(now)],
        ),
        ("CLOSE twice", Status::BadStateid, vec![open(), close(now), close(now)]),
        ("OPEN, GETATTR and CLOSE", Status::Ok, vec![open(), getattr(&[Attribute::Size]), close(now)]),
    ] {
        g.check(&format!("the current stateid: {case}"), expected, ops).await;
    }
}
