//! Open files that are removed or replaced.

use millrace_nfs::v4::*;
use millrace_nfs4_conformance::operations::{close, remove, rename, savefh, setattr, size};

use super::{
    compound::*,
    files::{everywhere, opened, write},
};

use crate::common;

/// Writes to a file and reads it, by its handle.
async fn is_usable(c: &common::Caller, s: &Session, stateid: Stateid, file: &[u8]) {
    assert_eq!(s.status(c, [putfh(file), write(c, stateid, 0, b"written")]).await, Status::Ok);
    let results = s.send_for_data(c, [putfh(file), read(stateid, 0, 100)]).await;
    assert_eq!(results.skip(&[Operation::Putfh]).read(), (b"written".to_vec(), true));
}

#[test]
fn an_open_file_stays_usable_until_the_last_close() {
    everywhere(async |c, s, root| {
        let (id, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let other = Session::new(c, b"other client").await;
        let (other_id, _) = opened(c, &other, root, open(b"p", "f", 3, 0, false)).await.unwrap();
        assert_eq!(other.status(c, [putfh(root), remove("f")]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(root), lookup("f")]).await, Status::NoEnt);
        is_usable(c, s, id, &file).await;
        let results = s.send(c, [putfh(&file), getattr(&[Attribute::Numlinks, Attribute::Size])]).await;
        let values = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr);
        let values = values.decode_values().unwrap();
        assert_eq!((values.numlinks, values.size), (Some(0), Some(7)));
        assert_eq!(s.status(c, [putfh(&file), setattr(id, size(3))]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(&file), close(id)]).await, Status::Ok);
        is_usable(c, &other, other_id, &file).await;
        assert_eq!(other.status(c, [putfh(&file), close(other_id)]).await, Status::Ok);
        let gone = other.status(c, [putfh(&file), getattr(&[Attribute::Size])]).await;
        assert_eq!(gone, Status::Stale);
    });
}

#[test]
fn a_replaced_file_stays_usable_until_its_close() {
    everywhere(async |c, s, root| {
        let (id, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let (new, _) = opened(c, s, root, open(b"o", "new", 3, 0, true)).await.unwrap();
        let renamed = s.status(c, [putfh(root), savefh(), putfh(root), rename("new", "f")]).await;
        assert_eq!(renamed, Status::Ok);
        is_usable(c, s, id, &file).await;
        let results = s.send(c, [putfh(root), lookup("f"), getattr(&[Attribute::Size])]).await;
        results.skip(&[Operation::Putfh, Operation::Lookup]);
        let values = results.take::<Fattr<'_>>(Operation::Getattr).decode_values().unwrap();
        assert_eq!(values.size, Some(0), "the name leads to the new file");
        assert_eq!(s.status(c, [putfh(&file), close(id)]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(&file), getattr(&[Attribute::Size])]).await, Status::Stale);
        let _ = new;
    });
}

#[test]
fn survival_of_a_restart_is_not_promised() {
    everywhere(async |c, s, root| {
        let results = s.send(c, [putfh(root), open(b"o", "f", 3, 0, true)]).await;
        let ok: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
        assert_eq!(ok.flags & open_flags::PRESERVE_UNLINKED, 0);
    });
}
