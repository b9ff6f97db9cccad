//! READ_PLUS (RFC 7862 section 15.10): objects, ranges, stateids and holes. A server may return data for a hole, so that
//! only the bytes and the end of the file are compared.

use millrace_nfs::v4::*;

use crate::{
    compound::{Call, Op, getattr, lookup, op, open, putfh},
    group::{Group, OTHERS, not_a_file},
    operations::{close, opened, setattr, size, write},
};

const UNKNOWN: Stateid = Stateid { seqid: 1, other: [0xde; 12] };
/// Size of a file with a hole between its first and its last bytes.
const SPARSE: u64 = 300_000;

fn read_plus(stateid: Stateid, offset: u64, count: u32) -> Op {
    op(Operation::ReadPlus, ReadPlusArgs { stateid, offset, count })
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    let file = g.populate().await;
    let first = g.s.status(g.c, [putfh(&file), read_plus(Stateid::ANONYMOUS, 0, 10)]).await;
    if first == Status::NotSupp {
        // Over RDMA a client uses READ, whose data is placed directly (RFC 8267 section 4.4).
        return g.record("READ_PLUS where it is not supported", Status::NotSupp, first);
    }
    g.part("objects", async |g| objects(g).await).await;
    g.part("ranges", async |g| ranges(g, &file).await).await;
    g.part("stateids", async |g| stateids(g, &file).await).await;
    g.part("holes", async |g| holes(g).await).await;
}

async fn objects(g: &mut Group<'_, impl Call>) {
    let alone = g.s.status(g.c, [read_plus(Stateid::ANONYMOUS, 0, 10)]).await;
    g.record("READ_PLUS without file handle", Status::NoFileHandle, alone);
    for kind in OTHERS.into_iter().chain(["dir"]) {
        let on = [lookup(kind), read_plus(Stateid::ANONYMOUS, 0, 10)];
        g.check(&format!("READ_PLUS of a {kind}"), not_a_file(kind), on).await;
    }
}

/// The bytes of the results, with zeros for holes, and whether they reach the end of the file.
///
/// # Errors
/// The status; `ServerFault` if the results are not adjacent from `offset` on.
async fn content(
    g: &Group<'_, impl Call>,
    file: &[u8],
    stateid: Stateid,
    (offset, count): (u64, u32),
) -> Result<(Vec<u8>, bool), Status> {
    let results = g.s.send_for_data(g.c, [putfh(file), read_plus(stateid, offset, count)]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    let ok: ReadPlusOk = results.skip(&[Operation::Putfh]).take(Operation::ReadPlus);
    let mut bytes = Vec::new();
    for part in &ok.contents {
        let (at, length) = match part {
            Content::Data { offset, data } => (*offset, data.len() as u64),
            Content::Hole { offset, length } => (*offset, *length),
        };
        if at != offset + bytes.len() as u64 || length > u64::from(count) {
            return Err(Status::ServerFault);
        }
        match part {
            Content::Data { data, .. } => bytes.extend(data.to_vec()),
            Content::Hole { .. } => bytes.resize(bytes.len() + length as usize, 0),
        }
    }
    Ok((bytes, ok.eof))
}

async fn ranges(g: &mut Group<'_, impl Call>, file: &[u8]) {
    for (case, expected, range) in [
        ("all bytes", (1000, true), (0, 4096)),
        ("the first bytes", (10, false), (0, 10)),
        ("the last bytes", (10, true), (990, 10)),
        ("more than the last byte", (1, true), (999, 10)),
        ("the end", (0, true), (1000, 10)),
        ("bytes after the end", (0, true), (5000, 10)),
    ] {
        for (name, stateid) in [("anonymous", Stateid::ANONYMOUS), ("bypass", Stateid::READ_BYPASS)] {
            let got = content(g, file, stateid, range).await.map(|(bytes, eof)| {
                assert!(bytes.iter().all(|b| *b == 7), "the bytes of {case}");
                (bytes.len(), eof)
            });
            g.record(&format!("READ_PLUS of {case}, {name}"), Ok::<_, Status>(expected), got);
        }
    }
    let then = [putfh(file), read_plus(Stateid::ANONYMOUS, 0, 10), getattr(&[Attribute::Size])];
    let got = g.s.send_for_data(g.c, then).await.status;
    g.record("READ_PLUS before GETATTR", Status::Ok, got);
}

async fn stateids(g: &mut Group<'_, impl Call>, file: &[u8]) {
    let (reading, _) = opened(g.c, &g.s, &g.dir, open(b"reading", "file", 1, 0, false)).await.unwrap();
    let (closed, _) = opened(g.c, &g.s, &g.dir, open(b"closed", "file", 1, 0, false)).await.unwrap();
    assert_eq!(g.s.status(g.c, [putfh(file), close(closed)]).await, Status::Ok);
    for (case, expected, stateid) in [
        ("an open for reading", Status::Ok, reading),
        ("an open for reading with a seqid of 0", Status::Ok, Stateid { seqid: 0, ..reading }),
        ("a later seqid than that of an open", Status::BadStateid, Stateid { seqid: 9, ..reading }),
        ("a closed open", Status::BadStateid, closed),
        ("an unknown stateid", Status::BadStateid, UNKNOWN),
        ("the invalid stateid", Status::BadStateid, Stateid::INVALID),
        ("the current stateid of no operation", Status::BadStateid, Stateid::CURRENT),
    ] {
        let got = content(g, file, stateid, (0, 10)).await.map_or_else(|status| status, |_| Status::Ok);
        g.record(&format!("READ_PLUS with {case}"), expected, got);
    }
    // OPEN of the directory's entry sets the current stateid.
    let current = [putfh(&g.dir.clone()), open(b"current", "file", 1, 0, false)];
    let current = current.into_iter().chain([read_plus(Stateid::CURRENT, 0, 10), close(Stateid::CURRENT)]);
    let got = g.s.send_for_data(g.c, current).await.status;
    g.record("OPEN, READ_PLUS and CLOSE with the current stateid", Status::Ok, got);
    assert_eq!(g.s.status(g.c, [putfh(file), close(reading)]).await, Status::Ok);
}

async fn holes(g: &mut Group<'_, impl Call>) {
    let (stateid, file) = g.open("sparse", 3).await;
    let write_at = |offset, data| [putfh(&file), write(g.c, stateid, offset, data)];
    assert_eq!(g.s.status(g.c, write_at(0, &[1; 100])).await, Status::Ok);
    assert_eq!(g.s.status(g.c, write_at(SPARSE - 100, &[2; 100])).await, Status::Ok);
    let mut expected = vec![0; SPARSE as usize];
    expected[..100].fill(1);
    expected[SPARSE as usize - 100..].fill(2);
    for range in [(0, SPARSE as u32), (0, 1 << 20), (50, 150_000), (120_000, 4096), (SPARSE - 4096, 8192)] {
        // A server may return a part of the range.
        let (mut bytes, mut eof) = (Vec::new(), false);
        let end = (range.0 + u64::from(range.1)).min(SPARSE);
        let mut at = range.0;
        while at < end && !eof {
            let (part, last) = content(g, &file, stateid, (at, (end - at) as u32)).await.unwrap();
            assert!(!part.is_empty(), "no bytes from {at} on");
            at += part.len() as u64;
            bytes.extend(part);
            eof = last;
        }
        let same = bytes == expected[range.0 as usize..end as usize];
        g.record(
            &format!("READ_PLUS of {} bytes with a hole from {} on", range.1, range.0),
            (true, end == SPARSE),
            (same, eof),
        );
    }
    let longer = [putfh(&file), setattr(stateid, size(2 * SPARSE)), close(stateid)];
    assert_eq!(g.s.status(g.c, longer).await, Status::Ok);
    let end = content(g, &file, Stateid::ANONYMOUS, (2 * SPARSE - 1000, 4096)).await;
    g.record("READ_PLUS of a hole at the end", Ok::<_, Status>((vec![0; 1000], true)), end);
}
