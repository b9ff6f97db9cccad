//! Exports of different policies beside each other.

use std::time::Duration;

use millrace_kerberos_testing::realm_tests;
use millrace_nfs::{
    v3::{self, FileHandle, Procedure},
    v4::*,
};
use millrace_nfs4_conformance::{
    compound::{Call, Op, Session, getattr, getfh, lookup, op, open, putfh, read},
    operations::{self, commit, link, lockt, lookupp, mkdir, rename, savefh, size},
};
use millrace_oncrpc::{AuthStat, RpcError};
use millrace_server::{Config, ExportConfig, Server, ServerFiles};

use super::{
    caller::{GssCaller, principal, tickets},
    settings,
};
use crate::{
    common::{Caller, Proto, at, config, run},
    tls::{Authority, connect, issue, rule},
};

/// An export with a file.
struct Place {
    name: &'static str,
    root: FileHandle,
    file: Vec<u8>,
    open: Stateid,
}

/// Creates the file of an export.
async fn place(c: &impl Call, session: &Session, name: &'static str, root: FileHandle) -> Place {
    let created = [putfh(root.as_bytes()), open(b"o", "f", 3, 0, true), getfh()];
    let results = session.send(c, created).await;
    let open = results.skip(&[Operation::Putfh]).take::<OpenOk<'_>>(Operation::Open).stateid;
    Place { name, root, file: results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec(), open }
}

/// The operations that use a file and its directory with NFSv4.
fn on_one(c: &impl Call, victim: &Place, own: &Place) -> Vec<(Vec<u8>, Op)> {
    let (file, root) = (|| victim.file.clone(), || victim.root.as_bytes().to_vec());
    let by_handle = operations::open_with(b"o", (3, 0), None, Claim::Fh);
    vec![
        (file(), getattr(&[Attribute::Size])),
        (root(), getattr(&[Attribute::Size])),
        (file(), operations::access(1)),
        (file(), read(Stateid::ANONYMOUS, 0, 1)),
        (file(), read(Stateid::READ_BYPASS, 0, 1)),
        (file(), read(own.open, 0, 1)),
        (file(), operations::write(c, Stateid::ANONYMOUS, 0, b"x")),
        (file(), operations::write(c, own.open, 0, b"x")),
        (file(), commit(0, 0)),
        (file(), operations::setattr(Stateid::ANONYMOUS, size(9))),
        (file(), lockt(b"l", LockType::Write, (0, 1))),
        (file(), by_handle),
        (root(), open(b"o", "f", 1, 0, false)),
        (root(), open(b"o", "new", 3, 0, true)),
        (root(), lookup("f")),
        (root(), mkdir("new")),
        (root(), operations::remove("f")),
    ]
}

/// The operations with a saved and a current file handle, in the places `a` and `b`.
fn on_two(a: &Place, b: &Place) -> Vec<(Vec<u8>, Vec<u8>, Op)> {
    let (source, destination) = (a.open, b.open);
    let copy = CopyArgs {
        source,
        destination,
        source_offset: 0,
        destination_offset: 0,
        count: 0,
        requirements: CopyRequirements { consecutive: true, synchronous: true },
        source_servers: List(Vec::new()),
    };
    let clone = CloneArgs { source, destination, source_offset: 0, destination_offset: 0, count: 0 };
    let root = |place: &Place| place.root.as_bytes().to_vec();
    vec![
        (a.file.clone(), root(b), link("new")),
        (root(a), root(b), rename("f", "new")),
        (a.file.clone(), b.file.clone(), op(Operation::Copy, copy)),
        (a.file.clone(), b.file.clone(), op(Operation::Clone, clone)),
    ]
}

/// How a call with NFSv3 is refused; `None` if it is not.
async fn refusal(c: &Caller, procedure: Procedure, args: &impl millrace_xdr::Encode) -> Option<v3::Status> {
    match c.reply(procedure, args, 4096).await {
        Err(RpcError::Auth(AuthStat::TooWeak)) => Some(v3::Status::Access),
        Ok(reply) => Some(reply.results().get().unwrap()).filter(|status| *status != v3::Status::Ok),
        Err(e) => panic!("{e}"),
    }
}

async fn expect_refusals_of_v3(c: &Caller, victim: &Place, own: &Place) {
    let refused = Some(v3::Status::Access);
    let (root, file) = (victim.root, FileHandle::new(&victim.file).unwrap());
    let (own_root, own_file) = (own.root, FileHandle::new(&own.file).unwrap());
    let buffer = c.arena.copy_from(b"x").unwrap();
    let write =
        v3::WriteArgs { file, offset: 0, count: 1, stable: v3::StableHow::FileSync, data: buffer.into() };
    let how = v3::CreateHow::Unchecked(v3::Sattr::default());
    let attributes = v3::Sattr { size: Some(9), ..v3::Sattr::default() };
    let list = v3::ReaddirArgs { dir: root, cookie: 0, verifier: [0; 8], count: 4096 };
    let name = victim.name;
    macro_rules! refused {
        ($($procedure:ident $args:expr;)*) => {
            $(assert_eq!(refusal(c, Procedure::$procedure, &$args).await, refused, "{name} {}", stringify!($procedure));)*
        };
    }
    refused! {
        Getattr v3::GetattrArgs { object: file };
        Setattr v3::SetattrArgs { object: file, attributes, guard: None };
        Lookup v3::LookupArgs { what: at(root, "f") };
        Access v3::AccessArgs { object: file, access: 1 };
        Read v3::ReadArgs { file, offset: 0, count: 1 };
        Write write;
        Create v3::CreateArgs { where_: at(root, "new"), how };
        Remove v3::RemoveArgs { object: at(root, "f") };
        Readdir list;
        Commit v3::CommitArgs { file, offset: 0, count: 0 };
    }
    // The status of the first of both handles: of two exports it is XDEV.
    let renames = [(root, own_root), (own_root, root)];
    for (from, to) in renames {
        let args = v3::RenameArgs { from: at(from, "f"), to: at(to, "new") };
        let status = refusal(c, Procedure::Rename, &args).await;
        assert!(matches!(status, Some(v3::Status::Access | v3::Status::XDev)), "{name} {status:?}");
    }
    for (file, dir) in [(file, own_root), (own_file, root)] {
        let args = v3::LinkArgs { file, link: at(dir, "new") };
        let status = refusal(c, Procedure::Link, &args).await;
        assert!(matches!(status, Some(v3::Status::Access | v3::Status::XDev)), "{name} {status:?}");
    }
}

/// Nothing in `victim` can be used by the caller, who may use `own`, and is refused with this status.
async fn expect_refusals(c: &Caller, session: &Session, victim: &Place, own: &Place, refused: Status) {
    let name = victim.name;
    for (number, (handle, last)) in on_one(c, victim, own).into_iter().enumerate() {
        let status = session.status(c, [putfh(&handle), last]).await;
        assert_eq!(status, refused, "{name} {number}");
    }
    for (a, b) in [(victim, own), (own, victim)] {
        for (number, (source, destination, last)) in on_two(a, b).into_iter().enumerate() {
            let ops = [putfh(&source), savefh(), putfh(&destination), last];
            let status = session.status(c, ops).await;
            assert!(
                status == refused || status == Status::XDev,
                "{} to {} {number}: {status:?}",
                a.name,
                b.name
            );
        }
    }
    let size = getattr(&[Attribute::Size]);
    let by_name = [putfh(own.root.as_bytes()), lookupp(), lookup(name), lookup("f"), size];
    assert_eq!(session.status(c, by_name).await, refused, "{name}");
    expect_refusals_of_v3(c, victim, own).await;
}

async fn expect_unchanged(c: &impl Call, session: &Session, at: &Place) {
    let results = session.send(c, [putfh(&at.file), getattr(&[Attribute::Size])]).await;
    let values: Attributes<'_> = results.skip(&[Operation::Putfh]).take(Operation::Getattr);
    assert_eq!(values.size, Some(0));
    let new = session.status(c, [putfh(at.root.as_bytes()), lookup("new")]).await;
    assert_eq!(new, Status::NoEnt);
}

realm_tests! {
    fn no_policy_is_evaded_with_handles_of_another_export(realm) {
        run(async {
            let dir = tempfile::tempdir().unwrap();
            let ca = Authority::new(dir.path());
            let tls = ServerFiles { client_ca: Some(ca.file()), ..issue(dir.path(), "server", "nfs.test") };
            let exports = [
                "/open=memory:8MiB,squash=none",
                "/tls=memory:8MiB,squash=none,xprtsec=tls",
                "/mtls=memory:8MiB,squash=none,xprtsec=mtls",
                "/krb=memory:8MiB,squash=none,sec=krb5i",
            ];
            let mut exports = exports.map(|export| export.parse::<ExportConfig>().unwrap());
            exports[2].certificates = vec![rule(|r| r.subject = Some("CN=writer".into()))];
            let kerberos = settings(realm, &[(&principal(0), "0:0")]);
            let start = Config { exports: exports.into(), kerberos, tls: Some(tls.clone()), ..config(&[]) };
            let server = Server::start(start).unwrap();
            let clear = Caller::connect(&server, Proto::Tcp).await;
            let over = async |name: &str, serial| {
                let own = ca.issue(name, serial);
                connect(&server, Proto::Tcp, "nfs.test", &tls, Some(&own)).await.unwrap()
            };
            let (writer, other) = (over("writer", 1).await, over("other", 2).await);
            let krb = GssCaller::connect(&server, Proto::Tcp, &tickets(realm, &[0]), 2).await;
            let of_krb = Session::new(&krb, b"krb").await;
            let [of_clear, of_writer, of_other] = [
                Session::new(&clear, b"clear").await,
                Session::new(&writer, b"writer").await,
                Session::new(&other, b"other").await,
            ];
            // MOUNT is for all of them.
            let root = async |export| match clear.mount_reply(
                millrace_nfs::mount::Procedure::Mnt,
                &millrace_nfs::mount::Dirpath(export),
            ).await.map(|reply| millrace_nfs::mount::decode_mnt(&mut reply.results()).unwrap()) {
                Ok(Ok(mounted)) => mounted.handle,
                failed => panic!("{failed:?}"),
            };
            let victims = [
                place(&writer, &of_writer, "tls", root(b"/tls").await).await,
                place(&writer, &of_writer, "mtls", root(b"/mtls").await).await,
                place(&krb, &of_krb, "krb", root(b"/krb").await).await,
            ];
            let own = place(&clear, &of_clear, "open", root(b"/open").await).await;
            for victim in &victims {
                expect_refusals(&clear, &of_clear, victim, &own, Status::WrongSec).await;
            }
            let own = place(&other, &of_other, "tls", victims[0].root).await;
            expect_refusals(&other, &of_other, &victims[1], &own, Status::Access).await;
            expect_refusals(&other, &of_other, &victims[2], &own, Status::WrongSec).await;
            // A right flavor in the clear is not the transport, and a right transport is not the flavor.
            let of_tls = [putfh(&victims[0].file), getattr(&[Attribute::Size])];
            assert_eq!(of_krb.status(&krb, of_tls).await, Status::WrongSec);
            expect_unchanged(&writer, &of_writer, &victims[0]).await;
            expect_unchanged(&writer, &of_writer, &victims[1]).await;
            expect_unchanged(&krb, &of_krb, &victims[2]).await;
            server.stop(Duration::from_secs(5)).await;
        });
    }
}
