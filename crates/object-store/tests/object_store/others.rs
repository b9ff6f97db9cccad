//! Every operation on an object that an NFSv4 client has open or delegated.

use std::{sync::Arc, time::Duration};

use millrace_nfs::v4::*;
use millrace_nfs4_conformance::{
    Connection,
    callbacks::{Callback, Callbacks},
    compound::{Op, Session, getfh, op, open, putfh, read},
    operations::close,
};
use millrace_object_store::NfsStore;
use millrace_server::Delegations;
use object_store::{
    CopyOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, RenameOptions,
    RenameTargetMode, path::Path,
};

use crate::{server, store};

const DATA: &[u8] = b"data";
/// Maximum number of requests that wait for a recall.
const REQUESTS: usize = 100_000;

/// What an operation does with the object `f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Reads data: conflicts with a write delegation, and with an open that denies reading.
    Reads,
    /// Removes or replaces a name of the file, or creates one: conflicts with each delegation. Share reservations permit it.
    Changes,
    /// Locks the file, and replaces its name: conflicts with each delegation and each share reservation. NFSv3 has no locks.
    Locks,
    /// Neither, with this result.
    None(Outcome),
}

/// The result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Exists,
    NotImplemented,
    /// The object has another version than expected.
    Changed,
    /// An error that names the lock or the share reservation.
    Locked,
}

use Use::{Changes, Locks, Reads};

impl Use {
    fn with(self, version: &str) -> Self {
        if self == Locks && version == "3" { Self::None(Outcome::NotImplemented) } else { self }
    }
}

const OPERATIONS: &[(&str, Use)] = &[
    ("put", Changes),
    ("put create", Use::None(Outcome::Exists)),
    ("put update", Locks),
    ("multipart", Changes),
    ("get", Reads),
    ("get ranges", Reads),
    ("head", Use::None(Outcome::Done)),
    ("list", Use::None(Outcome::Done)),
    ("copy from", Reads),
    ("copy from, create", Reads),
    ("copy over", Changes),
    ("copy over, create", Use::None(Outcome::Exists)),
    ("copy to itself", Use::None(Outcome::Done)),
    ("rename from", Changes),
    ("rename from, create", Changes),
    ("rename over", Changes),
    ("rename over, create", Use::None(Outcome::Exists)),
    ("delete", Changes),
];

async fn execute(store: NfsStore, operation: &str) -> Outcome {
    let (f, other, new) = (Path::from("f"), Path::from("other"), Path::from("new"));
    let create = RenameOptions { target_mode: RenameTargetMode::Create, ..RenameOptions::default() };
    let result = match operation {
        "put" => store.put(&f, "new".into()).await.map(drop),
        "put create" => store.put_opts(&f, "new".into(), PutMode::Create.into()).await.map(drop),
        "put update" => {
            let version = store.head(&f).await.unwrap();
            let version = object_store::UpdateVersion { e_tag: version.e_tag, version: None };
            store.put_opts(&f, "new".into(), PutMode::Update(version).into()).await.map(drop)
        }
        "multipart" => {
            let upload = store.put_multipart_opts(&f, PutMultipartOptions::default()).await;
            let mut upload = upload.unwrap();
            upload.put_part("new".into()).await.unwrap();
            upload.complete().await.map(drop)
        }
        "get" => match store.get(&f).await {
            Ok(found) => found.bytes().await.map(|data| assert_eq!(data, DATA)),
            Err(e) => Err(e),
        },
        "get ranges" => store.get_ranges(&f, &[0..2, 2..4]).await.map(|data| assert_eq!(data.concat(), DATA)),
        "head" => store.head(&f).await.map(drop),
        "list" => store.list_with_delimiter(None).await.map(|list| assert_eq!(list.objects.len(), 2)),
        "copy from" => store.copy(&f, &new).await,
        "copy from, create" => store.copy_if_not_exists(&f, &new).await,
        "copy over" => store.copy(&other, &f).await,
        "copy over, create" => store.copy_if_not_exists(&other, &f).await,
        "copy to itself" => store.copy_opts(&f, &f, CopyOptions::default()).await,
        "rename from" => store.rename(&f, &new).await,
        "rename from, create" => store.rename_opts(&f, &new, create).await,
        "rename over" => store.rename(&other, &f).await,
        "rename over, create" => store.rename_opts(&other, &f, create).await,
        "delete" => store.delete(&f).await,
        other => panic!("{other}"),
    };
    match result {
        Ok(()) => Outcome::Done,
        Err(Error::AlreadyExists { .. }) => Outcome::Exists,
        Err(Error::NotImplemented { .. }) => Outcome::NotImplemented,
        Err(Error::Precondition { .. }) => Outcome::Changed,
        Err(e) if ["Locked", "ShareDenied"].iter().any(|status| e.to_string().contains(status)) => {
            Outcome::Locked
        }
        Err(e) => panic!("{operation}: {e}"),
    }
}

/// A client that has the object open or delegated.
struct Holder {
    connection: Connection,
    session: Session,
    callbacks: Arc<Callbacks>,
    dir: Vec<u8>,
}

impl Holder {
    async fn status(&self, ops: impl IntoIterator<Item = Op>) -> Status {
        self.session.status(&self.connection, ops).await
    }

    /// Opens the object. Returns the stateids of the open and of the delegation, and the file.
    async fn open(&self, access: u32, deny: u32) -> (Stateid, Option<Stateid>, Vec<u8>) {
        let ops = [putfh(&self.dir), open(b"owner", "f", access, deny, false), getfh()];
        let results = self.session.send(&self.connection, ops).await;
        let ok: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
        let delegation = match ok.delegation {
            Delegation::Read(read) => Some(read.stateid),
            Delegation::Write(write) => Some(write.stateid),
            _ => None,
        };
        let file = results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
        (ok.stateid, delegation, file)
    }

    /// The next recall of a delegation. The requests meanwhile keep the lease.
    async fn recalled(&self) -> Stateid {
        for _ in 0..REQUESTS {
            match self.callbacks.take() {
                Some(Callback::Recall(stateid, _)) => return stateid,
                Some(Callback::Getattr(_)) => {}
                Some(other) => panic!("{other:?}"),
                None => assert_eq!(self.status([]).await, Status::Ok),
            }
        }
        panic!("no recall");
    }

    /// Whether the name `f` still has the file, with its data. The stateid is one of the holder.
    async fn has_unchanged(&self, stateid: Stateid, file: &[u8]) -> bool {
        let name = [putfh(&self.dir), millrace_nfs4_conformance::compound::lookup("f"), getfh()];
        let named = self.session.send(&self.connection, name).await;
        named.status == Status::Ok
            && named
                .skip(&[Operation::Putfh, Operation::Lookup])
                .take::<GetfhOk<'_>>(Operation::Getfh)
                .handle
                .0
                == file
            && self.data(stateid, file).await == DATA
    }

    async fn data(&self, stateid: Stateid, file: &[u8]) -> Vec<u8> {
        let results =
            self.session.send_for_data(&self.connection, [putfh(file), read(stateid, 0, 100)]).await;
        results.skip(&[Operation::Putfh]).read().0
    }
}

/// Executes each operation with a new server, and a client that has opened nothing yet.
fn each(
    versions: &[&str],
    delegations: Delegations,
    test: impl AsyncFn(&Holder, NfsStore, &str, &'static str, Use),
) {
    for version in versions {
        for (operation, used) in OPERATIONS {
            let server = server("memory:16MiB", delegations);
            let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio.block_on(async {
                let address = server.tcp_addr().unwrap();
                let url = |dir: &str| format!("nfs://{address}/data/{dir}?proto=tcp&vers={version}");
                let store = store(&url, "").await;
                for name in ["f", "other"] {
                    store.put(&Path::from(name), DATA.into()).await.unwrap();
                }
                let connection = Connection::connect(address).await.unwrap();
                let callbacks = Callbacks::accept(&connection);
                // The attributes of a file that only the holder may change.
                callbacks.set_attributes(1, DATA.len() as u64);
                let session = Session::new(&connection, b"holder").await;
                let dir = session.path(&connection, "data").await.unwrap();
                let holder = Holder { connection, session, callbacks, dir };
                test(&holder, store, version, operation, used.with(version)).await;
            });
            drop(tokio);
            server.stop_blocking(Duration::from_secs(1));
        }
    }
}

#[test]
fn every_use_of_a_delegated_object_waits_for_the_recall() {
    for access in [1, 3] {
        each(&["3", "4.2"], Delegations::Write, async |holder, store, version, operation, used| {
            let what = format!("{operation}, version {version}, access {access}");
            // The holder reports a change, so that each GETATTR returns another modification time.
            let used = if used == Locks && access == 3 { Use::None(Outcome::Changed) } else { used };
            let (opened, delegation, file) = holder.open(access, 0).await;
            let delegation = delegation.unwrap();
            assert_eq!(holder.status([putfh(&file), close(opened)]).await, Status::Ok);
            let task = tokio::spawn(execute(store, operation));
            if matches!(used, Changes | Locks) || (used == Reads && access == 3) {
                assert_eq!(holder.recalled().await.other, delegation.other, "{what}");
                assert!(!task.is_finished() && holder.has_unchanged(delegation, &file).await, "{what}");
                let back = op(Operation::Delegreturn, DelegreturnArgs { stateid: delegation });
                assert_eq!(holder.status([putfh(&file), back]).await, Status::Ok);
            }
            let expected = if let Use::None(expected) = used { expected } else { Outcome::Done };
            assert_eq!(task.await.unwrap(), expected, "{what}");
            while let Some(callback) = holder.callbacks.take() {
                assert!(matches!(callback, Callback::Getattr(_)), "{what}: {callback:?}");
            }
        });
    }
}

#[test]
fn an_object_with_share_reservations_is_replaced_and_never_changed() {
    for deny in 1..=3 {
        each(&["3", "4.2"], Delegations::None, async |holder, store, version, operation, used| {
            let what = format!("{operation}, version {version}, deny {deny}");
            let (opened, _, file) = holder.open(1, deny).await;
            let expected = match used {
                Use::None(expected) => expected,
                // NFSv3 has no share reservations.
                Reads if deny & 1 != 0 && version == "4.2" => Outcome::Locked,
                Locks => Outcome::Locked,
                Reads | Changes => Outcome::Done,
            };
            assert_eq!(execute(store.clone(), operation).await, expected, "{what}");
            // The holder has its version until it closes it.
            assert_eq!(holder.data(opened, &file).await, DATA, "{what}");
            if used != Changes {
                assert!(holder.has_unchanged(opened, &file).await, "{what}");
            }
            assert_eq!(holder.status([putfh(&file), close(opened)]).await, Status::Ok);
            if matches!(used, Reads | Locks) {
                let after = if operation.ends_with("create") && expected == Outcome::Done {
                    Outcome::Exists
                } else {
                    Outcome::Done
                };
                assert_eq!(execute(store, operation).await, after, "{what}");
            }
        });
    }
}
