//! Changes of names: CREATE, REMOVE, RENAME, LINK; and READLINK.

use millrace_nfs::v4::*;
use millrace_xdr::Encode;

use crate::{
    compound::{Call, Op, getattr, getfh, lookup, named, op, putfh},
    group::{Group, OTHERS, bad_names},
    operations::{RawAttribute, close, create, link, mkdir, readlink, remove, rename, savefh, symlink},
};

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    g.populate().await;
    creation(g).await;
    attributes_of_creation(g).await;
    removal(g).await;
    rename_arguments(g).await;
    renames(g).await;
    links(g).await;
    texts(g).await;
}

async fn creation(g: &mut Group<'_, impl Call>) {
    g.record("CREATE without file handle", Status::NoFileHandle, g.s.status(g.c, [mkdir("x")]).await);
    for (case, expected, name) in bad_names() {
        g.check(&format!("CREATE of {case}"), expected, [mkdir(&name)]).await;
    }
    for name in ["file", "dir", "link"] {
        g.check(&format!("CREATE of a {name} that exists"), Status::Exist, [mkdir(name)]).await;
    }
    g.check("CREATE in a file", Status::NotDir, [lookup("file"), mkdir("x")]).await;
    for kind in OTHERS {
        g.check(&format!("CREATE in a {kind}"), Status::NotDir, [lookup(kind), mkdir("x")]).await;
    }
    for kind in [FileType::Regular, FileType::AttributeDirectory, FileType::NamedAttribute] {
        let other = create("x", CreateType::Other(kind));
        g.check(&format!("CREATE of type {kind:?}"), Status::BadType, [other]).await;
    }
    let empty = create("x", CreateType::Symlink(millrace_xdr::Views::default()));
    g.check("CREATE of a link without text", Status::Inval, [empty]).await;
    let got = g.send([mkdir("current"), getfh()]).await;
    got.skip(&[]).take::<CreateOk>(Operation::Create);
    let created = got.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
    let found = g.send([lookup("current"), getfh()]).await;
    let found = found.skip(&[Operation::Lookup]).take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
    g.record("CREATE sets the current file handle", true, created == found);
}

async fn attributes_of_creation(g: &mut Group<'_, impl Call>) {
    fn mkdir(attributes: impl Encode + 'static) -> Op {
        let name = Opaque(&b"attributes"[..]);
        op(Operation::Create, CreateArgs { what: CreateType::Directory, name, attributes })
    }
    let none = Attributes::default();
    let hidden = mkdir(RawAttribute { number: 25, words: &[1] });
    g.check("CREATE with an attribute that is not supported", Status::AttrNotSupp, [hidden]).await;
    for (case, expected, attributes) in [
        ("a read-only attribute", Status::Inval, Attributes { numlinks: Some(1), ..none }),
        (
            "an owner that is unknown",
            Status::BadOwner,
            Attributes { owner: Some(Owner::Name(b"no@body")), ..none },
        ),
    ] {
        g.check(&format!("CREATE with {case}"), expected, [mkdir(attributes)]).await;
    }
    g.check("CREATE without attributes", Status::Ok, [mkdir(none)]).await;
}

async fn removal(g: &mut Group<'_, impl Call>) {
    let alone = g.s.status(g.c, [remove("x")]).await;
    g.record("REMOVE without file handle", Status::NoFileHandle, alone);
    assert_eq!(g.send([mkdir("full"), mkdir("below")]).await.status, Status::Ok);
    g.check("REMOVE of a directory with entries", Status::NotEmpty, [remove("full")]).await;
    g.check("REMOVE in a link", Status::NotDir, [lookup("link"), remove("x")]).await;
    for kind in OTHERS.into_iter().chain(["directory"]) {
        let name = format!("removed {kind}");
        let what = match crate::operations::special(g.c).into_iter().find(|(name, _)| *name == kind) {
            Some((_, what)) => what,
            None => CreateType::Directory,
        };
        assert_eq!(g.send([create(&name, what)]).await.status, Status::Ok);
        g.check(&format!("REMOVE of a {kind}"), Status::Ok, [remove(&name)]).await;
        g.check(&format!("REMOVE of a {kind} twice"), Status::NoEnt, [remove(&name)]).await;
    }
}

async fn rename_arguments(g: &mut Group<'_, impl Call>) {
    for (case, expected, name) in bad_names() {
        g.check(&format!("RENAME from {case}"), expected, [savefh(), rename(&name, "x")]).await;
        g.check(&format!("RENAME to {case}"), expected, [savefh(), rename("file", &name)]).await;
    }
    g.check("RENAME without saved file handle", Status::NoFileHandle, [rename("file", "x")]).await;
    let consumed = [savefh(), named(Operation::Secinfo, "file"), rename("file", "x")];
    g.check("RENAME without file handle", Status::NoFileHandle, consumed).await;
    g.check("RENAME of a name that does not exist", Status::NoEnt, [savefh(), rename("absent", "x")]).await;
    let dir = g.dir.clone();
    for kind in OTHERS.into_iter().chain(["file"]) {
        let from = [lookup(kind), savefh(), putfh(&dir), rename("x", "x")];
        g.check(&format!("RENAME from a directory that is a {kind}"), Status::NotDir, from).await;
        let to = [savefh(), lookup(kind), rename("dir", "x")];
        g.check(&format!("RENAME to a directory that is a {kind}"), Status::NotDir, to).await;
    }
}

/// The changes that RENAME reports, as whether each directory has changed.
async fn changes(g: &Group<'_, impl Call>, name: &str) -> Result<[bool; 2], Status> {
    let results = g.send([savefh(), rename(name, name)]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    let ok: RenameOk = results.skip(&[Operation::Savefh]).take(Operation::Rename);
    Ok([ok.from.before != ok.from.after, ok.to.before != ok.to.after])
}

async fn renames(g: &mut Group<'_, impl Call>) {
    let here = |from: &str, to: &str| [savefh(), rename(from, to)];
    assert_eq!(g.send([mkdir("filled"), mkdir("entry")]).await.status, Status::Ok);
    assert_eq!(g.send([mkdir("empty")]).await.status, Status::Ok);
    g.check("RENAME of a directory to a file", Status::NotDir, here("dir", "file")).await;
    g.check("RENAME of a file to a directory", Status::IsDir, here("file", "dir")).await;
    g.check("RENAME of a file to a directory with entries", Status::IsDir, here("file", "filled")).await;
    g.check("RENAME of a directory to one with entries", Status::NotEmpty, here("dir", "filled")).await;
    g.check("RENAME of a directory to an empty one", Status::Ok, here("dir", "empty")).await;
    g.check("RENAME of a directory", Status::Ok, here("empty", "dir")).await;
    let below = [savefh(), lookup("filled"), rename("filled", "below")];
    g.check("RENAME of a directory into itself", Status::Inval, below).await;
    for kind in OTHERS {
        let name = format!("renamed {kind}");
        g.check(&format!("RENAME of a {kind}"), Status::Ok, here(kind, &name)).await;
        g.check(&format!("RENAME of a {kind} back"), Status::Ok, here(&name, kind)).await;
    }
    for name in ["dir", "file"] {
        let got = changes(g, name).await;
        g.record(&format!("RENAME of a {name} to its name"), Ok::<_, Status>([false; 2]), got);
    }
    let linked = [lookup("file"), savefh(), putfh(&g.dir.clone()), link("second")];
    g.check("LINK of a file", Status::Ok, linked).await;
    g.check("RENAME of a file to another of its names", Status::Ok, here("file", "second")).await;
    for name in ["file", "second"] {
        let case = format!("the name {name} remains");
        g.check(&case, Status::Ok, [lookup(name), getattr(&[Attribute::Numlinks])]).await;
    }
    let (stateid, file) = g.open("replacing", 3).await;
    let closed = g.s.status(g.c, [putfh(&file), close(stateid)]).await;
    assert_eq!(closed, Status::Ok);
    g.check("RENAME of a file to another file", Status::Ok, here("replacing", "second")).await;
}

async fn links(g: &mut Group<'_, impl Call>) {
    let dir = g.dir.clone();
    let of = |kind: &str, name: &str| [lookup(kind), savefh(), putfh(&dir), link(name)];
    for (case, expected, name) in bad_names() {
        g.check(&format!("LINK to {case}"), expected, of("file", &name)).await;
    }
    g.check("LINK to a name that exists", Status::Exist, of("file", "fifo")).await;
    g.check("LINK to its name", Status::Exist, of("file", "file")).await;
    g.check("LINK of a directory", Status::IsDir, of("dir", "x")).await;
    g.check("LINK without saved file handle", Status::NoFileHandle, [link("x")]).await;
    let consumed = [lookup("file"), savefh(), putfh(&dir), named(Operation::Secinfo, "file"), link("x")];
    g.check("LINK without file handle", Status::NoFileHandle, consumed).await;
    for kind in OTHERS {
        g.check(&format!("LINK of a {kind}"), Status::Ok, of(kind, &format!("linked {kind}"))).await;
    }
    for kind in OTHERS.into_iter().chain(["file"]) {
        let into = [lookup("file"), savefh(), putfh(&dir), lookup(kind), link("x")];
        g.check(&format!("LINK in a {kind}"), Status::NotDir, into).await;
    }
}

async fn texts(g: &mut Group<'_, impl Call>) {
    let alone = g.s.status(g.c, [readlink()]).await;
    g.record("READLINK without file handle", Status::NoFileHandle, alone);
    for kind in ["file", "dir", "block", "character", "socket", "fifo"] {
        let case = format!("READLINK of a {kind}");
        g.check(&case, Status::WrongType, [lookup(kind), readlink()]).await;
    }
    let ops: [Op; 2] = [lookup("link"), readlink()];
    g.check("READLINK", Status::Ok, ops).await;
    g.check("CREATE of a link that exists", Status::Exist, [symlink(g.c, "link")]).await;
}
