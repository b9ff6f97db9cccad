//! Opens, data and names.

use millrace_nfs::v4::*;
use millrace_nfs4_conformance::operations::open_with;

pub(crate) use millrace_nfs4_conformance::operations::{opened, write};
use millrace_server::Server;

use super::compound::*;
use crate::common::{Caller, Proto, config, run, sys};

/// Runs `test` over both transports on both backends, with a session and the handle of the export `/x`.
pub(crate) fn everywhere(test: impl AsyncFn(&Caller, &Session, &[u8])) {
    let dir = tempfile::tempdir().unwrap();
    for (n, proto) in [Proto::Tcp, Proto::Rdma].into_iter().enumerate() {
        let path = dir.path().join(n.to_string());
        std::fs::create_dir(&path).unwrap();
        for export in
            ["/x=memory:64MiB,squash=none".to_owned(), format!("/x=local:{},squash=none", path.display())]
        {
            run(async {
                let server = Server::start(config(&[&export])).unwrap();
                let c = Caller::connect(&server, proto).await;
                let s = Session::new(&c, b"client").await;
                let root = s.path(&c, "/x").await.unwrap();
                eprintln!("{proto:?} {export}");
                test(&c, &s, &root).await;
            });
        }
    }
}

#[test]
fn written_data_is_read_back() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        // Different lengths of data shift the operation after it across the boundaries of the server's buffers.
        for len in [
            0,
            1,
            5,
            4096,
            65_000,
            65_300,
            65_304,
            65_308,
            65_312,
            65_316,
            65_320,
            65_324,
            65_328,
            65_332,
            65_336,
            65_340,
            65_344,
            65_348,
            65_352,
            65_356,
            65_360,
            65_400,
            131_000,
            1 << 20,
        ] {
            let data: Vec<u8> = (0..len).map(|i: usize| (i * 7 % 251) as u8).collect();
            let ops =
                [putfh(&file), write(c, stateid, 0, &data), getattr(&[Attribute::Size, Attribute::Change])];
            let results = s.send(c, ops).await;
            assert_eq!(results.status, Status::Ok, "{len}");
            results.skip(&[Operation::Putfh]);
            let written: WriteOk = results.take(Operation::Write);
            assert_eq!(written.count as usize, len);
            let values = results.take::<Fattr<'_>>(Operation::Getattr).decode_values().unwrap();
            assert!(values.size.unwrap() >= len as u64);
            let results = s
                .send_for_data(c, [putfh(&file), op(Operation::Savefh, ()), read(stateid, 0, len as u32)])
                .await;
            let (back, _) = results.skip(&[Operation::Putfh, Operation::Savefh]).read();
            assert!(back == data, "{len}");
        }
        let commit = op(Operation::Commit, CommitArgs { offset: 0, count: 0 });
        let close = |stateid| op(Operation::Close, CloseArgs { seqid: 0, stateid });
        assert_eq!(s.status(c, [putfh(&file), commit, close(stateid)]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(&file), close(stateid)]).await, Status::BadStateid);
        assert_eq!(s.status(c, [putfh(&file), read(stateid, 0, 9)]).await, Status::BadStateid);
        assert_eq!(s.status(c, [putfh(&file), write(c, stateid, 0, b"late")]).await, Status::BadStateid);
    });
}

#[test]
fn opens_follow_their_access_and_exclude_others() {
    everywhere(async |c, s, root| {
        let (reader, file) = opened(c, s, root, open(b"o", "f", 1, 0, true)).await.unwrap();
        assert_eq!(s.status(c, [putfh(&file), write(c, reader, 0, b"x")]).await, Status::OpenMode);
        let (both, _) = opened(c, s, root, open(b"o", "f", 2, 0, false)).await.unwrap();
        assert_eq!((both.other, both.seqid), (reader.other, 2), "the same owner upgrades its open");
        assert_eq!(s.status(c, [putfh(&file), write(c, both, 0, b"x")]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(&file), write(c, reader, 0, b"x")]).await, Status::OldStateid);
        let other = Session::new(c, b"another client").await;
        assert_eq!(opened(c, &other, root, open(b"o", "f", 1, 2, false)).await, Err(Status::ShareDenied));
        assert_eq!(other.status(c, [putfh(&file), write(c, both, 0, b"x")]).await, Status::BadStateid);
        let downgrade = OpenDowngradeArgs { stateid: both, seqid: 0, share_access: 1, share_deny: 0 };
        assert_eq!(s.status(c, [putfh(&file), op(Operation::OpenDowngrade, downgrade)]).await, Status::Ok);
        assert!(opened(c, &other, root, open(b"o", "f", 1, 2, false)).await.is_ok());
        assert_eq!(s.status(c, [putfh(&file), write(c, Stateid::ANONYMOUS, 0, b"x")]).await, Status::Locked);
        for (access, deny) in [(0, 0), (4, 0), (1, 4)] {
            assert_eq!(opened(c, s, root, open(b"o", "f", access, deny, false)).await, Err(Status::Inval));
        }
        let tested = op(
            Operation::TestStateid,
            TestStateidArgs { stateids: List(vec![reader, Stateid { other: [9; 12], seqid: 1 }]) },
        );
        let results = s.send(c, [tested]).await;
        let ok: TestStateidOk = results.take(Operation::TestStateid);
        assert_eq!(ok.statuses.0, [Status::OldStateid, Status::BadStateid]);
    });
}

#[test]
fn locks_of_other_owners_conflict() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let owner = |owner| StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(owner) };
        let test = |who, offset| {
            let args = LocktArgs { lock_type: LockType::Write, offset, length: 10, owner: owner(who) };
            op(Operation::Lockt, args)
        };
        let lock = LockArgs {
            lock_type: LockType::Write,
            reclaim: false,
            offset: 100,
            length: 50,
            locker: Locker::New { open_seqid: 0, open_stateid: stateid, lock_seqid: 0, owner: owner(b"a") },
        };
        let results = s.send(c, [putfh(&file), op(Operation::Lock, lock)]).await;
        let locked: StateidOk = results.skip(&[Operation::Putfh]).take(Operation::Lock);
        assert_eq!(s.status(c, [putfh(&file), test(b"a", 100)]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(&file), test(b"b", 150)]).await, Status::Ok);
        let denied = s.send(c, [putfh(&file), test(b"b", 149)]).await;
        assert_eq!(denied.skip(&[Operation::Putfh]).next(), (Operation::Lockt.number(), Status::Denied));
        let words: Vec<u32> =
            denied.bytes().chunks(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words[words.len() - 9..][..5], [0, 100, 0, 50, LockType::Write.number()]);
        let unlock = LockuArgs {
            lock_type: LockType::Write,
            seqid: 0,
            stateid: locked.stateid,
            offset: 0,
            length: u64::MAX,
        };
        assert_eq!(s.status(c, [putfh(&file), op(Operation::Locku, unlock)]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(&file), test(b"b", 149)]).await, Status::Ok);
    });
}

#[test]
fn an_open_needs_a_file_and_rights() {
    everywhere(async |c, s, root| {
        let make = |name: &'static str, what| -> Op {
            let args = move |e: &mut millrace_xdr::Encoder| {
                e.put(&Operation::Create);
                e.put(&CreateArgs {
                    what: CreateType::clone(&what),
                    name: Opaque(name.as_bytes()),
                    attributes: Attributes::default(),
                });
            };
            Box::new(args)
        };
        assert_eq!(s.status(c, [putfh(root), make("d", CreateType::Directory)]).await, Status::Ok);
        let target = millrace_xdr::Views::from(c.arena.copy_from(b"nowhere").unwrap());
        assert_eq!(s.status(c, [putfh(root), make("l", CreateType::Symlink(target))]).await, Status::Ok);
        assert_eq!(
            s.status(c, [putfh(root), make("r", CreateType::Other(FileType::Regular))]).await,
            Status::BadType
        );
        assert_eq!(opened(c, s, root, open(b"o", "d", 1, 0, false)).await, Err(Status::IsDir));
        assert_eq!(opened(c, s, root, open(b"o", "l", 1, 0, false)).await, Err(Status::Symlink));
        assert_eq!(opened(c, s, root, open(b"o", "absent", 1, 0, false)).await, Err(Status::NoEnt));
        let results = s.send_for_data(c, [putfh(root), lookup("l"), op(Operation::Readlink, ())]).await;
        results.skip(&[Operation::Putfh, Operation::Lookup]);
        assert_eq!(results.take::<ReadlinkOk>(Operation::Readlink).target.to_vec(), b"nowhere");
        assert_eq!(s.status(c, [putfh(root), lookup("l"), lookup("x")]).await, Status::Symlink);
        let mode = Attributes { mode: Some(0o600), ..Attributes::default() };
        let (stateid, file) = opened(c, s, root, open(b"o", "private", 3, 0, true)).await.unwrap();
        let set = op(Operation::Setattr, SetattrArgs { stateid, attributes: mode });
        assert_eq!(s.status(c, [putfh(&file), set]).await, Status::Ok);
        let stranger = c.with(sys(1234, 1234));
        assert_eq!(opened(&stranger, s, root, open(b"o", "private", 1, 0, false)).await, Err(Status::Access));
    });
}

#[test]
fn names_change() {
    everywhere(async |c, s, root| {
        let (_, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let link = |name| named(Operation::Link, name);
        let save = || op(Operation::Savefh, ());
        assert_eq!(s.status(c, [putfh(&file), save(), putfh(root), link("g")]).await, Status::Ok);
        let rename = |from: &'static str, to: &'static str| -> Op {
            Box::new(move |e| {
                e.put(&Operation::Rename);
                e.put(&RenameArgs { from: Opaque(from.as_bytes()), to: Opaque(to.as_bytes()) });
            })
        };
        let results = s.send(c, [putfh(root), save(), rename("g", "h")]).await;
        results.skip(&[Operation::Putfh, Operation::Savefh]);
        let ok: RenameOk = results.take(Operation::Rename);
        assert!(ok.from.after != ok.from.before);
        assert_eq!(s.path(c, "/x/h").await, Ok(file));
        assert_eq!(s.path(c, "/x/g").await, Err(Status::NoEnt));
        for name in ["f", "h"] {
            assert_eq!(s.status(c, [putfh(root), named(Operation::Remove, name)]).await, Status::Ok);
        }
        assert_eq!(s.status(c, [putfh(root), named(Operation::Remove, "h")]).await, Status::NoEnt);
    });
}

#[test]
fn attributes_are_verified_and_only_supported_ones_are_set() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let size = |size| Attributes { size: Some(size), ..Attributes::default() };
        let verify = |operation, n| op(operation, size(n));
        assert_eq!(s.status(c, [putfh(&file), verify(Operation::Verify, 0)]).await, Status::Ok);
        assert_eq!(s.status(c, [putfh(&file), verify(Operation::Verify, 1)]).await, Status::NotSame);
        assert_eq!(s.status(c, [putfh(&file), verify(Operation::Nverify, 0)]).await, Status::Same);
        let set = |attributes| op(Operation::Setattr, SetattrArgs { stateid, attributes });
        assert_eq!(s.status(c, [putfh(&file), set(size(100))]).await, Status::Ok);
        let read_only = Attributes { fileid: Some(1), ..Attributes::default() };
        assert_eq!(s.status(c, [putfh(&file), set(read_only)]).await, Status::Inval);
        let unsupported = Attributes { space_freed: Some(1), ..Attributes::default() };
        assert_eq!(s.status(c, [putfh(&file), set(unsupported)]).await, Status::AttrNotSupp);
        let named = Attributes { owner: Some(Owner::Name(b"root@localdomain")), ..Attributes::default() };
        assert_eq!(s.status(c, [putfh(&file), set(named)]).await, Status::BadOwner);
        let results = s.send(c, [putfh(&file), getattr(&[Attribute::Size, Attribute::Owner])]).await;
        let values = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr);
        let values = values.decode_values().unwrap();
        assert_eq!((values.size, values.owner), (Some(100), Some(Owner::Id(0))));
    });
}

/// OPEN with GUARDED and EXCLUSIVE4_1, and CREATE of a directory, with a mode of 0666 or 0777 and a umask of 022. Returns the
/// modes.
async fn modes_with_umask(c: &Caller, s: &Session, dir: &[u8]) -> Vec<u32> {
    let with =
        |mode| Attributes { mode_umask: Some(ModeUmask { mode, umask: 0o22 }), ..Attributes::default() };
    let open =
        |how, name: &'static str| open_with(b"o", (1, 0), Some(how), Claim::Null(Opaque(name.as_bytes())));
    let what = CreateType::Directory;
    let creations = [
        open(CreateHow::Guarded(with(0o666)), "guarded"),
        open(CreateHow::Unchecked(with(0o666)), "unchecked"),
        open(CreateHow::Exclusive41([1; 8], with(0o666)), "exclusive"),
        op(Operation::Create, CreateArgs { what, name: Opaque(b"dir"), attributes: with(0o777) }),
    ];
    let mut modes = Vec::new();
    for creation in creations {
        let ops = [putfh(dir), creation, op(Operation::Savefh, ())];
        assert_eq!(s.status(c, ops).await, Status::Ok);
    }
    for name in ["guarded", "unchecked", "exclusive", "dir"] {
        let results = s.send(c, [putfh(dir), lookup(name), getattr(&[Attribute::Mode])]).await;
        results.skip(&[Operation::Putfh, Operation::Lookup]);
        modes.extend(results.take::<Fattr<'_>>(Operation::Getattr).decode_values().unwrap().mode);
    }
    modes
}

#[test]
fn the_umask_of_a_client_applies_without_a_default_acl() {
    everywhere(async |c, s, root| {
        assert_eq!(modes_with_umask(c, s, root).await, [0o644, 0o644, 0o644, 0o755]);
    });
    // u::rwx, g::rwx, o::r-x
    let acl =
        [&[2, 0, 0, 0][..], &[1, 0, 7, 0], &[0xff; 4], &[4, 0, 7, 0], &[0xff; 4], &[32, 0, 5, 0], &[0xff; 4]];
    let dir = tempfile::tempdir().unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(dir.path(), c"system.posix_acl_default", &acl.concat(), flags).is_err() {
        return eprintln!("the file system has no ACLs");
    }
    run(async {
        let export = format!("/x=local:{},squash=none", dir.path().display());
        let server = Server::start(config(&[&export])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let root = s.path(&c, "/x").await.unwrap();
        assert_eq!(modes_with_umask(&c, &s, &root).await, [0o664, 0o664, 0o664, 0o775]);
    });
}

#[test]
fn setattr_rejects_mode_umask() {
    everywhere(async |c, s, root| {
        let (stateid, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        for mode in [None, Some(0o600)] {
            let mode_umask = Some(ModeUmask { mode: 0o666, umask: 0o22 });
            let attributes = Attributes { mode, mode_umask, ..Attributes::default() };
            let setattr = op(Operation::Setattr, SetattrArgs { stateid, attributes });
            assert_eq!(s.last(c, 2, &file, setattr).await, (34, Status::Inval));
        }
    });
}

#[test]
fn the_type_of_the_change_attribute_depends_on_the_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let local = format!("/x=local:{},squash=none", dir.path().display());
    for (export, expected) in [
        ("/x=memory:8MiB,squash=none", ChangeAttrType::VersionCounter),
        (&local, ChangeAttrType::TimeMetadata),
    ] {
        run(async {
            let server = Server::start(config(&[export])).unwrap();
            let c = Caller::connect(&server, Proto::Tcp).await;
            let s = Session::new(&c, b"client").await;
            let root = s.path(&c, "/x").await.unwrap();
            let results = s.send(&c, [putfh(&root), getattr(&[Attribute::ChangeAttrType])]).await;
            let values = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr);
            assert_eq!(values.decode_values().unwrap().change_attr_type, Some(expected));
        });
    }
}
