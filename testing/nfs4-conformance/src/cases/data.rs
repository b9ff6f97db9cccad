//! READ, WRITE and COMMIT: objects, ranges and stateids.

use millrace_nfs::v4::*;

use crate::{
    compound::{Call, Op, Session, getattr, lookup, open, putfh, raw, read},
    group::{Group, OTHERS, not_a_file},
    operations::{close, commit, opened, setattr, size, write},
};

/// Stateids that no state has.
const UNKNOWN: [(&str, Stateid); 5] = [
    ("an unknown stateid", Stateid { seqid: 1, other: [0xde; 12] }),
    ("the invalid stateid", Stateid::INVALID),
    ("zeros with a seqid of 2", Stateid { seqid: 2, other: [0; 12] }),
    ("ones with a seqid of 0", Stateid { seqid: 0, other: [0xff; 12] }),
    ("the current stateid of no operation", Stateid::CURRENT),
];

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    let file = g.populate().await;
    g.part("objects", async |g| objects(g).await).await;
    g.part("ranges", async |g| ranges(g, &file).await).await;
    g.part("stateids", async |g| stateids(g, &file).await).await;
    g.part("opens for reading or writing", async |g| modes(g, &file).await).await;
    g.part("denials", async |g| denials(g).await).await;
    g.part("positions", async |g| positions(g, &file).await).await;
}

async fn objects(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let anonymous = Stateid::ANONYMOUS;
    let ops = || -> [(&str, Op); 3] {
        [
            ("READ", read(anonymous, 0, 10)),
            ("WRITE", write(c, anonymous, 0, b"data")),
            ("COMMIT", commit(0, 0)),
        ]
    };
    for (name, on) in ops() {
        let alone = g.s.status(c, [on]).await;
        g.record(&format!("{name} without file handle"), Status::NoFileHandle, alone);
    }
    for kind in OTHERS.into_iter().chain(["dir"]) {
        for (name, on) in ops() {
            g.check(&format!("{name} of a {kind}"), not_a_file(kind), [lookup(kind), on]).await;
        }
    }
}

async fn ranges(g: &mut Group<'_, impl Call>, file: &[u8]) {
    let c = g.c;
    let anonymous = Stateid::ANONYMOUS;
    for (case, expected, offset, count) in [
        ("all bytes", Ok((1000, true)), 0, 4096),
        ("the first bytes", Ok((10, false)), 0, 10),
        ("the last bytes", Ok((10, true)), 990, 10),
        ("more than the last bytes", Ok((1, true)), 999, 10),
        ("the end", Ok((0, true)), 1000, 10),
        ("bytes after the end", Ok((0, true)), 5000, 10),
        ("no bytes", Ok((0, false)), 0, 0),
        ("no bytes at the end", Ok((0, true)), 1000, 0),
    ] {
        for stateid in [anonymous, Stateid::READ_BYPASS] {
            let results = g.send([putfh(file), read(stateid, offset, count)]).await;
            let got = match results.status {
                Status::Ok => {
                    let (data, eof) = results.skip(&[Operation::Putfh]).read();
                    Ok((data.len(), eof))
                }
                status => Err(status),
            };
            let name = if stateid == anonymous { "anonymous" } else { "bypass" };
            g.record(&format!("READ of {case}, {name}"), expected.map_err(|()| Status::Io), got);
        }
    }
    let all = [putfh(file), read(anonymous, 0, u32::MAX)];
    g.check_data("READ of 2^32-1 bytes", Status::Ok, all).await;
    g.check("WRITE of no bytes", Status::Ok, [putfh(file), write(c, anonymous, 0, b"")]).await;
    let far = [putfh(file), write(c, anonymous, u64::MAX - 1, b"data")];
    g.check("WRITE beyond offset 2^64", Status::FBig, far).await;
    let far = [putfh(file), write(c, anonymous, (1 << 63) - 1, b"data")];
    g.check("WRITE beyond offset 2^63", Status::FBig, far).await;
    let undefined = raw(&[38, 0, 0, 0, 0, 0, 0, 3, 0]);
    g.check("WRITE with an undefined stability", Status::BadXdr, [putfh(file), undefined]).await;
    g.check("COMMIT of a range", Status::Ok, [putfh(file), commit(0, 1000)]).await;
    g.check("COMMIT after the end", Status::Ok, [putfh(file), commit(1 << 40, 10)]).await;
}

async fn stateids(g: &mut Group<'_, impl Call>, file: &[u8]) {
    let c = g.c;
    for (case, stateid) in UNKNOWN {
        for (name, on) in [
            ("READ", read(stateid, 0, 10)),
            ("WRITE", write(c, stateid, 0, b"data")),
            ("SETATTR of the size", setattr(stateid, size(1000))),
        ] {
            let got = g.s.status(c, [putfh(file), on]).await;
            g.record(&format!("{name} with {case}"), Status::BadStateid, got);
        }
    }
    let (first, _) = g.open("file", 1).await;
    let (second, _) = g.open("file", 2).await;
    g.record("the seqid of an open", (1, true), (first.seqid, first.other == second.other));
    g.record("the seqid of an upgraded open", 2, second.seqid);
    let future = Stateid { seqid: 9, ..second };
    let latest = Stateid { seqid: 0, ..second };
    let (other, _) = g.open("another", 3).await;
    let foreign = Session::new(c, b"data of another client").await;
    let (theirs, _) = opened(c, &foreign, &g.dir, open(b"owner", "file", 3, 0, false)).await.unwrap();
    let cases = [
        ("the stateid", Status::Ok, second),
        ("a seqid of 0", Status::Ok, latest),
        ("an old stateid", Status::OldStateid, first),
        ("a seqid of the future", Status::BadStateid, future),
        ("the stateid of another file", Status::BadStateid, other),
        ("the stateid of another client", Status::BadStateid, theirs),
    ];
    for (case, expected, stateid) in cases {
        g.check(&format!("READ with {case}"), expected, [putfh(file), read(stateid, 0, 10)]).await;
        let write = [putfh(file), write(c, stateid, 0, b"data")];
        g.check(&format!("WRITE with {case}"), expected, write).await;
        let set = [putfh(file), setattr(stateid, size(1000))];
        g.check(&format!("SETATTR of the size with {case}"), expected, set).await;
    }
    let end = [putfh(file), close(second)];
    g.check("CLOSE", Status::Ok, end).await;
    g.check("READ after CLOSE", Status::BadStateid, [putfh(file), read(latest, 0, 10)]).await;
    g.check("WRITE after CLOSE", Status::BadStateid, [putfh(file), write(c, latest, 0, b"data")]).await;
    assert_eq!(foreign.status(c, [putfh(file), close(theirs)]).await, Status::Ok);
}

async fn modes(g: &mut Group<'_, impl Call>, file: &[u8]) {
    let c = g.c;
    for (mode, access, to_write) in [("reading", 1, Status::OpenMode), ("writing", 2, Status::Ok)] {
        let (stateid, _) = g.open("file", access).await;
        // A client may have to read in order to write a part of a page (RFC 8881 section 18.22.3).
        let reads = [putfh(file), read(stateid, 0, 10)];
        g.check(&format!("READ with an open for {mode}"), Status::Ok, reads).await;
        let writes = [putfh(file), write(c, stateid, 0, b"data")];
        g.check(&format!("WRITE with an open for {mode}"), to_write, writes).await;
        let sets = [putfh(file), setattr(stateid, size(1000))];
        g.check(&format!("SETATTR of the size with an open for {mode}"), to_write, sets).await;
        assert_eq!(g.s.status(c, [putfh(file), close(stateid)]).await, Status::Ok);
    }
}

/// The data of a READ in the middle of a COMPOUND of eight operations, and of one at its end.
async fn positions(g: &mut Group<'_, impl Call>, file: &[u8]) {
    let (c, anonymous) = (g.c, Stateid::ANONYMOUS);
    let contents: Vec<u8> = (0..1000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let written = g.s.status(c, [putfh(file), write(c, anonymous, 0, &contents)]).await;
    assert_eq!(written, Status::Ok);
    // With SEQUENCE and PUTFH of the directory they are eight.
    let size = || getattr(&[Attribute::Size]);
    let ops = [putfh(file), size(), read(anonymous, 0, 501), size(), size(), read(anonymous, 501, 499)];
    let results = g.send(ops).await;
    results.skip(&[Operation::Putfh]);
    let mut sizes = Vec::new();
    let mut next_size =
        || sizes.push(results.take::<Fattr<'_>>(Operation::Getattr).decode_values().unwrap().size);
    next_size();
    let (first, first_eof) = results.read();
    next_size();
    next_size();
    let (last, last_eof) = results.read();
    g.record("the status of a COMPOUND with two READs", (Status::Ok, 8), (results.status, results.count));
    g.record("a READ in the middle of a COMPOUND", (true, false), (first == contents[..501], first_eof));
    g.record("a READ at the end of a COMPOUND", (true, true), (last == contents[501..], last_eof));
    g.record("GETATTR around READs", vec![Some(1000); 3], sizes);
}

/// Accesses without an open while an open denies them.
async fn denials(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    for (deny, to_read, to_write) in [
        (1, Status::Locked, Status::Ok),
        (2, Status::Ok, Status::Locked),
        (3, Status::Locked, Status::Locked),
    ] {
        let open = open(b"denying", "file", 3, deny, false);
        let (stateid, file) = opened(c, &g.s, &g.dir, open).await.unwrap();
        let cases = [
            ("READ, anonymous", to_read, read(Stateid::ANONYMOUS, 0, 10)),
            ("READ, bypass", Status::Ok, read(Stateid::READ_BYPASS, 0, 10)),
            ("WRITE, anonymous", to_write, write(c, Stateid::ANONYMOUS, 0, b"data")),
            ("WRITE, bypass", to_write, write(c, Stateid::READ_BYPASS, 0, b"data")),
            ("SETATTR of the size, anonymous", to_write, setattr(Stateid::ANONYMOUS, size(1000))),
        ];
        for (case, expected, on) in cases {
            g.check(&format!("{case}, while {deny} is denied"), expected, [putfh(&file), on]).await;
        }
        assert_eq!(g.s.status(c, [putfh(&file), close(stateid)]).await, Status::Ok);
    }
}
