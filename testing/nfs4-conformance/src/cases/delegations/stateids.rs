//! The stateid of a delegation in other operations, opens under it, and DELEGRETURN (RFC 8881 sections 8.2, 18.6, 18.16).

use millrace_nfs::v4::*;

use super::{Clients, create_file, delegated, delegreturn, opened_by};
use crate::{
    compound::{Call, Op, Session, op, putfh, read},
    group::Group,
    operations::{close, downgrade, free, lock, locku, setattr, size, write},
};

const UNKNOWN: Stateid = Stateid { seqid: 1, other: [0xde; 12] };

pub(super) async fn run(g: &mut Group<'_, impl Call>, clients: &Clients, access: u32, kind: &str) {
    uses(g, clients, access, kind).await;
    claims(g, clients, access, kind).await;
    returns(g, clients, access, kind).await;
}

async fn tested(g: &Group<'_, impl Call>, s: &Session, id: Stateid) -> Status {
    let args = TestStateidArgs { stateids: List(vec![id]) };
    let results = s.send(g.c, [op(Operation::TestStateid, args)]).await;
    results.take::<TestStateidOk>(Operation::TestStateid).statuses.0[0]
}

/// Operations with the stateid of a delegation.
async fn uses(g: &mut Group<'_, impl Call>, clients: &Clients, access: u32, kind: &str) {
    let held = delegated(g, clients, "uses", access).await;
    let another = create_file(g, "uses another").await;
    let (id, c) = (held.id, g.c);
    let changes = if access == 3 { Status::Ok } else { Status::OpenMode };
    let open = opened_by(g, &clients.holder, &held.name, access | share_access::WANT_NO_DELEG).await;
    for (case, expected, on) in [
        ("READ", Status::Ok, read(id, 0, 1)),
        ("READ with a seqid of 0", Status::Ok, read(Stateid { seqid: 0, ..id }, 0, 1)),
        ("READ with a seqid of the future", Status::BadStateid, read(Stateid { seqid: 9, ..id }, 0, 1)),
        ("WRITE", changes, write(c, id, 0, b"x")),
        ("SETATTR of the size", changes, setattr(id, size(20))),
        ("CLOSE", Status::BadStateid, close(id)),
        ("OPEN_DOWNGRADE", Status::BadStateid, downgrade(id, 1, 0)),
        ("LOCK", Status::BadStateid, lock(id, b"l", LockType::Read, (0, 1))),
        ("LOCKU", Status::BadStateid, locku(id, (0, 1))),
        ("FREE_STATEID", Status::LocksHeld, free(id)),
    ] {
        let got = clients.status(g, &held.file, on).await;
        g.record(&format!("{case} with the stateid of {kind}"), expected, got);
    }
    let elsewhere = clients.status(g, &another, read(id, 0, 1)).await;
    g.record(&format!("READ of another file with the stateid of {kind}"), Status::BadStateid, elsewhere);
    let theirs = clients.other.status(g.c, [putfh(&held.file), read(id, 0, 1)]).await;
    g.record(&format!("READ by another client with the stateid of {kind}"), Status::BadStateid, theirs);
    let test = tested(g, &clients.holder, id).await;
    g.record(&format!("TEST_STATEID of {kind}"), Status::Ok, test);
    assert_eq!(clients.status(g, &held.file, close(open)).await, Status::Ok);
    clients.give_back(g, &held).await;
    let late = clients.status(g, &held.file, read(id, 0, 1)).await;
    g.record(&format!("READ after the return of {kind}"), Status::BadStateid, late);
    let test = tested(g, &clients.holder, id).await;
    g.record(&format!("TEST_STATEID after the return of {kind}"), Status::BadStateid, test);
    let freed = clients.status(g, &held.file, free(id)).await;
    g.record(&format!("FREE_STATEID after the return of {kind}"), Status::BadStateid, freed);
}

/// OPEN with a claim of a delegation.
fn claiming(access: u32, claim: &dyn Fn() -> Claim<'static>) -> Op {
    crate::operations::open_with(b"claims", (access, 0), None, claim())
}

/// OPEN with CLAIM_DELEGATE_CUR.
fn claiming_name(access: u32, id: Stateid, name: &str) -> Op {
    let name = name.to_owned();
    Box::new(move |e| {
        e.put(&Operation::Open);
        e.put(&OpenArgs::<Attributes<'_>> {
            seqid: 0,
            share_access: access,
            share_deny: 0,
            owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(b"claims") },
            create: None,
            claim: Claim::DelegateCur(id, Opaque(name.as_bytes())),
        });
    })
}

async fn claims(g: &mut Group<'_, impl Call>, clients: &Clients, access: u32, kind: &str) {
    let held = delegated(g, clients, "claims", access).await;
    let another = create_file(g, "claims another").await;
    let id = held.id;
    let open = opened_by(g, &clients.holder, &held.name, access | share_access::WANT_NO_DELEG).await;
    let more = if access == 3 { Status::Ok } else { Status::OpenMode };
    let name = held.name.as_str();
    for (case, expected, access, id, name) in [
        ("", Status::Ok, access, id, name),
        (" for reading", Status::Ok, 1, id, name),
        (" for both", more, 3, id, name),
        (" of another file", Status::BadStateid, 1, id, "claims another"),
        (" of a name that does not exist", Status::NoEnt, 1, id, "absent"),
        (" with the stateid of an open", Status::BadStateid, 1, open, name),
        (" with an unknown stateid", Status::BadStateid, 1, UNKNOWN, name),
        (" with the anonymous stateid", Status::BadStateid, 1, Stateid::ANONYMOUS, name),
    ] {
        let on = claiming_name(access, id, name);
        let got = clients.holder.status(g.c, [putfh(&g.dir), on]).await;
        g.record(&format!("CLAIM_DELEGATE_CUR{case} under {kind}"), expected, got);
    }
    for (case, expected, access, id, file) in [
        ("", Status::Ok, access, id, &held.file),
        (" for both", more, 3, id, &held.file),
        (" of another file", Status::BadStateid, 1, id, &another),
        (" with the stateid of an open", Status::BadStateid, 1, open, &held.file),
        (" with an unknown stateid", Status::BadStateid, 1, UNKNOWN, &held.file),
    ] {
        let got = clients.status(g, file, claiming(access, &|| Claim::DelegCurFh(id))).await;
        g.record(&format!("CLAIM_DELEG_CUR_FH{case} under {kind}"), expected, got);
    }
    let foreign = [putfh(&held.file), claiming(1, &|| Claim::DelegCurFh(id))];
    let foreign = clients.other.status(g.c, foreign).await;
    g.record(&format!("CLAIM_DELEG_CUR_FH of another client under {kind}"), Status::BadStateid, foreign);
    let got = clients.status(g, &held.file, claiming(1, &|| Claim::DelegPrevFh)).await;
    g.record(&format!("CLAIM_DELEG_PREV_FH with {kind}"), Status::NotSupp, got);
    clients.give_back(g, &held).await;
    let late = clients.status(g, &held.file, claiming(1, &|| Claim::DelegCurFh(id))).await;
    g.record(&format!("CLAIM_DELEG_CUR_FH after the return of {kind}"), Status::BadStateid, late);
}

async fn returns(g: &mut Group<'_, impl Call>, clients: &Clients, access: u32, kind: &str) {
    let held = delegated(g, clients, "returns", access).await;
    let another = create_file(g, "returns another").await;
    let open = opened_by(g, &clients.holder, &held.name, access | share_access::WANT_NO_DELEG).await;
    let (id, file) = (held.id, &held.file);
    let alone = clients.holder.status(g.c, [delegreturn(id)]).await;
    g.record(&format!("DELEGRETURN of {kind} without file handle"), Status::NoFileHandle, alone);
    let theirs = clients.other.status(g.c, [putfh(file), delegreturn(id)]).await;
    g.record(&format!("DELEGRETURN of {kind} by another client"), Status::BadStateid, theirs);
    let on_dir = clients.status(g, &g.dir, delegreturn(id)).await;
    g.record(&format!("DELEGRETURN of {kind} with a directory"), Status::BadStateid, on_dir);
    for (case, expected, file, id) in [
        ("of another file", Status::BadStateid, &another, id),
        ("of an open", Status::BadStateid, file, open),
        ("of an unknown stateid", Status::BadStateid, file, UNKNOWN),
        ("of the anonymous stateid", Status::BadStateid, file, Stateid::ANONYMOUS),
        ("with a seqid of the future", Status::BadStateid, file, Stateid { seqid: 9, ..id }),
        ("with a seqid of 0", Status::Ok, file, Stateid { seqid: 0, ..id }),
        ("twice", Status::BadStateid, file, id),
    ] {
        let got = clients.status(g, file, delegreturn(id)).await;
        g.record(&format!("DELEGRETURN {case}, {kind}"), expected, got);
    }
    assert_eq!(clients.status(g, file, close(open)).await, Status::Ok);
}
