//! Delegations: their grant by OPEN, recalls, DELEGRETURN, opens under a delegation, stateids, CB_GETATTR.

mod conflicts;
mod grants;
mod stateids;

use std::sync::Arc;

use millrace_nfs::v4::*;

use crate::{
    callbacks::{Callback, Callbacks},
    compound::{Call, Op, Session, op, open, putfh},
    group::Group,
    operations::{close, opened, write},
};

/// Maximum number of requests that wait for a callback.
const WAITS: usize = 20_000;
/// Maximum number of files of which one is to be delegated. A server may refuse files for a while after recalls.
const ATTEMPTS: usize = 8;

/// The result of an OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Granted {
    Read(Stateid),
    Write(Stateid),
    None,
    Refused(NoDelegation),
}

impl Granted {
    fn stateid(self) -> Option<Stateid> {
        match self {
            Self::Read(stateid) | Self::Write(stateid) => Some(stateid),
            Self::None | Self::Refused(_) => None,
        }
    }

    /// The name of the result.
    fn kind(self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::None => "none",
            Self::Refused(NoDelegation::NotWanted) => "not wanted",
            Self::Refused(NoDelegation::Contention { .. }) => "contention",
            Self::Refused(NoDelegation::Resource { .. }) => "resource",
            Self::Refused(NoDelegation::Cancelled) => "cancelled",
            Self::Refused(NoDelegation::NotSuppUpgrade) => "no upgrade",
            Self::Refused(NoDelegation::NotSuppDowngrade) => "no downgrade",
            Self::Refused(_) => "another reason",
        }
    }
}

/// A file that is delegated to the holder, which has closed it.
struct Delegated {
    name: String,
    file: Vec<u8>,
    id: Stateid,
}

/// A client that holds delegations, and another one.
struct Clients {
    callbacks: Arc<Callbacks>,
    holder: Session,
    other: Session,
}

/// The delegations that the export permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Setting {
    None,
    Read,
    Write,
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    let callbacks = Callbacks::accept(g.c);
    let holder = Session::new(g.c, b"the holder of delegations").await;
    let other = Session::new(g.c, b"another client than the holder").await;
    let clients = Clients { callbacks, holder, other };
    let setting = grants::run(g, &clients).await;
    let kinds = [(1, Setting::Read), (3, Setting::Write)];
    for (access, _) in kinds.into_iter().filter(|(_, needed)| setting >= *needed) {
        let kind = if access == 1 { "a read delegation" } else { "a write delegation" };
        g.part(&format!("conflicts with {kind}"), async |g| {
            conflicts::run(g, &clients, access, kind).await;
        })
        .await;
        g.part(&format!("stateids of {kind}"), async |g| stateids::run(g, &clients, access, kind).await)
            .await;
    }
    if setting == Setting::Write {
        g.part("CB_GETATTR", async |g| conflicts::attributes(g, &clients).await).await;
    }
}

fn delegreturn(stateid: Stateid) -> Op {
    op(Operation::Delegreturn, DelegreturnArgs { stateid })
}

/// Creates a file of 10 bytes, and closes it. Returns its handle.
async fn create_file(g: &Group<'_, impl Call>, name: &str) -> Vec<u8> {
    let (stateid, file) = g.open(name, 3 | share_access::WANT_NO_DELEG).await;
    let ops = [putfh(&file), write(g.c, stateid, 0, &[7; 10]), close(stateid)];
    assert_eq!(g.s.status(g.c, ops).await, Status::Ok);
    file
}

/// Opens a file of the group's directory. Returns the stateid and the delegation.
async fn open_file(
    g: &Group<'_, impl Call>,
    s: &Session,
    name: &str,
    access: u32,
) -> Result<(Stateid, Granted), Status> {
    open_as(g.c, s, &g.dir, (name, access)).await
}

/// Opens a file of a directory with a credential. Returns the stateid and the delegation.
async fn open_as(
    c: &impl Call,
    s: &Session,
    dir: &[u8],
    (name, access): (&str, u32),
) -> Result<(Stateid, Granted), Status> {
    let results = s.send(c, [putfh(dir), open(b"owner", name, access, 0, false)]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    let ok: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
    let granted = match ok.delegation {
        Delegation::Read(read) | Delegation::ReadAttrs(read) => Granted::Read(read.stateid),
        Delegation::Write(write) | Delegation::WriteAttrs(write) => Granted::Write(write.stateid),
        Delegation::None => Granted::None,
        Delegation::NoneExt(why) => Granted::Refused(why),
    };
    Ok((ok.stateid, granted))
}

/// A new file that is delegated to the holder: for reading with `access` 1, for writing with 3.
async fn delegated(g: &Group<'_, impl Call>, clients: &Clients, name: &str, access: u32) -> Delegated {
    for attempt in 0..ATTEMPTS {
        let name = format!("{name} {access} {attempt}");
        let file = create_file(g, &name).await;
        let (stateid, granted) = open_file(g, &clients.holder, &name, access).await.unwrap();
        let closed = clients.holder.status(g.c, [putfh(&file), close(stateid)]).await;
        assert_eq!(closed, Status::Ok);
        if let Some(id) = granted.stateid() {
            return Delegated { name, file, id };
        }
    }
    panic!("{name} is not delegated");
}

impl Clients {
    /// The status of an operation of the holder on a file.
    async fn status(&self, g: &Group<'_, impl Call>, file: &[u8], on: Op) -> Status {
        self.holder.status(g.c, [putfh(file), on]).await
    }

    /// Returns a delegation.
    async fn give_back(&self, g: &Group<'_, impl Call>, held: &Delegated) {
        assert_eq!(self.status(g, &held.file, delegreturn(held.id)).await, Status::Ok);
    }

    /// The next callback. The requests meanwhile keep the lease.
    async fn callback(&self, g: &Group<'_, impl Call>) -> Option<Callback> {
        for _ in 0..WAITS {
            if let Some(callback) = self.callbacks.take() {
                return Some(callback);
            }
            assert_eq!(self.holder.status(g.c, []).await, Status::Ok);
        }
        None
    }
}

/// Opens a file for a session.
async fn opened_by(g: &Group<'_, impl Call>, s: &Session, name: &str, access: u32) -> Stateid {
    opened(g.c, s, &g.dir, open(b"owner", name, access, 0, false)).await.unwrap().0
}
