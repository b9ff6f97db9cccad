//! Reclaim of state by clients after a restart of the server.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use millrace_nfs::v4::*;
use millrace_server::{Config, Nfs4Settings, Running, Server};

use super::{
    compound::*,
    files::{opened, write},
};
use crate::common::{Caller, Proto, config, run};

/// A server with a state directory and a local export.
struct Scene {
    dir: tempfile::TempDir,
    config: Config,
    server: Option<Running>,
    proto: Proto,
}

impl Scene {
    fn new(proto: Proto, lease: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["files", "state"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let export = format!("/x=local:{},squash=none", dir.path().join("files").display());
        let config = Config {
            state_dir: Some(dir.path().join("state")),
            nfs4: Nfs4Settings { lease, ..Nfs4Settings::default() },
            ..config(&[&export])
        };
        let server = Some(Server::start(config.clone()).unwrap());
        Self { dir, config, server, proto }
    }

    async fn connect(&self) -> Caller {
        Caller::connect(self.server.as_ref().unwrap(), self.proto).await
    }

    /// Ends the server without its cooperation; `between` receives its state directory. Then starts it again.
    async fn restart(&mut self, between: impl FnOnce(&Path)) -> Caller {
        self.server = None;
        between(&self.dir.path().join("state"));
        self.server = Some(Server::start(self.config.clone()).unwrap());
        self.connect().await
    }

    fn has_file(&self, name: &str) -> bool {
        self.dir.path().join("files").join(name).exists()
    }
}

fn owner(owner: &[u8]) -> StateOwner<'_> {
    StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(owner) }
}

/// OPEN of the current file with CLAIM_PREVIOUS.
fn reopen(deny: u32) -> Op {
    Box::new(move |e| {
        e.put(&Operation::Open);
        e.put(&OpenArgs::<Attributes<'_>> {
            seqid: 0,
            share_access: 3,
            share_deny: deny,
            owner: owner(b"o"),
            create: None,
            claim: Claim::Previous(DelegationType::None),
        });
    })
}

fn lock(open_stateid: Stateid, offset: u64, reclaim: bool) -> Op {
    Box::new(move |e| {
        e.put(&Operation::Lock);
        e.put(&LockArgs {
            lock_type: LockType::Write,
            reclaim,
            offset,
            length: 100,
            locker: Locker::New { open_seqid: 0, open_stateid, lock_seqid: 0, owner: owner(b"l") },
        });
    })
}

/// Reclaims the open of `file`.
async fn reclaimed(c: &Caller, s: &Session, file: &[u8]) -> Result<Stateid, Status> {
    let results = s.send(c, [putfh(file), reopen(0)]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    results.skip(&[Operation::Putfh]);
    Ok(results.take::<OpenOk<'_>>(Operation::Open).stateid)
}

/// Opens `name` and locks its first 100 bytes. Returns the stateid of the open, and the handle.
async fn locked(c: &Caller, s: &Session, name: &str) -> (Stateid, Vec<u8>) {
    let root = s.path(c, "/x").await.unwrap();
    let (stateid, file) = opened(c, s, &root, open(b"o", name, 3, 0, true)).await.unwrap();
    assert_eq!(s.status(c, [putfh(&file), lock(stateid, 0, false)]).await, Status::Ok);
    (stateid, file)
}

/// Repeats an operation until its status is neither DELAY nor GRACE.
async fn patiently(attempt: impl AsyncFn() -> Status) -> Status {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = attempt().await;
        if !matches!(status, Status::Delay | Status::Grace) || Instant::now() > deadline {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn clients_reclaim_before_others_get_state() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let mut scene = Scene::new(proto, 90);
            let c = scene.connect().await;
            let (a, b) = (Session::new(&c, b"a").await, Session::new(&c, b"b").await);
            let (before, f) = locked(&c, &a, "f").await;
            let (_, g) = locked(&c, &b, "g").await;

            let c = scene.restart(|_| {}).await;
            let stale = send(&c, 2, &[sequence(a.sequence(false))]).await;
            assert_eq!(stale.next(), (53, Status::BadSession));
            let stale = send(&c, 2, &[create_session(a.client, 2, CHANNEL)]).await;
            assert_eq!(stale.status, Status::StaleClientid);
            let new = Session::new(&c, b"new").await;
            let root = new.path(&c, "/x").await.unwrap();
            let create = || open(b"o", "h", 3, 0, true);
            assert_eq!(opened(&c, &new, &root, create()).await, Err(Status::Grace));
            assert!(!scene.has_file("h"), "OPEN has created a file and failed");
            for op in [read(Stateid::ANONYMOUS, 0, 1), write(&c, Stateid::ANONYMOUS, 0, b"x")] {
                assert_eq!(new.status(&c, [putfh(&f), op]).await, Status::Grace);
            }
            let starting = Session::start(&c, b"other").await;
            assert_eq!(reclaimed(&c, &starting, &f).await, Err(Status::ReclaimBad));

            let a = Session::start(&c, b"a").await;
            assert_eq!(a.status(&c, [putfh(&f), lock(before, 0, true)]).await, Status::BadStateid);
            let stateid = reclaimed(&c, &a, &f).await.unwrap();
            assert_eq!(a.status(&c, [putfh(&f), lock(stateid, 0, false)]).await, Status::Grace);
            assert_eq!(a.status(&c, [putfh(&f), lock(stateid, 0, true)]).await, Status::Ok);
            assert_eq!(a.status(&c, [putfh(&f), write(&c, stateid, 0, b"data")]).await, Status::Ok);
            assert_eq!(a.reclaim_complete(&c).await, Status::Ok);
            assert_eq!(a.reclaim_complete(&c).await, Status::CompleteAlready);
            assert_eq!(reclaimed(&c, &a, &f).await, Err(Status::NoGrace));
            assert_eq!(opened(&c, &new, &root, create()).await, Err(Status::Grace), "b is missing");

            let b = Session::start(&c, b"b").await;
            let stateid = reclaimed(&c, &b, &f).await.unwrap();
            let conflicting = b.status(&c, [putfh(&f), lock(stateid, 50, true)]).await;
            assert_eq!(conflicting, Status::ReclaimConflict);
            assert_eq!(b.status(&c, [putfh(&g), reopen(3)]).await, Status::Ok);
            assert_eq!(b.reclaim_complete(&c).await, Status::Ok);
            let (stateid, _) = opened(&c, &new, &root, open(b"o", "f", 3, 0, false)).await.unwrap();
            assert_eq!(new.status(&c, [putfh(&f), lock(stateid, 50, false)]).await, Status::Denied);
            assert_eq!(new.status(&c, [putfh(&f), lock(stateid, 100, false)]).await, Status::Ok);
            let denied = opened(&c, &new, &root, open(b"o", "g", 1, 0, false)).await;
            assert_eq!(denied, Err(Status::ShareDenied));
        });
    }
}

#[test]
fn a_client_without_a_record_does_not_reclaim() {
    run(async {
        let mut scene = Scene::new(Proto::Tcp, 90);
        let c = scene.connect().await;
        let a = Session::new(&c, b"a").await;
        let (_, f) = locked(&c, &a, "f").await;
        let c = scene.restart(|state| std::fs::remove_file(state.join("nfs4-clients")).unwrap()).await;
        let b = Session::new(&c, b"b").await;
        locked(&c, &b, "f").await;
        let a = Session::start(&c, b"a").await;
        assert_eq!(reclaimed(&c, &a, &f).await, Err(Status::NoGrace));
        let c = scene.restart(|state| std::fs::write(state.join("nfs4-clients"), b"damaged").unwrap()).await;
        let b = Session::start(&c, b"b").await;
        assert_eq!(reclaimed(&c, &b, &f).await, Err(Status::NoGrace));
        // Without a directory nothing survives.
        scene.config.state_dir = None;
        let c = scene.restart(|_| {}).await;
        let (_, f) = locked(&c, &Session::new(&c, b"a").await, "f").await;
        let c = scene.restart(|_| {}).await;
        let a = Session::start(&c, b"a").await;
        assert_eq!(reclaimed(&c, &a, &f).await, Err(Status::NoGrace));
        assert_eq!(a.reclaim_complete(&c).await, Status::Ok);
        locked(&c, &a, "f").await;
    });
}

#[test]
fn the_grace_period_ends_without_clients_that_do_not_come_back() {
    run(async {
        let mut scene = Scene::new(Proto::Tcp, 2);
        let c = scene.connect().await;
        let a = Session::new(&c, b"a").await;
        let (_, f) = locked(&c, &a, "f").await;
        let c = scene.restart(|_| {}).await;
        let started = Instant::now();
        let b = Session::new(&c, b"b").await;
        let root = b.path(&c, "/x").await.unwrap();
        let open =
            async || opened(&c, &b, &root, open(b"o", "f", 3, 3, false)).await.err().unwrap_or(Status::Ok);
        assert_eq!(patiently(open).await, Status::Ok);
        assert!(started.elapsed() > Duration::from_secs(1), "{:?}", started.elapsed());
        let late = Session::start(&c, b"a").await;
        assert_eq!(reclaimed(&c, &late, &f).await, Err(Status::NoGrace));
        let c = scene.restart(|_| {}).await;
        let (a, b) = (Session::start(&c, b"a").await, Session::start(&c, b"b").await);
        assert_eq!(reclaimed(&c, &a, &f).await, Err(Status::ReclaimBad));
        assert_eq!(b.status(&c, [putfh(&f), reopen(3)]).await, Status::Ok);
    });
}

#[test]
fn a_client_that_has_lost_a_lock_to_another_cannot_reclaim_it() {
    run(async {
        let mut scene = Scene::new(Proto::Tcp, 1);
        let c = scene.connect().await;
        let (a, b) = (Session::new(&c, b"a").await, Session::new(&c, b"b").await);
        let (_, f) = locked(&c, &a, "f").await;
        let root = b.path(&c, "/x").await.unwrap();
        let (stateid, _) = opened(&c, &b, &root, open(b"o", "f", 3, 0, false)).await.unwrap();
        let take = || b.status(&c, [putfh(&f), lock(stateid, 0, false)]);
        assert_eq!(take().await, Status::Denied);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(take().await, Status::Delay, "the lease of a has expired");
        assert_eq!(patiently(take).await, Status::Ok);
        scene.config.nfs4.lease = 90;
        let c = scene.restart(|_| {}).await;
        let (a, b) = (Session::start(&c, b"a").await, Session::start(&c, b"b").await);
        assert_eq!(reclaimed(&c, &a, &f).await, Err(Status::ReclaimBad));
        let stateid = reclaimed(&c, &b, &f).await.unwrap();
        assert_eq!(b.status(&c, [putfh(&f), lock(stateid, 0, true)]).await, Status::Ok);
    });
}

#[test]
fn clients_that_have_unmounted_delay_no_others() {
    run(async {
        let mut scene = Scene::new(Proto::Tcp, 90);
        let c = scene.connect().await;
        let a = Session::new(&c, b"a").await;
        let destroy = op(Operation::DestroySession, DestroySessionArgs { session: a.ok.session });
        assert_eq!(send(&c, 2, &[destroy]).await.status, Status::Ok);
        let destroy = op(Operation::DestroyClientid, DestroyClientidArgs { client_id: a.client });
        assert_eq!(send(&c, 2, &[destroy]).await.status, Status::Ok);
        let list = std::fs::read_to_string(scene.dir.path().join("state/nfs4-clients")).unwrap();
        let changes = list.lines().skip(2).filter_map(|line| line.split(' ').next());
        assert_eq!(changes.collect::<Vec<_>>(), ["+61@127.0.0.1", "-61"], "the reply waits for the disk");
        let c = scene.restart(|_| {}).await;
        let b = Session::new(&c, b"b").await;
        locked(&c, &b, "f").await;
    });
}

/// A client that has ended just before the server stops is not on the list that the next start waits for.
#[test]
fn a_stopped_server_does_not_wait_for_clients_that_have_ended() {
    run(async {
        let mut scene = Scene::new(Proto::Tcp, 90);
        let c = scene.connect().await;
        let a = Session::new(&c, b"a").await;
        let root = a.path(&c, "/x").await.unwrap();
        let (stateid, file) = opened(&c, &a, &root, open(b"o", "f", 3, 0, true)).await.unwrap();
        assert_eq!(
            a.status(&c, [putfh(&file), op(Operation::Close, CloseArgs { seqid: 0, stateid })]).await,
            Status::Ok
        );
        let destroy = op(Operation::DestroySession, DestroySessionArgs { session: a.ok.session });
        assert_eq!(send(&c, 2, &[destroy]).await.status, Status::Ok);
        let destroy = op(Operation::DestroyClientid, DestroyClientidArgs { client_id: a.client });
        assert_eq!(send(&c, 2, &[destroy]).await.status, Status::Ok);
        drop(c);
        scene.server.take().unwrap().stop(Duration::from_secs(5)).await;
        let c = scene.restart(|_| {}).await;
        let b = Session::new(&c, b"b").await;
        let root = b.path(&c, "/x").await.unwrap();
        opened(&c, &b, &root, open(b"o", "g", 3, 0, true)).await.unwrap();
    });
}

#[test]
fn servers_do_not_share_a_state_directory_at_the_same_time() {
    let scene = Scene::new(Proto::Tcp, 90);
    let error = Server::start(scene.config.clone()).err().unwrap().to_string();
    assert!(error.contains("state directory") && error.contains("another server"), "{error}");
}

#[test]
fn the_names_of_the_server_are_configurable() {
    run(async {
        let nfs4 = Nfs4Settings {
            server_owner: Some("one of a pair".into()),
            server_scope: Some("the pair".into()),
            ..Nfs4Settings::default()
        };
        let mut scene = Scene::new(Proto::Tcp, 90);
        scene.config.nfs4 = nfs4.clone();
        let identify = async |c: &Caller| {
            let results = send(c, 2, &[exchange_id(b"a", [1; 8])]).await;
            let ok: ExchangeIdOk<'_> = results.take(Operation::ExchangeId);
            assert_eq!(
                (&*ok.server_owner.major_id, &*ok.server_scope),
                (&b"one of a pair"[..], &b"the pair"[..])
            );
            ok.client_id.number
        };
        let first = identify(&scene.restart(|_| {}).await).await;
        assert_ne!(identify(&scene.restart(|_| {}).await).await, first, "each start has other client IDs");
    });
}
