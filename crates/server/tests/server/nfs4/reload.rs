//! Changes of the setting `delegations` while the server runs.

use millrace_nfs::{v3, v4::*};
use millrace_nfs4_conformance::operations::open_with;
use millrace_server::{Config, Server};

use super::compound::*;
use crate::common::{Caller, Proto, config, run};

/// The type of the delegation that an OPEN for reading gets which creates the file.
async fn delegated(c: &Caller, s: &Session, dir: &[u8], name: &'static str) -> u32 {
    let create = Some(CreateHow::Unchecked(Attributes::default()));
    let open = open_with(b"o", (1, 0), create, Claim::Null(Opaque(name.as_bytes())));
    let results = s.send(c, [putfh(dir), open]).await;
    let ok: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
    match ok.delegation {
        Delegation::None | Delegation::NoneExt(_) => 0,
        Delegation::Read(_) => 1,
        other => panic!("{other:?}"),
    }
}

#[test]
fn delegations_follow_a_reload() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let export = |delegations| format!("/x=memory:8MiB,squash=none,delegations={delegations}");
            let start = config(&[&export("read")]);
            let with =
                |delegations| Config { exports: config(&[&export(delegations)]).exports, ..start.clone() };
            let mut server = Server::start(start.clone()).unwrap();
            let c = Caller::connect(&server, proto).await;
            let s = Session::new(&c, b"client").await;
            let dir = s.path(&c, "/x").await.unwrap();
            assert_eq!(delegated(&c, &s, &dir, "before").await, 1);
            assert_eq!(server.stats().nfs4_delegations_recalled, 0);
            server.reload(&with("none")).unwrap();
            // The next request sends the recalls, and gets no delegation.
            assert_eq!(delegated(&c, &s, &dir, "without").await, 0);
            assert_eq!(server.stats().nfs4_delegations_recalled, 1);
            server.reload(&with("read")).unwrap();
            assert_eq!(delegated(&c, &s, &dir, "after").await, 1);
        });
    }
}

#[test]
fn data_written_before_an_export_became_read_only_can_be_committed() {
    run(async {
        let start = config(&["/x=memory:8MiB"]);
        let mut server = Server::start(start.clone()).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let root = c.mount("/x").await.unwrap();
        let file = c.create(root, "f").await;
        c.write(file, 0, b"x", v3::StableHow::Unstable).await.unwrap();
        let exports = config(&["/x=memory:8MiB,ro"]).exports;
        server.reload(&Config { exports, ..start }).unwrap();
        assert_eq!(c.write(file, 0, b"y", v3::StableHow::Unstable).await.unwrap_err(), v3::Status::RoFs);
        let args = v3::CommitArgs { file, offset: 0, count: 0 };
        let res: v3::Res<v3::CommitOk, v3::CommitFail> = c.nfs(v3::Procedure::Commit, &args).await;
        assert_eq!(res.status(), v3::Status::Ok);
        let s = Session::new(&c, b"client").await;
        let file = s.path(&c, "/x/f").await.unwrap();
        for (offset, count) in [(0, 0), (u64::MAX, 0), (u64::MAX, u32::MAX)] {
            let commit = op(Operation::Commit, CommitArgs { offset, count });
            assert_eq!(s.status(&c, [putfh(&file), commit]).await, Status::Ok);
        }
    });
}
