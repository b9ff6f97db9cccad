//! The memory that outlives a call: replies that slots and the duplicate request cache keep.

use millrace_nfs::{v3, v4::*};
use millrace_nfs4_conformance::operations::{
    close, link, mkdir, open_with, remove, rename, savefh, setattr, size, write,
};
use millrace_server::{Running, Server};

use crate::{
    common::{Caller, Proto, at, config, run},
    compound::*,
};

/// Clients, and files: each request is sent by each client for another file.
const CLIENTS: u8 = 24;
/// Memory of connections and file systems that changes between two calls.
const SLACK: u64 = 512 << 10;
const ANONYMOUS: Stateid = Stateid::ANONYMOUS;

/// Bytes of the arena in use, without those that are charged to exports, and bytes of kept replies.
fn memory(server: &Running) -> (u64, u64) {
    let stats = server.stats();
    let in_use = stats.memory.in_use - stats.memory.stored;
    (in_use as u64, stats.nfs4_replies_kept_bytes + stats.replies_kept_bytes)
}

/// The requests of NFSv4 on the file `f` and the name `g` in a directory, with long results and short ones.
fn requests(c: &Caller, dir: &[u8], f: &str, g: &str) -> Vec<(&'static str, Vec<Op>)> {
    let on_dir = |ops: Vec<Op>| std::iter::once(putfh(dir)).chain(ops).collect::<Vec<_>>();
    let on_file = |ops: Vec<Op>| on_dir(std::iter::once(lookup(f)).chain(ops).collect());
    let readdir = |maxcount| {
        let requested =
            Bitmap::of(&[Attribute::Mode, Attribute::Size, Attribute::TimeModify, Attribute::Filehandle]);
        let args = ReaddirArgs { cookie: 0, verifier: [0; 8], dircount: 0, maxcount, requested };
        op(Operation::Readdir, args)
    };
    let owned = |name: &str| Opaque(name.to_owned().leak().as_bytes());
    let value: &'static [u8] = &[7; 30_000];
    let xattr = |value| {
        let args = SetxattrArgs { option: SetxattrOption::Either, name: Opaque(b"a"), value: Opaque(value) };
        op(Operation::Setxattr, args)
    };
    let open =
        |name: &str| open_with(b"o", (3, 0), Some(CreateHow::Unchecked(size(0))), Claim::Null(owned(name)));
    vec![
        ("OPEN", on_dir(vec![open(f), close(Stateid::CURRENT)])),
        ("WRITE", on_file(vec![write(c, ANONYMOUS, 0, &[7; 3000])])),
        ("READ", on_file(vec![read(ANONYMOUS, 0, 3000)])),
        ("SETXATTR", on_file(vec![xattr(value)])),
        ("GETXATTR", on_file(vec![named(Operation::Getxattr, "a")])),
        (
            "LISTXATTRS",
            on_file(vec![op(Operation::Listxattrs, ListxattrsArgs { cookie: 0, maxcount: 1 << 20 })]),
        ),
        ("SETATTR", on_file(vec![setattr(ANONYMOUS, size(1))])),
        ("CREATE", on_dir(vec![mkdir(g), getfh()])),
        ("READDIR of many names", on_dir(vec![readdir(1 << 20)])),
        ("READDIR of some names", on_dir(vec![readdir(4096)])),
        ("LINK", on_dir(vec![savefh(), lookup(f), savefh(), putfh(dir), link(&format!("{f} link"))])),
        ("RENAME", on_dir(vec![savefh(), rename(g, &format!("{g} renamed"))])),
        ("REMOVE", on_dir(vec![remove(&format!("{g} renamed"))])),
        (
            "LOCKT and the attributes",
            on_file(vec![getattr(&[Attribute::Size, Attribute::FsLocations]), getfh()]),
        ),
    ]
}

#[test]
fn kept_replies_occupy_the_memory_that_is_charged() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let server = Server::start(config(&["/x=memory:64MiB,squash=none"])).unwrap();
            let c = Caller::connect(&server, proto).await;
            let mut sessions = Vec::new();
            for n in 0..CLIENTS {
                sessions.push(Session::new(&c, vec![n].leak()).await);
            }
            let dir = sessions[0].path(&c, "/x").await.unwrap();
            for n in 0..1500 {
                c.create(v3::FileHandle::new(&dir).unwrap(), &format!("a name of some length {n}")).await;
            }
            let (mut before, _) = memory(&server);
            let names = |n| (format!("f{n}"), format!("g{n}"));
            let count = requests(&c, &dir, "", "").len();
            for nth in 0..count {
                let (_, kept_before) = memory(&server);
                let mut case = "";
                for (n, s) in sessions.iter().enumerate() {
                    let (f, g) = names(n);
                    let (name, ops) = requests(&c, &dir, &f, &g).swap_remove(nth);
                    let ops: Vec<_> = std::iter::once(sequence(s.sequence(true))).chain(ops).collect();
                    let results = send(&c, 2, &ops).await;
                    let fails = [Status::Ok, Status::RepTooBigToCache];
                    assert!(fails.contains(&results.status), "{name}: {:?}", results.status);
                    case = name;
                }
                let (in_use, kept) = memory(&server);
                let (grown, charged) = (in_use.saturating_sub(before), kept.saturating_sub(kept_before));
                assert!(
                    grown <= charged + SLACK,
                    "{case}: {grown} bytes remain in use, {charged} of kept replies"
                );
                assert!(charged <= u64::from(CLIENTS) * 4096, "{case}: {charged} bytes");
                before = before.max(in_use);
            }
        });
    }
}

#[test]
fn replies_to_nfs3_calls_occupy_the_memory_that_is_charged() {
    run(async {
        let server = Server::start(config(&["/x=memory:64MiB,squash=none"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let root = c.mount("/x").await.unwrap();
        let (before, _) = memory(&server);
        for n in 0..200 {
            let (f, g) = (format!("f{n}"), format!("g{n}"));
            let file = c.create(root, &f).await;
            c.write(file, 0, b"data", v3::StableHow::Unstable).await.unwrap();
            let args = v3::LinkArgs { file, link: at(root, &g) };
            let _: v3::Res<v3::LinkOk, v3::LinkFail> = c.nfs(v3::Procedure::Link, &args).await;
            let args = v3::RenameArgs { from: at(root, &g), to: at(root, "h") };
            let _: v3::Res<v3::RenameOk, v3::RenameFail> = c.nfs(v3::Procedure::Rename, &args).await;
            let args = v3::RemoveArgs { object: at(root, &f) };
            let _: v3::Res<v3::WccData, v3::WccData> = c.nfs(v3::Procedure::Remove, &args).await;
        }
        let (in_use, kept) = memory(&server);
        let grown = in_use.saturating_sub(before);
        assert!(
            kept >= 800 * 128 && grown <= kept + SLACK,
            "{grown} bytes remain in use, {kept} of kept replies"
        );
    });
}
