//! Extended attributes (RFC 8276).

use std::collections::BTreeMap;

use millrace_nfs::v4::*;
use millrace_nfs4_conformance::operations::setattr;
use millrace_server::Server;

use super::{
    compound::*,
    files::{everywhere, opened},
};
use crate::common::{Caller, Proto, config, run, sys};

fn name(operation: Operation, name: &str) -> Op {
    named(operation, name)
}

fn set(option: SetxattrOption, name: &str, value: &[u8]) -> Op {
    let (name, value) = (name.to_owned(), value.to_vec());
    Box::new(move |e| {
        e.put(&Operation::Setxattr);
        e.put(&SetxattrArgs { option, name: Opaque(name.as_bytes()), value: Opaque(&value) });
    })
}

async fn get(c: &Caller, s: &Session, file: &[u8], of: &str) -> Result<Vec<u8>, Status> {
    let results = s.send(c, [putfh(file), name(Operation::Getxattr, of)]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    Ok(results.skip(&[Operation::Putfh]).take::<GetxattrOk<'_>>(Operation::Getxattr).value.to_vec())
}

/// All names, in pages of `maxcount` bytes.
async fn list(c: &Caller, s: &Session, file: &[u8], maxcount: u32) -> Result<Vec<String>, Status> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = op(Operation::Listxattrs, ListxattrsArgs { cookie, maxcount });
        let results = s.send(c, [putfh(file), page]).await;
        if results.status != Status::Ok {
            return Err(results.status);
        }
        let ok: ListxattrsOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Listxattrs);
        names.extend(ok.names.0.iter().map(|name| String::from_utf8(name.to_vec()).unwrap()));
        if ok.eof {
            names.sort();
            return Ok(names);
        }
        assert_ne!(ok.cookie, cookie);
        cookie = ok.cookie;
    }
}

#[test]
fn xattrs_are_set_read_listed_and_removed() {
    everywhere(async |c, s, root| {
        let (_, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        for object in [&file, root] {
            let mut model = BTreeMap::new();
            for n in 0..40 {
                let (key, value) = (format!("name.{n}"), vec![n; n as usize * 2]);
                let set = set(SetxattrOption::Either, &key, &value);
                assert_eq!(s.status(c, [putfh(object), set]).await, Status::Ok, "{n}");
                model.insert(key, value);
            }
            for n in (0..40).step_by(3) {
                let key = format!("name.{n}");
                assert_eq!(
                    s.status(c, [putfh(object), name(Operation::Removexattr, &key)]).await,
                    Status::Ok
                );
                let again = s.status(c, [putfh(object), name(Operation::Removexattr, &key)]).await;
                assert_eq!(again, Status::NoXattr);
                model.remove(&key);
                assert_eq!(get(c, s, object, &key).await, Err(Status::NoXattr));
            }
            for (key, value) in &model {
                assert_eq!(get(c, s, object, key).await.as_ref(), Ok(value), "{key}");
            }
            let names: Vec<_> = model.into_keys().collect();
            for maxcount in [28, 60, 200, 65536] {
                assert_eq!(list(c, s, object, maxcount).await.as_ref(), Ok(&names), "{maxcount}");
            }
            assert_eq!(list(c, s, object, 16).await, Err(Status::TooSmall));
        }
    });
}

#[test]
fn long_values_pass_or_are_too_big() {
    everywhere(async |c, s, root| {
        let (_, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        // Longer than inline messages over RDMA. Few local file systems store 64 KiB.
        for len in [0, 1, 1000, 3000, 64 << 10] {
            let value: Vec<u8> = (0..len).map(|i: usize| (i * 7 % 251) as u8).collect();
            match s.status(c, [putfh(&file), set(SetxattrOption::Either, "a", &value)]).await {
                Status::Ok => assert!(get(c, s, &file, "a").await.unwrap() == value, "{len}"),
                status => assert!(
                    len > 3000 && matches!(status, Status::NoSpc | Status::Xattr2Big),
                    "{len} {status:?}"
                ),
            }
        }
        let value = vec![1; (64 << 10) + 1];
        let status = s.status(c, [putfh(&file), set(SetxattrOption::Either, "b", &value)]).await;
        assert_eq!(status, Status::Xattr2Big);
    });
}

#[test]
fn memory_stores_the_longest_values_of_linux() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let server = Server::start(config(&["/x=memory:8MiB,squash=none"])).unwrap();
            let c = Caller::connect(&server, proto).await;
            let s = Session::new(&c, b"client").await;
            let root = s.path(&c, "/x").await.unwrap();
            let value: Vec<u8> = (0..64 << 10).map(|i: usize| (i * 7 % 251) as u8).collect();
            let ops = [putfh(&root), set(SetxattrOption::Either, "a", &value), getattr(&[Attribute::Change])];
            assert_eq!(s.status(&c, ops).await, Status::Ok);
            assert!(get(&c, &s, &root, "a").await.unwrap() == value);
            for longer in [(64 << 10) + 1, 100_000, 300_000] {
                let ops = [putfh(&root), set(SetxattrOption::Either, "a", &vec![7; longer])];
                assert_eq!(s.status(&c, ops).await, Status::Xattr2Big, "{longer} bytes");
            }
        });
    }
}

#[test]
fn errors_of_xattrs_conform() {
    everywhere(async |c, s, root| {
        let (_, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let status = async |on: Op| s.status(c, [putfh(&file), on]).await;
        assert_eq!(status(set(SetxattrOption::Replace, "a", b"1")).await, Status::NoXattr);
        assert_eq!(status(set(SetxattrOption::Create, "a", b"1")).await, Status::Ok);
        assert_eq!(status(set(SetxattrOption::Create, "a", b"2")).await, Status::Exist);
        assert_eq!(status(set(SetxattrOption::Either, "", b"2")).await, Status::Inval);
        assert_eq!(status(set(SetxattrOption::Either, &"n".repeat(300), b"2")).await, Status::NameTooLong);
        assert_eq!(status(raw(&[73, 3, 0, 0])).await, Status::BadXdr);
        assert_eq!(s.status(c, [name(Operation::Getxattr, "a")]).await, Status::NoFileHandle);
        assert_eq!(s.status(c, [putrootfh(), name(Operation::Getxattr, "a")]).await, Status::NotSupp);
        let illegal = s.last(c, 1, &file, name(Operation::Getxattr, "a")).await;
        assert_eq!(illegal, (10044, Status::OpIllegal));
        let other = c.with(sys(7, 7));
        assert_eq!(
            s.status(&other, [putfh(&file), set(SetxattrOption::Either, "a", b"3")]).await,
            Status::Access
        );
        assert_eq!(get(c, s, &file, "a").await, Ok(b"1".to_vec()));
    });
}

#[test]
fn a_change_of_an_xattr_is_a_change_of_the_file() {
    everywhere(async |c, s, root| {
        let (_, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let change = async || {
            let results = s.send(c, [putfh(&file), getattr(&[Attribute::Change])]).await;
            let values = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr);
            values.decode_values().unwrap().change.unwrap()
        };
        let changes = [
            set(SetxattrOption::Either, "a", b"1"),
            set(SetxattrOption::Either, "a", b"2"),
            name(Operation::Removexattr, "a"),
        ];
        for (on, operation) in
            changes.into_iter().zip([Operation::Setxattr, Operation::Setxattr, Operation::Removexattr])
        {
            // The times of local files advance with the kernel's tick.
            tokio::time::sleep(std::time::Duration::from_millis(12)).await;
            let before = change().await;
            let results = s.send(c, [putfh(&file), on]).await;
            let info: ChangeInfo = results.skip(&[Operation::Putfh]).take(operation);
            let after = change().await;
            assert!(after > before);
            assert_eq!(info.after, after);
            assert!(!info.atomic || info.before == before);
        }
    });
}

#[test]
fn rights_to_xattrs_follow_the_mode() {
    const XATTRS: u32 = access::XATTR_READ | access::XATTR_WRITE | access::XATTR_LIST;
    everywhere(async |c, s, root| {
        let (_, file) = opened(c, s, root, open(b"o", "f", 3, 0, true)).await.unwrap();
        let access = |wanted| op(Operation::Access, AccessArgs { access: wanted });
        let rights = async |c: &Caller, wanted| {
            let results = s.send(c, [putfh(&file), access(wanted)]).await;
            let ok: AccessOk = results.skip(&[Operation::Putfh]).take(Operation::Access);
            (ok.supported, ok.access)
        };
        let mode = Attributes { mode: Some(0o644), ..Attributes::default() };
        assert_eq!(s.status(c, [putfh(&file), setattr(Stateid::ANONYMOUS, mode)]).await, Status::Ok);
        assert_eq!(rights(c, XATTRS).await, (XATTRS, XATTRS));
        let all = XATTRS | access::READ | access::MODIFY;
        assert_eq!(rights(c, all).await, (all, all));
        assert_eq!(
            s.last(c, 1, &file, access(all)).await.1,
            Status::Inval,
            "minor version 1 has no such rights"
        );
        let other = c.with(sys(7, 7));
        let readable = access::XATTR_READ | access::XATTR_LIST;
        assert_eq!(rights(&other, XATTRS).await, (XATTRS, readable), "the mode is 0644");
        let results = s.send(c, [putfh(&file), getattr(&[Attribute::XattrSupport])]).await;
        let values = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr);
        assert_eq!(values.decode_values().unwrap().xattr_support, Some(true));
    });
}

#[test]
fn xattrs_of_a_read_only_export_are_not_changed() {
    run(async {
        let server = Server::start(config(&["/x=memory:8MiB,squash=none,client=*(ro)"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let root = s.path(&c, "/x").await.unwrap();
        let set = set(SetxattrOption::Either, "a", b"1");
        assert_eq!(s.status(&c, [putfh(&root), set]).await, Status::RoFs);
        assert_eq!(s.status(&c, [putfh(&root), name(Operation::Removexattr, "a")]).await, Status::RoFs);
        assert_eq!(list(&c, &s, &root, 1000).await, Ok(vec![]));
    });
}
