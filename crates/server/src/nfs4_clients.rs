//! The state of NFSv4 clients, shared by all shards, and the identity of the server.

mod ends;
mod presence;

use std::{
    io,
    path::Path,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    channel::oneshot,
    future::{Either, select},
};
use millrace_buffer::slot_bytes;
use millrace_nfs::v4::{ClientId, Status};
use millrace_nfs4_state::{Client, Identity, Limits, State};
use millrace_oncrpc::{Credential, Sender};
use millrace_runtime::{Instant, RuntimeExt, RuntimeRef};
use millrace_xdr::{Arena, View};
use smallvec::SmallVec;

pub use self::presence::Protection;
use self::{ends::Ends, presence::Presence};
use crate::{Config, client_list::StoredList, siphash::siphash};

/// A session whose slots keep the results of COMPOUNDs.
pub(crate) type Session = millrace_nfs4_state::Session<KeptReply>;
/// A request in progress.
pub(crate) type Execution = millrace_nfs4_state::Execution<KeptReply>;

/// The results of a COMPOUND that a slot keeps, without RPC header.
#[derive(Debug)]
pub(crate) struct KeptReply {
    results: View,
    /// Bytes of all kept replies.
    total: Arc<AtomicU64>,
}

impl KeptReply {
    fn new(results: View, total: &Arc<AtomicU64>) -> Self {
        total.fetch_add(results.capacity() as u64, Ordering::Relaxed);
        Self { results, total: Arc::clone(total) }
    }

    /// The results.
    pub(crate) fn results(&self) -> &[u8] {
        &self.results
    }
}

impl Clone for KeptReply {
    fn clone(&self) -> Self {
        Self::new(self.results.clone(), &self.total)
    }
}

impl Drop for KeptReply {
    fn drop(&mut self) {
        self.total.fetch_sub(self.results.capacity() as u64, Ordering::Relaxed);
    }
}

/// Bytes of a call or reply besides the data of READ or WRITE.
const OVERHEAD: u32 = 4096;
/// Maximum bytes of a reply that a slot keeps: more than the results of the operations that change something.
const CACHED_REPLY: u32 = 2048;

/// Maximum number of names of clients in a line of the log.
const LOGGED_NAMES: usize = 16;
/// Time between two searches for expired clients.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// The same while there is more state to remove, so that other requests run meanwhile.
const STEP_INTERVAL: Duration = Duration::from_millis(1);

/// The clients of a server, with the parameters of the server that clients see.
pub(crate) struct Clients {
    pub(crate) state: State<KeptReply>,
    /// Major ID of the server owner.
    pub(crate) owner: String,
    /// Server scope.
    pub(crate) scope: String,
    /// Whether there is a list of clients in a file, so that they can reclaim state after a restart.
    durable: bool,
    ends: Ends,
    presence: Presence,
    /// Bytes of memory of the replies that slots keep.
    kept_bytes: Arc<AtomicU64>,
}

impl Clients {
    /// The clients of a server that starts now. `secret` survives restarts.
    ///
    /// # Errors
    /// The list in the state directory cannot be used.
    pub(crate) fn new(rt: &RuntimeRef, config: &Config, secret: Option<[u64; 2]>) -> io::Result<Arc<Self>> {
        let settings = &config.nfs4;
        let owner = settings.server_owner.clone().unwrap_or_else(|| default_owner(rt, secret));
        let scope = settings.server_scope.clone().unwrap_or_else(|| owner.clone());
        let epoch = settings.boot_epoch.unwrap_or(rt.wall_clock().as_secs() as u32);
        let mut identity = Identity { epoch, secret: [0; 16] };
        rt.fill_random(&mut identity.secret);
        let limits = limits(config);
        let Some(directory) = &config.state_dir else {
            return Ok(Arc::new(Self {
                state: State::new(limits, identity),
                owner,
                scope,
                durable: false,
                ends: Ends::default(),
                presence: Presence::default(),
                kept_bytes: Arc::default(),
            }));
        };
        let state = recovered(rt, directory, limits, identity)?;
        Ok(Arc::new(Self {
            state,
            owner,
            scope,
            durable: true,
            ends: Ends::default(),
            presence: Presence::default(),
            kept_bytes: Arc::default(),
        }))
    }

    /// The memory of a reply that a slot keeps: `results` in a buffer of their size. `None` if there is no memory: a retry then gets RETRY_UNCACHED_REP.
    pub(crate) fn kept(&self, results: View, arena: &Arena) -> Option<KeptReply> {
        let results = match results.capacity() > slot_bytes(results.len()) {
            true => arena.copy_from(&results).ok()?,
            false => results,
        };
        Some(KeptReply::new(results, &self.kept_bytes))
    }

    /// Bytes of memory of the replies that slots keep.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Records that the connection of `sender` begins to use a session of `client`. It is reported in the log, if it stays.
    pub(crate) fn connected(&self, client: &Arc<Client>, sender: &Sender) {
        self.presence.add(client, sender.into(), self.state.limits().clients);
    }

    /// The protection of a client's connection that was the last to begin to use its session; `None` if it has none.
    pub(crate) fn protection(&self, client: ClientId) -> Option<Protection> {
        self.presence.protection(client)
    }

    /// Duration of a lease in seconds.
    pub(crate) fn lease_seconds(&self) -> u32 {
        u32::try_from(self.state.limits().lease.as_secs()).unwrap_or(u32::MAX)
    }

    /// RECLAIM_COMPLETE, which may wait for the disk.
    ///
    /// # Errors
    /// Those of [`State::reclaim_complete`].
    pub(crate) async fn reclaim_complete(
        self: &Arc<Self>,
        rt: &RuntimeRef,
        client: &Arc<Client>,
    ) -> Result<(), Status> {
        if !self.durable {
            return self.state.reclaim_complete(client);
        }
        let (clients, client) = (Arc::clone(self), Arc::clone(client));
        let completed = blocking(rt, move || clients.state.reclaim_complete(&client)).await;
        completed.unwrap_or(Err(Status::Delay))
    }

    /// DESTROY_CLIENTID, which may wait for the disk: a server that starts after the reply does not wait for the client.
    ///
    /// # Errors
    /// Those of [`State::destroy_client`].
    pub(crate) async fn destroy_client(
        self: &Arc<Self>,
        rt: &RuntimeRef,
        id: ClientId,
    ) -> Result<(), Status> {
        self.state.destroy_client(id)?;
        if self.durable {
            self.ends.written(self, rt).await;
        }
        Ok(())
    }

    /// Removes the clients that have ended from the list, so that the next start does not wait for them. Performs I/O.
    pub(crate) fn end(&self, rt: &RuntimeRef) {
        if self.durable {
            self.state.expire(now(rt));
        }
    }

    /// Ends the grace period and removes expired clients in time until `stopped` completes.
    pub(crate) async fn maintain(self: Arc<Self>, rt: RuntimeRef, stopped: impl Future<Output = ()>) {
        let mut stopped = pin!(stopped);
        let (mut grace, mut has_more) = (self.state.in_grace(), false);
        loop {
            let pause = rt.sleep(if has_more { STEP_INTERVAL } else { EXPIRY_INTERVAL });
            let Either::Right(((), again)) = select(stopped, pause).await else { return };
            stopped = again;
            if !has_more {
                self.presence.report();
            }
            if !self.durable {
                has_more = self.state.expire(now(&rt));
                continue;
            }
            let (clients, time) = (Arc::clone(&self), now(&rt));
            let awaited = if grace { self.state.awaited() } else { Vec::new() };
            let Some(more) = blocking(&rt, move || clients.state.expire(time)).await else { return };
            has_more = more;
            if grace && !self.state.in_grace() {
                grace = false;
                match &*awaited {
                    [] => tracing::info!("the grace period is over"),
                    lost => tracing::warn!(
                        clients = lost.len(),
                        names = %names(lost),
                        "the grace period is over; these clients have lost what they have not reclaimed"
                    ),
                }
            }
        }
    }
}

/// Name of the server: equal after a restart if there is a secret. State of clients does not outlive a server without one.
fn default_owner(rt: &RuntimeRef, secret: Option<[u64; 2]>) -> String {
    let name = secret.map_or_else(|| rt.random_u64(), |secret| siphash(secret, b"NFSv4 server owner"));
    format!("millrace {name:016x}")
}

fn limits(config: &Config) -> Limits {
    // Validation limits it to 4 MiB.
    let transfer = u32::try_from(config.limits.max_transfer()).unwrap_or(u32::MAX - OVERHEAD);
    Limits {
        lease: config.nfs4.lease(),
        request_bytes: transfer + OVERHEAD,
        response_bytes: transfer + OVERHEAD,
        cached_bytes: CACHED_REPLY,
        // The buffer of a kept reply has at most twice its size.
        total_cached_bytes: config.limits.session_replies() / 2,
        heap: usize::try_from(config.limits.memory.0).unwrap_or(usize::MAX),
        back_channel: true,
        ..Limits::default()
    }
}

/// The state of a server whose earlier clients are on a list in `directory`. Their number is limited to twice that of the
/// clients of one server instance, because those that have not come back stay on the list in the grace period.
fn recovered(
    rt: &RuntimeRef,
    directory: &Path,
    limits: Limits,
    identity: Identity,
) -> io::Result<State<KeptReply>> {
    let list = StoredList::open(directory, identity.epoch, 2 * limits.clients)?;
    let identity = Identity { epoch: list.epoch(), ..identity };
    let owners = list.owners();
    if !owners.is_empty() {
        let (clients, seconds) = (owners.len(), limits.lease.as_secs());
        let names = names(&owners);
        tracing::info!(clients, seconds, %names, "NFSv4 clients may reclaim locks and opens; others wait");
    }
    let end = now(rt) + limits.lease;
    Ok(State::new(limits, identity).with_client_list(Box::new(list), owners, end))
}

/// The names of clients for the log, of which it shows some.
fn names(owners: &[impl AsRef<[u8]>]) -> String {
    let shown = owners.iter().take(LOGGED_NAMES).map(|owner| owner.as_ref().escape_ascii().to_string());
    let more = (owners.len() > LOGGED_NAMES).then(|| String::from("..."));
    shown.chain(more).collect::<Vec<_>>().join(", ")
}

/// Runs `work`, which may wait for the disk, on another thread. `None` if the runtime ends first.
pub(crate) async fn blocking<T: Send + 'static>(
    rt: &RuntimeRef,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = oneshot::channel();
    rt.spawn_blocking(Box::new(move || drop(done.send(work()))));
    result.await.ok()
}

/// The time of leases.
pub(crate) fn now(rt: &RuntimeRef) -> Duration {
    lease_time(rt.now())
}

/// `instant` as a time of leases.
pub(crate) fn lease_time(instant: Instant) -> Duration {
    Duration::from_nanos(instant.as_nanos())
}

/// Whether calls are protected by integrity or privacy, as those of a machine for its client must be.
pub(crate) fn is_protected(credential: &Credential) -> bool {
    matches!(credential, Credential::Gss(gss) if gss.protection >= millrace_oncrpc::Protection::Integrity)
}

/// The identity of a caller for the state of clients: the flavor and the user of its credential. That of most callers with
/// Kerberos needs no allocation.
pub(crate) fn principal(credential: &Credential) -> SmallVec<[u8; 64]> {
    let number;
    let (flavor, user): (u32, &[u8]) = match credential {
        Credential::None => (0, &[0; 4]),
        Credential::Sys(sys) => {
            number = sys.uid.to_be_bytes();
            (1, &number)
        }
        Credential::Gss(gss) => (6, gss.caller.principal.as_bytes()),
        Credential::Other(flavor) => (*flavor, &[0; 4]),
    };
    let mut out = SmallVec::from_slice(&flavor.to_be_bytes());
    out.extend_from_slice(user);
    out
}
