//! COMPOUND: minor versions, tags, the order of operations, undefined operations, arguments that cannot be decoded.

use millrace_nfs::v4::*;

use crate::{
    compound::{Call, Compound, getattr, getfh, op, putrootfh, raw, send, sequence, try_send},
    group::Group,
};

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    for minor in [3, 50, u32::MAX] {
        let results = send(c, minor, &[putrootfh()]).await;
        let got = (results.status, results.count);
        g.record(&format!("minor version {minor}"), (Status::MinorVersMismatch, 0), got);
    }
    let results = send(c, 50, &[raw(&[OP_ILLEGAL])]).await;
    let mismatch = (Status::MinorVersMismatch, 0);
    g.record("an undefined operation in another minor version", mismatch, (results.status, results.count));
    for minor in [1, 2] {
        let results = send(c, minor, &[]).await;
        let got = (results.status, results.count);
        g.record(&format!("no operations in minor version {minor}"), (Status::Ok, 0), got);
    }
    for (case, tag) in
        [("an empty tag", &b""[..]), ("a tag", b"tag 1"), ("a tag that is not UTF-8", b"\xc0\xaf")]
    {
        let results = try_send(c, &Compound { tag, minor_version: 1, ops: &[] }).await.unwrap();
        let echoed = results.bytes()[8..].starts_with(tag);
        g.record(case, (Status::Ok, true), (results.status, echoed));
    }
    for number in [0, 1, 2, 76, 200, OP_ILLEGAL, u32::MAX] {
        let operation = move || -> crate::compound::Op { Box::new(move |e| e.put_u32(number)) };
        let first = send(c, 2, &[operation()]).await.next();
        g.record(&format!("operation {number} first"), (OP_ILLEGAL, Status::OpIllegal), first);
        let later = g.send([operation()]).await.next();
        g.record(&format!("operation {number}"), (OP_ILLEGAL, Status::OpIllegal), later);
    }
    for number in [59, 65, 72] {
        let unknown: crate::compound::Op = Box::new(move |e| e.put_u32(number));
        let case = format!("operation {number} of minor version 2 in minor version 1");
        g.check_minor_1(&case, Status::OpIllegal, unknown).await;
    }
    for (name, number) in
        [("OPEN_CONFIRM", 20), ("RENEW", 30), ("SETCLIENTID", 35), ("RELEASE_LOCKOWNER", 39)]
    {
        let old: crate::compound::Op = Box::new(move |e| {
            e.put_u32(number);
            (0..16).for_each(|_| e.put_u32(0));
        });
        g.check(&format!("{name} of minor version 0"), Status::NotSupp, [old]).await;
    }
    order(g).await;
    undecodable(g).await;
}

async fn order(g: &mut Group<'_, impl Call>) {
    g.check_alone("PUTROOTFH without SEQUENCE", Status::OpNotInSession, &[putrootfh()]).await;
    g.check_alone("GETATTR without SEQUENCE", Status::OpNotInSession, &[getattr(&[Attribute::Size])]).await;
    let session = g.s.ok.session;
    let again = SequenceArgs { session, sequence: 1, slot: 1, highest_slot: 1, cache_this: false };
    g.check("SEQUENCE twice", Status::SequencePos, [sequence(again)]).await;
    g.check("GETFH", Status::Ok, [getfh()]).await;
    let results = g.s.send(g.c, [getfh()]).await;
    g.record("GETFH without file handle", Status::NoFileHandle, results.status);
    let results = g.s.send(g.c, [op(Operation::Savefh, ())]).await;
    g.record("SAVEFH without file handle", Status::NoFileHandle, results.status);
    g.check("RESTOREFH without saved file handle", Status::NoFileHandle, [op(Operation::RestoreFh, ())])
        .await;
    // The results of operations before the failed one are returned, those after it are not.
    let results = g.s.send(g.c, [putrootfh(), getfh(), op(Operation::RestoreFh, ()), getfh()]).await;
    g.record("number of results of a failed COMPOUND", 4, results.count);
}

async fn undecodable(g: &mut Group<'_, impl Call>) {
    let cases: [(&str, &'static [u32]); 12] = [
        ("a bitmap of 2^30 words", &[9, 1 << 30, 0]),
        ("a file handle of 129 bytes", &[22, 129, 0]),
        ("a file handle without end", &[22, u32::MAX]),
        ("READ without arguments", &[25, 0]),
        ("LOOKUP without arguments", &[15]),
        ("VERIFY with longer values than its mask", &[37, 1, 2, 8, 2, 0]),
        ("VERIFY with shorter values than its mask", &[37, 1, 2, 0]),
        ("SETATTR with shorter values than its mask", &[34, 0, 0, 0, 0, 1, 16, 4, 0]),
        ("LOCK of an undefined type", &[12, 9, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
        ("OPEN with an undefined claim", &[18, 0, 1, 0, 0, 0, 1, 0, 0, 9]),
        ("OPEN with an undefined way to create", &[18, 0, 1, 0, 0, 0, 1, 0, 1, 9]),
        ("RECLAIM_COMPLETE with a boolean of 7", &[58, 7]),
    ];
    for (case, words) in cases {
        g.check(case, Status::BadXdr, [raw(words)]).await;
    }
}
