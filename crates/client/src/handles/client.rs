//! The client of the protocol layer: a mounted export.

use std::{
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_buffer::{Arena, ArenaConfig, Buffer, SPAN_BYTES, TRIM_INTERVAL};
use millrace_oncrpc::SecurityFlavor;
use millrace_rdma::{
    Provider,
    registration::{Registration, RegistrationStats},
};
use millrace_runtime::{RuntimeExt, RuntimeRef, StreamProvider};

use super::{
    mounting::{Mount, Mounting},
    writeback::OpenFiles,
};
use crate::{
    Connector, Error, Identity, Options, Stats, Url, Version,
    connect::{Network, NetworkConnector, UrlConnector},
    credential::CallCredential,
    exchange::Answer,
    mount::Mounted,
    ops::{Attributes, Call, FileHandle, FsInfo, Status, Wcc},
    pool::Pool,
    v3,
    v4::{self, Session, compound::Compound, compounds::ServerInfo},
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
    pub attributes: Attributes,
    /// Attributes of the parent directory in the reply, if any.
    pub dir: Wcc,
}

pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    version: Version,
    /// The session of NFSv4; `None` with NFSv3.
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) options: Options,
    mounted: Mounted,
    pub(crate) fsinfo: FsInfo,
    /// Whether an exclusive creation can set the mode.
    pub(crate) exclusive_mode: bool,
    /// Whether the server reports extended attributes.
    pub(crate) xattrs: bool,
    pub(crate) rsize: u32,
    pub(crate) wsize: u32,
    pub(crate) readdir_size: u32,
    /// Whether the server supports READDIRPLUS; true until it returns an error.
    pub(crate) plus: AtomicBool,
    /// Whether the server supports COPY; true until it returns an error.
    pub(crate) copies: AtomicBool,
    registration: Arc<Registration>,
    pub(crate) open_files: OpenFiles,
}

/// A mounted export. Clones share the connections, which are closed when the last clone is dropped.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    credential: Arc<CallCredential>,
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
    /// [`Error::Resolve`], [`Error::Connect`], [`Error::NoTransport`], [`Error::UnknownExport`], [`Error::Mount`], and
    /// the errors of a call.
    pub async fn connect(rt: RuntimeRef, url: &Url, options: Options) -> Result<Self, Error> {
        let options = options.with_url(url);
        let arena = Arena::new(ArenaConfig { limit: options.arena_limit, ..ArenaConfig::default() });
        let registration = options.new_registration();
        let connector = UrlConnector::new(
            Arc::clone(&rt),
            arena.clone(),
            url,
            options.clone(),
            Arc::clone(&registration),
        );
        let client = Self::mount_with(
            Arc::clone(&rt),
            arena,
            Arc::new(connector),
            url.path.as_bytes(),
            options,
            registration,
        )
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
        Self::mount_with(rt, arena, Arc::new(connector), path.as_bytes(), options, registration).await
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
        Self::mount_with(rt, arena, connector, path.as_bytes(), options, registration).await
    }

    async fn mount_with(
        rt: RuntimeRef,
        arena: Arena,
        connector: Arc<dyn Connector>,
        path: &[u8],
        options: Options,
        registration: Arc<Registration>,
    ) -> Result<Self, Error> {
        let pool = Pool::new(rt, arena, Arc::clone(&connector), &options);
        let credential = Arc::new(pool.callers.credential(&options.credential));
        let unfinished = CloseOnDrop(Some(Arc::new(pool)));
        let Some(pool) = &unfinished.0 else { return Err(Error::Closed) };
        pool.connect_all().await?;
        // Over RDMA, a protected message is in one buffer, with its data and what protects it.
        let most = SPAN_BYTES - if options.sec == SecurityFlavor::Sys { 0 } else { 64 << 10 };
        let limit = (pool.max_payload().min(most) as u32).max(512);
        let mounting = Mounting {
            pool,
            connector: &*connector,
            credential: &credential,
            options: &options,
            path,
            payload: limit,
        };
        let Mount { version, session, mounted, info } = mounting.mount().await?;
        let ServerInfo { fsinfo, exclusive_mode, xattrs } = info;
        let or_default = |n: u32| if n == 0 { DEFAULT_TRANSFER } else { n };
        let granted = session.as_ref().map(|s| s.granted());
        let within = |size: Option<u32>| size.map_or(limit, |n| limit.min(n.saturating_sub(v4::OVERHEAD)));
        let pick = |wanted: Option<u32>, preferred: u32, max: u32, limit: u32| {
            wanted.unwrap_or(or_default(preferred)).min(or_default(max)).min(limit).max(1)
        };
        let (most_read, most_written) =
            (within(granted.map(|g| g.reply)), within(granted.map(|g| g.request)));
        let rsize = pick(options.rsize, fsinfo.read_preferred, fsinfo.read_max, most_read);
        let wsize = pick(options.wsize, fsinfo.write_preferred, fsinfo.write_max, most_written);
        let readdir_size = fsinfo.readdir_preferred.clamp(READDIR_SIZES.0, READDIR_SIZES.1).min(most_read);
        let pool = unfinished.keep().ok_or(Error::Closed)?;
        let server = pool.server();
        tracing::info!(server, %version, export = mounted.export, rsize, wsize, "mounted");
        Ok(Self {
            shared: Arc::new(Shared {
                pool,
                version,
                session,
                options,
                mounted,
                fsinfo,
                exclusive_mode,
                xattrs: xattrs && version == Version::V4_2,
                rsize,
                wsize,
                readdir_size,
                plus: AtomicBool::new(true),
                copies: AtomicBool::new(true),
                registration,
                open_files: OpenFiles::default(),
            }),
            credential,
        })
    }

    /// Returns a client over the same connections whose calls have the credentials of `who`.
    #[must_use]
    pub fn as_caller(&self, who: &Identity) -> Self {
        let credential = Arc::new(self.shared.pool.callers.credential(who));
        Self { shared: Arc::clone(&self.shared), credential }
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
    pub fn path_in_export(&self) -> &[u8] {
        &self.shared.mounted.rest
    }

    /// The version of NFS of the calls.
    pub fn version(&self) -> Version {
        self.shared.version
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
    pub fn server_info(&self) -> &FsInfo {
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

    /// As [`Self::buffer`], and waits up to ten seconds for memory that other calls use.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub async fn wait_for_buffer(&self, len: usize) -> Result<Buffer, Error> {
        self.shared.pool.wait_for_buffer(len).await
    }

    /// Counters of the registration strategy.
    pub fn registration_stats(&self) -> RegistrationStats {
        self.shared.registration.stats()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.shared.pool.stats()
    }

    /// Closes the connections of all clones. Calls in progress and later calls fail. With NFSv4 it does not wait for the
    /// end of the client at the server, which [`Self::shutdown`] does.
    pub fn close(&self) {
        self.shared.close();
    }

    /// As [`Self::close`], and waits until the client has returned its delegations, and until the server has ended the
    /// session and the client ID of NFSv4 (RFC 8881 sections 18.37 and 18.50), for at most one second each. A program that
    /// exits without it leaves them at the server until the lease ends.
    pub async fn shutdown(&self) {
        match &self.shared.session {
            Some(session) => session.shutdown().await,
            None => self.shared.close(),
        }
    }

    /// Makes an NFS call. Retries after a delay while the server returns JUKEBOX. `payload` is the buffer for the data
    /// of the reply.
    pub(crate) async fn call<C: v3::Procedure + Compound<Ok = <C as Call>::Ok>>(
        &self,
        args: &mut C,
        payload: Option<Buffer>,
    ) -> Result<Answer<Result<<C as Call>::Ok, Status>>, Error> {
        match self.session() {
            None => v3::call(&self.shared.pool, &self.credential, args, payload).await,
            Some(session) => v4::call(session, &self.credential, args, payload).await,
        }
    }

    /// The credentials of calls.
    pub(crate) fn credential(&self) -> &Arc<CallCredential> {
        &self.credential
    }

    /// The session of NFSv4, whose COMPOUNDs can do what no procedure of NFSv3 does.
    pub(crate) fn session(&self) -> Option<&Arc<Session>> {
        self.shared.session.as_ref()
    }

    pub(crate) fn plus(&self) -> bool {
        self.shared.plus.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Closes the connections, after the end of the session.
    fn close(&self) {
        match &self.session {
            Some(session) => session.end_in_background(),
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
