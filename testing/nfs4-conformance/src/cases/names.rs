//! File handles and names: PUTFH, LOOKUP, LOOKUPP, SECINFO, SECINFO_NO_NAME, and READDIR.

use millrace_nfs::v4::*;

use crate::{
    compound::{Call, Op, getfh, lookup, named, op, open, putfh, putrootfh, send_for_data, sequence},
    group::{Group, bad_names},
    operations::{close, create, lookupp, mkdir, opened, remove, savefh, special},
};

fn secinfo(style: SecinfoStyle) -> Op {
    op(Operation::SecinfoNoName, SecinfoNoNameArgs { style })
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    for (name, what) in special(g.c) {
        g.check(&format!("CREATE of a {name}"), Status::Ok, [create(name, what)]).await;
    }
    let (stateid, file) = opened(g.c, &g.s, &g.dir, open(b"o", "file", 3, 0, true)).await.unwrap();
    assert_eq!(g.s.status(g.c, [putfh(&file), close(stateid)]).await, Status::Ok);
    g.check("CREATE of a directory", Status::Ok, [mkdir("dir")]).await;
    handles(g).await;
    names(g).await;
    parents(g).await;
    security(g).await;
    pages(g).await;
}

async fn handles(g: &mut Group<'_, impl Call>) {
    for name in ["file", "dir", "link", "block", "character", "socket", "fifo"] {
        let results = g.send([lookup(name), getfh()]).await;
        let handle = results.skip(&[Operation::Lookup]).take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
        let results = g.send([putfh(&handle), getfh()]).await;
        let again = results.skip(&[Operation::Putfh]).take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
        g.record(&format!("GETFH after PUTFH of a {name}"), true, handle == again);
    }
    g.check("PUTFH of 3 bytes", Status::BadHandle, [putfh(b"abc")]).await;
    g.check("PUTFH of no bytes", Status::BadHandle, [putfh(b"")]).await;
    let (stateid, file) = opened(g.c, &g.s, &g.dir, open(b"o", "gone", 3, 0, true)).await.unwrap();
    g.check("REMOVE", Status::Ok, [putfh(&file), close(stateid), putfh(&g.dir.clone()), remove("gone")])
        .await;
    let stale = [putfh(&file), op(Operation::Getattr, GetattrArgs { requested: Attributes::MANDATORY })];
    g.check("GETATTR of a removed file", Status::Stale, stale).await;
}

async fn names(g: &mut Group<'_, impl Call>) {
    g.record("LOOKUP without file handle", Status::NoFileHandle, g.s.status(g.c, [lookup("x")]).await);
    let empty = g.s.status(g.c, [putrootfh(), lookup("")]).await;
    g.record("LOOKUP of an empty name in the root", Status::Inval, empty);
    let long = g.s.status(g.c, [putrootfh(), lookup(&"abc".repeat(512))]).await;
    g.record("LOOKUP of 1536 bytes in the root", Status::NameTooLong, long);
    for operation in [Operation::Lookup, Operation::Remove, Operation::Secinfo] {
        let absent = ("a name that does not exist", Status::NoEnt, "absent".to_owned());
        for (case, expected, name) in bad_names().into_iter().chain([absent]) {
            g.check(&format!("{operation} of {case}"), expected, [named(operation, &name)]).await;
        }
        for kind in ["file", "block", "character", "socket", "fifo"] {
            let case = format!("{operation} in a {kind}");
            g.check(&case, Status::NotDir, [lookup(kind), named(operation, "x")]).await;
        }
    }
    g.check("LOOKUP in a link", Status::Symlink, [lookup("link"), lookup("x")]).await;
    // Names are bytes: file systems of POSIX have others than UTF-8.
    let bytes: Op = Box::new(|e| {
        e.put(&Operation::Lookup);
        e.put_opaque(b"\xc0\xaf");
    });
    g.check("LOOKUP of a name that is not UTF-8", Status::NoEnt, [bytes]).await;
}

async fn parents(g: &mut Group<'_, impl Call>) {
    for kind in ["file", "block", "character", "socket", "fifo"] {
        g.check(&format!("LOOKUPP of a {kind}"), Status::NotDir, [lookup(kind), lookupp()]).await;
    }
    g.check("LOOKUPP of a link", Status::Symlink, [lookup("link"), lookupp()]).await;
    g.record("LOOKUPP of the root", Status::NoEnt, g.s.status(g.c, [putrootfh(), lookupp()]).await);
    g.record("LOOKUPP without file handle", Status::NoFileHandle, g.s.status(g.c, [lookupp()]).await);
    let results = g.send([lookup("dir"), lookupp(), getfh()]).await;
    results.skip(&[Operation::Lookup, Operation::Lookupp]);
    let parent = results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
    g.record("LOOKUPP of a directory", true, parent == g.dir);
    let results = g.s.send(g.c, [putfh(&g.root), lookupp(), getfh()]).await;
    g.record("LOOKUPP of an export", Status::Ok, results.status);
}

async fn security(g: &mut Group<'_, impl Call>) {
    let (current, parent) = (SecinfoStyle::CurrentFh, SecinfoStyle::Parent);
    g.check("SECINFO", Status::Ok, [named(Operation::Secinfo, "file")]).await;
    g.check("GETFH after SECINFO", Status::NoFileHandle, [named(Operation::Secinfo, "file"), getfh()]).await;
    g.check("SECINFO_NO_NAME", Status::Ok, [secinfo(current)]).await;
    g.check("GETFH after SECINFO_NO_NAME", Status::NoFileHandle, [secinfo(current), getfh()]).await;
    g.check("SECINFO_NO_NAME of the parent", Status::Ok, [secinfo(parent)]).await;
    let root = g.s.status(g.c, [putrootfh(), secinfo(parent)]).await;
    g.record("SECINFO_NO_NAME of the parent of the root", Status::NoEnt, root);
    g.check(
        "a saved file handle remains after SECINFO",
        Status::Ok,
        [savefh(), named(Operation::Secinfo, "file"), op(Operation::RestoreFh, ()), getfh()],
    )
    .await;
}

/// The names of the directory, in order, with a READDIR for each page.
async fn paged(g: &Group<'_, impl Call>, mut args: ReaddirArgs) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        let results = g.send([op(Operation::Readdir, args)]).await;
        let page: ReaddirOk<'_> = results.take(Operation::Readdir);
        for entry in &page.entries {
            args.cookie = entry.cookie;
            names.push(String::from_utf8_lossy(&entry.name).into_owned());
        }
        args.verifier = page.verifier;
        if page.eof || page.entries.is_empty() {
            names.sort();
            return names;
        }
    }
}

async fn pages(g: &mut Group<'_, impl Call>) {
    let args = ReaddirArgs {
        cookie: 0,
        verifier: [0; 8],
        dircount: 4096,
        maxcount: 4096,
        requested: Bitmap::of(&[Attribute::Fileid, Attribute::RdattrError]),
    };
    let readdir = |args: ReaddirArgs| op(Operation::Readdir, args);
    g.check_data("READDIR", Status::Ok, [readdir(args)]).await;
    for (case, expected, args) in [
        ("without attributes", Status::Ok, ReaddirArgs { requested: Bitmap::EMPTY, ..args }),
        ("with maxcount 1", Status::TooSmall, ReaddirArgs { maxcount: 1, ..args }),
        ("with maxcount 0", Status::TooSmall, ReaddirArgs { maxcount: 0, ..args }),
        ("with maxcount 2^32-1", Status::Ok, ReaddirArgs { maxcount: u32::MAX, ..args }),
        ("with dircount 0", Status::Ok, ReaddirArgs { dircount: 0, ..args }),
        ("from the reserved cookie 1", Status::BadCookie, ReaddirArgs { cookie: 1, ..args }),
        ("from the reserved cookie 2", Status::BadCookie, ReaddirArgs { cookie: 2, ..args }),
        (
            "with a write-only attribute",
            Status::Inval,
            ReaddirArgs { requested: Bitmap::of(&[Attribute::TimeModifySet]), ..args },
        ),
    ] {
        g.check_data(&format!("READDIR {case}"), expected, [readdir(args)]).await;
    }
    for maxcount in [200, 1000, 8192] {
        let names = paged(g, ReaddirArgs { dircount: 0, maxcount, ..args }).await;
        let expected = ["block", "character", "dir", "fifo", "file", "link", "socket"];
        g.record(&format!("READDIR in pages of {maxcount} bytes"), expected, names);
    }
    g.check("READDIR of a file", Status::NotDir, [lookup("file"), readdir(args)]).await;
    let ops = [sequence(g.s.sequence(false)), readdir(args)];
    let none = send_for_data(g.c, &ops).await.status;
    g.record("READDIR without file handle", Status::NoFileHandle, none);
}
