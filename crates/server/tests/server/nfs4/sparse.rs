//! ALLOCATE, DEALLOCATE, SEEK and IO_ADVISE.

use millrace_nfs::v4::*;

use super::{
    compound::*,
    files::{everywhere, opened, write},
};
use crate::common::Caller;

const BLOCK: u64 = 64 << 10;
/// Number of the result of an operation that the minor version does not have (`OP_ILLEGAL`).
const ILLEGAL: u32 = 10044;

fn range(operation: Operation, stateid: Stateid, offset: u64, length: u64) -> Op {
    op(operation, AllocateArgs { stateid, offset, length })
}

fn seek(stateid: Stateid, offset: u64, what: ContentType) -> Op {
    op(Operation::Seek, SeekArgs { stateid, offset, what })
}

fn advise(stateid: Stateid, offset: u64, length: u64) -> Op {
    op(Operation::IoAdvise, IoAdviseArgs { stateid, offset, length, hints: Bitmap::of(&[Attribute::Change]) })
}

async fn sought(c: &Caller, s: &Session, file: &[u8], seek: Op) -> Result<(u64, bool), Status> {
    let results = s.send(c, [putfh(file), seek]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    let ok: SeekOk = results.skip(&[Operation::Putfh]).take(Operation::Seek);
    Ok((ok.offset, ok.eof))
}

async fn size(c: &Caller, s: &Session, file: &[u8]) -> u64 {
    let results = s.send(c, [putfh(file), getattr(&[Attribute::Size])]).await;
    let values = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr).decode_values();
    values.unwrap().size.unwrap()
}

async fn content(c: &Caller, s: &Session, file: &[u8], stateid: Stateid, count: u32) -> Vec<u8> {
    let results = s.send_for_data(c, [putfh(file), read(stateid, 0, count)]).await;
    results.skip(&[Operation::Putfh]).read().0
}

#[test]
fn ranges_are_allocated_deallocated_and_found() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let data: Vec<u8> = (0..4 * BLOCK).map(|i| (i % 251) as u8 + 1).collect();
        assert_eq!(s.status(c, [putfh(&file), write(c, stateid, 0, &data)]).await, Status::Ok);
        let hole = range(Operation::Deallocate, stateid, BLOCK, BLOCK);
        assert_eq!(s.status(c, [putfh(&file), hole]).await, Status::Ok);
        // ALLOCATE inside the file neither shrinks it nor changes data.
        let allocate = |offset, length| range(Operation::Allocate, stateid, offset, length);
        assert_eq!(s.status(c, [putfh(&file), allocate(0, 10)]).await, Status::Ok);
        let mut expected = data;
        expected[BLOCK as usize..2 * BLOCK as usize].fill(0);
        assert!(content(c, s, &file, stateid, 5 * BLOCK as u32).await == expected);
        let find = async |offset, what| sought(c, s, &file, seek(stateid, offset, what)).await;
        assert_eq!(find(0, ContentType::Hole).await, Ok((BLOCK, false)));
        assert_eq!(find(BLOCK, ContentType::Data).await, Ok((2 * BLOCK, false)));
        assert_eq!(find(2 * BLOCK, ContentType::Hole).await, Ok((4 * BLOCK, true)));
        for what in [ContentType::Data, ContentType::Hole] {
            for beyond in [4 * BLOCK, u64::MAX] {
                assert_eq!(find(beyond, what).await, Err(Status::NxIo));
            }
        }
        let setattr = op(
            Operation::Setattr,
            SetattrArgs {
                stateid,
                attributes: Attributes { size: Some(8 * BLOCK), ..Attributes::default() },
            },
        );
        assert_eq!(s.status(c, [putfh(&file), setattr]).await, Status::Ok);
        assert_eq!(find(5 * BLOCK, ContentType::Data).await, Ok((8 * BLOCK, true)), "only a hole follows");
        assert_eq!(s.status(c, [putfh(&file), allocate(9 * BLOCK, 100)]).await, Status::Ok);
        assert_eq!(size(c, s, &file).await, 9 * BLOCK + 100);
        expected.resize(9 * BLOCK as usize + 100, 0);
        assert!(content(c, s, &file, stateid, 10 * BLOCK as u32).await == expected);
    });
}

#[test]
fn invalid_ranges_and_stateids_are_rejected() {
    everywhere(async |c, s, root| {
        let (reader, file) = opened(c, s, root, open(b"reader", "f", 1, 0, true)).await.unwrap();
        let (writer, _) = opened(c, s, root, open(b"writer", "f", 2, 0, false)).await.unwrap();
        let unknown = Stateid { other: [9; 12], seqid: 1 };
        for operation in [Operation::Allocate, Operation::Deallocate] {
            let status = async |stateid, offset, length| {
                s.status(c, [putfh(&file), range(operation, stateid, offset, length)]).await
            };
            assert_eq!(status(reader, 0, 1).await, Status::OpenMode);
            assert_eq!(status(unknown, 0, 1).await, Status::BadStateid);
            assert_eq!(status(writer, 0, 0).await, Status::Inval);
            assert_eq!(status(writer, 2, u64::MAX).await, Status::Inval);
            assert_eq!(s.status(c, [range(operation, writer, 0, 1)]).await, Status::NoFileHandle);
            assert_eq!(s.status(c, [putrootfh(), range(operation, writer, 0, 1)]).await, Status::IsDir);
        }
        let far = range(Operation::Allocate, writer, 1 << 63, 1);
        assert_eq!(s.status(c, [putfh(&file), far]).await, Status::FBig);
        assert_eq!(size(c, s, &file).await, 0);
        let find = async |stateid| sought(c, s, &file, seek(stateid, 0, ContentType::Hole)).await;
        assert_eq!(find(unknown).await, Err(Status::BadStateid));
        assert_eq!(find(reader).await, Err(Status::NxIo), "the file is empty");
        let other_content = raw(&[69, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(s.status(c, [putfh(&file), other_content]).await, Status::UnionNotsupp);
        let truncated = raw(&[69, 0, 0]);
        assert_eq!(s.status(c, [putfh(&file), truncated]).await, Status::BadXdr);
    });
}

#[test]
fn advice_is_accepted_and_not_followed() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 1, 0, true)).await.unwrap();
        let results = s.send(c, [putfh(&file), advise(stateid, 5, 0)]).await;
        let ok: IoAdviseOk = results.skip(&[Operation::Putfh]).take(Operation::IoAdvise);
        assert_eq!(ok.hints, Bitmap::EMPTY);
        assert_eq!(s.status(c, [putfh(&file), advise(stateid, 5, u64::MAX)]).await, Status::Inval);
        assert_eq!(s.status(c, [advise(stateid, 5, 0)]).await, Status::NoFileHandle);
    });
}

#[test]
fn minor_version_1_does_not_have_the_operations() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let ops: [fn(Stateid) -> Op; 4] = [
            |stateid| range(Operation::Allocate, stateid, 0, 1),
            |stateid| range(Operation::Deallocate, stateid, 0, 1),
            |stateid| seek(stateid, 0, ContentType::Hole),
            |stateid| advise(stateid, 0, 1),
        ];
        for op in ops {
            let illegal = (ILLEGAL, Status::OpIllegal);
            assert_eq!(s.last(c, 1, &file, op(stateid)).await, illegal);
            assert_eq!(s.last(c, 2, &file, op(stateid)).await.1, Status::Ok);
        }
    });
}
