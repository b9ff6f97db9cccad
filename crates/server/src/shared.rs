//! The state that all shards of a server have in common.

use std::sync::{Arc, atomic::AtomicU64};

use millrace_admission::Budget;
use millrace_buffer::Arena;
use millrace_oncrpc::{
    gss::{Acceptor, GssServer},
    serving::CloseStats,
};
use millrace_rdma::registration::{Registration, Settings, Strategy};
use millrace_runtime::{RuntimeRef, sync::Mutex};
use millrace_tls::{ServerConfig, TlsAcceptor};
use millrace_vfs::FileSystemRef;

use crate::{
    Config, ExportConfig, KerberosSettings, ServerError,
    backend::Resources,
    callbacks::CallbackSender,
    drc::DuplicateRequestCache,
    export::{Entry, ExportTable, Exports, new_usage},
    groups::{self, Groups},
    handle,
    kerberos::KerberosAcceptor,
    metrics::ShardCounters,
    mount3::MountList,
    nfs4_clients::Clients,
    owners::{Owners, Rules},
    targets::Targets,
};

/// The common state of all shards: exports, targets, clients and limits.
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// Number of shards.
    pub(crate) shards: usize,
    pub(crate) arena: Arena,
    pub(crate) exports: Arc<ExportTable>,
    pub(crate) targets: Targets,
    /// Key for sealing handles, if there is a state directory.
    pub(crate) secret: Option<[u64; 2]>,
    pub(crate) mounts: Arc<MountList>,
    /// Groups of callers, if the server manages them.
    pub(crate) groups: Option<Arc<Groups>>,
    pub(crate) drc: Arc<DuplicateRequestCache>,
    /// Clients of NFSv4.
    pub(crate) nfs4_clients: Arc<Clients>,
    /// Memory and connections of clients.
    pub(crate) budget: Budget,
    /// TLS for connections over TCP.
    pub(crate) tls: Arc<TlsAcceptor>,
    /// The security contexts of callers with Kerberos.
    pub(crate) gss: Arc<GssServer>,
    /// The names of owners for them.
    pub(crate) owners: Arc<Owners>,
    /// What both were made of.
    pub(crate) kerberos: Mutex<Option<KerberosSettings>>,
    /// Closed connections by transport and reason.
    pub(crate) closed: CloseCounters,
    /// The registration strategy.
    pub(crate) registration: Arc<Registration>,
    /// Number of the next connection.
    pub(crate) connections: AtomicU64,
}

/// Counts closed connections by reason.
#[derive(Default)]
pub(crate) struct CloseCounters {
    pub(crate) tcp: Arc<CloseStats>,
    pub(crate) rdma: Arc<CloseStats>,
}

/// The acceptor of security contexts, and the names of owners.
type Kerberos = (Arc<dyn Acceptor>, Rules);

/// What follows from the configuration, if it has Kerberos.
///
/// # Errors
/// [`ServerError::Kerberos`]
pub(crate) fn kerberos(config: &Config) -> Result<Option<Kerberos>, ServerError> {
    let Some(settings) = &config.kerberos else { return Ok(None) };
    let acceptor = KerberosAcceptor::new(settings)?;
    let owners = Rules::new(settings.domain.as_deref(), &acceptor.realm()?, &settings.users);
    Ok(Some((Arc::new(acceptor), owners)))
}

impl Shared {
    /// Sends callbacks to NFSv4 clients, from tasks of a shard.
    pub(crate) fn callback_sender(&self, counters: &Arc<ShardCounters>, rt: &RuntimeRef) -> CallbackSender {
        CallbackSender {
            clients: Arc::clone(&self.nfs4_clients),
            exports: Arc::clone(&self.exports),
            rt: Arc::clone(rt),
            counters: Arc::clone(counters),
            arena: self.arena.clone(),
        }
    }

    /// The state of `shards` shards in a process that may open `descriptors` files. `open` opens each export of
    /// `config`.
    ///
    /// # Errors
    /// [`ServerError`]
    pub(crate) fn new(
        config: &Config,
        rt: &RuntimeRef,
        shards: usize,
        descriptors: Option<u64>,
        mut open: impl FnMut(&ExportConfig, &Resources<'_>) -> Result<FileSystemRef, String>,
    ) -> Result<Arc<Self>, ServerError> {
        let tls = Arc::new(TlsAcceptor::default());
        tls.set(config.tls.as_ref().map(ServerConfig::load).transpose()?);
        let gss = Arc::new(GssServer::default());
        let (acceptor, owners) = kerberos(config)?.unzip();
        gss.set(acceptor);
        let arena = config.limits.arena();
        let secret = match &config.state_dir {
            Some(dir) => {
                let secret = handle::secret(dir, |bytes| rt.fill_random(bytes));
                Some(secret.map_err(|source| ServerError::State { path: dir.clone(), source })?)
            }
            None => None,
        };
        let nfs4_clients = Clients::new(rt, config, secret).map_err(|source| {
            let path = config.state_dir.clone().unwrap_or_default();
            ServerError::State { path, source }
        })?;
        let with = Resources { arena: &arena, runtime: rt, state_dir: config.state_dir.as_deref() };
        let mut entries = Vec::with_capacity(config.exports.len());
        for e in &config.exports {
            let fs = open(e, &with).map_err(|reason| ServerError::Export { name: e.name.clone(), reason })?;
            entries.push(Entry { policy: e.clone(), fs, usage: new_usage(shards) });
        }
        let exports = Exports::new(entries, secret)?;
        if exports.delegates() {
            nfs4_clients.state.enable_delegations(None);
        }
        let targets = Targets::new(&arena, secret, &nfs4_clients, rt);
        targets.replace(targets.prepare(&config.targets, &exports)?)?;
        let strategy = config.registration.unwrap_or(Strategy::Cache);
        Ok(Arc::new(Self {
            config: config.clone(),
            shards,
            arena,
            exports: Arc::new(ExportTable::new(exports)),
            targets,
            secret,
            mounts: Arc::default(),
            groups: config.manage_groups.then(|| Arc::new(Groups::new(rt, groups::look_up))),
            drc: Arc::new(DuplicateRequestCache::new(config.limits.replies_kept, Arc::clone(rt))),
            nfs4_clients,
            budget: Budget::new(config.limits.budget(descriptors, config.has_iscsi()), Arc::clone(rt)),
            tls,
            gss,
            owners: Arc::new(Owners::new(rt, owners)),
            kerberos: Mutex::new(config.kerberos.clone()),
            closed: CloseCounters::default(),
            registration: Arc::new(Registration::new(Settings {
                cache_limit: config.limits.cache_limit(),
                ..Settings::new(strategy)
            })),
            connections: AtomicU64::new(1),
        }))
    }
}
