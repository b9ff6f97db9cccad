//! Changes of the setting `delegations` while the server runs.

use millrace_nfs::v4::*;
use millrace_nfs4_conformance::operations::open_with;
use millrace_server::{Config, Server};

use crate::{
    common::{Caller, Proto, config, run},
    compound::*,
};

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
