//! Delegations over TCP and RDMA, with holders that answer each callback by hand.

use std::{sync::Arc, time::Duration};

use millrace_nfs::{v3, v4::*};
use millrace_nfs4_conformance::operations::{close, remove, write};
use millrace_server::{Config, Server, TargetSettings, target_name};

use super::{
    compound::*,
    network::{Called, Network, Wire, on_both_with},
};
use crate::common::{Caller, Proto, config, run};

pub(crate) const EXPORT: &str = "64MiB,delegations=write";
/// SEQ4_STATUS_RECALLABLE_STATE_REVOKED.
const REVOKED: u32 = 0x40;
const LEASE: Duration = Duration::from_secs(90);

/// A client that holds delegations, and another one.
pub(crate) struct Scene<'n> {
    pub(crate) network: &'n Network,
    pub(crate) wire: Arc<Wire>,
    pub(crate) holder: Caller,
    pub(crate) session: Session,
    pub(crate) other: Caller,
    pub(crate) others: Session,
    pub(crate) dir: Vec<u8>,
}

/// The result of an OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) stateid: Stateid,
    /// The delegation with its stateid.
    pub(crate) delegation: Granted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Granted {
    Read(Stateid),
    Write(Stateid),
    WriteAttrs(Stateid),
    None,
    Refused(NoDelegation),
}

impl Granted {
    pub(crate) fn stateid(self) -> Stateid {
        match self {
            Self::Read(stateid) | Self::Write(stateid) | Self::WriteAttrs(stateid) => stateid,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn open_with(access: u32, claim: Claim<'static>, create: bool) -> Op {
    Box::new(move |e| {
        e.put(&Operation::Open);
        e.put(&OpenArgs {
            seqid: 0,
            share_access: access,
            share_deny: 0,
            owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(b"o") },
            create: create.then_some(CreateHow::Unchecked(Attributes::default())),
            claim,
        });
    })
}

pub(crate) fn delegreturn(stateid: Stateid) -> Op {
    op(Operation::Delegreturn, DelegreturnArgs { stateid })
}

fn setattr(mode: u32) -> Op {
    let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
    op(Operation::Setattr, SetattrArgs { stateid: Stateid::ANONYMOUS, attributes })
}

/// The stateid and the file of a CB_RECALL.
fn recalled(called: &Called) -> (Stateid, Vec<u8>) {
    assert_eq!(called.operation, CallbackOperation::Recall);
    let args: CbRecallArgs<'_> = called.args();
    assert!(!args.truncate);
    (args.stateid, args.handle.to_vec())
}

pub(crate) fn v3(handle: &[u8]) -> v3::FileHandle {
    v3::FileHandle::new(handle).unwrap()
}

impl<'n> Scene<'n> {
    pub(crate) async fn new(network: &'n Network) -> Self {
        let wire = network.connect(1).await;
        let (holder, other) = (wire.caller(), network.connect(2).await.caller());
        let session = Session::new(&holder, b"holder").await;
        let others = Session::new(&other, b"other").await;
        let dir = session.path(&holder, "x").await.unwrap();
        Self { network, wire, holder, session, other, others, dir }
    }

    pub(crate) async fn open_in(
        c: &Caller,
        s: &Session,
        at: &[u8],
        access: u32,
        claim: Claim<'static>,
        create: bool,
    ) -> Result<(Opened, Vec<u8>), Status> {
        let results = s.send(c, [putfh(at), open_with(access, claim, create), getfh()]).await;
        if results.status != Status::Ok {
            return Err(results.status);
        }
        let ok: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
        let delegation = match ok.delegation {
            Delegation::Read(read) => Granted::Read(read.stateid),
            Delegation::Write(write) => Granted::Write(write.stateid),
            Delegation::WriteAttrs(write) => Granted::WriteAttrs(write.stateid),
            Delegation::None => Granted::None,
            Delegation::NoneExt(why) => Granted::Refused(why),
            other => panic!("{other:?}"),
        };
        let opened = Opened { stateid: ok.stateid, delegation };
        let handle: GetfhOk<'_> = results.take(Operation::Getfh);
        Ok((opened, handle.handle.to_vec()))
    }

    /// The holder opens `name` and creates it.
    pub(crate) async fn hold(&self, name: &'static str, access: u32) -> (Opened, Vec<u8>) {
        let claim = Claim::Null(Opaque(name.as_bytes()));
        Self::open_in(&self.holder, &self.session, &self.dir, access, claim, true).await.unwrap()
    }

    /// The other client opens `name`.
    async fn open(&self, name: &'static str, access: u32) -> Result<(Opened, Vec<u8>), Status> {
        let claim = Claim::Null(Opaque(name.as_bytes()));
        Self::open_in(&self.other, &self.others, &self.dir, access, claim, false).await
    }

    pub(crate) async fn status(&self, file: &[u8], on: Op) -> Status {
        self.session.status(&self.holder, [putfh(file), on]).await
    }

    /// Status flags of SEQUENCE of the holder.
    async fn flags(&self) -> u32 {
        let results = send(&self.holder, 2, &[sequence(self.session.sequence(false))]).await;
        let ok: SequenceOk = results.take(Operation::Sequence);
        ok.status_flags
    }

    /// Answers the recall of the delegation.
    pub(crate) async fn answer_recall(&self, stateid: Stateid, file: &[u8], status: Status) {
        let called = self.wire.callback().await;
        assert_eq!(recalled(&called), (stateid, file.to_vec()));
        self.wire.answer(&called, status);
    }

    /// No callback is sent, or repeated.
    pub(crate) async fn assert_quiet(&self) {
        assert!(self.wire.callback_within(Duration::from_secs(5)).await.is_none());
    }

    pub(crate) fn stats(&self) -> [u64; 3] {
        let stats = self.network.hosted.stats();
        [stats.nfs4_delegations, stats.nfs4_delegations_recalled, stats.nfs4_delegations_revoked]
    }
}

#[test]
fn an_open_recalls_a_write_delegation() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        let (opened, file) = s.hold("f", 3).await;
        let Granted::Write(id) = opened.delegation else { panic!("{opened:?}") };
        assert_eq!(s.status(&file, write(&s.holder, id, 0, b"data")).await, Status::Ok);
        assert_eq!(s.open("f", 1).await, Err(Status::Delay));
        s.answer_recall(id, &file, Status::Ok).await;
        assert_eq!(s.open("f", 1).await, Err(Status::Delay));
        s.assert_quiet().await;
        assert_eq!(s.status(&file, delegreturn(id)).await, Status::Ok);
        let (reader, _) = s.open("f", 1).await.unwrap();
        assert_eq!(reader.delegation, Granted::None, "the file is open for writing");
        let (again, _) = s.hold("f", 3).await;
        assert_eq!(again.delegation, Granted::None);
        assert_eq!((s.stats(), s.flags().await), ([0, 1, 0], 0));
    });
}

#[test]
fn the_setting_and_the_client_decide_what_is_delegated() {
    let wanted = [
        (3, "delegations=none", Granted::None),
        (3, "delegations=read", Granted::None),
        (1, "delegations=none", Granted::None),
        (
            1 | share_access::WANT_READ_DELEG,
            "delegations=none",
            Granted::Refused(NoDelegation::Resource { will_signal: false }),
        ),
        (2, "delegations=read", Granted::None),
        (3 | share_access::WANT_NO_DELEG, "delegations=write", Granted::Refused(NoDelegation::NotWanted)),
        (3 | share_access::WANT_CANCEL, "delegations=write", Granted::Refused(NoDelegation::Cancelled)),
    ];
    for (access, options, expected) in wanted {
        on_both_with(&format!("8MiB,{options}"), async |network| {
            let s = Scene::new(network).await;
            assert_eq!(s.hold("f", access).await.0.delegation, expected, "{access:#x} {options}");
        });
    }
    let granted = [(1, "read"), (1, "write"), (1 | share_access::WANT_ANY_DELEG, "read")];
    for (access, kind) in granted {
        on_both_with(&format!("8MiB,delegations={kind}"), async |network| {
            let s = Scene::new(network).await;
            let (opened, _) = s.hold("f", access).await;
            assert!(matches!(opened.delegation, Granted::Read(_)), "{opened:?}");
            // A client has one delegation of a file.
            let (again, _) = s.hold("f", 1 | share_access::WANT_READ_DELEG).await;
            assert!(matches!(again.delegation, Granted::Refused(NoDelegation::Resource { .. })));
            assert_eq!(s.stats(), [1, 0, 0]);
        });
    }
}

impl Scene<'_> {
    /// The other client creates a file without keeping it open.
    pub(crate) async fn open_file(&self, name: &str) {
        let created = self.other.create(v3(&self.dir), name).await;
        assert!(!created.as_bytes().is_empty());
    }
}

#[test]
fn the_requests_of_the_holder_recall_nothing() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        s.open_file("another").await;
        let (opened, file) = s.hold("f", 3).await;
        let id = opened.delegation.stateid();
        for on in
            [read(id, 0, 1), read(Stateid::ANONYMOUS, 0, 1), write(&s.holder, id, 0, b"x"), setattr(0o600)]
        {
            assert_eq!(s.status(&file, on).await, Status::Ok);
        }
        assert_eq!(s.status(&file, getattr(&[Attribute::Size, Attribute::Change])).await, Status::Ok);
        assert_eq!(s.status(&s.dir, remove("f")).await, Status::Ok);
        s.assert_quiet().await;
        assert_eq!(s.stats(), [1, 0, 0]);
    });
}

#[test]
fn opens_under_a_delegation() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        let (opened, file) = s.hold("f", 3).await;
        let id = opened.delegation.stateid();
        assert_eq!(s.open("f", 1).await, Err(Status::Delay));
        s.answer_recall(id, &file, Status::Ok).await;
        // The client claims the opens that it granted locally under the delegation.
        let (c, session) = (&s.holder, &s.session);
        let claims = [(&s.dir, Claim::DelegateCur(id, Opaque(b"f"))), (&file, Claim::DelegCurFh(id))];
        for (dir, claim) in claims {
            let (again, _) = Scene::open_in(c, session, dir, 3, claim, false).await.unwrap();
            assert_eq!((again.stateid.other, again.delegation), (opened.stateid.other, Granted::None));
        }
        s.open_file("g").await;
        // The delegation of another file, and no delegation.
        let open = Stateid { seqid: 0, ..opened.stateid };
        let claims = [(&s.dir, Claim::DelegateCur(id, Opaque(b"g"))), (&file, Claim::DelegCurFh(open))];
        for (dir, claim) in claims {
            let result = Scene::open_in(c, session, dir, 1, claim, false).await;
            assert_eq!(result.map(drop), Err(Status::BadStateid));
        }
        assert_eq!(s.status(&file, delegreturn(id)).await, Status::Ok);
        let claim = Claim::DelegCurFh(id);
        let late = Scene::open_in(c, session, &file, 1, claim, false).await;
        assert_eq!(late.map(drop), Err(Status::BadStateid));
    });
}

/// A client that loses its delegation because it does not return it.
async fn assert_revoked(s: &Scene<'_>, opened: Opened, file: &[u8]) {
    let id = opened.delegation.stateid();
    assert_eq!(s.stats(), [0, 1, 1]);
    assert_eq!(s.flags().await & REVOKED, REVOKED);
    assert_eq!(s.status(file, write(&s.holder, id, 0, b"late")).await, Status::DelegRevoked);
    assert_eq!(s.status(file, delegreturn(id)).await, Status::DelegRevoked);
    let results = s.session.send(
        &s.holder,
        [op(Operation::TestStateid, TestStateidArgs { stateids: List(vec![id, opened.stateid]) })],
    );
    let results = results.await;
    let tested: TestStateidOk = results.take(Operation::TestStateid);
    assert_eq!(tested.statuses.0, [Status::DelegRevoked, Status::Ok]);
    let free = || op(Operation::FreeStateid, FreeStateidArgs { stateid: id });
    assert_eq!(s.session.status(&s.holder, [free()]).await, Status::Ok);
    assert_eq!(s.session.status(&s.holder, [free()]).await, Status::BadStateid);
    assert_eq!(s.flags().await & REVOKED, 0);
}

#[test]
fn no_request_waits_longer_than_a_lease() {
    // The holder accepts the recall and does not return the delegation, or never answers, or answers garbage.
    for behaviour in 0..3 {
        on_both_with(EXPORT, async |network| {
            let s = Scene::new(network).await;
            let (opened, file) = s.hold("f", 1).await;
            let (before, step) = (network.rt.now(), Duration::from_secs(5));
            loop {
                let result = s.open("f", 3).await.map(drop);
                let waited = network.rt.now().duration_since(before);
                if result.is_ok() {
                    assert!(waited >= LEASE && waited <= LEASE + step, "{waited:?}");
                    break;
                }
                assert_eq!(result, Err(Status::Delay));
                if let Some(called) = s.wire.callback_within(step).await {
                    match behaviour {
                        0 => s.wire.answer(&called, Status::Ok),
                        1 => {}
                        _ => {
                            let header = [called.xid.to_be_bytes(), 1_u32.to_be_bytes()].concat();
                            s.wire.send([header, vec![0xff; 40]].concat());
                        }
                    }
                }
                s.flags().await;
            }
            assert_revoked(&s, opened, &file).await;
        });
    }
}

#[test]
fn a_client_that_does_not_know_the_delegation_yet_is_called_again() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        let (opened, file) = s.hold("f", 3).await;
        let id = opened.delegation.stateid();
        assert_eq!(s.open("f", 1).await, Err(Status::Delay));
        s.answer_recall(id, &file, Status::BadStateid).await;
        s.answer_recall(id, &file, Status::BadHandle).await;
        s.answer_recall(id, &file, Status::Delay).await;
        s.answer_recall(id, &file, Status::Ok).await;
        s.assert_quiet().await;
        assert_eq!(s.stats(), [1, 1, 0]);
    });
}

#[test]
fn a_recall_continues_on_another_connection() {
    on_both_with(EXPORT, async |network| {
        let mut s = Scene::new(network).await;
        let (opened, file) = s.hold("f", 3).await;
        let id = opened.delegation.stateid();
        assert_eq!(s.open("f", 1).await, Err(Status::Delay));
        assert_eq!(recalled(&s.wire.callback().await).0, id);
        // The connection is lost, and the client is away for longer than the attempts.
        s.wire = network.connect(3).await;
        s.holder = s.wire.caller();
        network.sleep(Duration::from_secs(20)).await;
        let args = BindConnToSessionArgs {
            session: s.session.ok.session,
            direction: RequestedDirection::ForeOrBoth,
            use_rdma: false,
        };
        let bound = send(&s.holder, 2, &[op(Operation::BindConnToSession, args)]).await;
        assert_eq!(bound.status, Status::Ok);
        s.assert_quiet().await;
        assert_eq!(s.open("f", 1).await, Err(Status::Delay));
        let again = s.wire.callback().await;
        assert_eq!(recalled(&again), (id, file.clone()));
        // The client has executed the first call, whose answer was lost.
        s.wire.answer_sequence(&again, Status::RetryUncachedRep);
        s.answer_recall(id, &file, Status::Ok).await;
        assert_eq!(s.status(&file, delegreturn(id)).await, Status::Ok);
        assert!(s.open("f", 1).await.is_ok());
    });
}

#[test]
fn wrong_returns_are_rejected() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        let (opened, file) = s.hold("f", 3).await;
        let (_, another) = s.hold("g", 1).await;
        let id = opened.delegation.stateid();
        for (on, file, expected) in [
            (delegreturn(id), &another, Status::BadStateid),
            (delegreturn(opened.stateid), &file, Status::BadStateid),
            (delegreturn(Stateid { seqid: 2, ..id }), &file, Status::BadStateid),
            (delegreturn(Stateid::ANONYMOUS), &file, Status::BadStateid),
            (delegreturn(Stateid { seqid: 0, ..id }), &file, Status::Ok),
            (delegreturn(id), &file, Status::BadStateid),
        ] {
            assert_eq!(s.status(file, on).await, expected);
        }
        let stolen = s.others.status(&s.other, [putfh(&file), delegreturn(id)]).await;
        assert_eq!(stolen, Status::BadStateid);
        assert_eq!(s.session.status(&s.holder, [delegreturn(id)]).await, Status::NoFileHandle);
        assert_eq!(s.stats(), [1, 0, 0]);
    });
}

#[test]
fn a_client_that_restarts_or_leaves_holds_nothing() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        s.hold("f", 3).await;
        let identified = send(&s.holder, 1, &[exchange_id(b"holder", [2; 8])]).await;
        let ok: ExchangeIdOk<'_> = identified.take(Operation::ExchangeId);
        let created = send(&s.holder, 1, &[create_session(ok.client_id, ok.sequence, CHANNEL)]).await;
        assert_eq!(created.status, Status::Ok);
        assert_eq!(s.stats(), [0, 0, 0]);
        assert!(s.open("f", 3).await.is_ok());
        // A client whose lease has expired is not waited for.
        let s = Scene::new(network).await;
        s.hold("g", 3).await;
        network.sleep(LEASE + Duration::from_secs(1)).await;
        assert!(s.open("g", 3).await.is_ok());
    });
}

impl Scene<'_> {
    /// Sends GETATTR by the other client, and answers CB_GETATTR.
    async fn attributes(&self, file: &[u8], answer: impl AsyncFn(&Called)) -> Result<(u64, u64), Status> {
        let ops = [putfh(file), getattr(&[Attribute::Change, Attribute::Size])];
        let answering = async {
            if let Some(called) = self.wire.callback_within(Duration::from_secs(5)).await {
                answer(&called).await;
            }
        };
        let (results, ()) = futures::join!(self.others.send(&self.other, ops), answering);
        if results.status != Status::Ok {
            return Err(results.status);
        }
        let values: Attributes<'_> = results.skip(&[Operation::Putfh]).take(Operation::Getattr);
        Ok((values.change.unwrap(), values.size.unwrap()))
    }
}

#[test]
fn the_holder_of_a_write_delegation_reports_the_attributes() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        let (opened, file) = s.hold("f", 3).await;
        let own = s.session.send(&s.holder, [putfh(&file), getattr(&[Attribute::Change])]).await;
        let own: Attributes<'_> = own.skip(&[Operation::Putfh]).take(Operation::Getattr);
        let granted = own.change.unwrap();
        let answer = |change, size| {
            let wire = Arc::clone(&s.wire);
            async move |called: &Called| {
                let args: CbGetattrArgs<'_> = called.args();
                assert_eq!(called.operation, CallbackOperation::Getattr);
                assert_eq!(args.requested, Bitmap::of(&[Attribute::Size, Attribute::Change]));
                let held = Attributes { change: Some(change), size: Some(size), ..Attributes::default() };
                wire.answer_attributes(called, &held);
            }
        };
        assert_eq!(s.attributes(&file, answer(granted, 0)).await, Ok((granted, 0)));
        assert_eq!(s.attributes(&file, answer(granted + 1, 77)).await, Ok((granted + 1, 77)));
        assert_eq!(s.attributes(&file, answer(granted + 1, 78)).await, Ok((granted + 2, 78)));
        let answering = async {
            let called = s.wire.callback().await;
            answer(granted + 1, 79)(&called).await;
        };
        let (of_v3, ()) = futures::join!(s.other.getattr(v3(&file)), answering);
        assert_eq!(of_v3.unwrap().size, 79);
        // Attributes that the holder cannot change are those of the file system.
        let ops = [putfh(&file), getattr(&[Attribute::Mode, Attribute::Fileid])];
        assert_eq!(s.others.status(&s.other, ops).await, Status::Ok);
        s.assert_quiet().await;
        // After the data is written, the file has a later change.
        let id = opened.delegation.stateid();
        network.sleep(Duration::from_millis(1)).await;
        assert_eq!(s.status(&file, write(&s.holder, id, 0, &[1; 79])).await, Status::Ok);
        assert_eq!(s.status(&file, delegreturn(id)).await, Status::Ok);
        let (change, size) = s.attributes(&file, async |_| panic!("a callback")).await.unwrap();
        assert!(change > granted + 3 && size == 79, "{change} {granted}");
    });
}

#[test]
fn a_holder_that_does_not_report_attributes_is_recalled() {
    let garbage = |wire: &Wire, called: &Called| {
        let header = [called.xid.to_be_bytes(), 1_u32.to_be_bytes()].concat();
        wire.send([header, vec![0xff; 60]].concat());
    };
    for (behaviour, access) in (0..3).flat_map(|n| [(n, 3), (n, 3 | share_access::WANT_DELEG_TIMESTAMPS)]) {
        on_both_with(EXPORT, async |network| {
            let s = Scene::new(network).await;
            let (opened, file) = s.hold("f", access).await;
            let before = network.rt.now();
            let answer = async |called: &Called| match behaviour {
                0 => {}
                1 => s.wire.answer(called, Status::BadHandle),
                _ => garbage(&s.wire, called),
            };
            assert_eq!(s.attributes(&file, answer).await, Err(Status::Delay));
            let waited = network.rt.now().duration_since(before);
            assert!(waited < Duration::from_secs(2), "{waited:?}");
            if behaviour == 1 {
                s.answer_recall(opened.delegation.stateid(), &file, Status::Ok).await;
            }
            assert_eq!(s.stats(), [1, 1, 0]);
        });
    }
}

/// Maximum number of delegations of a client.
const MOST: usize = 16_384;

#[test]
fn a_client_with_many_delegations_is_asked_to_return_some() {
    on_both_with(EXPORT, async |network| {
        if network.proto == Proto::Rdma {
            return; // The number is independent of the transport.
        }
        let s = Scene::new(network).await;
        for n in 0..MOST + 10 {
            let name: &'static str = format!("{n}").leak();
            let (opened, _) = s.hold(name, 3).await;
            assert_eq!(matches!(opened.delegation, Granted::Write(_)), n < MOST, "{n}");
        }
        let called = s.wire.callback().await;
        assert_eq!(called.operation, CallbackOperation::RecallAny);
        let args: CbRecallAnyArgs = called.args();
        assert_eq!((args.keep, args.types), (MOST as u32 / 2, Bitmap::from([3, 0, 0])));
        assert_eq!(s.stats(), [MOST as u64, 0, 0]);
        // The other client gets delegations.
        let claim = Claim::Null(Opaque(b"x"));
        let opened = Scene::open_in(&s.other, &s.others, &s.dir, 3, claim, true).await.unwrap().0;
        assert!(matches!(opened.delegation, Granted::Write(_)));
    });
}

/// The file of a LUN is not delegated while a target has it, and a target gets it after the recall of its delegations.
#[test]
fn files_of_luns_are_not_delegated() {
    run(async {
        let without = Config {
            listen_iscsi: Some(([127, 0, 0, 1], 0).into()),
            ..config(&["/x=memory:64MiB,squash=none,delegations=write"])
        };
        let luns = vec!["/x/disk,size=1MiB".parse().unwrap()];
        let targets = vec![TargetSettings::new(target_name("disk").unwrap(), luns)];
        let with = Config { targets, ..without.clone() };
        let mut server = Server::start(with.clone()).unwrap();
        let wire = Wire::tcp(server.tcp_addr().unwrap()).await;
        let c = wire.caller();
        let s = Session::new(&c, b"holder").await;
        let dir = s.path(&c, "x").await.unwrap();
        let open = async || {
            let claim = Claim::Null(Opaque(b"disk"));
            let (opened, file) = Scene::open_in(&c, &s, &dir, 1, claim, false).await.unwrap();
            assert_eq!(s.status(&c, [putfh(&file), close(opened.stateid)]).await, Status::Ok);
            (opened.delegation, file)
        };
        let is_refused =
            |granted| matches!(granted, Granted::None | Granted::Refused(NoDelegation::Contention { .. }));
        let (granted, _) = open().await;
        assert!(is_refused(granted), "{granted:?}");
        server.reload(&without).unwrap();
        let (granted, file) = open().await;
        let id = granted.stateid();
        let refused = server.reload(&with).unwrap_err().to_string();
        assert!(refused.contains("NFSv4 clients have delegations of it"), "{refused}");
        assert_eq!(s.status(&c, [putfh(&file)]).await, Status::Ok);
        let called = wire.callback().await;
        assert_eq!(recalled(&called), (id, file.clone()));
        wire.answer(&called, Status::Ok);
        assert_eq!(s.status(&c, [putfh(&file), delegreturn(id)]).await, Status::Ok);
        server.reload(&with).unwrap();
        let (granted, _) = open().await;
        assert!(is_refused(granted), "{granted:?}");
    });
}
