//! The pseudo file system and exports in it.

use std::time::Duration;

use millrace_nfs::v4::*;
use millrace_nfs4_conformance::operations::{link, lookupp, mkdir, rename, restorefh, savefh};
use millrace_oncrpc::Credential;
use millrace_server::Server;

use super::{compound::*, files::opened};
use crate::common::{Caller, Proto, config, run};

async fn names(c: &Caller, session: &Session, handle: &[u8]) -> Vec<String> {
    let (mut names, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
    loop {
        let requested = Bitmap::of(&[Attribute::FileType, Attribute::MountedOnFileid]);
        let args = ReaddirArgs { cookie, verifier, dircount: 0, maxcount: 200, requested };
        let results = session.send(c, [putfh(handle), op(Operation::Readdir, args)]).await;
        results.skip(&[Operation::Putfh]);
        let page: ReaddirOk<'_> = results.take(Operation::Readdir);
        for entry in &page.entries {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            (cookie, verifier) = (entry.cookie, page.verifier);
        }
        if page.eof {
            names.sort();
            return names;
        }
    }
}

/// Fsid, file ID and covered file ID of the object of a handle.
async fn ids(c: &Caller, session: &Session, handle: &[u8]) -> (Fsid, u64, u64) {
    let wanted = [Attribute::Fsid, Attribute::Fileid, Attribute::MountedOnFileid];
    let results = session.send(c, [putfh(handle), getattr(&wanted)]).await;
    results.skip(&[Operation::Putfh]);
    let values = results.take::<Fattr<'_>>(Operation::Getattr).decode_values().unwrap();
    (values.fsid.unwrap(), values.fileid.unwrap(), values.mounted_on_fileid.unwrap())
}

async fn parent(c: &Caller, session: &Session, handle: &[u8]) -> Result<Vec<u8>, Status> {
    let results = session.send(c, [putfh(handle), op(Operation::Lookupp, ()), getfh()]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    results.skip(&[Operation::Putfh, Operation::Lookupp]);
    Ok(results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec())
}

#[test]
fn callers_without_a_credential_get_the_flavors_of_an_export() {
    run(async {
        let server = Server::start(config(&["/a=memory:1M", "/b=memory:1M,auth_none"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await.with(Credential::None);
        let s = Session::new(&c, b"client").await;
        let root = s.path(&c, "/").await.unwrap();
        let list = |requested: &[Attribute]| {
            let requested = Bitmap::of(requested);
            let args = ReaddirArgs { cookie: 0, verifier: [0; 8], dircount: 0, maxcount: 4096, requested };
            [putfh(&root), op(Operation::Readdir, args)]
        };
        assert_eq!(s.status(&c, list(&[Attribute::FileType])).await, Status::Access);
        assert_eq!(s.status(&c, list(&[Attribute::FileType, Attribute::RdattrError])).await, Status::Ok);
        let (sys, both) = (vec![Secinfo::SYS], vec![Secinfo::SYS, Secinfo::NONE]);
        let name = |name: &'static str| Opaque(name.as_bytes());
        for (export, flavors, expected) in [("a", sys, Status::WrongSec), ("b", both, Status::Ok)] {
            let secinfo = op(Operation::Secinfo, SecinfoArgs { name: name(export) });
            let results = s.send(&c, [putfh(&root), secinfo]).await;
            results.skip(&[Operation::Putfh]);
            assert_eq!(results.take::<SecinfoOk<'_>>(Operation::Secinfo).flavors.0, flavors, "{export}");
            // The operation that sets the file handle fails, if another one uses it.
            let lookup = || op(Operation::Lookup, LookupArgs { name: name(export) });
            assert_eq!(s.status(&c, [putfh(&root), lookup()]).await, Status::Ok, "{export}");
            for using in [getfh(), getattr(&[Attribute::FileType])] {
                let results = s.send(&c, [putfh(&root), lookup(), using]).await;
                assert_eq!(
                    (results.status, results.count),
                    (expected, if expected == Status::Ok { 4 } else { 3 })
                );
            }
        }
    });
}

/// The operation that fails if the next ones use a file with a flavor that its export does not accept (RFC 8881 section
/// 2.6.3.1).
#[test]
fn the_operation_that_finds_a_wrong_flavor_is_the_one_that_the_client_can_recover_from() {
    run(async {
        let exports =
            ["/a=memory:1M,squash=none", "/b=memory:1M,squash=none,auth_none", "/a/in=memory:1M,auth_none"];
        let server = Server::start(config(&exports)).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let [a, b] = [s.path(&c, "/a").await.unwrap(), s.path(&c, "/b").await.unwrap()];
        assert_eq!(s.status(&c, [putfh(&a), mkdir("dir")]).await, Status::Ok);
        let dir = s.path(&c, "/a/dir").await.unwrap();
        let (_, of_a) = opened(&c, &s, &a, open(b"o", "f", 3, 0, true)).await.unwrap();
        let (_, of_b) = opened(&c, &s, &b, open(b"o", "f", 3, 0, true)).await.unwrap();
        let c = c.with(Credential::None);
        let (source, destination) = (Stateid::ANONYMOUS, Stateid::ANONYMOUS);
        let copy = || {
            let (requirements, source_servers) =
                (CopyRequirements { consecutive: true, synchronous: true }, List(vec![]));
            let (source_offset, destination_offset, count) = (0, 0, 0);
            let args = CopyArgs {
                source,
                destination,
                source_offset,
                destination_offset,
                count,
                requirements,
                source_servers,
            };
            op(Operation::Copy, args)
        };
        let clone = || {
            let args = CloneArgs { source, destination, source_offset: 0, destination_offset: 0, count: 0 };
            op(Operation::Clone, args)
        };
        let type_of = || getattr(&[Attribute::FileType]);
        let no_name = |style| op(Operation::SecinfoNoName, SecinfoNoNameArgs { style });
        let (of_current, of_parent) = (|| no_name(SecinfoStyle::CurrentFh), || no_name(SecinfoStyle::Parent));
        let secinfo = |name| named(Operation::Secinfo, name);
        let (wrong, ok) = (Status::WrongSec, Status::Ok);
        // The number of results includes that of SEQUENCE.
        let cases: Vec<(Vec<Op>, Status, u32)> = vec![
            // SAVEFH counts as absent.
            (vec![putfh(&a), savefh()], ok, 3),
            (vec![putfh(&a), savefh(), type_of()], wrong, 2),
            (vec![putfh(&a), savefh(), savefh(), getfh()], wrong, 2),
            (vec![putfh(&a), savefh(), of_current()], ok, 4),
            (vec![putfh(&of_a), savefh(), copy()], wrong, 2),
            // Of several operations that set the file handle, the last one counts.
            (vec![putfh(&a), savefh(), putfh(&b), type_of()], ok, 5),
            (vec![putfh(&a), savefh(), putfh(&b), restorefh(), type_of()], wrong, 5),
            (vec![putfh(&a), savefh(), putfh(&b), restorefh(), putfh(&b), type_of()], ok, 7),
            (vec![putfh(&a), savefh(), putfh(&b), restorefh(), savefh(), of_current()], ok, 7),
            // LOOKUP, LOOKUPP and OPEN return the status themselves; exports below may accept other flavors.
            (vec![putfh(&a), lookup("x")], wrong, 3),
            (vec![putfh(&a), lookup("in"), type_of()], ok, 4),
            (vec![putfh(&a), open(b"o", "f", 1, 0, false)], wrong, 3),
            (vec![putfh(&a), lookupp(), type_of()], ok, 4),
            (vec![putfh(&dir), lookupp()], wrong, 3),
            // SECINFO never returns it.
            (vec![putfh(&a), secinfo("in")], ok, 3),
            (vec![putfh(&a), secinfo("x")], Status::Access, 3),
            (vec![putfh(&dir), of_parent()], ok, 3),
            (vec![putfh(&a), of_parent()], ok, 3),
            // The saved file handle has another export.
            (vec![putfh(&of_a), savefh(), putfh(&of_b), copy()], wrong, 5),
            (vec![putfh(&of_a), savefh(), putfh(&of_b), clone()], wrong, 5),
            (vec![putfh(&of_a), savefh(), putfh(&b), link("new")], wrong, 5),
            (vec![putfh(&a), savefh(), putfh(&b), rename("f", "new")], wrong, 5),
            (vec![putfh(&of_b), savefh(), putfh(&of_a), copy()], wrong, 4),
        ];
        for (n, (operations, status, count)) in cases.into_iter().enumerate() {
            let results = s.send(&c, operations).await;
            assert_eq!((results.status, results.count), (status, count), "case {n}");
        }
        let results = s.send(&c, [putfh(&dir), of_parent()]).await;
        let flavors =
            results.skip(&[Operation::Putfh]).take::<SecinfoOk<'_>>(Operation::SecinfoNoName).flavors.0;
        assert_eq!(flavors, [Secinfo::SYS]);
    });
}

#[test]
fn the_root_of_all_paths_may_be_an_export_that_rejects_the_flavor() {
    run(async {
        let server = Server::start(config(&["/=memory:1M", "/b=memory:1M,auth_none"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await.with(Credential::None);
        let s = Session::new(&c, b"client").await;
        let type_of = || getattr(&[Attribute::FileType]);
        for root in [Operation::Putrootfh, Operation::Putpubfh] {
            let root = || op(root, ());
            for (operations, status, count) in [
                (vec![root()], Status::Ok, 2),
                (vec![root(), type_of()], Status::WrongSec, 2),
                (vec![root(), getfh()], Status::WrongSec, 2),
                (vec![root(), lookup("b"), type_of()], Status::Ok, 4),
                (vec![root(), named(Operation::Secinfo, "b")], Status::Ok, 3),
            ] {
                let results = s.send(&c, operations).await;
                assert_eq!((results.status, results.count), (status, count));
            }
        }
    });
}

#[test]
fn all_exports_are_below_one_root() {
    run(async {
        let server = Server::start(config(&["/a/b=memory:1M", "/a/c/d=memory:1M", "/e=memory:1M"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let root = s.path(&c, "/").await.unwrap();
        assert_eq!(names(&c, &s, &root).await, ["a", "e"]);
        let a = s.path(&c, "/a").await.unwrap();
        assert_eq!(names(&c, &s, &a).await, ["b", "c"]);
        let (b, d) = (s.path(&c, "/a/b").await.unwrap(), s.path(&c, "/a/c/d").await.unwrap());
        assert_eq!(names(&c, &s, &b).await, [""; 0]);
        assert_eq!(parent(&c, &s, &b).await.unwrap(), a);
        assert_eq!(parent(&c, &s, &d).await.unwrap(), s.path(&c, "/a/c").await.unwrap());
        assert_eq!(parent(&c, &s, &root).await, Err(Status::NoEnt));
        assert_eq!(s.path(&c, "/a/x").await, Err(Status::NoEnt));
        let ((root_fs, ..), (b_fs, b_id, covered)) = (ids(&c, &s, &root).await, ids(&c, &s, &b).await);
        assert!(root_fs != b_fs && b_fs != ids(&c, &s, &d).await.0 && b_id != covered);
        assert_eq!(s.status(&c, [putfh(&a), named(Operation::Remove, "b")]).await, Status::RoFs);
        server.stop(Duration::ZERO).await;
    });
}

#[test]
fn exports_may_be_in_directories_of_others() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (outer, inner) = (dir.path().join("outer"), dir.path().join("inner"));
        std::fs::create_dir_all(outer.join("x/y")).unwrap();
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("file"), "in the inner export").unwrap();
        std::fs::write(outer.join("x/y/covered"), "").unwrap();
        let exports = [
            format!("/=local:{}", outer.display()),
            format!("/x/y=local:{}", inner.display()),
            "/z/q=memory:1M".into(),
        ];
        let exports: Vec<&str> = exports.iter().map(String::as_str).collect();
        let server = Server::start(config(&exports)).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let root = s.path(&c, "/").await.unwrap();
        assert_eq!(names(&c, &s, &root).await, ["x"], "directories that do not exist are not listed");
        let (x, y) = (s.path(&c, "/x").await.unwrap(), s.path(&c, "/x/y").await.unwrap());
        assert_eq!(names(&c, &s, &x).await, ["y"]);
        assert_eq!(names(&c, &s, &y).await, ["file"]);
        assert_eq!(parent(&c, &s, &y).await.unwrap(), x);
        assert_eq!(ids(&c, &s, &root).await.0, ids(&c, &s, &x).await.0);
        assert_ne!(ids(&c, &s, &x).await.0, ids(&c, &s, &y).await.0);
        use std::os::unix::fs::MetadataExt;
        let covered = std::fs::metadata(outer.join("x/y")).unwrap().ino();
        assert_eq!(ids(&c, &s, &y).await.2, covered);
        // READDIR shows the root of the inner export with the file ID that it covers.
        let requested = Bitmap::of(&[Attribute::Fsid, Attribute::MountedOnFileid]);
        let args = ReaddirArgs { cookie: 0, verifier: [0; 8], dircount: 0, maxcount: 4096, requested };
        let results = s.send(&c, [putfh(&x), op(Operation::Readdir, args)]).await;
        let page: ReaddirOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Readdir);
        let entry = page.entries[0].attributes.decode_values().unwrap();
        assert_eq!((entry.fsid, entry.mounted_on_fileid), (Some(ids(&c, &s, &y).await.0), Some(covered)));
        // A path that does not exist in the outer export leads through the pseudo file system.
        let (z, q) = (s.path(&c, "/z").await.unwrap(), s.path(&c, "/z/q").await.unwrap());
        assert_eq!(names(&c, &s, &z).await, ["q"]);
        assert_eq!(parent(&c, &s, &q).await.unwrap(), z);
        assert_eq!(parent(&c, &s, &z).await.unwrap(), root);
        server.stop(Duration::ZERO).await;
    });
}

#[test]
fn exports_of_other_clients_are_invisible() {
    run(async {
        let exports = ["/mine=memory:1M", "/theirs/deep=memory:1M,client=192.0.2.0/24"];
        let server = Server::start(config(&exports)).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let root = s.path(&c, "/").await.unwrap();
        assert_eq!(names(&c, &s, &root).await, ["mine"]);
        assert_eq!(s.path(&c, "/theirs").await, Err(Status::NoEnt));
        let links = async |s: &Session, c: &Caller, handle: &[u8]| {
            let results = s.send(c, [putfh(handle), getattr(&[Attribute::Numlinks])]).await;
            let values = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr);
            values.decode_values().unwrap().numlinks
        };
        assert_eq!(links(&s, &c, &root).await, Some(3));
        // Another server without a state directory has the same handles.
        let open = Server::start(config(&["/mine=memory:1M", "/theirs/deep=memory:1M"])).unwrap();
        let o = Caller::connect(&open, Proto::Tcp).await;
        let of_open = Session::new(&o, b"client").await;
        let (same, theirs) =
            (of_open.path(&o, "/").await.unwrap(), of_open.path(&o, "/theirs").await.unwrap());
        assert_eq!((links(&of_open, &o, &same).await, links(&s, &c, &same).await), (Some(4), Some(3)));
        assert_eq!(s.status(&c, [putfh(&theirs), getattr(&[Attribute::Fileid])]).await, Status::Stale);
        open.stop(Duration::ZERO).await;
        server.stop(Duration::ZERO).await;
    });
}

#[test]
fn a_reload_changes_the_tree_and_keeps_handles() {
    run(async {
        let mut server = Server::start(config(&["/a/b=memory:1M", "/c=memory:1M"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let (root, a, b) = (
            s.path(&c, "/").await.unwrap(),
            s.path(&c, "/a").await.unwrap(),
            s.path(&c, "/a/b").await.unwrap(),
        );
        let old_c = s.path(&c, "/c").await.unwrap();
        let change = async |handle: &[u8]| {
            let results = s.send(&c, [putfh(handle), getattr(&[Attribute::Change])]).await;
            results
                .skip(&[Operation::Putfh])
                .take::<Fattr<'_>>(Operation::Getattr)
                .decode_values()
                .unwrap()
                .change
        };
        let before = change(&root).await;
        server.reload(&config(&["/a/b=memory:1M", "/a/new=memory:1M"])).unwrap();
        assert_ne!(change(&root).await, before);
        assert_eq!(names(&c, &s, &root).await, ["a"]);
        assert_eq!(names(&c, &s, &a).await, ["b", "new"]);
        assert_eq!(s.path(&c, "/a/b").await.unwrap(), b);
        assert_eq!(s.status(&c, [putfh(&old_c), getattr(&[Attribute::Change])]).await, Status::Stale);
        server.reload(&config(&["/z=memory:1M"])).unwrap();
        assert_eq!(s.status(&c, [putfh(&a)]).await, Status::Stale);
        server.stop(Duration::ZERO).await;
    });
}
