//! The export table: assignment of handles and paths to file systems, and access rules.

use std::{fmt, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use millrace_oncrpc::{Credential, Peer, Sender, TransportKind};
use millrace_vfs::{FileSystemRef, FsInfo, Handle, Identity};
use smallvec::SmallVec;

use crate::{
    ServerError,
    config::{Delegations, ExportConfig, Squash},
    handle::{HandleBytes, SealedHandle, Sealer},
    namespace::Namespace,
    usage::Usage,
};

/// The reason why a caller is denied access to an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessDenial {
    /// The address is in none of the export's networks.
    Network,
    /// The call came over TCP from a port of 1024 or above.
    Port,
    /// The call has no credential, or an unsupported one.
    Credential,
}

impl fmt::Display for AccessDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "its address is in none of the export's client networks",
            Self::Port => "the export wants calls from a privileged port (below 1024)",
            Self::Credential => "the export wants an AUTH_SYS credential",
        })
    }
}

/// One export: policy, file system, and sealer of its handles.
pub(crate) struct Export {
    policy: ExportConfig,
    fs: FileSystemRef,
    info: FsInfo,
    sealer: Sealer,
    /// Usage by shard.
    usage: Arc<[Usage]>,
}

/// The parts of an export.
pub(crate) struct Entry {
    pub(crate) policy: ExportConfig,
    pub(crate) fs: FileSystemRef,
    /// Usage by shard.
    pub(crate) usage: Arc<[Usage]>,
}

/// Zero usage counters for `shards` shards.
pub(crate) fn new_usage(shards: usize) -> Arc<[Usage]> {
    (0..shards).map(|_| Usage::default()).collect()
}

impl Export {
    pub(crate) fn name(&self) -> &str {
        &self.policy.name
    }

    /// The id in handles.
    pub(crate) fn id(&self) -> u32 {
        self.sealer.id()
    }

    pub(crate) fn fs(&self) -> &FileSystemRef {
        &self.fs
    }

    pub(crate) fn info(&self) -> &FsInfo {
        &self.info
    }

    pub(crate) fn read_only(&self) -> bool {
        self.policy.read_only
    }

    pub(crate) fn policy(&self) -> &ExportConfig {
        &self.policy
    }

    /// Usage of the export by shard.
    pub(crate) fn usage(&self) -> &Arc<[Usage]> {
        &self.usage
    }

    pub(crate) fn seal(&self, handle: &Handle) -> HandleBytes {
        self.sealer.seal(handle)
    }

    /// The file of `handle`; `None` if the handle is invalid in this export.
    pub(crate) fn open(&self, handle: &SealedHandle<'_>) -> Option<Handle> {
        self.sealer.open(handle)
    }

    /// Checks the peer's address and port, independent of the caller.
    pub(crate) fn admit_peer(&self, peer: &Peer) -> Result<(), AccessDenial> {
        let p = &self.policy;
        if !p.clients.is_empty() && !p.clients.iter().any(|n| n.contains(peer.addr.ip())) {
            return Err(AccessDenial::Network);
        }
        // Linux's client lets the RDMA stack choose its port, so Linux's server treats every RDMA peer as
        // privileged (svc_rdma_recvfrom).
        let port_counts = peer.transport == TransportKind::Tcp;
        if p.require_privileged_port && port_counts && peer.addr.port() >= 1024 {
            return Err(AccessDenial::Port);
        }
        Ok(())
    }

    /// Checks that the caller may use this export, and returns the caller's identity.
    pub(crate) fn admit(&self, sender: &Sender) -> Result<Identity, AccessDenial> {
        self.admit_peer(&sender.peer)?;
        let p = &self.policy;
        let anonymous = || Identity { uid: p.anon_uid, gid: p.anon_gid, gids: SmallVec::new() };
        let sys = match &sender.credential {
            Credential::Sys(sys) => sys,
            Credential::None if p.allow_auth_none => return Ok(anonymous()),
            _ => return Err(AccessDenial::Credential),
        };
        Ok(match p.squash {
            Squash::All => anonymous(),
            Squash::None => Identity { uid: sys.uid, gid: sys.gid, gids: sys.gids.clone() },
            Squash::Root => {
                let not_root = |id: u32, instead: u32| if id == 0 { instead } else { id };
                Identity {
                    uid: not_root(sys.uid, p.anon_uid),
                    gid: not_root(sys.gid, p.anon_gid),
                    gids: sys.gids.iter().map(|g| not_root(*g, p.anon_gid)).collect(),
                }
            }
        })
    }
}

/// All exports of a server.
pub(crate) struct Exports {
    list: Vec<Arc<Export>>,
    namespace: Namespace,
}

impl Exports {
    /// The table of `entries`; handles are sealed under `secret`, or under keys that follow from the entries.
    pub(crate) fn new(entries: Vec<Entry>, secret: Option<[u64; 2]>) -> Result<Self, ServerError> {
        let mut list: Vec<Arc<Export>> = Vec::with_capacity(entries.len());
        for Entry { policy, fs, usage } in entries {
            let sealer = Sealer::new(&policy.name, &policy.backend.identity(), secret);
            if let Some(other) = list.iter().find(|e| e.sealer.id() == sealer.id()) {
                let (a, b) = (other.name(), &policy.name);
                return Err(ServerError::Config(if a == b {
                    format!("export {a} is configured twice")
                } else {
                    format!("exports {a} and {b} have the same number in file handles; rename one of them")
                }));
            }
            let info = fs.info();
            list.push(Arc::new(Export { policy, fs, info, sealer, usage }));
        }
        let settings: String = list.iter().map(|e| format!("{:?}\n", e.policy)).collect();
        let namespace = Namespace::new(list.iter().map(|e| e.name()), &settings, secret);
        Ok(Self { list, namespace })
    }

    /// The directory tree of the names of the exports.
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The export at this position of the table.
    pub(crate) fn at(&self, position: usize) -> &Arc<Export> {
        &self.list[position]
    }

    /// The position of `export` in this table.
    pub(crate) fn position(&self, export: &Arc<Export>) -> Option<usize> {
        self.list.iter().position(|e| Arc::ptr_eq(e, export))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.list.iter()
    }

    /// Whether NFSv4 clients can get delegations in any export.
    pub(crate) fn delegates(&self) -> bool {
        self.list.iter().any(|e| e.policy.delegations != Delegations::None)
    }

    /// The export with this id in its handles.
    pub(crate) fn by_id(&self, id: u32) -> Option<&Arc<Export>> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::EXPORT_LOOKUPS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.list.iter().find(|e| e.id() == id)
    }

    /// The export with the longest name that is a prefix of `path`, and the rest of the path.
    pub(crate) fn find<'p>(&self, path: &'p [u8]) -> Option<(&Arc<Export>, &'p [u8])> {
        let below = |e: &&Arc<Export>| strip_export(e.name().as_bytes(), path).is_some();
        let export = self.list.iter().filter(below).max_by_key(|e| e.name().len())?;
        Some((export, strip_export(export.name().as_bytes(), path)?))
    }
}

/// The present exports. A call loads them once, so that a reload does not affect it during execution.
pub(crate) struct ExportTable(ArcSwap<Exports>);

impl ExportTable {
    pub(crate) fn new(exports: Exports) -> Self {
        Self(ArcSwap::from_pointee(exports))
    }

    /// The exports, for use within one poll.
    pub(crate) fn load(&self) -> Guard<Arc<Exports>> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::TABLE_LOADS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.0.load()
    }

    /// The exports, for use across polls.
    pub(crate) fn load_full(&self) -> Arc<Exports> {
        Guard::into_inner(self.load())
    }

    /// Replaces the exports for later calls.
    pub(crate) fn store(&self, exports: Exports) {
        self.0.store(Arc::new(exports));
    }
}

/// The part of `path` below `name`: `/a/b` below `/a` is `/b`; `/ab` is not below `/a`.
pub(crate) fn strip_export<'p>(name: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(name.strip_suffix(b"/").unwrap_or(name))?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

#[cfg(test)]
mod tests {
    use millrace_oncrpc::AuthSys;
    use millrace_vfs::memory::{MemoryConfig, MemoryFs};

    use super::*;

    fn table(exports: &[&str]) -> Exports {
        let arena =
            millrace_buffer::Arena::new(millrace_buffer::ArenaConfig { limit: 1 << 22, huge_pages: false });
        millrace_runtime::tokio_rt::run_shard(async {
            let rt = millrace_runtime::tokio_rt::TokioRuntime::current();
            let fs = MemoryFs::new(MemoryConfig::new(arena, rt));
            let entries = exports.iter().map(|e| Entry {
                policy: e.parse().unwrap(),
                fs: Arc::clone(&fs) as FileSystemRef,
                usage: new_usage(1),
            });
            Exports::new(entries.collect(), None).unwrap()
        })
        .unwrap()
    }

    fn peer(addr: &str) -> Peer {
        let addr = addr.parse().unwrap();
        Peer { addr, local: addr, transport: TransportKind::Tcp, connection: 1 }
    }

    fn sender(credential: Credential) -> Sender {
        Sender { peer: peer("10.0.0.1:9"), credential }
    }

    #[test]
    fn the_longest_matching_export_name_is_selected() {
        let t = table(&["/a=memory:1M", "/a/b=memory:1M", "/c=memory:1M"]);
        let found = |p: &'static str| t.find(p.as_bytes()).map(|(e, rest)| (e.name().to_owned(), rest));
        assert_eq!(found("/a"), Some(("/a".into(), &b""[..])));
        assert_eq!(found("/a/b/x"), Some(("/a/b".into(), &b"/x"[..])));
        assert_eq!(found("/a/bx"), Some(("/a".into(), &b"/bx"[..])));
        assert_eq!(found("/ab"), None);
        assert_eq!(found("/"), None);
        let whole = table(&["/=memory:1M"]);
        assert_eq!(whole.find(b"/x/y").unwrap().1, b"/x/y");
        assert_eq!(whole.find(b"/").unwrap().1, b"/");
    }

    #[test]
    fn access_depends_on_networks_and_ports() {
        let t = table(&["/a=memory:1M,client=10.0.0.0/8,client=fd00::/8,secure"]);
        let e = t.iter().next().unwrap();
        for (addr, outcome) in [
            ("10.1.2.3:1023", Ok(())),
            ("10.1.2.3:1024", Err(AccessDenial::Port)),
            ("[fd00::1]:700", Ok(())),
            ("[::ffff:10.0.0.9]:700", Ok(())),
            ("192.0.2.1:700", Err(AccessDenial::Network)),
            ("[::1]:700", Err(AccessDenial::Network)),
        ] {
            assert_eq!(e.admit_peer(&peer(addr)), outcome, "{addr}");
        }
        let rdma = |addr| Peer { transport: TransportKind::Rdma, ..peer(addr) };
        assert_eq!(e.admit_peer(&rdma("10.1.2.3:40000")), Ok(()), "ports are ignored over RDMA");
        assert_eq!(e.admit_peer(&rdma("192.0.2.1:700")), Err(AccessDenial::Network));
    }

    #[test]
    fn root_is_squashed_by_default() {
        let t = table(&["/a=memory:1M"]);
        let sys = AuthSys { uid: 0, gid: 0, gids: [0, 5, 0].into_iter().collect(), ..AuthSys::default() };
        let who = t.iter().next().unwrap().admit(&sender(Credential::Sys(sys))).unwrap();
        assert_eq!((who.uid, who.gid, &who.gids[..]), (65534, 65534, &[65534, 5, 65534][..]));
    }

    #[test]
    fn unsupported_credentials_are_rejected() {
        let t = table(&["/a=memory:1M"]);
        let e = t.iter().next().unwrap();
        assert_eq!(e.admit(&sender(Credential::Other(6))), Err(AccessDenial::Credential));
        assert_eq!(e.admit(&sender(Credential::None)).unwrap().uid, 65534);
    }
}
