//! Clients whose state belongs to the credential of a machine (SP4_MACH_CRED).

use std::{collections::HashMap, time::Duration};

use millrace_kerberos_testing::{Realm, realm_tests};
use millrace_nfs::v4::*;
use millrace_nfs4_conformance::compound::{
    CHANNEL, Call, Op, Session, create_session, getattr, op, open, putfh, read, send,
};
use millrace_server::{Config, ExportConfig, Running, Server, ServerFiles};

use super::{
    caller::{GssCaller, principal, tickets},
    settings,
};
use crate::{
    common::{Proto, config, run, sys},
    tls::{Authority, connect, issue, rule},
};

const KRB5: u32 = 1;
const KRB5I: u32 = 2;
const KRB5P: u32 = 3;
/// `spo_must_enforce` of the server.
const ENFORCED: [Operation; 5] = [
    Operation::BindConnToSession,
    Operation::ExchangeId,
    Operation::CreateSession,
    Operation::DestroySession,
    Operation::DestroyClientid,
];
/// `spo_must_allow` of Linux's client, and what the server grants of it.
const ASKED: [Operation; 10] = [
    Operation::Close,
    Operation::OpenDowngrade,
    Operation::Locku,
    Operation::Delegreturn,
    Operation::TestStateid,
    Operation::FreeStateid,
    Operation::Write,
    Operation::Commit,
    Operation::Secinfo,
    Operation::SecinfoNoName,
];
const GRANTED: [Operation; 6] = [
    Operation::Close,
    Operation::OpenDowngrade,
    Operation::Locku,
    Operation::Delegreturn,
    Operation::TestStateid,
    Operation::FreeStateid,
];

fn exchange_id(owner: &'static [u8], flags: u32, must_allow: &[Operation]) -> Op {
    let protected = ProtectedOperations {
        must_enforce: Bitmap::of_operations(&[Operation::ExchangeId]),
        must_allow: Bitmap::of_operations(must_allow),
    };
    op(
        Operation::ExchangeId,
        ExchangeIdArgs {
            owner: ClientOwner { verifier: [1; 8], id: Opaque(owner) },
            flags,
            state_protect: StateProtect::MachineCredential(protected),
            implementation: None,
        },
    )
}

/// A client with the machine credential of the caller.
async fn client(c: &impl Call, owner: &'static [u8]) -> Session {
    let identified = send(c, 2, &[exchange_id(owner, 0, &ASKED)]).await;
    let ok: ExchangeIdOk<'_> = identified.take(Operation::ExchangeId);
    Session::of(c, ok.client_id, ok.sequence, CHANNEL).await
}

/// A file that is delegated with its times.
struct Held {
    file: Vec<u8>,
    stateid: Stateid,
    modified: NfsTime,
}

/// A user creates and holds a file.
async fn hold(session: &Session, c: &impl Call, dir: &[u8], name: &'static str) -> Held {
    let access = share_access::BOTH | share_access::WANT_DELEG_TIMESTAMPS;
    let opened = [putfh(dir), open(b"o", name, access, 0, true), op(Operation::Getfh, ())];
    let results = session.send(c, opened).await;
    let opened: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
    let Delegation::WriteAttrs(write) = opened.delegation else { panic!("{opened:?}") };
    let file = results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
    Held { modified: modified(session, c, &file).await, file, stateid: write.stateid }
}

async fn modified(session: &Session, c: &impl Call, file: &[u8]) -> NfsTime {
    let results = session.send(c, [putfh(file), getattr(&[Attribute::TimeModify])]).await;
    let values: Attributes<'_> = results.skip(&[Operation::Putfh]).take(Operation::Getattr);
    values.time_modify.unwrap()
}

struct Bench {
    server: Running,
    machine: GssCaller,
    tickets: HashMap<u32, String>,
}

impl Bench {
    async fn new(realm: &Realm, export: &str) -> Self {
        // User 0 is the machine.
        let kerberos = settings(realm, &[(&principal(0), "0:0"), (&principal(1), "1:1")]);
        let server = Server::start(Config { kerberos, ..config(&[export]) }).unwrap();
        let tickets = tickets(realm, &[0, 1]);
        let machine = GssCaller::connect(&server, Proto::Tcp, &tickets, KRB5I).await;
        Self { server, machine, tickets }
    }

    /// A caller on another connection.
    async fn other(&self, uid: u32, service: u32) -> GssCaller {
        GssCaller::connect(&self.server, Proto::Tcp, &self.tickets, service).await.with(sys(uid, uid))
    }

    async fn end(self) {
        self.server.stop(Duration::from_secs(5)).await;
    }
}

realm_tests! {
    fn a_machine_credential_needs_integrity_or_privacy(realm) {
        run(async {
            let bench = Bench::new(realm, "/x=memory:8MiB,sec=krb5p:krb5i:krb5:sys").await;
            let c = &bench.machine;
            let refused = send(c.sys(), 2, &[exchange_id(b"a", 0, &ASKED)]).await;
            assert_eq!(refused.status, Status::Inval);
            assert_eq!(send(&c.with_service(KRB5), 2, &[exchange_id(b"a", 0, &ASKED)]).await.status, Status::Inval);
            for (service, asked, granted) in [
                (KRB5I, &ASKED[..], &GRANTED[..]),
                (KRB5P, &ASKED, &GRANTED),
                (KRB5I, &[], &[]),
                (KRB5I, &[Operation::Close, Operation::Read], &[Operation::Close]),
            ] {
                let identified = send(&c.with_service(service), 2, &[exchange_id(b"b", 0, asked)]).await;
                let ok: ExchangeIdOk<'_> = identified.take(Operation::ExchangeId);
                let expected = ProtectedOperations {
                    must_enforce: Bitmap::of_operations(&ENFORCED),
                    must_allow: Bitmap::of_operations(granted),
                };
                assert_eq!(ok.state_protect, Some(expected));
            }
            bench.end().await;
        });
    }

    fn operations_on_the_client_are_those_of_the_machine(realm) {
        run(async {
            let bench = Bench::new(realm, "/x=memory:8MiB,sec=krb5p:krb5i:krb5:sys").await;
            let machine = &bench.machine;
            let session = client(machine, b"machine").await;
            let (id, client_id) = (session.ok.session, session.client);
            let bind = || {
                let direction = RequestedDirection::ForeOrBoth;
                op(
                    Operation::BindConnToSession,
                    BindConnToSessionArgs { session: id, direction, use_rdma: false },
                )
            };
            let update = exchange_id_flags::UPD_CONFIRMED_REC_A;
            let operations: [(&str, &dyn Fn() -> Op); 5] = [
                ("EXCHANGE_ID", &|| exchange_id(b"machine", update, &ASKED)),
                ("CREATE_SESSION", &|| create_session(client_id, 2, CHANNEL)),
                ("BIND_CONN_TO_SESSION", &bind),
                ("DESTROY_SESSION", &|| op(Operation::DestroySession, DestroySessionArgs { session: id })),
                ("DESTROY_CLIENTID", &|| op(Operation::DestroyClientid, DestroyClientidArgs { client_id })),
            ];
            let (user, weak) = (bench.other(1, KRB5P).await, bench.other(0, KRB5).await);
            for (name, operation) in operations {
                let status = send(&user, 2, &[operation()]).await.status;
                assert_eq!(status, Status::WrongCred, "{name} by another user");
                // EXCHANGE_ID asks for a machine credential.
                let expected = if name == "EXCHANGE_ID" { Status::Inval } else { Status::WrongCred };
                assert_eq!(send(&weak, 2, &[operation()]).await.status, expected, "{name} without integrity");
                let status = send(weak.sys(), 2, &[operation()]).await.status;
                assert_eq!(status, expected, "{name} by AUTH_SYS");
            }
            // A new incarnation, too, needs the integrity of the machine, and another owner of the name waits for the lease.
            let plain = || millrace_nfs4_conformance::compound::exchange_id(b"machine", [2; 8]);
            assert_eq!(send(&weak, 2, &[plain()]).await.status, Status::WrongCred);
            assert_eq!(send(&user, 2, &[plain()]).await.status, Status::ClidInuse);

            // In a session, others use the operations that a user needs.
            let root = session.path(&user, "x").await.unwrap();
            assert_eq!(session.status(&user, [putfh(&root), getattr(&[Attribute::Size])]).await, Status::Ok);
            let other = bench.other(0, KRB5P).await;
            let mut created = None;
            for (name, operation) in operations {
                if let Some(session) = created.take_if(|_| name == "DESTROY_CLIENTID") {
                    let end = op(Operation::DestroySession, DestroySessionArgs { session });
                    assert_eq!(send(&other, 2, &[end]).await.status, Status::Ok);
                }
                let results = send(&other, 2, &[operation()]).await;
                assert_eq!(results.status, Status::Ok, "{name} by the machine");
                if name == "CREATE_SESSION" {
                    created = Some(results.take::<CreateSessionOk>(Operation::CreateSession).session);
                }
            }
            bench.end().await;
        });
    }

    fn the_machine_ends_what_users_have_opened_without_their_flavor(realm) {
        run(async {
            let bench = Bench::new(realm, "/x=memory:8MiB,sec=krb5p,squash=root").await;
            let machine = &bench.machine;
            let session = client(machine, b"machine").await;
            let user = bench.other(1, KRB5P).await;
            assert_eq!(session.reclaim_complete(machine).await, Status::Ok);
            let root = session.path(&user, "x").await.unwrap();
            // OPEN_DOWNGRADE needs an access that was requested (RFC 8881 section 18.18.3).
            let opened = [putfh(&root), open(b"o", "file", 1, 0, true)];
            assert_eq!(session.status(&user, opened).await, Status::Ok);
            let created = [putfh(&root), open(b"o", "file", 3, 0, true), op(Operation::Getfh, ())];
            let results = session.send(&user, created).await;
            let stateid = results.skip(&[Operation::Putfh]).take::<OpenOk<'_>>(Operation::Open).stateid;
            let file = results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
            let close = |stateid| op(Operation::Close, CloseArgs { seqid: 0, stateid });
            let with = async |c: &GssCaller, file: &[u8], ops: Vec<Op>| {
                session.status(c, std::iter::once(putfh(file)).chain(ops)).await
            };
            let size = || getattr(&[Attribute::Size]);

            // Only what ends the state of users.
            assert_eq!(with(machine, &file, vec![size()]).await, Status::WrongSec);
            assert_eq!(with(machine, &file, vec![read(stateid, 0, 1)]).await, Status::WrongSec);
            assert_eq!(with(machine, &file, vec![read(stateid, 0, 1), close(stateid)]).await, Status::WrongSec);
            let attributes = Attributes { mode: Some(0o777), ..Attributes::default() };
            let chmod = || op(Operation::Setattr, SetattrArgs { stateid, attributes });
            assert_eq!(with(machine, &file, vec![chmod(), close(stateid)]).await, Status::Access);
            // What names no file needs no exemption, and gives none to what does.
            let test = || op(Operation::TestStateid, TestStateidArgs { stateids: List(vec![stateid]) });
            let free = || op(Operation::FreeStateid, FreeStateidArgs { stateid });
            for ops in [vec![size(), test()], vec![test(), size()], vec![size(), free()]] {
                assert_eq!(with(machine, &file, ops).await, Status::WrongSec);
            }
            let weak = bench.other(0, KRB5).await;
            assert_eq!(with(&weak, &file, vec![close(stateid)]).await, Status::WrongSec);
            let other = bench.other(1, KRB5I).await;
            assert_eq!(with(&other, &file, vec![close(stateid)]).await, Status::WrongSec);

            let downgrade = OpenDowngradeArgs { stateid, seqid: 0, share_access: 1, share_deny: 0 };
            assert_eq!(with(machine, &file, vec![op(Operation::OpenDowngrade, downgrade)]).await, Status::Ok);
            let locked = session
                .send(&user, [putfh(&file), op(Operation::Lock, LockArgs {
                    lock_type: LockType::Read,
                    reclaim: false,
                    offset: 0,
                    length: 10,
                    locker: Locker::New {
                        open_seqid: 0,
                        open_stateid: Stateid { seqid: 0, ..stateid },
                        lock_seqid: 0,
                        owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(b"l") },
                    },
                })])
                .await;
            let lock: StateidOk = locked.skip(&[Operation::Putfh]).take(Operation::Lock);
            let unlock = LockuArgs { lock_type: LockType::Read, seqid: 0, stateid: lock.stateid, offset: 0, length: 10 };
            assert_eq!(with(machine, &file, vec![op(Operation::Locku, unlock)]).await, Status::Ok);
            assert_eq!(session.status(machine, [test()]).await, Status::Ok);
            let free = FreeStateidArgs { stateid: Stateid { seqid: 0, ..lock.stateid } };
            assert_eq!(session.status(machine, [op(Operation::FreeStateid, free)]).await, Status::Ok);
            let last = Stateid { seqid: 0, ..stateid };
            assert_eq!(with(machine, &file, vec![size(), close(last)]).await, Status::Ok);
            bench.end().await;
        });
    }

    fn the_machine_sets_the_times_of_a_delegation_that_it_returns(realm) {
        run(async {
            let bench = Bench::new(realm, "/x=memory:8MiB,sec=krb5p,delegations=write").await;
            let machine = &bench.machine;
            let session = client(machine, b"machine").await;
            assert_eq!(session.reclaim_complete(machine).await, Status::Ok);
            let user = bench.other(1, KRB5P).await;
            let root = session.path(&user, "x").await.unwrap();
            let held = hold(&session, &user, &root, "file").await;
            let others = hold(&session, &user, &root, "other").await;
            let later = match held.modified {
                NfsTime { seconds, nanoseconds: 999_999_999 } => NfsTime { seconds: seconds + 1, nanoseconds: 0 },
                NfsTime { seconds, nanoseconds } => NfsTime { seconds, nanoseconds: nanoseconds + 1 },
            };
            let set = |stateid, time| {
                let attributes = Attributes { time_deleg_modify: Some(time), ..Attributes::default() };
                op(Operation::Setattr, SetattrArgs { stateid, attributes })
            };
            let give = |stateid| op(Operation::Delegreturn, DelegreturnArgs { stateid });
            let with = async |c: &GssCaller, ops: Vec<Op>| {
                session.status(c, std::iter::once(putfh(&held.file)).chain(ops)).await
            };
            // Not without the return, with another delegation, or by others.
            assert_eq!(with(machine, vec![set(held.stateid, later)]).await, Status::WrongSec);
            let foreign = vec![set(others.stateid, later), give(others.stateid)];
            assert_eq!(with(machine, foreign).await, Status::BadStateid);
            let weak = bench.other(1, KRB5I).await;
            assert_eq!(with(&weak, vec![set(held.stateid, later), give(held.stateid)]).await, Status::WrongSec);
            assert_eq!(modified(&session, &user, &held.file).await, held.modified);
            let size = getattr(&[Attribute::Size]);
            assert_eq!(with(machine, vec![size, set(held.stateid, later), give(held.stateid)]).await, Status::Ok);
            assert_eq!(modified(&session, &user, &held.file).await, later);
            bench.end().await;
        });
    }

    fn the_transport_and_the_certificates_that_an_export_wants_concern_the_machine(realm) {
        run(async {
            let dir = tempfile::tempdir().unwrap();
            let ca = Authority::new(dir.path());
            let tls = ServerFiles { client_ca: Some(ca.file()), ..issue(dir.path(), "server", "nfs.test") };
            let mut export: ExportConfig =
                "/x=memory:8MiB,sec=krb5p,xprtsec=mtls,delegations=write".parse().unwrap();
            export.certificates = vec![
                rule(|r| (r.subject, r.read_only) = (Some("CN=reader".into()), true)),
                rule(|r| r.subject = Some("CN=writer".into())),
            ];
            let kerberos = settings(realm, &[(&principal(0), "0:0"), (&principal(1), "1:1")]);
            let start = Config { kerberos, tls: Some(tls.clone()), exports: vec![export], ..config(&[]) };
            let server = Server::start(start).unwrap();
            let tickets = tickets(realm, &[0, 1]);
            let over = async |name: &str, serial| {
                let own = ca.issue(name, serial);
                let caller = connect(&server, Proto::Tcp, "nfs.test", &tls, Some(&own)).await.unwrap();
                GssCaller::over(caller, &server, &tickets, KRB5I)
            };
            let (writer, reader, other) = (over("writer", 1).await, over("reader", 2).await, over("other", 3).await);
            let clear = GssCaller::connect(&server, Proto::Tcp, &tickets, KRB5I).await;
            let session = client(&writer, b"machine").await;
            assert_eq!(session.reclaim_complete(&writer).await, Status::Ok);
            let user = writer.with_service(KRB5P).with(sys(1, 1));
            let root = session.path(&user, "x").await.unwrap();
            let held = hold(&session, &user, &root, "file").await;
            let ends = async |c: &GssCaller, change: bool| {
                let attributes = match change {
                    true => Attributes { time_deleg_modify: Some(held.modified), ..Attributes::default() },
                    false => Attributes::default(),
                };
                let set = op(Operation::Setattr, SetattrArgs { stateid: held.stateid, attributes });
                let give = op(Operation::Delegreturn, DelegreturnArgs { stateid: held.stateid });
                let before = if change { set } else { getattr(&[Attribute::Size]) };
                session.status(c, [putfh(&held.file), before, give]).await
            };
            for change in [true, false] {
                assert_eq!(ends(&clear, change).await, Status::WrongSec);
                assert_eq!(ends(&other, change).await, Status::Access);
            }
            assert_eq!(ends(&reader, true).await, Status::RoFs);
            assert_eq!(ends(&reader, false).await, Status::Ok);
            let again = hold(&session, &user, &root, "file").await;
            assert_ne!(again.stateid, held.stateid);
            server.stop(Duration::from_secs(5)).await;
        });
    }
}
