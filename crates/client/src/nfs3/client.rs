//! The client: a mounted export.

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
use millrace_xdr::{Decode, Decoder, Encode, XdrError};

use super::writeback::OpenFiles;
use crate::{
    Connector, Error, Identity, Options, Stats, Url,
    connect::{Network, NetworkConnector, UrlConnector},
    mount::{self, Mounted},
    pool::{Attempt, CallSpec, Pool},
};

/// The sizes of READ and WRITE where neither options nor server say any.
const DEFAULT_TRANSFER: u32 = 1 << 20;
/// Sizes of READDIR replies.
const READDIR_SIZES: (u32, u32) = (4 << 10, 64 << 10);

/// A file system object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes.
    pub attributes: Fattr,
    /// What the reply says of the directory in which the object was found or made, where it says something.
    pub dir: WccData,
}

pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) options: Options,
    mounted: Mounted,
    pub(crate) fsinfo: FsinfoOk,
    pub(crate) rsize: u32,
    pub(crate) wsize: u32,
    pub(crate) readdir_size: u32,
    /// The server has READDIRPLUS, as far as we know.
    pub(crate) plus: AtomicBool,
    registration: Arc<Registration>,
    pub(crate) open_files: OpenFiles,
}

/// A mounted export. Clones share everything. When the last one is dropped the connections are closed.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    credential: Arc<EncodedCredential>,
}

/// An NFS procedure's answer.
pub(crate) struct Answer<O> {
    /// The results, or the status.
    pub(crate) result: Result<O, Status>,
    /// The call was sent more than once.
    pub(crate) resent: bool,
}

/// A result of which the failure's own data is skipped: servers differ in it, and nothing here uses it.
struct Outcome<O>(Result<O, Status>);

impl<'a, O: Decode<'a>> Decode<'a> for Outcome<O> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.get()? {
            Status::Ok => Ok(Self(Ok(d.get()?))),
            status => Ok(Self(Err(status))),
        }
    }
}

/// Returns the memory of loads that have ended to the system, while the client exists.
async fn trim_memory(rt: RuntimeRef, client: Weak<Shared>) {
    loop {
        rt.sleep(TRIM_INTERVAL).await;
        let Some(client) = client.upgrade() else { return };
        client.pool.arena.trim();
    }
}

impl Client {
    /// Connects to the URL's server and mounts the longest export that contains the URL's path. What the URL states
    /// wins over `options`.
    ///
    /// MOUNT is asked on the NFS connection itself; if the server does not offer it there, over TCP: at the URL's
    /// `mountport`, or where the port mapper says, or at port 2049.
    ///
    /// # Errors
    /// [`Error::Resolve`], [`Error::Connect`], [`Error::UnknownExport`], [`Error::Mount`], and those of a call.
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

    /// Mounts the longest export that contains `path` of the server at `addr`, over a provider of the caller's. The server
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

    /// As [`Self::connect_over`], over TCP of the caller's.
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

    /// Mounts the longest export that contains `path` over connections that `connector` makes; its messages are built
    /// in `arena`.
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
        let mut unfinished = CloseOnDrop(Some(pool));
        let Some(pool) = unfinished.0.as_ref() else { return Err(Error::Closed) };
        pool.connect_all().await?;
        let first = pool.any_transport().ok_or(Error::Closed)?;
        let mounted = mount::mount(&*connector, arena, caller, first, path).await?;
        let args = v3::FsinfoArgs { root: mounted.root };
        let head = Procedure::Fsinfo.max_reply_head();
        let fsinfo: FsinfoOk = nfs_call(pool, &credential, Procedure::Fsinfo, &args, head, None)
            .await?
            .result
            .map_err(|status| refused_at_mount(pool, &mounted.export, status))?;
        let limit = (pool.max_payload().min(SPAN_BYTES) as u32).max(512);
        let said = |n: u32| if n == 0 { DEFAULT_TRANSFER } else { n };
        let pick = |wanted: Option<u32>, preferred: u32, max: u32| {
            wanted.unwrap_or(said(preferred)).min(said(max)).min(limit).max(1)
        };
        let rsize = pick(options.rsize, fsinfo.read_preferred, fsinfo.read_max);
        let wsize = pick(options.wsize, fsinfo.write_preferred, fsinfo.write_max);
        let readdir_size = fsinfo.readdir_preferred.clamp(READDIR_SIZES.0, READDIR_SIZES.1);
        let Some(pool) = unfinished.0.take() else { return Err(Error::Closed) };
        tracing::info!(server = pool.server(), export = mounted.export, rsize, wsize, "mounted");
        Ok(Self {
            shared: Arc::new(Shared {
                pool,
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

    /// This client over the same connections, whose calls are `who`'s.
    #[must_use]
    pub fn as_caller(&self, who: &Identity) -> Self {
        Self { shared: Arc::clone(&self.shared), credential: Arc::new(who.credential().encoded()) }
    }

    /// Whether the calls of `other` go to the same server as the same caller.
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

    /// What is left of the URL's path below the export, without a leading slash; empty for the export itself.
    pub fn path_in_export(&self) -> &str {
        &self.shared.mounted.rest
    }

    /// The server's host and port.
    pub fn server(&self) -> &str {
        self.shared.pool.server()
    }

    /// The most bytes of one READ.
    pub fn rsize(&self) -> u32 {
        self.shared.rsize
    }

    /// The most bytes of one WRITE.
    pub fn wsize(&self) -> u32 {
        self.shared.wsize
    }

    /// What the server said of itself at mount.
    pub fn server_info(&self) -> &FsinfoOk {
        &self.shared.fsinfo
    }

    /// The options in force.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// The memory in which calls are built; take buffers for [`Self::read_into`] and [`Self::write_from`] from it.
    pub fn arena(&self) -> &Arena {
        &self.shared.pool.arena
    }

    /// The runtime.
    pub fn runtime(&self) -> &RuntimeRef {
        &self.shared.pool.rt
    }

    /// A buffer of `len` bytes (at most 4 MiB) for payload.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        Ok(self.arena().alloc(len)?)
    }

    /// What the registration strategy has done.
    pub fn registration_stats(&self) -> RegistrationStats {
        self.shared.registration.stats()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.shared.pool.stats()
    }

    /// Closes the connections; open calls fail, later ones too, on all clones.
    pub fn close(&self) {
        self.shared.pool.close();
    }

    /// Makes an NFS call; waits and asks again while the server says JUKEBOX.
    pub(crate) async fn call<O>(
        &self,
        procedure: Procedure,
        args: &impl Encode,
        payload: Option<Buffer>,
    ) -> Result<Answer<O>, Error>
    where
        O: for<'a> Decode<'a>,
    {
        self.call_sized(procedure, args, procedure.max_reply_head(), payload).await
    }

    /// As [`Self::call`], with a stated size of the reply.
    pub(crate) async fn call_sized<O>(
        &self,
        procedure: Procedure,
        args: &impl Encode,
        max_head: usize,
        payload: Option<Buffer>,
    ) -> Result<Answer<O>, Error>
    where
        O: for<'a> Decode<'a>,
    {
        nfs_call(&self.shared.pool, &self.credential, procedure, args, max_head, payload).await
    }

    pub(crate) fn plus(&self) -> bool {
        self.shared.plus.load(Ordering::Relaxed)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.pool.close();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({}:{})", self.server(), self.export())
    }
}

/// Closes the connections of a mount that failed or was dropped half-way.
struct CloseOnDrop(Option<Pool>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.close();
        }
    }
}

async fn nfs_call<O>(
    pool: &Pool,
    credential: &EncodedCredential,
    procedure: Procedure,
    args: &impl Encode,
    max_head: usize,
    mut payload: Option<Buffer>,
) -> Result<Answer<O>, Error>
where
    O: for<'a> Decode<'a>,
{
    let spec = CallSpec {
        program: v3::PROGRAM,
        version: v3::VERSION,
        procedure: procedure.number(),
        name: procedure.name(),
        max_head,
        // A WRITE could be repeated, but not overtaken: see `retransmission`.
        keep_xid: !procedure.is_idempotent() || procedure == Procedure::Write,
        class: match procedure {
            Procedure::Read => CallClass::Read,
            Procedure::Write => CallClass::Write,
            _ => CallClass::Other,
        },
    };
    let payload_len = payload.as_ref().map(|b| b.len());
    let mut attempt = Attempt::new(pool, procedure.name());
    loop {
        let payload = match (payload.take(), payload_len) {
            (None, Some(len)) => Some(pool.arena.alloc(len)?),
            (given, _) => given,
        };
        let answered = pool.call(spec, credential, args, payload).await?;
        let decoded = answered.reply.results().get::<Outcome<O>>();
        answered.stages.end(Stage::Delivery);
        pool.sampler.finish(answered.stages);
        let result = decoded.map_err(|e| pool.bad_reply(procedure.name(), e))?.0;
        if matches!(result, Err(Status::Jukebox)) && attempt.pause(String::new()).await.is_ok() {
            continue;
        }
        return Ok(Answer { result, resent: answered.resent });
    }
}

/// The error for the first call on a mounted export: a server that refuses it refuses the caller, as for MNT.
fn refused_at_mount(pool: &Pool, export: &str, status: Status) -> Error {
    let refused = match status {
        Status::Perm => millrace_nfs::mount::Status::Perm,
        Status::Access => millrace_nfs::mount::Status::Access,
        _ => return nfs_error(Procedure::Fsinfo, export, status),
    };
    Error::Mount { server: pool.server().to_owned(), path: export.to_owned(), status: refused }
}

/// The error for a status; `object` says on what.
pub(crate) fn nfs_error(procedure: Procedure, object: impl ToString, status: Status) -> Error {
    Error::Nfs { procedure, object: object.to_string(), status }
}

/// As [`nfs_error`], for a name.
pub(crate) fn named_error(procedure: Procedure, name: &[u8], status: Status) -> Error {
    Error::Nfs { procedure, object: format!("{:?}", String::from_utf8_lossy(name)), status }
}
