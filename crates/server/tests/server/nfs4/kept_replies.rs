//! The memory that outlives a call: replies that slots and the duplicate request cache keep.

use millrace_nfs::{v3, v4::*};
use millrace_nfs4_conformance::operations::{
    access, close, commit, downgrade, link, lock, lockt, locku, lookupp, mkdir, open_with, readlink, remove,
    rename, restorefh, savefh, setattr, size, symlink, write,
};
use millrace_server::{Running, Server};

use super::{
    compound::*,
    conflicts::{clone_all, copy_all},
};
use crate::common::{Caller, Proto, at, config, run};

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

/// A request: the operations whose memory it tests, and all operations. It succeeds unless `fails`.
struct Case {
    tested: &'static [Operation],
    ops: Vec<Op>,
    fails: bool,
}

/// The requests of NFSv4 on the file `f` and the name `g` in a directory, with long results and short ones: every operation
/// is among those that are tested.
fn requests(c: &Caller, dir: &[u8], f: &str, g: &str) -> Vec<Case> {
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
    let (now, range) = (Stateid::CURRENT, AllocateArgs { stateid: ANONYMOUS, offset: 0, length: 4096 });
    let onto_copy = |copy| {
        let target = format!("{f} copy");
        on_dir(vec![lookup(f), savefh(), putfh(dir), open(&target), copy, close(now)])
    };
    let listed = ListxattrsArgs { cookie: 0, maxcount: 1 << 20 };
    let locked = vec![
        open(f),
        savefh(),
        lock(now, b"l", LockType::Write, (0, 9)),
        locku(now, (0, 9)),
        restorefh(),
        close(now),
    ];
    let long = ReadPlusArgs { stateid: ANONYMOUS, offset: 0, count: 3000 };
    let hole = SeekArgs { stateid: ANONYMOUS, offset: 0, what: ContentType::Hole };
    let advice = IoAdviseArgs { stateid: ANONYMOUS, offset: 0, length: 9, hints: Bitmap::EMPTY };
    let style = SecinfoNoNameArgs { style: SecinfoStyle::CurrentFh };
    let stateids = TestStateidArgs { stateids: List(vec![ANONYMOUS; 100]) };
    let done: Vec<(&[Operation], Vec<Op>)> = vec![
        (&[Operation::Open, Operation::Close, Operation::Putfh], on_dir(vec![open(f), close(now)])),
        (&[Operation::Write], on_file(vec![write(c, ANONYMOUS, 0, &[7; 3000])])),
        (&[Operation::Commit], on_file(vec![commit(0, 0)])),
        (&[Operation::Read], on_file(vec![read(ANONYMOUS, 0, 3000)])),
        (&[Operation::Access], on_file(vec![access(63)])),
        (&[Operation::Setxattr], on_file(vec![xattr(value)])),
        (&[Operation::Getxattr], on_file(vec![named(Operation::Getxattr, "a")])),
        (&[Operation::Listxattrs], on_file(vec![op(Operation::Listxattrs, listed)])),
        (&[Operation::Removexattr], on_file(vec![named(Operation::Removexattr, "a")])),
        (&[Operation::Allocate], on_file(vec![op(Operation::Allocate, range)])),
        (&[Operation::Deallocate], on_file(vec![op(Operation::Deallocate, range)])),
        (&[Operation::Seek], on_file(vec![op(Operation::Seek, hole)])),
        (&[Operation::IoAdvise], on_file(vec![op(Operation::IoAdvise, advice)])),
        (&[Operation::Copy], onto_copy(copy_all())),
        (&[Operation::Clone], onto_copy(clone_all())),
        (&[Operation::Setattr], on_file(vec![setattr(ANONYMOUS, size(1))])),
        (&[Operation::Verify], on_file(vec![op(Operation::Verify, size(1))])),
        (&[Operation::Nverify], on_file(vec![op(Operation::Nverify, size(2))])),
        (&[Operation::Lock, Operation::Locku, Operation::RestoreFh], on_dir(locked)),
        (&[Operation::Lockt], on_file(vec![lockt(b"l", LockType::Write, (0, 9))])),
        (&[Operation::OpenDowngrade], on_dir(vec![open(f), downgrade(now, 3, 0), close(now)])),
        (&[Operation::Create], on_dir(vec![mkdir(g), getfh()])),
        (&[Operation::Lookup, Operation::Lookupp], on_dir(vec![lookup(g), lookupp(), getfh()])),
        (&[Operation::Readdir], on_dir(vec![readdir(1 << 20)])),
        (&[Operation::Readdir], on_dir(vec![readdir(4096)])),
        (&[Operation::Link], on_dir(vec![lookup(f), savefh(), putfh(dir), link(&format!("{f} link"))])),
        (&[Operation::Rename, Operation::Savefh], on_dir(vec![savefh(), rename(g, &format!("{g} renamed"))])),
        (&[Operation::Remove], on_dir(vec![remove(&format!("{g} renamed"))])),
        (
            &[Operation::Getattr, Operation::Getfh],
            on_file(vec![getattr(&[Attribute::Size, Attribute::FsLocations]), getfh()]),
        ),
        (&[Operation::Putrootfh], vec![putrootfh(), getfh()]),
        (&[Operation::Putpubfh], vec![op(Operation::Putpubfh, ()), getfh()]),
        (&[Operation::Secinfo], on_dir(vec![named(Operation::Secinfo, f)])),
        (&[Operation::SecinfoNoName], on_dir(vec![op(Operation::SecinfoNoName, style)])),
        (&[Operation::TestStateid], vec![op(Operation::TestStateid, stateids)]),
    ];
    let mut cases: Vec<_> =
        done.into_iter().map(|(tested, ops)| Case { tested, ops, fails: false }).collect();
    // Over RDMA a target needs memory that the request does not have.
    let target = on_dir(vec![symlink(c, &format!("{f} symlink")), readlink()]);
    cases.push(Case { tested: &[Operation::Readlink], ops: target, fails: true });
    // Over RDMA there is no READ_PLUS.
    cases.push(Case {
        tested: &[Operation::ReadPlus],
        ops: on_file(vec![op(Operation::ReadPlus, long)]),
        fails: true,
    });
    let tested: Vec<_> = cases.iter().flat_map(|case| case.tested).copied().collect();
    for operation in Operation::ALL.iter().filter(|operation| !tested.contains(operation)) {
        // Not supported, alone in a COMPOUND, or without a long result.
        let tested = std::slice::from_ref(operation);
        cases.push(Case { tested, ops: on_file(vec![op(*operation, ())]), fails: true });
    }
    cases
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
                let mut case: &[Operation] = &[];
                for (n, s) in sessions.iter().enumerate() {
                    let (f, g) = names(n);
                    let Case { tested, ops, fails } = requests(&c, &dir, &f, &g).swap_remove(nth);
                    let ops: Vec<_> = std::iter::once(sequence(s.sequence(true))).chain(ops).collect();
                    let results = send(&c, 2, &ops).await;
                    let expected = [Status::Ok, Status::RepTooBigToCache];
                    assert!(fails || expected.contains(&results.status), "{tested:?}: {:?}", results.status);
                    case = tested;
                }
                let (in_use, kept) = memory(&server);
                let (grown, charged) = (in_use.saturating_sub(before), kept.saturating_sub(kept_before));
                assert!(
                    grown <= charged + SLACK,
                    "{case:?}: {grown} bytes remain in use, {charged} of kept replies"
                );
                assert!(charged <= u64::from(CLIENTS) * 4096, "{case:?}: {charged} bytes");
                before = before.max(in_use);
            }
        });
    }
}

/// Makes a call of NFSv3 of each kind on the file `f`, of which there is one for each `n`.
async fn call_v3(c: &Caller, procedure: v3::Procedure, root: v3::FileHandle, file: v3::FileHandle, n: usize) {
    use v3::Procedure as P;
    let (object, attributes) = (file, v3::Sattr::default());
    let (name, other) = (format!("{procedure} {n}"), format!("{procedure} {n} renamed"));
    let room = 64 << 10;
    let reply = match procedure {
        P::Null => c.reply(procedure, &(), room).await,
        P::Getattr | P::Readlink | P::Fsstat | P::Fsinfo | P::Pathconf => {
            c.reply(procedure, &v3::GetattrArgs { object }, room).await
        }
        P::Setattr => {
            let attributes = v3::Sattr { size: Some(1), ..attributes };
            c.reply(procedure, &v3::SetattrArgs { object, attributes, guard: None }, room).await
        }
        P::Lookup => c.reply(procedure, &v3::LookupArgs { what: at(root, "f") }, room).await,
        P::Access => c.reply(procedure, &v3::AccessArgs { object, access: 63 }, room).await,
        P::Read => c.reply(procedure, &v3::ReadArgs { file, offset: 0, count: 3000 }, room).await,
        P::Write => {
            let data = c.arena.copy_from(&[7; 3000]).unwrap().into();
            let stable = v3::StableHow::Unstable;
            c.reply(procedure, &v3::WriteArgs { file, offset: 0, count: 3000, stable, data }, room).await
        }
        P::Create => {
            let how = v3::CreateHow::Guarded(attributes);
            c.reply(procedure, &v3::CreateArgs { where_: at(root, &name), how }, room).await
        }
        P::Mkdir => c.reply(procedure, &v3::MkdirArgs { where_: at(root, &name), attributes }, room).await,
        P::Symlink => {
            let target = c.arena.copy_from(&[b'x'; 3000]).unwrap().into();
            c.reply(procedure, &v3::SymlinkArgs { where_: at(root, &name), attributes, target }, room).await
        }
        P::Mknod => {
            let what = v3::MknodWhat::Fifo(attributes);
            c.reply(procedure, &v3::MknodArgs { where_: at(root, &name), what }, room).await
        }
        P::Remove => {
            c.create(root, &name).await;
            c.reply(procedure, &v3::RemoveArgs { object: at(root, &name) }, room).await
        }
        P::Rmdir => {
            let args = v3::MkdirArgs { where_: at(root, &name), attributes };
            c.reply(P::Mkdir, &args, room).await.unwrap();
            c.reply(procedure, &v3::RmdirArgs { object: at(root, &name) }, room).await
        }
        P::Rename => {
            c.create(root, &name).await;
            c.reply(procedure, &v3::RenameArgs { from: at(root, &name), to: at(root, &other) }, room).await
        }
        P::Link => c.reply(procedure, &v3::LinkArgs { file, link: at(root, &name) }, room).await,
        P::Readdir => {
            let args = v3::ReaddirArgs { dir: root, cookie: 0, verifier: [0; 8], count: 60_000 };
            c.reply(procedure, &args, room).await
        }
        P::Readdirplus => {
            let (dir, cookie, verifier) = (root, 0, [0; 8]);
            let args = v3::ReaddirplusArgs { dir, cookie, verifier, dircount: 60_000, maxcount: 60_000 };
            c.reply(procedure, &args, room).await
        }
        P::Commit => c.reply(procedure, &v3::CommitArgs { file, offset: 0, count: 0 }, room).await,
    };
    reply.unwrap();
}

#[test]
fn replies_to_nfs3_calls_occupy_the_memory_that_is_charged() {
    run(async {
        let server = Server::start(config(&["/x=memory:64MiB,squash=none"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let root = c.mount("/x").await.unwrap();
        let file = c.create(root, "f").await;
        let (before, _) = memory(&server);
        for procedure in v3::Procedure::ALL {
            for n in 0..100 {
                call_v3(&c, *procedure, root, file, n).await;
            }
            let (in_use, kept) = memory(&server);
            let grown = in_use.saturating_sub(before);
            assert!(
                grown <= kept + SLACK,
                "{procedure}: {grown} bytes remain in use, {kept} of kept replies"
            );
        }
        let (_, kept) = memory(&server);
        assert!(kept >= 1000 * 128, "{kept} bytes of kept replies");
    });
}
