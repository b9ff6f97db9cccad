//! OPEN, OPEN_DOWNGRADE and CLOSE.

use millrace_nfs::v4::*;

use crate::{
    compound::{Call, Op, Session, getfh, lookup, named, open, putfh},
    group::{Group, OTHERS, bad_names, not_a_file},
    operations::{RawAttribute, close, downgrade, lock, open_with, opened, size},
};

type How = Option<CreateHow<Attributes<'static>>>;

/// An OPEN for reading and writing that denies nothing.
fn claim(how: How, claim: Claim<'static>) -> Op {
    open_with(b"owner", (3, 0), how, claim)
}

fn create(name: &'static str, how: CreateHow<Attributes<'static>>) -> Op {
    claim(Some(how), Claim::Null(Opaque(name.as_bytes())))
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    g.populate().await;
    names(g).await;
    creation(g).await;
    exclusive(g).await;
    claims(g).await;
    shares(g).await;
    downgrades(g).await;
    closes(g).await;
}

async fn names(g: &mut Group<'_, impl Call>) {
    let of = |name: &str| open(b"owner", name, 3, 0, false);
    let alone = g.s.status(g.c, [of("file")]).await;
    g.record("OPEN without file handle", Status::NoFileHandle, alone);
    for (case, expected, name) in bad_names() {
        g.check(&format!("OPEN of {case}"), expected, [of(&name)]).await;
        let created = open(b"owner", &name, 3, 0, true);
        g.check(&format!("OPEN, with creation, of {case}"), expected, [created]).await;
    }
    g.check("OPEN of a name that does not exist", Status::NoEnt, [of("absent")]).await;
    for kind in OTHERS.into_iter().chain(["dir"]) {
        g.check(&format!("OPEN of a {kind}"), not_a_file(kind), [of(kind)]).await;
        g.check(&format!("CLAIM_FH of a {kind}"), not_a_file(kind), [lookup(kind), claim(None, Claim::Fh)])
            .await;
    }
    for kind in ["block", "character", "socket", "fifo", "file"] {
        g.check(&format!("OPEN in a {kind}"), Status::NotDir, [lookup(kind), of("x")]).await;
    }
    g.check("OPEN in a link", Status::Symlink, [lookup("link"), of("x")]).await;
    for (case, access, deny) in [
        ("without access", 0, 0),
        ("with access 4", 4, 0),
        ("with deny 4", 1, 4),
        ("with deny 2^32-1", 1, u32::MAX),
    ] {
        g.check(&format!("OPEN {case}"), Status::Inval, [open(b"owner", "file", access, deny, false)]).await;
    }
}

async fn creation(g: &mut Group<'_, impl Call>) {
    let none = Attributes::default();
    for kind in OTHERS.into_iter().chain(["dir", "file"]) {
        let guarded = claim(Some(CreateHow::Guarded(none)), Claim::Null(Opaque(kind.as_bytes())));
        g.check(&format!("GUARDED creation of a {kind} that exists"), Status::Exist, [guarded]).await;
        let unchecked = claim(Some(CreateHow::Unchecked(none)), Claim::Null(Opaque(kind.as_bytes())));
        let expected = if kind == "file" { Status::Ok } else { not_a_file(kind) };
        g.check(&format!("UNCHECKED creation of a {kind} that exists"), expected, [unchecked]).await;
    }
    for (case, expected, attributes) in [
        ("a read-only attribute", Status::Inval, Attributes { numlinks: Some(1), ..none }),
        (
            "an owner that is unknown",
            Status::BadOwner,
            Attributes { owner: Some(Owner::Name(b"no@body")), ..none },
        ),
        ("no attributes", Status::Ok, none),
    ] {
        g.check(
            &format!("creation with {case}"),
            expected,
            [create("attributes", CreateHow::Guarded(attributes))],
        )
        .await;
    }
    let hidden: Op = Box::new(|e| {
        e.put(&Operation::Open);
        e.put(&OpenArgs {
            seqid: 0,
            share_access: 3,
            share_deny: 0,
            owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(b"owner") },
            create: Some(CreateHow::Guarded(RawAttribute { number: 25, words: &[1] })),
            claim: Claim::Null(Opaque(b"hidden")),
        });
    });
    g.check("creation with an attribute that is not supported", Status::AttrNotSupp, [hidden]).await;
    g.check("a failed creation creates nothing", Status::NoEnt, [lookup("hidden")]).await;
    let sizes = [("keeps the size", size(500), 1000), ("truncates to 0", size(0), 0)];
    for (case, attributes, expected) in sizes {
        let results = g
            .send([
                create("file", CreateHow::Unchecked(attributes)),
                crate::compound::getattr(&[Attribute::Size]),
            ])
            .await;
        let _: OpenOk<'_> = results.take(Operation::Open);
        let values = results.take::<Fattr<'_>>(Operation::Getattr).decode_values().unwrap();
        g.record(&format!("UNCHECKED creation of a file that exists {case}"), Some(expected), values.size);
    }
    let results = g.send([create("current", CreateHow::Guarded(none)), getfh()]).await;
    let ok: OpenOk<'_> = results.take(Operation::Open);
    let seqid = ok.stateid.seqid;
    g.record("the seqid of a created file", 1, seqid);
    g.record("a creation changes the directory", true, ok.dir.before != ok.dir.after);
}

async fn exclusive(g: &mut Group<'_, impl Call>) {
    let mode = Attributes { mode: Some(0o600), ..Attributes::default() };
    for (case, expected, how) in [
        ("EXCLUSIVE4_1", Status::Ok, CreateHow::Exclusive41([1; 8], mode)),
        ("EXCLUSIVE4_1 again", Status::Ok, CreateHow::Exclusive41([1; 8], mode)),
        ("EXCLUSIVE4_1 with another verifier", Status::Exist, CreateHow::Exclusive41([2; 8], mode)),
        ("GUARDED after EXCLUSIVE4_1", Status::Exist, CreateHow::Guarded(mode)),
    ] {
        g.check(case, expected, [create("exclusive 1", how)]).await;
    }
    for (case, expected, how) in [
        ("EXCLUSIVE4", Status::Ok, CreateHow::Exclusive([1; 8])),
        ("EXCLUSIVE4 again", Status::Ok, CreateHow::Exclusive([1; 8])),
        ("EXCLUSIVE4 with another verifier", Status::Exist, CreateHow::Exclusive([2; 8])),
    ] {
        g.check(case, expected, [create("exclusive", how)]).await;
    }
    let time = Attributes { time_modify_set: Some(SetTime::ServerTime), ..mode };
    let how = CreateHow::Exclusive41([3; 8], time);
    g.check("EXCLUSIVE4_1 with a time", Status::Inval, [create("exclusive 2", how)]).await;
    for kind in ["dir", "fifo"] {
        let how = CreateHow::Exclusive41([4; 8], mode);
        g.check(&format!("EXCLUSIVE4_1 of a {kind}"), Status::Exist, [create(kind, how)]).await;
    }
}

async fn claims(g: &mut Group<'_, impl Call>) {
    let file = Claim::Null(Opaque(b"file"));
    let unknown = Stateid { seqid: 1, other: [0xde; 12] };
    let none = Attributes::default();
    g.check("CLAIM_NULL", Status::Ok, [claim(None, file)]).await;
    g.check("CLAIM_FH", Status::Ok, [lookup("file"), claim(None, Claim::Fh)]).await;
    let made = claim(Some(CreateHow::Unchecked(none)), Claim::Fh);
    g.check("CLAIM_FH with creation", Status::Inval, [lookup("file"), made]).await;
    let reclaim = claim(None, Claim::Previous(DelegationType::None));
    g.check("CLAIM_PREVIOUS after RECLAIM_COMPLETE", Status::NoGrace, [lookup("file"), reclaim]).await;
    let current = claim(None, Claim::DelegateCur(unknown, Opaque(b"file")));
    g.check("CLAIM_DELEGATE_CUR with an unknown stateid", Status::BadStateid, [current]).await;
    let current = claim(None, Claim::DelegCurFh(unknown));
    g.check("CLAIM_DELEG_CUR_FH with an unknown stateid", Status::BadStateid, [lookup("file"), current])
        .await;
    let previous = claim(None, Claim::DelegatePrev(Opaque(b"file")));
    g.check("CLAIM_DELEGATE_PREV", Status::NotSupp, [previous]).await;
    let previous = claim(None, Claim::DelegPrevFh);
    g.check("CLAIM_DELEG_PREV_FH", Status::NotSupp, [lookup("file"), previous]).await;
    let wanted = open(b"owner", "file", 1 | share_access::WANT_NO_DELEG, 0, false);
    let results = g.send([wanted]).await;
    let ok: OpenOk<'_> = results.take(Operation::Open);
    let none = Delegation::NoneExt(NoDelegation::NotWanted);
    g.record("OPEN that wants no delegation", none, ok.delegation);
    let alone = g.s.status(g.c, [claim(None, Claim::Fh)]).await;
    g.record("CLAIM_FH without file handle", Status::NoFileHandle, alone);
}

/// OPENs of one owner and of another, of the same client and of another.
async fn shares(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let foreign = Session::new(c, b"opens of another client").await;
    let dir = g.dir.clone();
    let mut rows = Vec::new();
    for first in 0..12_u32 {
        let (access, deny) = (first % 3 + 1, first / 3);
        let name = format!("shared {access} {deny}");
        let held = open(b"first", &name, access, deny, true);
        let (stateid, file) = opened(c, &g.s, &dir, held).await.unwrap();
        for second in 0..12_u32 {
            let (wanted, denied) = (second % 3 + 1, second / 3);
            let conflict = wanted & deny != 0 || denied & access != 0;
            let expected = if conflict { Err(Status::ShareDenied) } else { Ok(()) };
            let case = format!("OPEN ({wanted}, {denied}) while ({access}, {deny}) is open");
            for (session, whose) in [(&g.s, "another owner"), (&foreign, "another client")] {
                let got = opened(c, session, &dir, open(b"second", &name, wanted, denied, false)).await;
                if let Ok((stateid, _)) = &got {
                    assert_eq!(session.status(c, [putfh(&file), close(*stateid)]).await, Status::Ok);
                }
                rows.push((format!("{case}, {whose}"), expected, got.map(drop)));
            }
        }
        assert_eq!(g.s.status(c, [putfh(&file), close(stateid)]).await, Status::Ok);
    }
    for (case, expected, got) in rows {
        g.record(&case, expected, got);
    }
}

async fn downgrades(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (first, file) = opened(c, &g.s, &g.dir, open(b"down", "down", 1, 0, true)).await.unwrap();
    let both = opened(c, &g.s, &g.dir, open(b"down", "down", 3, 0, false)).await.unwrap().0;
    let stateid = Stateid { seqid: 0, ..both };
    let (other, _) = g.open("another", 3).await;
    let unknown = Stateid { seqid: 1, other: [0xde; 12] };
    for (case, expected, on) in [
        ("without access", Status::Inval, downgrade(stateid, 0, 0)),
        ("to access 4", Status::Inval, downgrade(stateid, 4, 0)),
        ("to deny 4", Status::Inval, downgrade(stateid, 1, 4)),
        ("to a denial that is not held", Status::Inval, downgrade(stateid, 1, 2)),
        ("to an access that was not opened", Status::Inval, downgrade(stateid, 2, 0)),
        ("with an old stateid", Status::OldStateid, downgrade(first, 1, 0)),
        ("with an unknown stateid", Status::BadStateid, downgrade(unknown, 1, 0)),
        ("with the stateid of another file", Status::BadStateid, downgrade(other, 1, 0)),
        ("with the anonymous stateid", Status::BadStateid, downgrade(Stateid::ANONYMOUS, 1, 0)),
        ("to the same", Status::Ok, downgrade(stateid, 3, 0)),
        ("to less", Status::Ok, downgrade(stateid, 1, 0)),
        ("to more", Status::Inval, downgrade(stateid, 3, 0)),
    ] {
        g.check(&format!("OPEN_DOWNGRADE {case}"), expected, [putfh(&file), on]).await;
    }
    let alone = g.s.status(c, [downgrade(stateid, 1, 0)]).await;
    g.record("OPEN_DOWNGRADE without file handle", Status::NoFileHandle, alone);
    g.check("OPEN_DOWNGRADE of a directory", Status::BadStateid, [downgrade(stateid, 1, 0)]).await;
    let foreign = Session::new(c, b"opens of another client").await;
    let theirs = opened(c, &foreign, &g.dir, open(b"x", "down", 2, 0, false)).await.map(drop);
    g.record("OPEN after OPEN_DOWNGRADE", Ok::<_, Status>(()), theirs);
}

async fn closes(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (first, file) = g.open("closed", 1).await;
    let (second, _) = g.open("closed", 2).await;
    let (other, _) = g.open("another", 3).await;
    let unknown = Stateid { seqid: 1, other: [0xde; 12] };
    let zero = Stateid { seqid: 0, ..second };
    let whole = (0, u64::MAX);
    for (case, expected, ops) in [
        ("with an old stateid", Status::OldStateid, vec![close(first)]),
        ("with an unknown stateid", Status::BadStateid, vec![close(unknown)]),
        ("with the stateid of another file", Status::BadStateid, vec![close(other)]),
        ("with the anonymous stateid", Status::BadStateid, vec![close(Stateid::ANONYMOUS)]),
        ("with the bypass stateid", Status::BadStateid, vec![close(Stateid::READ_BYPASS)]),
        ("with the current stateid of no operation", Status::BadStateid, vec![close(Stateid::CURRENT)]),
        (
            "with locks and a seqid of 0",
            Status::Ok,
            vec![lock(zero, b"l", LockType::Write, whole), close(zero)],
        ),
        ("twice", Status::BadStateid, vec![close(zero)]),
    ] {
        g.check(&format!("CLOSE {case}"), expected, [putfh(&file)].into_iter().chain(ops)).await;
    }
    let (stateid, file) = g.open("closed", 3).await;
    let alone = g.s.status(c, [close(stateid)]).await;
    g.record("CLOSE without file handle", Status::NoFileHandle, alone);
    let consumed = [putfh(&g.dir.clone()), named(Operation::Secinfo, "closed"), close(stateid)];
    g.check("CLOSE after SECINFO", Status::NoFileHandle, consumed).await;
    g.check("CLOSE of a directory", Status::BadStateid, [close(stateid)]).await;
    g.check("CLOSE", Status::Ok, [putfh(&file), close(stateid)]).await;
}
