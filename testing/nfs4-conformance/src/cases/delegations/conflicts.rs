//! Requests of another client that conflict with a delegation, and CB_GETATTR (RFC 8881 sections 10.4 and 20.1).

use millrace_nfs::v4::*;

use super::{Callback, Clients, Delegated, create_file, delegated};
use crate::{
    compound::{Call, Op, getattr, open, putfh, read},
    group::Group,
    operations::{link, remove, rename, savefh, setattr, size, write},
};

/// The requests of the other client, and whether each conflicts with a read delegation.
const REQUESTS: [(&str, bool); 11] = [
    ("READ", false),
    ("OPEN for reading", false),
    ("OPEN for writing", true),
    ("OPEN that truncates", true),
    ("WRITE", true),
    ("SETATTR of the mode", true),
    ("SETATTR of the size", true),
    ("REMOVE", true),
    ("RENAME", true),
    ("RENAME of another file to it", true),
    ("LINK", true),
];

fn request(g: &Group<'_, impl Call>, name: &str, held: &Delegated) -> Vec<Op> {
    let (dir, file, at, to) =
        (|| putfh(&g.dir), || putfh(&held.file), &held.name, format!("{} to", held.name));
    let anonymous = Stateid::ANONYMOUS;
    match name {
        "READ" => vec![file(), read(anonymous, 0, 1)],
        "OPEN for reading" => vec![dir(), open(b"other", at, 1, 0, false)],
        "OPEN for writing" => vec![dir(), open(b"other", at, 2, 0, false)],
        "OPEN that truncates" => vec![dir(), truncate(at)],
        "WRITE" => vec![file(), write(g.c, anonymous, 0, b"x")],
        "SETATTR of the mode" => {
            let mode = Attributes { mode: Some(0o600), ..Attributes::default() };
            vec![file(), setattr(anonymous, mode)]
        }
        "SETATTR of the size" => vec![file(), setattr(anonymous, size(3))],
        "REMOVE" => vec![dir(), remove(at)],
        "RENAME" => vec![dir(), savefh(), rename(at, &to)],
        "RENAME of another file to it" => vec![dir(), savefh(), rename("source", at)],
        "LINK" => vec![file(), savefh(), dir(), link(&to)],
        other => panic!("there is no request {other}"),
    }
}

/// OPEN with an UNCHECKED creation that truncates the file.
fn truncate(name: &str) -> Op {
    let name = name.to_owned();
    Box::new(move |e| {
        e.put(&Operation::Open);
        e.put(&OpenArgs {
            seqid: 0,
            share_access: 2,
            share_deny: 0,
            owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(b"other") },
            create: Some(CreateHow::Unchecked(size(0))),
            claim: Claim::Null(Opaque(name.as_bytes())),
        });
    })
}

/// Each request while the file is delegated, and after the delegation was returned.
pub(super) async fn run(g: &mut Group<'_, impl Call>, clients: &Clients, access: u32, kind: &str) {
    for (name, changes) in REQUESTS {
        let held = delegated(g, clients, name, access).await;
        create_file(g, "source").await;
        let conflicts = changes || access == 3;
        let first = clients.other.status(g.c, request(g, name, &held)).await;
        let recall =
            if first == Status::Delay { clients.callback(g).await } else { clients.callbacks.take() };
        let expected = Callback::Recall(held.id, held.file.clone());
        let got = match &recall {
            None => "no recall",
            Some(recall) if *recall == expected => "a recall",
            Some(_) => "another callback",
        };
        let wanted = if conflicts { (Status::Delay, "a recall") } else { (Status::Ok, "no recall") };
        g.record(&format!("{name} while another client has {kind}"), wanted, (first, got));
        clients.give_back(g, &held).await;
        if conflicts {
            let again = clients.other.status(g.c, request(g, name, &held)).await;
            g.record(&format!("{name} after the return of {kind}"), Status::Ok, again);
        }
    }
    let held = delegated(g, clients, "own requests", access).await;
    for name in ["READ", "SETATTR of the mode", "RENAME"] {
        let status = clients.holder.status(g.c, request(g, name, &held)).await;
        let recalled = clients.callbacks.take().is_some();
        g.record(&format!("{name} of the holder of {kind}"), (Status::Ok, false), (status, recalled));
    }
    clients.give_back(g, &held).await;
}

/// The attributes of a file with a write delegation, for another client.
pub(super) async fn attributes(g: &mut Group<'_, impl Call>, clients: &Clients) {
    let held = delegated(g, clients, "attributes", 3).await;
    let ops = || [putfh(&held.file), getattr(&[Attribute::Change, Attribute::Size])];
    let own = clients.holder.send(g.c, ops()).await;
    let own: Attributes<'_> = own.skip(&[Operation::Putfh]).take(Operation::Getattr);
    g.record("GETATTR of the holder", (Some(10_u64), None::<Callback>), (own.size, clients.callbacks.take()));
    let granted = own.change.unwrap();
    for (case, change, size, changed) in
        [("that has no data", granted, 10, false), ("that has data", granted + 1, 77, true)]
    {
        clients.callbacks.set_attributes(change, size);
        let theirs = clients.other.send(g.c, ops()).await;
        let theirs: Attributes<'_> = theirs.skip(&[Operation::Putfh]).take(Operation::Getattr);
        let got = (theirs.size, theirs.change.unwrap() > granted, clients.callbacks.take());
        let expected = (Some(size), changed, Some(Callback::Getattr(held.file.clone())));
        g.record(&format!("GETATTR with a holder {case}"), got == expected, true);
    }
    let mode = [putfh(&held.file), getattr(&[Attribute::Mode])];
    let status = clients.other.status(g.c, mode).await;
    g.record("GETATTR of the mode", (Status::Ok, None::<Callback>), (status, clients.callbacks.take()));
    clients.give_back(g, &held).await;
}
