//! Operations of minor version 2 on ranges: ALLOCATE, DEALLOCATE, SEEK, IO_ADVISE, COPY, CLONE and
//! OFFLOAD_STATUS.

use millrace_nfs::v4::*;

use crate::{
    compound::{Call, Op, lookup, op, open, putfh},
    group::{Group, OTHERS, not_a_file},
    operations::{close, opened, savefh},
};

const UNKNOWN: Stateid = Stateid { seqid: 1, other: [0xde; 12] };

fn space(operation: Operation, stateid: Stateid, (offset, length): (u64, u64)) -> Op {
    op(operation, AllocateArgs { stateid, offset, length })
}

fn seek(stateid: Stateid, offset: u64, what: ContentType) -> Op {
    op(Operation::Seek, SeekArgs { stateid, offset, what })
}

fn advise(stateid: Stateid, (offset, length): (u64, u64)) -> Op {
    op(Operation::IoAdvise, IoAdviseArgs { stateid, offset, length, hints: Bitmap::EMPTY })
}

fn copy(source: Stateid, destination: Stateid, source_offset: u64, count: u64) -> Op {
    op(
        Operation::Copy,
        CopyArgs {
            source,
            destination,
            source_offset,
            destination_offset: 0,
            count,
            requirements: CopyRequirements { consecutive: true, synchronous: true },
            source_servers: List(vec![]),
        },
    )
}

fn clone(source: Stateid, destination: Stateid, source_offset: u64, count: u64) -> Op {
    op(Operation::Clone, CloneArgs { source, destination, source_offset, destination_offset: 0, count })
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    let file = g.populate().await;
    objects(g).await;
    changes(g, &file).await;
    content(g, &file).await;
    copies(g, &file).await;
    offloads(g).await;
}

/// Operations on one object that have a stateid.
fn operations(stateid: Stateid) -> [(&'static str, Op); 4] {
    [
        ("ALLOCATE", space(Operation::Allocate, stateid, (0, 10))),
        ("DEALLOCATE", space(Operation::Deallocate, stateid, (0, 10))),
        ("SEEK", seek(stateid, 0, ContentType::Data)),
        ("IO_ADVISE", advise(stateid, (0, 0))),
    ]
}

async fn objects(g: &mut Group<'_, impl Call>) {
    for (name, on) in operations(Stateid::ANONYMOUS) {
        let alone = g.s.status(g.c, [on]).await;
        g.record(&format!("{name} without file handle"), Status::NoFileHandle, alone);
    }
    for kind in OTHERS.into_iter().chain(["dir"]) {
        for (name, on) in operations(Stateid::ANONYMOUS) {
            g.check(&format!("{name} of a {kind}"), not_a_file(kind), [lookup(kind), on]).await;
        }
    }
}

async fn changes(g: &mut Group<'_, impl Call>, file: &[u8]) {
    let (reading, _) = opened(g.c, &g.s, &g.dir, open(b"reading", "file", 1, 0, false)).await.unwrap();
    let (writing, _) = opened(g.c, &g.s, &g.dir, open(b"writing", "file", 2, 0, false)).await.unwrap();
    for operation in [Operation::Allocate, Operation::Deallocate] {
        for (case, expected, stateid, range) in [
            ("with an open for writing", Status::Ok, writing, (0, 1)),
            ("with the anonymous stateid", Status::Ok, Stateid::ANONYMOUS, (0, 1)),
            ("with the bypass stateid", Status::Ok, Stateid::READ_BYPASS, (0, 1)),
            ("with an open for reading", Status::OpenMode, reading, (0, 1)),
            ("with an unknown stateid", Status::BadStateid, UNKNOWN, (0, 1)),
            ("of no bytes", Status::Inval, writing, (0, 0)),
        ] {
            let on = [putfh(file), space(operation, stateid, range)];
            g.check(&format!("{operation} {case}"), expected, on).await;
        }
    }
    let far = [putfh(file), space(Operation::Allocate, writing, (u64::MAX - 1, 10))];
    g.check("ALLOCATE beyond offset 2^64", Status::Inval, far).await;
    for stateid in [reading, writing] {
        assert_eq!(g.s.status(g.c, [putfh(file), close(stateid)]).await, Status::Ok);
    }
}

async fn content(g: &mut Group<'_, impl Call>, file: &[u8]) {
    for what in [ContentType::Data, ContentType::Hole] {
        for (case, expected, offset) in [
            ("the beginning", Status::Ok, 0),
            ("the last byte", Status::Ok, 999),
            ("the end", Status::NxIo, 1000),
            ("beyond the end", Status::NxIo, 5000),
        ] {
            let on = [putfh(file), seek(Stateid::ANONYMOUS, offset, what)];
            g.check(&format!("SEEK of {what:?} from {case}"), expected, on).await;
        }
        let on = [putfh(file), seek(UNKNOWN, 0, what)];
        g.check(&format!("SEEK of {what:?} with an unknown stateid"), Status::BadStateid, on).await;
    }
    for (case, expected, stateid, range) in [
        ("of a range", Status::Ok, Stateid::ANONYMOUS, (0, 100)),
        ("of all", Status::Ok, Stateid::ANONYMOUS, (0, 0)),
        ("beyond 2^64", Status::Inval, Stateid::ANONYMOUS, (u64::MAX, 2)),
        ("with an unknown stateid", Status::BadStateid, UNKNOWN, (0, 0)),
    ] {
        g.check(&format!("IO_ADVISE {case}"), expected, [putfh(file), advise(stateid, range)]).await;
    }
}

async fn copies(g: &mut Group<'_, impl Call>, file: &[u8]) {
    let (from, _) = opened(g.c, &g.s, &g.dir, open(b"from", "file", 1, 0, false)).await.unwrap();
    let (to, target) = opened(g.c, &g.s, &g.dir, open(b"to", "target", 2, 0, true)).await.unwrap();
    let (both, _) = opened(g.c, &g.s, &g.dir, open(b"both", "file", 3, 0, false)).await.unwrap();
    let with = |on: Op| [putfh(file), savefh(), putfh(&target), on];
    for (case, expected, on) in [
        ("of all", Status::Ok, copy(from, to, 0, 0)),
        ("of a range", Status::Ok, copy(from, to, 100, 200)),
        ("from the end", Status::Ok, copy(from, to, 1000, 0)),
        ("beyond the end", Status::Inval, copy(from, to, 0, 2000)),
        ("from beyond the end", Status::Inval, copy(from, to, 2000, 0)),
        ("with an unknown source", Status::BadStateid, copy(UNKNOWN, to, 0, 1024)),
        ("with an unknown destination", Status::BadStateid, copy(from, UNKNOWN, 0, 4)),
        ("to an open for reading", Status::BadStateid, copy(from, from, 0, 4)),
    ] {
        g.check(&format!("COPY {case}"), expected, with(on)).await;
    }
    let results = g.send(with(copy(from, to, 0, 0))).await;
    results.skip(&[Operation::Putfh, Operation::Savefh, Operation::Putfh]);
    let ok: CopyOk = results.take(Operation::Copy);
    g.record("the number of bytes of a COPY of all", 1000, ok.count);
    g.check("COPY without saved file handle", Status::NoFileHandle, [putfh(&target), copy(from, to, 0, 0)])
        .await;
    let itself = |on: Op| [putfh(file), savefh(), on];
    g.check("COPY to an open for reading", Status::OpenMode, itself(copy(from, from, 0, 4))).await;
    g.check("COPY to overlapping bytes", Status::Inval, itself(copy(both, both, 1, 100))).await;
    for kind in OTHERS.into_iter().chain(["dir"]) {
        let dir = g.dir.clone();
        let anonymous = Stateid::ANONYMOUS;
        let from = [lookup(kind), savefh(), putfh(&target), copy(anonymous, anonymous, 0, 0)];
        g.check(&format!("COPY from a {kind}"), not_a_file(kind), from).await;
        let to = [putfh(file), savefh(), putfh(&dir), lookup(kind), copy(anonymous, anonymous, 0, 0)];
        g.check(&format!("COPY to a {kind}"), not_a_file(kind), to).await;
    }
    g.check("CLONE without saved file handle", Status::NoFileHandle, [putfh(&target), clone(from, to, 0, 0)])
        .await;
    for stateid in [from, both] {
        assert_eq!(g.s.status(g.c, [putfh(file), close(stateid)]).await, Status::Ok);
    }
    assert_eq!(g.s.status(g.c, [putfh(&target), close(to)]).await, Status::Ok);
}

/// Copies are complete when COPY returns, so that there is no stateid of one.
async fn offloads(g: &mut Group<'_, impl Call>) {
    for operation in [Operation::OffloadStatus, Operation::OffloadCancel] {
        let on = |stateid| op(operation, FreeStateidArgs { stateid });
        g.check(
            &format!("{operation} of an unknown copy"),
            Status::BadStateid,
            [lookup("file"), on(UNKNOWN)],
        )
        .await;
        let alone = g.s.status(g.c, [on(UNKNOWN)]).await;
        g.record(&format!("{operation} without file handle"), Status::NoFileHandle, alone);
    }
}
