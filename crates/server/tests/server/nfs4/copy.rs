//! COPY and CLONE.

use millrace_nfs::v4::*;

use super::{
    compound::*,
    files::{everywhere, opened, write},
};
use crate::common::Caller;

const ILLEGAL: u32 = 10044;

/// A COPY of `count` bytes between two offsets.
fn copy(source: Stateid, destination: Stateid, (from, to): (u64, u64), count: u64) -> Op {
    op(
        Operation::Copy,
        CopyArgs {
            source,
            destination,
            source_offset: from,
            destination_offset: to,
            count,
            requirements: CopyRequirements { consecutive: true, synchronous: true },
            source_servers: List(Vec::new()),
        },
    )
}

/// The operations that make `source` the saved and `destination` the current file handle, and `last`.
fn between(source: &[u8], destination: &[u8], last: Op) -> [Op; 4] {
    [putfh(source), op(Operation::Savefh, ()), putfh(destination), last]
}

async fn content(c: &Caller, s: &Session, file: &[u8], stateid: Stateid) -> Vec<u8> {
    let results = s.send_for_data(c, [putfh(file), read(stateid, 0, 1 << 20)]).await;
    results.skip(&[Operation::Putfh]).read().0
}

/// Two open files, the first with data.
async fn files(c: &Caller, s: &Session, root: &[u8], data: &[u8]) -> [(Stateid, Vec<u8>); 2] {
    let source = opened(c, s, root, open(b"o", "source", 3, 0, true)).await.unwrap();
    let destination = opened(c, s, root, open(b"o", "destination", 3, 0, true)).await.unwrap();
    assert_eq!(s.status(c, [putfh(&source.1), write(c, source.0, 0, data)]).await, Status::Ok);
    [source, destination]
}

#[test]
fn files_are_copied_and_committed() {
    everywhere(async |c, s, root| {
        let data: Vec<u8> = (0..300_000).map(|i| (i % 251) as u8).collect();
        let [(from, source), (to, destination)] = files(c, s, root, &data).await;
        let results = s.send(c, between(&source, &destination, copy(from, to, (5, 70_000), 0))).await;
        results.skip(&[Operation::Putfh, Operation::Savefh, Operation::Putfh]);
        let ok: CopyOk = results.take(Operation::Copy);
        assert_eq!((ok.callback_id, ok.count), (None, data.len() as u64 - 5));
        assert!(ok.requirements.consecutive && ok.requirements.synchronous);
        let commit = op(Operation::Commit, CommitArgs { offset: 0, count: 0 });
        let results = s.send(c, [putfh(&destination), commit]).await;
        let committed: CommitOk = results.skip(&[Operation::Putfh]).take(Operation::Commit);
        assert_eq!(committed.verifier, ok.verifier);
        let mut expected = vec![0; 70_000];
        expected.extend_from_slice(&data[5..]);
        assert!(content(c, s, &destination, to).await == expected);
        // Within one file.
        let within = copy(from, from, (0, 400_000), 1000);
        assert_eq!(s.status(c, between(&source, &source, within)).await, Status::Ok);
        let copied = content(c, s, &source, from).await;
        assert!(copied.len() == 401_000 && copied[400_000..] == data[..1000]);
    });
}

#[test]
fn invalid_copies_are_rejected() {
    everywhere(async |c, s, root| {
        let [(from, source), (to, destination)] = files(c, s, root, b"0123456789").await;
        let unknown = Stateid { other: [9; 12], seqid: 1 };
        let status = async |copy| s.status(c, between(&source, &destination, copy)).await;
        assert_eq!(status(copy(unknown, to, (0, 0), 5)).await, Status::BadStateid);
        assert_eq!(status(copy(from, unknown, (0, 0), 5)).await, Status::BadStateid);
        assert_eq!(status(copy(from, from, (0, 0), 5)).await, Status::BadStateid, "of the other file");
        assert_eq!(status(copy(Stateid::CURRENT, to, (0, 0), 5)).await, Status::BadStateid);
        assert_eq!(status(copy(from, to, (11, 0), 0)).await, Status::Inval);
        assert_eq!(status(copy(from, to, (5, 0), 6)).await, Status::Inval);
        assert_eq!(status(copy(from, to, (0, 1 << 63), 5)).await, Status::FBig);
        let overlapping = copy(from, from, (0, 5), 6);
        assert_eq!(s.status(c, between(&source, &source, overlapping)).await, Status::Inval);
        let reader = opened(c, s, root, open(b"reader", "destination", 1, 0, false)).await.unwrap().0;
        assert_eq!(status(copy(from, reader, (0, 0), 5)).await, Status::OpenMode);
        assert_eq!(s.status(c, [putfh(&source), copy(from, to, (0, 0), 5)]).await, Status::NoFileHandle);
        let pseudo = [putrootfh(), op(Operation::Savefh, ()), putfh(&source), copy(from, to, (0, 0), 5)];
        assert_eq!(s.status(c, pseudo).await, Status::IsDir);
        assert!(content(c, s, &destination, to).await.is_empty());
        assert_eq!(status(copy(from, to, (10, 0), 0)).await, Status::Ok, "nothing is left to copy");
    });
}

#[test]
fn other_servers_are_not_copied_from() {
    everywhere(async |c, s, root| {
        let [(from, source), (to, destination)] = files(c, s, root, b"0123456789").await;
        let remote = Box::new(move |e: &mut millrace_xdr::Encoder| {
            e.put(&Operation::Copy);
            e.put(&CopyArgs {
                source: from,
                destination: to,
                source_offset: 0,
                destination_offset: 0,
                count: 0,
                requirements: CopyRequirements { consecutive: true, synchronous: true },
                source_servers: List(vec![Netloc::Name(Opaque(b"server"))]),
            });
        });
        assert_eq!(s.status(c, between(&source, &destination, remote)).await, Status::NotSupp);
        let illegal = (ILLEGAL, Status::OpIllegal);
        assert_eq!(s.last(c, 1, &source, copy(from, to, (0, 0), 0)).await, illegal);
        for (number, operation, status) in [
            (61, Operation::CopyNotify, Status::NotSupp),
            (66, Operation::OffloadCancel, Status::BadStateid),
            (67, Operation::OffloadStatus, Status::BadStateid),
        ] {
            let last = s.last(c, 2, &source, op(operation, from)).await;
            assert_eq!(last, (number, status));
        }
    });
}

/// A CLONE of `count` bytes between two offsets.
fn clone(source: Stateid, destination: Stateid, (from, to): (u64, u64), count: u64) -> Op {
    let (source_offset, destination_offset) = (from, to);
    op(Operation::Clone, CloneArgs { source, destination, source_offset, destination_offset, count })
}

#[test]
fn files_are_cloned_where_the_file_system_can_share_storage() {
    everywhere(async |c, s, root| {
        let data: Vec<u8> = (0..300_000).map(|i| (i % 251) as u8).collect();
        let [(from, source), (to, destination)] = files(c, s, root, &data).await;
        let results = s.send(c, [putfh(root), getattr(&[Attribute::CloneBlksize])]).await;
        let values = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr);
        let block = values.decode_values().unwrap().clone_blksize.unwrap();
        let whole = s.status(c, between(&source, &destination, clone(from, to, (0, 0), 0))).await;
        if block == 0 {
            assert_eq!(whole, Status::NotSupp);
            return;
        }
        assert_eq!(whole, Status::Ok);
        assert!(content(c, s, &destination, to).await == data);
        // The files are independent.
        assert_eq!(s.status(c, [putfh(&source), write(c, from, 7, b"changed")]).await, Status::Ok);
        assert!(content(c, s, &destination, to).await == data);
        let block = u64::from(block);
        let status =
            async |at, count| s.status(c, between(&source, &destination, clone(from, to, at, count))).await;
        assert_eq!(status((0, 2 * block), block).await, Status::Ok);
        for (at, count) in [((1, 0), block), ((0, 1), block), ((0, 0), 100), ((0, 0), 1 << 30)] {
            assert_eq!(status(at, count).await, Status::Inval, "{at:?} {count}");
        }
        let stale = Stateid { seqid: 1, other: [9; 12] };
        let bad = s.status(c, between(&source, &destination, clone(stale, to, (0, 0), 0))).await;
        assert_eq!(bad, Status::BadStateid);
        let minor = op(
            Operation::Clone,
            CloneArgs { source: from, destination: to, source_offset: 0, destination_offset: 0, count: 0 },
        );
        assert_eq!(s.last(c, 1, &source, minor).await, (ILLEGAL, Status::OpIllegal));
        assert_eq!(s.status(c, [putfh(&source), clone(from, to, (0, 0), 0)]).await, Status::NoFileHandle);
    });
}
