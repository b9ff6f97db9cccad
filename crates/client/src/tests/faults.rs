//! Lost connections, unresponsive servers, JUKEBOX.

use std::sync::atomic::Ordering;

use millrace_nfs::v3::{
    self, CreateOk, FileType, GetattrOk, LinkArgs, LookupArgs, LookupOk, MkdirArgs, PathconfOk, Procedure,
    RenameOk, SetattrArgs, Status, WccData, WriteOk,
};

use super::script::{Act, Script, args, attributes, fail, handle, handle3, nfs3, ok, quick, run};
use crate::{
    Error, Options, RetryPolicy,
    ops::{CreateHow, SetAttributes, StableHow},
};

fn found(n: u8, file_type: FileType) -> Act {
    let a = attributes(file_type, u64::from(n));
    ok(LookupOk { object: handle3(n), attributes: Some(a), dir: None })
}

/// Drops the connection at the first `times` calls of `procedure`; passes the others to `then`.
fn losing(
    procedure: Procedure,
    mut times: u32,
    mut then: impl FnMut(Procedure, &millrace_oncrpc::CallContext) -> Act + Send + 'static,
) -> std::sync::Arc<Script> {
    Script::new(move |p, call| {
        if p == procedure && times > 0 {
            times -= 1;
            return Act::Lose;
        }
        then(p, call)
    })
}

#[test]
fn an_idempotent_call_is_retransmitted_until_the_reply() {
    run(async {
        let script = losing(Procedure::Getattr, 3, |_, _| {
            ok(GetattrOk { attributes: attributes(FileType::Regular, 7) })
        });
        let c = script.client().await;
        assert_eq!(c.getattr(handle(2)).await.unwrap().fileid, 7);
        let stats = c.stats();
        assert_eq!((stats.retransmits, stats.reconnects), (3, 3));
        assert_eq!(script.xids(Procedure::Getattr).len(), 4);
    });
}

#[test]
fn a_non_idempotent_call_keeps_its_xid_on_a_new_connection() {
    run(async {
        let script = losing(Procedure::Remove, 2, |_, _| ok(WccData::default()));
        let c = script.client().await;
        c.remove(c.root(), "x").await.unwrap();
        let xids = script.xids(Procedure::Remove);
        assert_eq!(xids, [xids[0]; 3]);
        c.remove(c.root(), "y").await.unwrap();
        assert_ne!(script.xids(Procedure::Remove)[3], xids[0], "another call has another XID");
    });
}

#[test]
fn a_retransmitted_write_keeps_its_xid() {
    run(async {
        let script = losing(Procedure::Write, 2, |_, _| {
            ok(WriteOk {
                file: WccData::default(),
                count: 3,
                committed: v3::StableHow::FileSync,
                verifier: [0; 8],
            })
        });
        let c = script.client().await;
        c.write(handle(2), 0, b"abc", StableHow::FileSync).await.unwrap();
        let xids = script.xids(Procedure::Write);
        assert_eq!(xids, [xids[0]; 3]);
    });
}

#[test]
fn noent_after_a_retransmitted_remove_is_success() {
    run(async {
        for procedure in [Procedure::Remove, Procedure::Rmdir] {
            let script = losing(procedure, 1, |_, _| fail(Status::NoEnt));
            let c = script.client().await;
            let remove = async |name: &str| match procedure {
                Procedure::Remove => c.remove(c.root(), name).await,
                _ => c.rmdir(c.root(), name).await,
            };
            remove("x").await.unwrap();
            assert!(
                remove("x").await.unwrap_err().is_not_found(),
                "NOENT without a retransmission is an error"
            );
        }
    });
}

#[test]
fn exist_after_a_retransmitted_mkdir_is_success_for_directories_only() {
    run(async {
        let script = losing(Procedure::Mkdir, 1, |p, call| match p {
            Procedure::Lookup => found(9, FileType::Directory),
            _ => {
                let _: MkdirArgs<'_> = args(call);
                fail(Status::Exist)
            }
        });
        let c = script.client().await;
        assert_eq!(c.mkdir(c.root(), "d", SetAttributes::default()).await.unwrap().handle, handle(9));
        let e = c.mkdir(c.root(), "d", SetAttributes::default()).await.unwrap_err();
        assert_eq!(e.status(), Some(Status::Exist), "EXIST without a retransmission is an error");

        let script = losing(Procedure::Mkdir, 1, |p, _| match p {
            Procedure::Lookup => found(9, FileType::Regular),
            _ => fail(Status::Exist),
        });
        let c = script.client().await;
        let e = c.mkdir(c.root(), "d", SetAttributes::default()).await.unwrap_err();
        assert_eq!(e.status(), Some(Status::Exist));
    });
}

#[test]
fn exist_after_a_retransmitted_guarded_create_is_an_error() {
    run(async {
        let script = losing(Procedure::Create, 1, |_, _| fail(Status::Exist));
        let c = script.client().await;
        let e = c.create(c.root(), "f", CreateHow::Guarded(SetAttributes::default())).await.unwrap_err();
        assert_eq!(e.status(), Some(Status::Exist));
        assert_eq!(script.xids(Procedure::Lookup).len(), 0);
    });
}

#[test]
fn a_retransmitted_rename_checks_both_names() {
    run(async {
        for (old_there, new_there, accepted) in
            [(false, true, true), (true, true, false), (false, false, false)]
        {
            let script = losing(Procedure::Rename, 1, move |p, call| {
                if p == Procedure::Rename {
                    return fail(Status::NoEnt);
                }
                let looked: LookupArgs<'_> = args(call);
                let there = if looked.what.name == b"old" { old_there } else { new_there };
                if there { found(5, FileType::Regular) } else { fail(Status::NoEnt) }
            });
            let c = script.client().await;
            let r = c.rename(c.root(), "old", c.root(), "new").await;
            assert_eq!(r.is_ok(), accepted, "old {old_there}, new {new_there}");
        }
    });
}

#[test]
fn a_retransmitted_link_checks_the_file_of_the_name() {
    run(async {
        for (fileid, accepted) in [(5, true), (6, false)] {
            let script = losing(Procedure::Link, 1, move |p, call| match p {
                Procedure::Link => {
                    let _: LinkArgs<'_> = args(call);
                    fail(Status::Exist)
                }
                Procedure::Lookup => found(5, FileType::Regular),
                _ => ok(GetattrOk { attributes: attributes(FileType::Regular, fileid) }),
            });
            let c = script.client().await;
            assert_eq!(c.link(handle(5), c.root(), "n").await.is_ok(), accepted);
        }
    });
}

#[test]
fn a_retransmitted_guarded_setattr_checks_the_attributes() {
    run(async {
        for (mode, accepted) in [(0o644, true), (0o600, false)] {
            let script = losing(Procedure::Setattr, 1, |p, call| match p {
                Procedure::Setattr => {
                    let _: SetattrArgs = args(call);
                    fail(Status::NotSync)
                }
                _ => ok(GetattrOk { attributes: attributes(FileType::Regular, 5) }),
            });
            let c = script.client().await;
            let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            assert_eq!(c.setattr(handle(5), set, Some(Default::default())).await.is_ok(), accepted);
        }
    });
}

#[test]
fn a_created_object_without_handle_or_attributes_is_looked_up() {
    run(async {
        let script = Script::new(|p, _| match p {
            Procedure::Create => ok(CreateOk { object: None, attributes: None, dir: WccData::default() }),
            Procedure::Mkdir => {
                ok(CreateOk { object: Some(handle3(3)), attributes: None, dir: WccData::default() })
            }
            Procedure::Getattr => ok(GetattrOk { attributes: attributes(FileType::Directory, 3) }),
            _ => found(4, FileType::Regular),
        });
        let c = script.client().await;
        let made = c.create(c.root(), "f", CreateHow::Unchecked(SetAttributes::default())).await.unwrap();
        assert_eq!((made.handle, made.attributes.fileid), (handle(4), 4));
        let made = c.mkdir(c.root(), "d", SetAttributes::default()).await.unwrap();
        assert_eq!((made.handle, made.attributes.fileid), (handle(3), 3));
    });
}

#[test]
fn retries_end_with_the_retry_policy() {
    run(async {
        let script = losing(Procedure::Getattr, 1, |_, _| fail(Status::Io));
        let retry = RetryPolicy { max_elapsed: std::time::Duration::from_millis(30), ..quick() };
        let c = script.mount("/e", retry).await.unwrap();
        script.refuse.store(u32::MAX, Ordering::Relaxed);
        let e = c.getattr(handle(2)).await.unwrap_err();
        assert!(matches!(e, Error::Unreachable { procedure: "GETATTR", .. }), "{e}");
        assert!(e.to_string().contains("refused by the script"), "{e}");
    });
}

#[test]
fn without_retries_the_first_lost_connection_is_an_error() {
    run(async {
        let script = Script::new(|_, _| Act::Lose);
        let c = script.mount("/e", RetryPolicy::NONE).await.unwrap();
        let e = c.getattr(handle(2)).await.unwrap_err();
        assert!(
            matches!(e, Error::Unreachable { .. }) && e.to_string().contains("lost by the script"),
            "{e}"
        );
        assert_eq!(script.xids(Procedure::Getattr).len(), 1);
    });
}

#[test]
fn an_unresponsive_connection_is_replaced() {
    run(async {
        let mut first = true;
        let script = Script::new(move |_, _| {
            if std::mem::take(&mut first) {
                return Act::Mute;
            }
            ok(RenameOk::default())
        });
        let c = script.client().await;
        c.rename(c.root(), "a", c.root(), "b").await.unwrap();
        assert_eq!(c.stats().reconnects, 1);
        let xids = script.xids(Procedure::Rename);
        assert_eq!((xids.len(), xids[0]), (2, xids[1]));
    });
}

#[test]
fn an_unresponsive_connection_is_replaced_for_later_calls_without_retries() {
    run(async {
        let mut first = true;
        let script = Script::new(move |_, _| match std::mem::take(&mut first) {
            true => Act::Mute,
            false => ok(GetattrOk { attributes: attributes(FileType::Regular, 7) }),
        });
        let c = script.mount("/e", RetryPolicy::NONE).await.unwrap();
        assert!(matches!(c.getattr(handle(2)).await, Err(Error::Unreachable { .. })));
        c.getattr(handle(2)).await.unwrap();
        assert_eq!((c.stats().reconnects, c.stats().retransmits), (1, 0));
    });
}

#[test]
fn a_call_is_repeated_after_jukebox() {
    run(async {
        let mut busy = 3;
        let script = Script::new(move |_, _| {
            if busy > 0 {
                busy -= 1;
                return fail(Status::Jukebox);
            }
            ok(GetattrOk { attributes: attributes(FileType::Regular, 7) })
        });
        let c = script.client().await;
        c.getattr(handle(2)).await.unwrap();
        assert_eq!((script.xids(Procedure::Getattr).len(), c.stats().retransmits), (4, 0));

        let script = Script::new(|_, _| fail(Status::Jukebox));
        let c = script.mount("/e", RetryPolicy::NONE).await.unwrap();
        assert_eq!(c.getattr(handle(2)).await.unwrap_err().status(), Some(Status::Jukebox));
    });
}

#[test]
fn calls_of_a_closed_client_fail() {
    run(async {
        let script = Script::new(|_, _| fail(Status::Io));
        let c = script.client().await;
        let other = c.clone();
        c.close();
        assert!(matches!(other.getattr(handle(1)).await.unwrap_err(), Error::Closed));
    });
}

#[test]
fn a_name_above_the_limit_of_the_server_is_rejected_locally() {
    run(async {
        let script = Script::new(|p, _| match p {
            Procedure::Pathconf => ok(PathconfOk {
                attributes: None,
                link_max: 1,
                name_max: 300,
                no_trunc: true,
                chown_restricted: true,
                case_insensitive: false,
                case_preserving: true,
            }),
            _ => found(2, FileType::Regular),
        });
        let c = script.client().await;
        for n in [255, 256, 300] {
            c.lookup(c.root(), "n".repeat(n)).await.unwrap();
        }
        let long = "n".repeat(301);
        let e = c.lookup(c.root(), &long).await.unwrap_err();
        assert_eq!(e.status(), Some(Status::NameTooLong), "{e}");
        assert_eq!(script.xids(Procedure::Lookup).len(), 3);
        let e = c.rename(c.root(), "short", c.root(), &long).await.unwrap_err();
        assert_eq!(e.status(), Some(Status::NameTooLong), "{e}");
        assert!(script.xids(Procedure::Rename).is_empty());
        assert_eq!(script.xids(Procedure::Pathconf).len(), 4, "a short name caused a PATHCONF");
    });
}

#[test]
fn concurrent_connection_setups_are_limited() {
    run(async {
        let losses = 64;
        let script = losing(Procedure::Getattr, losses, |_, _| {
            ok(GetattrOk { attributes: attributes(FileType::Regular, 7) })
        });
        let options = Options { nconnect: 64, retry: quick(), ..nfs3() };
        let c = script.mount_with("/e", options).await.unwrap();
        assert_eq!(c.stats().connections.len(), 64);
        let most = || script.setups.1.load(Ordering::Relaxed);
        assert!((2..=4).contains(&most()), "{} at once at mount", most());
        let calls = (0..128).map(|_| c.getattr(handle(2)));
        for answer in futures::future::join_all(calls).await {
            answer.unwrap();
        }
        assert!(c.stats().reconnects > 1, "{:?}", c.stats());
        assert!(most() <= 4, "{} at once after a loss", most());
    });
}
