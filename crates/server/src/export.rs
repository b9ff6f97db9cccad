//! The export table: assignment of handles and paths to file systems, and access rules.

use std::{
    fmt,
    net::ToSocketAddrs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};
use millrace_oncrpc::{Credential, Peer, Sender, TransportKind, TransportSecurity};
use millrace_vfs::{FileSystemRef, FsInfo, Handle, Identity};
use smallvec::SmallVec;

use crate::{
    CertificateRule, ServerError,
    announce::unknown_host,
    client_rule::{ClientRule, Hosts, Squash},
    config::{Delegations, ExportConfig},
    handle::{HandleBytes, SealedHandle, Sealer},
    namespace::Namespace,
    network::Network,
    own_files::WithoutOwnFiles,
    security::SecurityFlavors,
    usage::Usage,
};

/// Number of the next policy.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// The reason why a caller is denied access to an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessDenial {
    /// The address is not that of a client of the export.
    Address,
    /// The call came over TCP from a port of 1024 or above.
    Port,
    /// The flavor of the credential is not one of the export's.
    Flavor(SecurityFlavors),
    /// The transport has a weaker protection than the export wants.
    Transport(TransportSecurity),
    /// No rule admits the client's certificate.
    Certificate,
}

impl fmt::Display for AccessDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "its address is not that of a client of the export",
            Self::Port => "the export wants calls from a privileged port (below 1024)",
            Self::Flavor(flavors) => return write!(f, "the export wants a credential of sec={flavors}"),
            Self::Transport(TransportSecurity::Mtls) => {
                "the export wants TLS with a client certificate (mount with xprtsec=mtls)"
            }
            Self::Certificate => "no entry of [[export.certificates]] has its certificate",
            Self::Transport(_) => "the export wants TLS (mount with xprtsec=tls)",
        })
    }
}

/// The rights of some clients in an export.
#[derive(Debug, Clone, Copy)]
struct Access {
    read_only: bool,
    squash: Squash,
    anon_uid: u32,
    anon_gid: u32,
    require_privileged_port: bool,
    allow_auth_none: bool,
    xprtsec: TransportSecurity,
    sec: SecurityFlavors,
}

impl From<&ExportConfig> for Access {
    fn from(e: &ExportConfig) -> Self {
        Self {
            read_only: e.read_only,
            squash: e.squash,
            anon_uid: e.anon_uid,
            anon_gid: e.anon_gid,
            require_privileged_port: e.require_privileged_port,
            allow_auth_none: e.allow_auth_none,
            xprtsec: e.xprtsec,
            sec: e.sec,
        }
    }
}

/// The rights of the clients in one of these networks; all clients if there is no list.
struct Rule {
    networks: Option<Vec<Network>>,
    access: Access,
}

/// The rules of an export, in the order in which they are compared with a client. Looks up the names of hosts.
fn rules(policy: &ExportConfig) -> Vec<Rule> {
    if policy.clients.is_empty() {
        return vec![Rule { networks: None, access: policy.into() }];
    }
    let mut clients: Vec<_> = policy.clients.iter().collect();
    clients.sort_by_key(|client| client.hosts.rank());
    let rule = |client: &ClientRule| {
        let networks = match &client.hosts {
            Hosts::Any => None,
            Hosts::Network(network) => Some(vec![network.clone()]),
            Hosts::Name(name) => Some(addresses(name, &policy.name)),
        };
        Rule { networks, access: (&policy.of(client)).into() }
    };
    clients.into_iter().map(rule).collect()
}

/// The addresses of the host `name`; none if the lookup fails, so that the name admits no client.
fn addresses(name: &str, export: &str) -> Vec<Network> {
    let found = (name, 0).to_socket_addrs().map(|found| found.map(Network::from).collect());
    found.unwrap_or_else(|e| {
        tracing::warn!(export, "{}", unknown_host(name, &e));
        Vec::new()
    })
}

/// A caller that is admitted to an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) identity: Identity,
    /// Whether changes are rejected.
    pub(crate) read_only: bool,
}

/// One export: policy, file system, and sealer of its handles.
pub(crate) struct Export {
    policy: ExportConfig,
    rules: Vec<Rule>,
    /// Number of the policy, unique in this process.
    number: u64,
    /// As clients see it.
    fs: FileSystemRef,
    /// With the server's own files.
    whole: FileSystemRef,
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

    /// The file system with the server's own files, which [`fs`](Self::fs) hides from clients.
    pub(crate) fn whole(&self) -> &FileSystemRef {
        &self.whole
    }

    pub(crate) fn info(&self) -> &FsInfo {
        &self.info
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

    /// The rights of the peer, by its address.
    fn of_peer(&self, peer: &Peer) -> Result<&Access, AccessDenial> {
        let matches = |rule: &&Rule| {
            rule.networks.as_ref().is_none_or(|networks| networks.iter().any(|n| n.contains(peer.addr)))
        };
        self.rules.iter().find(matches).map(|rule| &rule.access).ok_or(AccessDenial::Address)
    }

    /// The rights of callers of the sender's peer, by its address and port.
    fn access(&self, sender: &Sender) -> Result<&Access, AccessDenial> {
        let Sender { peer, credential, .. } = sender;
        let access = self.of_peer(peer)?;
        // Linux's client lets the RDMA stack choose its port, so Linux's server treats every RDMA peer as
        // privileged (svc_rdma_recvfrom).
        // What Kerberos has verified is not more trustworthy from such a port (exports(5)).
        let port_counts = peer.transport != TransportKind::Rdma && !matches!(credential, Credential::Gss(_));
        if access.require_privileged_port && port_counts && peer.addr.port() >= 1024 {
            return Err(AccessDenial::Port);
        }
        Ok(access)
    }

    /// Checks the sender's address and port, independent of the user and the flavor.
    pub(crate) fn admit_peer(&self, sender: &Sender) -> Result<(), AccessDenial> {
        self.access(sender).map(|_| ())
    }

    /// The flavors with which callers of the peer are admitted, and whether they are without a credential.
    pub(crate) fn flavors(&self, peer: &Peer) -> Option<(SecurityFlavors, bool)> {
        self.of_peer(peer).ok().map(|access| (access.sec, access.allow_auth_none))
    }

    /// Checks that the caller may use this export, and returns its rights.
    pub(crate) fn admit(&self, sender: &Sender) -> Result<Admission, AccessDenial> {
        let (access, rule) = self.protected(sender)?;
        let is_anonymous = access.allow_auth_none && sender.credential == Credential::None;
        if !access.sec.permit(&sender.credential) && !is_anonymous {
            return Err(AccessDenial::Flavor(access.sec));
        }
        Ok(Self::admit_by(access, rule, sender))
    }

    /// As [`Self::admit`], for the machine that ends what users have opened (SP4_MACH_CRED), which is exempt from the flavors
    /// only: it has one for all exports.
    pub(crate) fn admit_machine(&self, sender: &Sender) -> Result<Admission, AccessDenial> {
        let (access, rule) = self.protected(sender)?;
        Ok(Self::admit_by(access, rule, sender))
    }

    /// The rights of callers of the sender's peer, and the rule of its certificate, if the protection of its transport is that
    /// of the export.
    fn protected(&self, sender: &Sender) -> Result<(&Access, Option<&CertificateRule>), AccessDenial> {
        let access = self.access(sender)?;
        if sender.peer.security < access.xprtsec {
            return Err(AccessDenial::Transport(access.xprtsec));
        }
        Ok((access, self.certificate_rule(sender)?))
    }

    /// The rights of an admitted sender.
    fn admit_by(access: &Access, rule: Option<&CertificateRule>, sender: &Sender) -> Admission {
        let mut admission = Self::admit_with(access, sender);
        let Some(rule) = rule else { return admission };
        admission.read_only |= rule.read_only;
        // A certificate is that of a host, and does not replace the proof of a user.
        if let (Some(identity), Credential::None | Credential::Sys(_)) = (&rule.identity, &sender.credential)
        {
            admission.identity = identity.clone();
        }
        admission
    }

    /// The rule of the client's certificate, if it has one and the export has rules. Found once in a connection.
    fn certificate_rule(&self, sender: &Sender) -> Result<Option<&CertificateRule>, AccessDenial> {
        let rules = &self.policy.certificates;
        let Some(certificate) = sender.certificate.as_ref().filter(|_| !rules.is_empty()) else {
            return Ok(None);
        };
        let position = certificate.verdict(self.number, || {
            let found = rules.iter().position(|rule| rule.matches(certificate));
            if found.is_none() {
                let (peer, export) = (sender.peer.addr, self.name());
                tracing::warn!(%peer, export, %certificate, "refused: {}", AccessDenial::Certificate);
            }
            found.and_then(|position| position.try_into().ok()).unwrap_or(u16::MAX)
        });
        rules.get(usize::from(position)).map(Some).ok_or(AccessDenial::Certificate)
    }

    /// As [`Self::admit`], with any flavor and any protection of the transport, for MOUNT: Linux uses neither Kerberos nor TLS
    /// for it.
    pub(crate) fn admit_mount(&self, sender: &Sender) -> Result<Admission, AccessDenial> {
        let access = self.access(sender)?;
        match sender.credential {
            Credential::None if !access.allow_auth_none && !access.sec.has_kerberos() => {
                Err(AccessDenial::Flavor(access.sec))
            }
            Credential::Other(_) => Err(AccessDenial::Flavor(access.sec)),
            _ => Ok(Self::admit_with(access, sender)),
        }
    }

    /// Admits the sender to the root of an export with Kerberos with any flavor (RFC 2623 section 2.3.2): a client may have no
    /// credential of Kerberos before a user has one. `denial` is that of [`Self::admit`].
    pub(crate) fn admit_to_root(
        &self,
        sender: &Sender,
        denial: AccessDenial,
    ) -> Result<Admission, AccessDenial> {
        match denial {
            AccessDenial::Flavor(flavors) if flavors.has_kerberos() => self.admit_mount(sender),
            _ => Err(denial),
        }
    }

    /// The identity of an admitted sender.
    fn admit_with(access: &Access, sender: &Sender) -> Admission {
        let user = match &sender.credential {
            Credential::Sys(sys) => Some((sys.uid, sys.gid, &sys.gids)),
            Credential::Gss(gss) => gss.caller.user.as_ref().map(|user| (user.uid, user.gid, &user.gids)),
            Credential::None | Credential::Other(_) => None,
        };
        let identity = match user {
            Some((uid, gid, gids)) if access.squash != Squash::All => {
                let mut identity = Identity { uid, gid, gids: SmallVec::from_slice(gids) };
                if access.squash == Squash::Root {
                    if uid == 0 {
                        identity.uid = access.anon_uid;
                    }
                    for gid in std::iter::once(&mut identity.gid).chain(&mut identity.gids) {
                        if *gid == 0 {
                            *gid = access.anon_gid;
                        }
                    }
                }
                identity
            }
            _ => Identity { uid: access.anon_uid, gid: access.anon_gid, gids: SmallVec::new() },
        };
        Admission { identity, read_only: access.read_only }
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
            let (info, whole) = (fs.info(), Arc::clone(&fs));
            let fs: FileSystemRef = Arc::new(WithoutOwnFiles(fs));
            let (rules, number) = (rules(&policy), NUMBERS.fetch_add(1, Ordering::Relaxed));
            list.push(Arc::new(Export { rules, number, policy, fs, whole, info, sealer, usage }));
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
        crate::call_counts::EXPORT_LOOKUPS.fetch_add(1, Ordering::Relaxed);
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
        crate::call_counts::TABLE_LOADS.fetch_add(1, Ordering::Relaxed);
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

    fn from(peer: Peer) -> Sender {
        Sender::new(peer, Credential::None)
    }

    fn peer(addr: &str) -> Peer {
        let addr = addr.parse().unwrap();
        Peer {
            addr,
            local: addr,
            transport: TransportKind::Tcp,
            security: TransportSecurity::None,
            connection: 1,
        }
    }

    fn sender(credential: Credential) -> Sender {
        Sender::new(peer("10.0.0.1:9"), credential)
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
            ("192.0.2.1:700", Err(AccessDenial::Address)),
            ("[::1]:700", Err(AccessDenial::Address)),
        ] {
            assert_eq!(e.admit_peer(&from(peer(addr))), outcome, "{addr}");
        }
        let rdma = |addr| Peer { transport: TransportKind::Rdma, ..peer(addr) };
        assert_eq!(e.admit_peer(&from(rdma("10.1.2.3:40000"))), Ok(()), "ports are ignored over RDMA");
        assert_eq!(e.admit_peer(&from(rdma("192.0.2.1:700"))), Err(AccessDenial::Address));
    }

    #[test]
    fn weaker_transports_than_an_export_wants_are_refused_except_for_mount() {
        use TransportSecurity::{Mtls, None, Tls};
        let t = table(&[
            "/a=memory:1M",
            "/b=memory:1M,xprtsec=tls:mtls",
            "/c=memory:1M,xprtsec=mtls,client=*,client=10.0.0.1(xprtsec=none:tls)",
        ]);
        let of = |export: usize, addr: &str, security| {
            let peer = Peer { security, ..peer(addr) };
            let sender = Sender::new(peer, Credential::Sys(AuthSys::default()));
            assert!(t.at(export).admit_mount(&sender).is_ok() && t.at(export).admit_peer(&sender).is_ok());
            t.at(export).admit(&sender).map(|_| ())
        };
        let refused = |wanted| Err(AccessDenial::Transport(wanted));
        for security in [None, Tls, Mtls] {
            assert_eq!(of(0, "10.0.0.2:9", security), Ok(()), "{security}");
            assert_eq!(of(2, "10.0.0.1:9", security), Ok(()), "{security}");
            let expected = if security == None { refused(Tls) } else { Ok(()) };
            assert_eq!(of(1, "10.0.0.2:9", security), expected, "{security}");
            let expected = if security == Mtls { Ok(()) } else { refused(Mtls) };
            assert_eq!(of(2, "10.0.0.2:9", security), expected, "{security}");
        }
    }

    #[test]
    fn root_is_squashed_by_default() {
        let t = table(&["/a=memory:1M"]);
        let sys = AuthSys { uid: 0, gid: 0, gids: [0, 5, 0].into_iter().collect(), ..AuthSys::default() };
        let who = t.iter().next().unwrap().admit(&sender(Credential::Sys(sys))).unwrap().identity;
        assert_eq!((who.uid, who.gid, &who.gids[..]), (65534, 65534, &[65534, 5, 65534][..]));
    }

    #[test]
    fn unsupported_credentials_are_rejected() {
        let t = table(&["/a=memory:1M", "/b=memory:1M,auth_none"]);
        let [a, b] = [t.at(0), t.at(1)];
        let refused = || Err(AccessDenial::Flavor(SecurityFlavors::default()));
        assert_eq!(a.admit(&sender(Credential::Other(6))), refused());
        assert_eq!(a.admit(&sender(Credential::None)), refused());
        assert_eq!(b.admit(&sender(Credential::None)).unwrap().identity.uid, 65534);
    }

    #[test]
    fn the_rule_of_a_host_precedes_that_of_its_network_and_of_all() {
        let t = table(&[
            "/a=memory:1M,client=*(ro),client=10.0.0.0/8(anonuid=1),client=10.0.0.0/16(anonuid=2),client=10.0.0.5(squash=all),\
             client=localhost(anonuid=3,ro)",
            "/b=memory:1M,client=10.0.0.5(auth_none,secure)",
        ]);
        let of = |export: usize, addr: &str, credential: Credential| {
            let sender = Sender::new(peer(addr), credential);
            t.at(export).admit(&sender).map(|who| (who.identity.uid, who.read_only))
        };
        let root = || Credential::Sys(AuthSys::default());
        let user = || Credential::Sys(AuthSys { uid: 7, ..AuthSys::default() });
        assert_eq!(of(0, "192.0.2.1:9", root()), Ok((65534, true)));
        assert_eq!(of(0, "10.0.0.1:9", root()), Ok((1, false)), "the first network");
        assert_eq!(of(0, "10.0.0.5:9", user()), Ok((65534, false)));
        assert_eq!(of(0, "[::ffff:127.0.0.1]:9", root()), Ok((3, true)), "a host by name");
        assert_eq!(of(1, "10.0.0.5:9", Credential::None), Ok((65534, false)));
        assert_eq!(of(1, "10.0.0.5:1024", Credential::None), Err(AccessDenial::Port));
        assert_eq!(of(1, "10.0.0.6:9", root()), Err(AccessDenial::Address));
        assert!(
            t.at(1).flavors(&peer("10.0.0.5:9")).unwrap().1 && t.at(1).flavors(&peer("10.0.0.6:9")).is_none()
        );
        let unknown = table(&["/c=memory:1M,client=none.invalid"]);
        assert_eq!(unknown.at(0).admit_peer(&from(peer("10.0.0.5:9"))), Err(AccessDenial::Address));
    }
}
