//! Access rules of exports, identities and handles.

use millrace_nfs::{
    mount::{self, Dirpath},
    v3::{
        self, AccessArgs, AccessOk, CreateHow, FileHandle, GetattrArgs, LinkArgs, LinkOk, PostOpAttr,
        Procedure, RemoveArgs, RenameArgs, RenameOk, Res, Sattr, SetattrArgs, StableHow, Status, WccData,
    },
};
use millrace_oncrpc::{AcceptError, AuthStat, AuthSys, Credential, RpcError};
use millrace_server::{Running, Server};

use crate::common::{Caller, Proto, at, config, run, sys};

async fn start(exports: &[&str]) -> (Running, Caller) {
    let server = Server::start(config(exports)).unwrap();
    let caller = Caller::connect(&server, Proto::Tcp).await;
    (server, caller)
}

fn guarded() -> CreateHow {
    CreateHow::Guarded(Sattr { mode: Some(0o644), ..Sattr::default() })
}

#[test]
fn mounts_find_exports_and_their_directories() {
    run(async {
        let (_server, c) = start(&["/a=memory:8MiB", "/a/deep=memory:8MiB"]).await;
        let a = c.mount("/a").await.unwrap();
        let args = v3::MkdirArgs { where_: at(a, "sub"), attributes: Sattr::default() };
        let res: Res<v3::CreateOk, WccData> = c.nfs(Procedure::Mkdir, &args).await;
        let sub = res.into_result().unwrap().object.unwrap();
        c.create(a, "file").await;
        assert_eq!(c.mount("/a/sub").await, Ok(sub));
        assert_eq!(c.mount("/a//sub/").await, Ok(sub));
        assert_ne!(c.mount("/a/deep").await.unwrap(), a);
        assert_eq!(c.mount("/a/none").await, Err(mount::Status::NoEnt));
        assert_eq!(c.mount("/a/file").await, Err(mount::Status::NotDir));
        assert_eq!(c.mount("/a/sub/..").await, Err(mount::Status::Inval));
        for path in ["/", "/ab", "", "a", "/A"] {
            assert_eq!(c.mount(path).await, Err(mount::Status::NoEnt), "{path:?}");
        }
    });
}

/// As Linux's mountd, but confined to the export.
#[test]
fn a_mount_follows_symbolic_links_that_stay_in_the_export() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("export/a/b")).unwrap();
    std::fs::create_dir_all(dir.path().join("outside")).unwrap();
    let root = dir.path().join("export");
    let absolute = root.join("a").display().to_string();
    for (target, link) in [
        ("a/b", "relative"),
        ("../../export/a", "up-and-down"),
        ("../relative/../b/.", "a/back"),
        (absolute.as_str(), "absolute"),
        ("../outside", "out"),
        ("/etc", "a/far"),
        ("loop", "loop"),
        ("file", "to-file"),
        ("nothing", "dangling"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    std::fs::write(root.join("file"), b"").unwrap();
    run(async {
        let export = format!("/x=local:{},squash=none", root.display());
        let (_server, c) = start(&[&export, "/m=memory:1MiB"]).await;
        let a = c.mount("/x/a").await.unwrap();
        let b = c.mount("/x/a/b").await.unwrap();
        for (path, to) in [
            ("/x/relative", b),
            ("/x/a/back", b),
            ("/x/absolute", a),
            ("/x/absolute/b", b),
            ("/x/absolute/back/", b),
        ] {
            assert_eq!(c.mount(path).await, Ok(to), "{path}");
        }
        for (path, status) in [
            ("/x/out", mount::Status::Access),
            ("/x/up-and-down", mount::Status::Access),
            ("/x/a/far", mount::Status::Access),
            ("/x/loop", mount::Status::NotDir),
            ("/x/to-file", mount::Status::NotDir),
            ("/x/dangling", mount::Status::NoEnt),
            ("/x/a/..", mount::Status::Inval),
        ] {
            assert_eq!(c.mount(path).await, Err(status), "{path}");
        }
    });
}

#[test]
fn exports_and_mounts_are_listed() {
    run(async {
        let (_server, c) = start(&["/a=memory:8MiB", "/b=memory:8MiB,client=127.0.0.0/8,client=::1"]).await;
        let reply = c.mount_reply(mount::Procedure::Export, &()).await.unwrap();
        let list: Vec<mount::ExportEntry<'_>> = mount::decode_list(&mut reply.results()).unwrap();
        assert_eq!(list.iter().map(|e| e.directory.0).collect::<Vec<_>>(), [b"/a", b"/b"]);
        assert_eq!(list[1].groups.iter().map(|n| n.0).collect::<Vec<_>>(), [&b"127.0.0.0/8"[..], b"::1/128"]);
        let dump = async || {
            let reply = c.mount_reply(mount::Procedure::Dump, &()).await.unwrap();
            mount::decode_list::<mount::MountEntry<'_>>(&mut reply.results()).unwrap().len()
        };
        for path in ["/a", "/b", "/a"] {
            c.mount(path).await.unwrap();
        }
        assert_eq!(dump().await, 2);
        c.mount_reply(mount::Procedure::Umnt, &Dirpath(b"/a")).await.unwrap();
        assert_eq!(dump().await, 1);
        c.mount_reply(mount::Procedure::Umntall, &()).await.unwrap();
        assert_eq!(dump().await, 0);
    });
}

#[test]
fn denied_clients_are_rejected_at_mount_and_at_every_call() {
    run(async {
        let (server, c) = start(&["/far=memory:8MiB,client=203.0.113.0/24", "/low=memory:8MiB,secure"]).await;
        assert_eq!(c.mount("/far").await, Err(mount::Status::Access));
        assert_eq!(c.mount("/low").await, Err(mount::Status::Access));
        drop(server);
        // A handle of another server is rejected, although servers without a secret create the same handles
        // for the same export.
        let (open, o) = start(&["/far=memory:8MiB"]).await;
        let root = o.mount("/far").await.unwrap();
        drop(open);
        let (server, c) = start(&["/far=memory:8MiB,client=203.0.113.0/24"]).await;
        assert_eq!(c.getattr(root).await, Err(Status::Access));
        assert_eq!(server.stats().refused, 1);
    });
}

#[test]
fn a_read_only_export_rejects_changes() {
    run(async {
        let (_server, c) = start(&["/x=memory:8MiB,ro"]).await;
        let root = c.mount("/x").await.unwrap();
        assert_eq!(c.create_how(root, "f", guarded()).await, Err(Status::RoFs));
        assert_eq!(c.write(root, 0, b"x", StableHow::FileSync).await.unwrap_err(), Status::RoFs);
        let set = SetattrArgs {
            object: root,
            attributes: Sattr { mode: Some(0), ..Sattr::default() },
            guard: None,
        };
        let res: Res<WccData, WccData> = c.nfs(Procedure::Setattr, &set).await;
        let (status, wcc) = res.into_result().unwrap_err();
        assert_eq!((status, wcc.after.is_some()), (Status::RoFs, true));
        let res: Res<WccData, WccData> =
            c.nfs(Procedure::Remove, &RemoveArgs { object: at(root, "f") }).await;
        assert_eq!(res.status(), Status::RoFs);
        let res: Res<AccessOk, PostOpAttr> =
            c.nfs(Procedure::Access, &AccessArgs { object: root, access: 0x3f }).await;
        let rights = res.into_result().unwrap().access;
        assert_eq!(rights & (v3::access::MODIFY | v3::access::EXTEND | v3::access::DELETE), 0);
        assert_ne!(rights & v3::access::READ, 0);
    });
}

#[test]
fn a_client_can_have_other_options_than_the_export() {
    run(async {
        let (_server, c) = start(&[
            "/x=memory:8MiB,ro,client=*,client=127.0.0.1(rw,no_root_squash,auth_none)",
            "/y=memory:8MiB,client=203.0.113.1,client=*(ro)",
        ])
        .await;
        let root = c.mount("/x").await.unwrap();
        let f = c.with(sys(0, 0)).create(root, "f").await;
        assert_eq!(c.getattr(f).await.unwrap().uid, 0);
        assert!(c.with(Credential::None).getattr(f).await.is_ok());
        let rights = async |of: FileHandle| {
            let args = AccessArgs { object: of, access: v3::access::READ | v3::access::EXTEND };
            let res: Res<AccessOk, PostOpAttr> = c.nfs(Procedure::Access, &args).await;
            res.into_result().unwrap().access
        };
        assert_eq!(rights(root).await, v3::access::READ | v3::access::EXTEND);
        let root = c.mount("/y").await.unwrap();
        assert_eq!(c.create_how(root, "f", guarded()).await, Err(Status::RoFs));
        assert_eq!(rights(root).await, v3::access::READ);
        let flavors = async |path: &str| {
            let reply = c.mount_reply(mount::Procedure::Mnt, &Dirpath(path.as_bytes())).await.unwrap();
            mount::decode_mnt(&mut reply.results()).unwrap().unwrap().flavors.to_vec()
        };
        assert_eq!((flavors("/x").await, flavors("/y").await), (vec![1, 0], vec![1]));
        let reply = c.mount_reply(mount::Procedure::Export, &()).await.unwrap();
        let list: Vec<mount::ExportEntry<'_>> = mount::decode_list(&mut reply.results()).unwrap();
        assert_eq!(list[0].groups.iter().map(|n| n.0).collect::<Vec<_>>(), [&b"*"[..], b"127.0.0.1/32"]);
    });
}

#[test]
fn groups_of_callers_are_those_of_the_server_if_it_manages_them() {
    run(async {
        for manage_groups in [false, true] {
            let config =
                millrace_server::Config { manage_groups, ..config(&["/x=memory:8MiB,no_root_squash"]) };
            let server = Server::start(config).unwrap();
            let c = Caller::connect(&server, Proto::Tcp).await.with(sys(0, 0));
            let root = c.mount("/x").await.unwrap();
            let f = c.create(root, "f").await;
            let set = Sattr { mode: Some(0o640), gid: Some(4242), ..Sattr::default() };
            let set = SetattrArgs { object: f, attributes: set, guard: None };
            let res: Res<WccData, WccData> = c.nfs(Procedure::Setattr, &set).await;
            assert_eq!(res.status(), Status::Ok);
            let may_read = async |uid: u32| {
                let gids = [4242].into_iter().collect();
                let caller = c.with(Credential::Sys(AuthSys { uid, gid: 1, gids, ..AuthSys::default() }));
                let args = AccessArgs { object: f, access: v3::access::READ };
                let res: Res<AccessOk, PostOpAttr> = caller.nfs(Procedure::Access, &args).await;
                res.into_result().unwrap().access != 0
            };
            // User 1 exists on every host, without the group. No host has the other.
            assert_eq!((may_read(1).await, may_read(3_999_999_999).await), (!manage_groups, true));
        }
    });
}

#[test]
fn callers_are_squashed_according_to_the_export() {
    run(async {
        let squash = ["none", "root", "all"]
            .map(|s| format!("/{s}=memory:8MiB,auth_none,squash={s},anon_uid=77,anon_gid=88"));
        let (_server, c) = start(&squash.each_ref().map(String::as_str)).await;
        let owner_of = async |export: &str, cred: Credential| {
            let c = c.with(cred);
            let root = c.mount(export).await.unwrap();
            let f = c.create_how(root, &format!("f{}", rand(&c)), guarded()).await.unwrap();
            let a = c.getattr(f).await.unwrap();
            (a.uid, a.gid)
        };
        assert_eq!(owner_of("/none", sys(0, 0)).await, (0, 0));
        assert_eq!(owner_of("/none", sys(5, 6)).await, (5, 6));
        assert_eq!(owner_of("/root", sys(0, 0)).await, (77, 88));
        assert_eq!(owner_of("/root", sys(5, 0)).await, (5, 88));
        assert_eq!(owner_of("/root", sys(5, 6)).await, (5, 6));
        assert_eq!(owner_of("/all", sys(5, 6)).await, (77, 88));
        assert_eq!(owner_of("/none", Credential::None).await, (77, 88));
    });
}

fn rand(c: &Caller) -> u64 {
    use millrace_runtime::RuntimeExt;
    c.rt.random_u64()
}

#[test]
fn callers_without_a_credential_are_rejected_by_policy() {
    run(async {
        let (_server, c) = start(&["/x=memory:8MiB"]).await;
        let root = c.mount("/x").await.unwrap();
        let nobody = c.with(Credential::None);
        let e = nobody.reply(Procedure::Getattr, &GetattrArgs { object: root }, 0).await.unwrap_err();
        assert_eq!(e, RpcError::Auth(AuthStat::TooWeak));
        // NULL is permitted for all callers.
        assert!(nobody.reply(Procedure::Null, &(), 0).await.is_ok());
    });
}

#[test]
fn forged_and_foreign_handles_are_distinguished() {
    run(async {
        let (_server, c) = start(&["/x=memory:8MiB", "/y=memory:8MiB"]).await;
        let root = c.mount("/x").await.unwrap();
        for i in 0..root.len() {
            let mut bytes = root.as_bytes().to_vec();
            bytes[i] ^= 0x10;
            let expected = if (4..8).contains(&i) { Status::Stale } else { Status::BadHandle };
            assert_eq!(c.getattr(FileHandle::new(&bytes).unwrap()).await, Err(expected), "byte {i}");
        }
        for bytes in [&[][..], &[1], &[0xff; 64], root.as_bytes().split_last().unwrap().1] {
            assert_eq!(c.getattr(FileHandle::new(bytes).unwrap()).await, Err(Status::BadHandle));
        }
        // Handles of two exports cannot be combined.
        let other = c.mount("/y").await.unwrap();
        let f = c.create(root, "f").await;
        let args = RenameArgs { from: at(root, "f"), to: at(other, "f") };
        let res: Res<RenameOk, RenameOk> = c.nfs(Procedure::Rename, &args).await;
        assert_eq!(res.status(), Status::XDev);
        let res: Res<LinkOk, LinkOk> =
            c.nfs(Procedure::Link, &LinkArgs { file: f, link: at(other, "f") }).await;
        assert_eq!(res.status(), Status::XDev);
        // A memory export does not survive its server, so its handles are stale.
        let (_again, c) = start(&["/x=memory:8MiB"]).await;
        assert_eq!(c.getattr(root).await, Err(Status::Stale));
    });
}

#[test]
fn unknown_programs_versions_and_procedures_get_specific_errors() {
    run(async {
        let (_server, c) = start(&["/x=memory:8MiB"]).await;
        let answer = async |prog, vers, proc| match c.send(c.message(prog, vers, proc, &()), 0, None).await {
            Err(RpcError::Accept(e)) => Some(e),
            other => panic!("{other:?}"),
        };
        assert_eq!(answer(100_227, 3, 0).await, Some(AcceptError::ProgUnavail));
        assert_eq!(answer(v3::PROGRAM, 5, 0).await, Some(AcceptError::ProgMismatch { low: 3, high: 4 }));
        assert_eq!(answer(mount::PROGRAM, 1, 0).await, Some(AcceptError::ProgMismatch { low: 3, high: 3 }));
        assert_eq!(answer(v3::PROGRAM, 3, 22).await, Some(AcceptError::ProcUnavail));
        assert_eq!(answer(mount::PROGRAM, 3, 6).await, Some(AcceptError::ProcUnavail));
        assert_eq!(answer(v3::PROGRAM, 3, 1).await, Some(AcceptError::GarbageArgs));
        assert_eq!(answer(mount::PROGRAM, 3, 1).await, Some(AcceptError::GarbageArgs));
    });
}
