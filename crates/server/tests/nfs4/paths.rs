//! The pseudo file system and exports in it.

use std::time::Duration;

use millrace_nfs::v4::*;
use millrace_oncrpc::Credential;
use millrace_server::Server;

use crate::{
    common::{Caller, Proto, config, run},
    compound::*,
};

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
