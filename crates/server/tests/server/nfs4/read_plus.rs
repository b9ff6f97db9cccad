//! READ_PLUS.

use millrace_nfs::v4::*;

use super::{
    compound::*,
    files::{everywhere, opened, write},
};
use crate::common::Caller;

const PAGE: u64 = 4096;

fn read_plus(stateid: Stateid, offset: u64, count: u32) -> Op {
    op(Operation::ReadPlus, ReadPlusArgs { stateid, offset, count })
}

/// Whether READ_PLUS works on this transport: it does not over RDMA.
async fn is_supported(c: &Caller, s: &Session, file: &[u8], stateid: Stateid) -> bool {
    let (number, status) = s.last(c, 2, file, read_plus(stateid, 0, 10)).await;
    assert_eq!(number, Operation::ReadPlus.number());
    if status != Status::Ok {
        assert_eq!(status, Status::NotSupp);
    }
    status == Status::Ok
}

/// The parts of a result: the offset of each, and its data, or the length of a hole.
type Parts = Vec<(u64, Result<Vec<u8>, u64>)>;

async fn parts(c: &Caller, s: &Session, file: &[u8], read: Op) -> Result<(bool, Parts), Status> {
    let results = s.send(c, [putfh(file), read, op(Operation::Savefh, ())]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    let ok: ReadPlusOk = results.skip(&[Operation::Putfh]).take(Operation::ReadPlus);
    results.skip(&[Operation::Savefh]);
    let part = |content| match content {
        Content::Data { offset, data } => (offset, Ok(data.to_vec())),
        Content::Hole { offset, length } => (offset, Err(length)),
    };
    Ok((ok.eof, ok.contents.into_iter().map(part).collect()))
}

#[test]
fn holes_are_not_transferred() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        if !is_supported(c, s, &file, stateid).await {
            return;
        }
        let read = async |offset, count| parts(c, s, &file, read_plus(stateid, offset, count)).await;
        assert_eq!(read(0, 10).await, Ok((true, vec![])));
        let (a, b) = (vec![7; PAGE as usize], vec![9; 1001]);
        assert_eq!(s.status(c, [putfh(&file), write(c, stateid, 0, &a)]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(&file), write(c, stateid, 64 * PAGE, &b)]).await, Status::Ok);
        let hole = (PAGE, Err(63 * PAGE));
        let all = vec![(0, Ok(a)), hole, (64 * PAGE, Ok(b.clone()))];
        assert_eq!(read(0, 1 << 20).await, Ok((true, all)));
        // A hole shorter than a page is data.
        assert_eq!(read(PAGE + 5, 10).await, Ok((false, vec![(PAGE + 5, Ok(vec![0; 10]))])));
        let tail = vec![(64 * PAGE - 3, Ok([&[0; 3], &b[..7]].concat()))];
        assert_eq!(read(64 * PAGE - 3, 10).await, Ok((false, tail)));
        assert_eq!(read(64 * PAGE + 1001, 10).await, Ok((true, vec![])));
        assert_eq!(read(0, 0).await, Ok((false, vec![])));
    });
}

#[test]
fn invalid_reads_are_rejected() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        assert_eq!(s.last(c, 1, &file, read_plus(stateid, 0, 1)).await, (10044, Status::OpIllegal));
        if !is_supported(c, s, &file, stateid).await {
            return;
        }
        let status = async |read| s.last(c, 2, &file, read).await.1;
        let unknown = Stateid { other: [9; 12], seqid: 1 };
        assert_eq!(status(read_plus(unknown, 0, 1)).await, Status::BadStateid);
        assert_eq!(status(read_plus(stateid, 1 << 63, 1)).await, Status::Inval);
        assert_eq!(s.last(c, 2, root, read_plus(Stateid::ANONYMOUS, 0, 1)).await.1, Status::IsDir);
        assert_eq!(s.status(c, [read_plus(stateid, 0, 1)]).await, Status::NoFileHandle);
    });
}
