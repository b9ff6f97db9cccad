//! The client of the protocol layer: a mounted export.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_buffer::{Arena, ArenaConfig, Buffer, SPAN_BYTES, TRIM_INTERVAL};
use millrace_nfs::v3::{self, Fattr, FileHandle, FsinfoOk, Procedure, Status, WccData};
use millrace_oncrpc::{CallClass, EncodedCredential, Stage};
use millrace_rdma::Provider;
use millrace_rpcrdma::registration::{Registration, RegistrationStats};
use millrace_runtime::{RuntimeExt, RuntimeRef, StreamProvider};
use millrace_xdr::{Decoder, XdrError};

use super::{call::Call, compounds::v3_status, place, writeback::OpenFiles};
use crate::{
    Connector, Error, Identity, Options, Stats, Url, Version,
    connect::{Network, NetworkConnector, UrlConnector},
    mount::{self, Mounted},
    nfs4::{self, Session, is_unsupported},
    pool::{Attempt, CallSpec, Pool},
};

/// Size of READ and WRITE if neither the options nor the server specify one, in bytes.
const DEFAULT_TRANSFER: u32 = 1 << 20;
/// Sizes of READDIR replies in bytes.
const READDIR_SIZES: (u32, u32) = (4 << 10, 64 << 10);

/// A file system object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// The file handle.
    pub handle: FileHandle,
    /// The attributes.
    pub attributes: Fattr,
    /// Attributes of the parent directory in the reply, if any.
    pub dir: WccData,
}

pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    /// The session of NFSv4; `None` with NFSv3.
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) options: Options,
    mounted: Mounted,
    pub(crate) fsinfo: FsinfoOk,
    pub(crate) rsize: u32,
    pub(crate) wsize: u32,
    pub(crate) readdir_size: u32,
    /// Whether the server supports READDIRPLUS; true until it returns an error.
    pub(crate) plus: AtomicBool,
    registration: Arc<Registration>,
    pub(crate) open_files: OpenFiles,
}

/// A mounted export. Clones share the connections, which are closed when the last clone is dropped.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    credential: Arc<EncodedCredential>,
}

/// The reply to an NFS call.
pub(crate) struct Answer<O> {
    /// The results, or the status.
    pub(crate) result: Result<O, Status>,
    /// Whether the call was retransmitted.
    pub(crate) resent: bool,
}

/// Decodes the results without the data of the error case, which the client does not use.
fn decode<C: Call>(d: &mut Decoder<'_>) -> Result<Result<C::Ok, Status>, XdrError> {
    match d.get()? {
        Status::Ok => C::decode(d).map(Ok),
        status => Ok(Err(status)),
    }
}

/// Periodically returns unused memory to the system while the client exists.
async fn trim_memory(rt: RuntimeRef, client: Weak<Shared>) {
    loop {
        rt.sleep(TRIM_INTERVAL).await;
        let Some(client) = client.upgrade() else { return };
        client.pool.arena.trim();
    }
}

impl Client {
    /// Connects to the URL's server and mounts the longest export that contains the URL's path. Options of
    /// the URL override `options`.
    ///
    /// MOUNT is called on the NFS connection. If the server does not offer it there, the client connects over
    /// TCP to the URL's `mountport`, the port from rpcbind, or port 2049.
    ///
    /// # Errors
    /// [`Error::Resolve`], [`Error::Connect`], [`Error::UnknownExport`], [`Error::Mount`], and the errors of
    /// a call.
    pub async fn connect(rt: RuntimeRef, url: &Url, options: Options) -> Result<Self, Error> {
        let options = options.with_url(url);
        let arena = Arena::new(ArenaConfig { limit: options.arena_limit, ..ArenaConfig::default() });
        let registration = options.new_registration();
        let connector = UrlConnector {
            rt: Arc::clone(&rt),
            arena: arena.clone(),
            url: url.clone(),
            options: options.clone(),
            registration: Arc::clone(&registration),
        };
        let client =
            Self::mount_with(Arc::clone(&rt), arena, Arc::new(connector), &url.path, options, registration)
                .await?;
        rt.spawn("trim memory", Box::pin(trim_memory(Arc::clone(&rt), Arc::downgrade(&client.shared))));
        Ok(client)
    }

    /// Mounts the longest export that contains `path` of the server at `addr`, over `provider`. The server
    /// must offer MOUNT on the NFS connection.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_over(
        rt: RuntimeRef,
        provider: Arc<dyn Provider>,
        addr: SocketAddr,
        path: &str,
        options: Options,
    ) -> Result<Self, Error> {
        Self::connect_network(rt, Network::Rdma(provider), addr, path, options).await
    }

    /// As [`Self::connect_over`], over TCP with a stream provider from the caller.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_over_tcp(
        rt: RuntimeRef,
        streams: Arc<dyn StreamProvider>,
        addr: SocketAddr,
        path: &str,
        options: Options,
    ) -> Result<Self, Error> {
        Self::connect_network(rt, Network::Tcp(streams), addr, path, options).await
    }

    async fn connect_network(
        rt: RuntimeRef,
        network: Network,
        addr: SocketAddr,
        path: &str,
        options: Options,
    ) -> Result<Self, Error> {
        let arena = Arena::new(ArenaConfig { limit: options.arena_limit, ..ArenaConfig::default() });
        let registration = options.new_registration();
        let connector = NetworkConnector {
            rt: Arc::clone(&rt),
            arena: arena.clone(),
            network,
            addr,
            options: options.clone(),
            registration: Arc::clone(&registration),
        };
        Self::mount_with(rt, arena, Arc::new(connector), path, options, registration).await
    }

    /// Mounts the longest export that contains `path` over connections from `connector`. Messages are
    /// allocated in `arena`.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn mount(
        rt: RuntimeRef,
        arena: Arena,
        connector: Arc<dyn Connector>,
        path: &str,
        options: Options,
    ) -> Result<Self, Error> {
        let registration = options.new_registration();
        Self::mount_with(rt, arena, connector, path, options, registration).await
    }

    async fn mount_with(
        rt: RuntimeRef,
        arena: Arena,
        connector: Arc<dyn Connector>,
        path: &str,
        options: Options,
        registration: Arc<Registration>,
    ) -> Result<Self, Error> {
        let caller = options.credential.credential();
        let credential = Arc::new(caller.encoded());
        let pool = Pool::new(
            rt,
            arena.clone(),
            Arc::clone(&connector),
            options.retry,
            options.nconnect,
            options.sample_stages,
        );
        let unfinished = CloseOnDrop(Some(Arc::new(pool)));
        let Some(pool) = &unfinished.0 else { return Err(Error::Closed) };
        pool.connect_all().await?;
        let limit = (pool.max_payload().min(SPAN_BYTES) as u32).max(512);
        let (session, mounted, fsinfo) = match options.vers.minor_version() {
            None => {
                let first = pool.any_transport().ok_or(Error::Closed)?;
                let mounted = mount::mount(&*connector, arena, caller, first, path).await?;
                let args = v3::FsinfoArgs { root: mounted.root };
                let fsinfo = nfs_call(pool, &credential, &args, None).await?.result;
                (None, mounted, fsinfo)
            }
            Some(minor_version) => {
                let slots = options.credits.saturating_mul(options.nconnect as u32);
                let machine = &options.credential.machine;
                let own = caller.encoded();
                let session = Session::start(Arc::clone(pool), minor_version, machine, own, slots, limit)
                    .await
                    .map_err(|e| if is_unsupported(&e) { unsupported(pool, options.vers) } else { e })?;
                let mounted = place::find_export(&session, &credential, path).await?;
                let args = v3::FsinfoArgs { root: mounted.root };
                let fsinfo = nfs4_call(&session, &credential, &args, None).await?.result;
                (Some(session), mounted, fsinfo)
            }
        };
        let fsinfo = fsinfo.map_err(|status| refused_at_mount(pool, &mounted.export, status))?;
        let or_default = |n: u32| if n == 0 { DEFAULT_TRANSFER } else { n };
        let granted = session.as_ref().map(|s| s.granted());
        let within = |size: Option<u32>| size.map_or(limit, |n| limit.min(n.saturating_sub(nfs4::OVERHEAD)));
        let pick = |wanted: Option<u32>, preferred: u32, max: u32, limit: u32| {
            wanted.unwrap_or(or_default(preferred)).min(or_default(max)).min(limit).max(1)
        };
        let (most_read, most_written) =
            (within(granted.map(|g| g.reply)), within(granted.map(|g| g.request)));
        let rsize = pick(options.rsize, fsinfo.read_preferred, fsinfo.read_max, most_read);
        let wsize = pick(options.wsize, fsinfo.write_preferred, fsinfo.write_max, most_written);
        let readdir_size = fsinfo.readdir_preferred.clamp(READDIR_SIZES.0, READDIR_SIZES.1).min(most_read);
        let pool = unfinished.keep().ok_or(Error::Closed)?;
        let (server, version) = (pool.server(), options.vers);
        tracing::info!(server, %version, export = mounted.export, rsize, wsize, "mounted");
        Ok(Self {
            shared: Arc::new(Shared {
                pool,
                session,
                options,
                mounted,
                fsinfo,
                rsize,
                wsize,
                readdir_size,
                plus: AtomicBool::new(true),
                registration,
                open_files: OpenFiles::default(),
            }),
            credential,
        })
    }

    /// Returns a client over the same connections whose calls have the credentials of `who`.
    #[must_use]
    pub fn as_caller(&self, who: &Identity) -> Self {
        Self { shared: Arc::clone(&self.shared), credential: Arc::new(who.credential().encoded()) }
    }

    /// Whether `other` has the same connections and credentials.
    pub fn is_same_caller(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.credential, &other.credential) || self.credential == other.credential;
        same && Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The handle of the export's root.
    pub fn root(&self) -> FileHandle {
        self.shared.mounted.root
    }

    /// The export's name.
    pub fn export(&self) -> &str {
        &self.shared.mounted.export
    }

    /// The rest of the URL's path below the export, without a leading slash; empty for the export itself.
    pub fn path_in_export(&self) -> &str {
        &self.shared.mounted.rest
    }

    /// The version of NFS of the calls.
    pub fn version(&self) -> Version {
        self.shared.options.vers
    }

    /// The server's host and port.
    pub fn server(&self) -> &str {
        self.shared.pool.server()
    }

    /// Maximum size of one READ in bytes.
    pub fn rsize(&self) -> u32 {
        self.shared.rsize
    }

    /// Maximum size of one WRITE in bytes.
    pub fn wsize(&self) -> u32 {
        self.shared.wsize
    }

    /// The server's FSINFO reply at mount.
    pub fn server_info(&self) -> &FsinfoOk {
        &self.shared.fsinfo
    }

    /// The effective options.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// The client's arena: memory of messages, and of buffers for [`Self::read_into`] and
    /// [`Self::write_from`].
    pub fn arena(&self) -> &Arena {
        &self.shared.pool.arena
    }

    /// The runtime.
    pub fn runtime(&self) -> &RuntimeRef {
        &self.shared.pool.rt
    }

    /// Allocates a buffer of `len` bytes (at most 4 MiB) for payload.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        Ok(self.arena().alloc(len)?)
    }

    /// Counters of the registration strategy.
    pub fn registration_stats(&self) -> RegistrationStats {
        self.shared.registration.stats()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.shared.pool.stats()
    }

    /// Closes the connections of all clones. Calls in progress and later calls fail.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Makes an NFS call. Retries after a delay while the server returns JUKEBOX. `payload` is the buffer for the data
    /// of the reply.
    pub(crate) async fn call<C: Call>(
        &self,
        args: &C,
        payload: Option<Buffer>,
    ) -> Result<Answer<C::Ok>, Error> {
        match &self.shared.session {
            None => nfs_call(&self.shared.pool, &self.credential, args, payload).await,
            Some(session) => nfs4_call(session, &self.credential, args, payload).await,
        }
    }

    /// The credentials of calls.
    pub(crate) fn credential(&self) -> &Arc<EncodedCredential> {
        &self.credential
    }

    /// Whether the calls are COMPOUNDs of NFSv4.
    pub(crate) fn is_v4(&self) -> bool {
        self.shared.session.is_some()
    }

    pub(crate) fn plus(&self) -> bool {
        self.shared.plus.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Closes the connections, after the end of the session.
    fn close(&self) {
        match &self.session {
            Some(session) => session.end(),
            None => self.pool.close(),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({}:{})", self.server(), self.export())
    }
}

/// Closes the connections of a mount that failed or was cancelled.
struct CloseOnDrop(Option<Arc<Pool>>);

impl CloseOnDrop {
    /// Keeps the connections open.
    fn keep(mut self) -> Option<Arc<Pool>> {
        self.0.take()
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.close();
        }
    }
}

async fn nfs_call<C: Call>(
    pool: &Pool,
    credential: &EncodedCredential,
    args: &C,
    mut payload: Option<Buffer>,
) -> Result<Answer<C::Ok>, Error> {
    let procedure = C::PROCEDURE;
    let spec = CallSpec {
        program: v3::PROGRAM,
        version: v3::VERSION,
        procedure: procedure.number(),
        name: procedure.name(),
        max_head: args.entries().map_or(procedure.max_reply_head(), v3::readdir_reply_head),
        keep_xid: is_unrepeatable(procedure),
        class: class(procedure),
    };
    let payload_len = payload.as_ref().map(|b| b.len());
    let mut attempt = Attempt::new(pool, procedure.name());
    loop {
        let payload = match (payload.take(), payload_len) {
            (None, Some(len)) => Some(pool.arena.alloc(len)?),
            (given, _) => given,
        };
        let answered = pool.call(spec, credential, args, payload).await?;
        let decoded = decode::<C>(&mut answered.reply.results());
        answered.stages.end(Stage::Delivery);
        pool.sampler.finish(answered.stages);
        let result = decoded.map_err(|e| pool.bad_reply(procedure.name(), e))?;
        if matches!(result, Err(Status::Jukebox)) && attempt.pause(String::new()).await.is_ok() {
            continue;
        }
        return Ok(Answer { result, resent: answered.resent });
    }
}

/// Whether the server must recognize a retransmission. WRITE is idempotent, but see [`crate::retransmission`].
fn is_unrepeatable(procedure: Procedure) -> bool {
    !procedure.is_idempotent() || procedure == Procedure::Write
}

fn class(procedure: Procedure) -> CallClass {
    match procedure {
        Procedure::Read => CallClass::Read,
        Procedure::Write => CallClass::Write,
        _ => CallClass::Other,
    }
}

/// Maximum size of the reply to a COMPOUND in bytes, without the data of READ and READLINK and the entries of a
/// directory: the RPC header, SEQUENCE, a handle, and twice the attributes of an object with long names of owners.
const COMPOUND_REPLY: usize = 2048;

async fn nfs4_call<C: Call>(
    session: &Arc<Session>,
    credential: &EncodedCredential,
    args: &C,
    payload: Option<Buffer>,
) -> Result<Answer<C::Ok>, Error> {
    let procedure = C::PROCEDURE;
    let max_head = COMPOUND_REPLY + args.entries().unwrap_or_default() as usize;
    let spec = nfs4::spec(procedure.name(), max_head, class(procedure));
    let answer = session.call(credential, spec, is_unrepeatable(procedure), args, payload).await?;
    let result = match answer.result {
        Ok(ok) => Ok(ok),
        Err((operation, status)) => Err(v3_status(operation, status)?),
    };
    Ok(Answer { result, resent: answer.resent })
}

/// The error for a server that does not offer `version`.
fn unsupported(pool: &Pool, version: Version) -> Error {
    Error::UnsupportedVersion { server: pool.server().to_owned(), version }
}

/// The error of the first call on a mounted export. A rejection concerns the caller, as that of MNT.
fn refused_at_mount(pool: &Pool, export: &str, status: Status) -> Error {
    let refused = match status {
        Status::Perm => millrace_nfs::mount::Status::Perm,
        Status::Access => millrace_nfs::mount::Status::Access,
        _ => return nfs_error(Procedure::Fsinfo, export, status),
    };
    Error::Mount { server: pool.server().to_owned(), path: export.to_owned(), status: refused }
}

/// The error for a status of a call on `object`.
pub(crate) fn nfs_error(procedure: Procedure, object: impl ToString, status: Status) -> Error {
    Error::Nfs { procedure, object: object.to_string(), status }
}

/// As [`nfs_error`], for a name.
pub(crate) fn named_error(procedure: Procedure, name: &[u8], status: Status) -> Error {
    Error::Nfs { procedure, object: format!("{:?}", String::from_utf8_lossy(name)), status }
}
