//! State that an administrator lists and revokes while clients have it.

use millrace_nfs::v4::*;
use millrace_server::{Running, Server, StateError, StateFilter, StateidKind};

use super::{
    compound::*,
    files::{opened, write},
};
use crate::common::{Caller, Proto, config, run};

/// Runs `test` on two exports in memory with an open file in each.
fn with_opens(test: impl AsyncFn(&Running, &Caller, &Session, [(Stateid, Vec<u8>); 2])) {
    run(async {
        let server = Server::start(config(&["/x=memory:8MiB,squash=none", "/y=memory:8MiB,squash=none"]));
        let server = server.unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let mut files = Vec::new();
        for export in ["/x", "/y"] {
            let root = s.path(&c, export).await.unwrap();
            files.push(opened(&c, &s, &root, open(b"o", "f", 3, 2, true)).await.unwrap());
        }
        test(&server, &c, &s, files.try_into().unwrap()).await;
    });
}

async fn flags(c: &Caller, s: &Session) -> u32 {
    let results = send(c, 2, &[sequence(s.sequence(false))]).await;
    results.take::<SequenceOk>(Operation::Sequence).status_flags
}

async fn tested(c: &Caller, s: &Session, stateid: Stateid) -> Status {
    let args = TestStateidArgs { stateids: List(vec![stateid]) };
    let results = s.send(c, [op(Operation::TestStateid, args)]).await;
    results.take::<TestStateidOk>(Operation::TestStateid).statuses.0[0]
}

#[test]
fn state_is_listed_with_exports_and_inodes() {
    with_opens(async |server, c, s, files| {
        let state = server.nfs4_state();
        let clients = state.clients(None, 10);
        assert_eq!(clients.len(), 1);
        let stats = server.stats();
        assert_eq!((stats.nfs4_confirmed_clients, stats.nfs4_opens, stats.nfs4_locks), (1, 2, 0));
        let client = &clients[0];
        assert_eq!(
            (client.id, &*client.owner, client.sessions, client.opens),
            (s.client, &b"client"[..], 1, 2)
        );
        assert_eq!(client.address, std::net::Ipv4Addr::LOCALHOST);
        assert!(state.clients(Some(client.id.number), 10).is_empty());

        let all = state.stateids(&StateFilter::Client(client.id.number), None, 10).await.unwrap();
        let exports: Vec<_> = all.iter().map(|open| open.export.as_deref().unwrap()).collect();
        assert_eq!(exports, ["/x", "/y"]);
        let results = s.send(c, [putfh(&files[0].1), getattr(&[Attribute::Fileid])]).await;
        let attributes = results.skip(&[Operation::Putfh]).take::<Fattr<'_>>(Operation::Getattr);
        assert_eq!(all[0].fileid, attributes.decode_values().unwrap().fileid);
        assert_eq!(all[0].kind, StateidKind::Open { access: 3, deny: 2 });

        let of_file = state.stateids(&StateFilter::File("/y/f".into()), None, 10).await.unwrap();
        assert_eq!(of_file, all[1..]);
        let of_export = state.stateids(&StateFilter::Export("/x".into()), None, 10).await.unwrap();
        assert_eq!(of_export, all[..1]);
        assert!(
            state.stateids(&StateFilter::Export("/x".into()), Some(all[0].at), 10).await.unwrap().is_empty()
        );
    });
}

#[test]
fn a_client_finds_out_that_its_state_is_revoked() {
    with_opens(async |server, c, s, [(id, file), (other, other_file)]| {
        assert_eq!(flags(c, s).await, 0);
        let revoked = server.nfs4_state().revoke(&StateFilter::File("/x/f".into())).await;
        assert_eq!(revoked, Ok(1));
        assert_eq!(flags(c, s).await, 0x20, "SEQ4_STATUS_ADMIN_STATE_REVOKED");
        assert_eq!(s.status(c, [putfh(&file), write(c, id, 0, b"x")]).await, Status::AdminRevoked);
        assert_eq!(s.status(c, [putfh(&other_file), write(c, other, 0, b"x")]).await, Status::Ok);
        assert_eq!((tested(c, s, id).await, tested(c, s, other).await), (Status::AdminRevoked, Status::Ok));
        // The access that the open denied is available to another client.
        let b = Session::new(c, b"other client").await;
        let root = b.path(c, "/x").await.unwrap();
        opened(c, &b, &root, open(b"o", "f", 2, 0, false)).await.unwrap();
        let free = op(Operation::FreeStateid, FreeStateidArgs { stateid: id });
        assert_eq!(s.status(c, [free]).await, Status::Ok);
        assert_eq!(tested(c, s, id).await, Status::BadStateid);
        assert_eq!(flags(c, s).await, 0);
    });
}

#[test]
fn state_is_revoked_by_export_and_by_client() {
    with_opens(async |server, c, s, [(x, _), (y, _)]| {
        let state = server.nfs4_state();
        assert_eq!(state.revoke(&StateFilter::Export("/y".into())).await, Ok(1));
        assert_eq!((tested(c, s, x).await, tested(c, s, y).await), (Status::Ok, Status::AdminRevoked));
        assert_eq!(state.revoke(&StateFilter::Client(s.client.number)).await, Ok(1));
        assert_eq!(tested(c, s, x).await, Status::AdminRevoked);
        assert_eq!(state.clients(None, 1)[0].revoked, 2);
    });
}

#[test]
fn what_does_not_exist_is_not_revoked() {
    with_opens(async |server, c, s, [(x, _), _]| {
        let state = server.nfs4_state();
        assert_eq!(state.revoke(&StateFilter::Client(7)).await, Err(StateError::NoClient(7)));
        let export = state.revoke(&StateFilter::Export("/z".into())).await;
        assert_eq!(export, Err(StateError::NoExport("/z".into(), "/x, /y".into())));
        for path in ["/x/none", "/none", "f"] {
            let file = state.revoke(&StateFilter::File(path.into())).await;
            assert!(matches!(file, Err(StateError::NoFile { .. })), "{path}");
        }
        assert_eq!(tested(c, s, x).await, Status::Ok);
    });
}
