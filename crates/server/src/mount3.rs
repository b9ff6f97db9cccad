//! MOUNT version 3 (program 100005, RFC 1813 appendix I).

use std::{collections::VecDeque, net::IpAddr, ops::RangeInclusive, os::unix::ffi::OsStrExt, sync::Arc};

use millrace_nfs::mount::{
    Dirpath, ExportEntry, MntOk, MountEntry, Name, PROGRAM, Procedure, Status, VERSION, encode_list,
    encode_mnt,
};
use millrace_nfs::v3::FileHandle;
use millrace_oncrpc::{AuthStat, CallContext, Fault, MaybeReady, Outcome, Peer, Program, SecurityFlavor};
use millrace_runtime::sync::Mutex;
use millrace_vfs::{FileKind, FsError, Handle, Identity};
use millrace_xdr::Encoder;
use smallvec::SmallVec;

use crate::{
    Backend,
    export::{AccessDenial, Export, ExportTable, strip_export},
    metrics::ShardCounters,
};

/// The flavor of callers without a credential (RFC 5531 section 8.1).
const AUTH_NONE: u32 = 0;
/// Maximum entries of the mount list. The list is advisory (RFC 1813 section 5.2.2), so the oldest entries
/// are dropped.
const MAX_MOUNTS: usize = 1024;

/// The mounts that clients report, shared by all shards.
#[derive(Default)]
pub(crate) struct MountList {
    entries: Mutex<VecDeque<(IpAddr, Vec<u8>)>>,
}

impl MountList {
    fn add(&self, client: IpAddr, path: &[u8]) {
        let mut list = self.entries.lock();
        if list.iter().any(|(c, p)| *c == client && p == path) {
            return;
        }
        if list.len() >= MAX_MOUNTS {
            list.pop_front();
        }
        list.push_back((client, path.to_vec()));
    }

    /// Removes the client's mount of `path`, or all of its mounts.
    fn remove(&self, client: IpAddr, path: Option<&[u8]>) {
        self.entries.lock().retain(|(c, p)| *c != client || path.is_some_and(|path| p != path));
    }
}

/// The program, one per shard.
pub(crate) struct Mount3 {
    env: Arc<Env>,
}

struct Env {
    exports: Arc<ExportTable>,
    mounts: Arc<MountList>,
    counters: Arc<ShardCounters>,
}

impl Mount3 {
    pub(crate) fn new(
        exports: Arc<ExportTable>,
        mounts: Arc<MountList>,
        counters: Arc<ShardCounters>,
    ) -> Self {
        Self { env: Arc::new(Env { exports, mounts, counters }) }
    }
}

impl Program for Mount3 {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome> {
        let Ok(procedure) = Procedure::try_from(call.header.proc) else {
            return MaybeReady::Ready(Err(Fault::ProcUnavail));
        };
        self.env.counters.mount_call();
        let env = Arc::clone(&self.env);
        if procedure == Procedure::Mnt {
            return MaybeReady::wait(mnt(env, call, reply));
        }
        MaybeReady::Ready(env.answer(procedure, &call, reply))
    }
}

fn client(peer: &Peer) -> IpAddr {
    peer.addr.ip()
}

impl Env {
    /// Executes all procedures except MNT.
    fn answer(&self, procedure: Procedure, call: &CallContext, mut reply: Encoder) -> Outcome {
        let client = client(&call.sender.peer);
        match procedure {
            Procedure::Null | Procedure::Mnt => {}
            Procedure::Dump => self.put_mounts(&mut reply),
            Procedure::Umnt => {
                let path: Dirpath<'_> = call.arguments()?;
                tracing::info!(peer = %call.sender.peer.addr, path = %path.0.escape_ascii(), "unmounted");
                self.mounts.remove(client, Some(path.0));
            }
            Procedure::Umntall => self.mounts.remove(client, None),
            Procedure::Export => self.put_exports(&mut reply),
        }
        Ok(reply.into())
    }

    fn put_mounts(&self, reply: &mut Encoder) {
        let list = self.mounts.entries.lock();
        let hosts: Vec<String> = list.iter().map(|(c, _)| c.to_string()).collect();
        let entries: Vec<MountEntry<'_>> = list
            .iter()
            .zip(&hosts)
            .map(|((_, path), host)| MountEntry { hostname: Name(host.as_bytes()), directory: Dirpath(path) })
            .collect();
        encode_list(&entries, reply);
    }

    fn put_exports(&self, reply: &mut Encoder) {
        let exports = self.exports.load();
        let hosts = |e: &Arc<Export>| e.policy().clients.iter().map(|c| c.hosts.to_string()).collect();
        let hosts: Vec<Vec<String>> = exports.iter().map(hosts).collect();
        let entries: Vec<ExportEntry<'_>> = exports
            .iter()
            .zip(&hosts)
            .map(|(e, hosts)| ExportEntry {
                directory: Dirpath(e.name().as_bytes()),
                groups: hosts.iter().map(|h| Name(h.as_bytes())).collect(),
            })
            .collect();
        encode_list(&entries, reply);
    }

    /// The handle of the directory at `path`, and the flavors with which the client may use it.
    async fn resolve(&self, call: &CallContext, path: &[u8]) -> Result<MntOk, MountError> {
        let exports = self.exports.load_full();
        let (export, below) = exports.find(path).ok_or(MountError::NoExport)?;
        let caller = export.admit_mount(&call.sender).map_err(MountError::Refused)?.identity;
        let dir = walk(export, &caller, below).await?;
        let handle = FileHandle::new(&export.seal(&dir)).ok_or(MountError::Fs(FsError::ServerFault))?;
        let (permitted, without) = export.flavors(&call.sender.peer).unwrap_or_default();
        let mut flavors: SmallVec<[u32; 4]> = permitted.iter().map(SecurityFlavor::number).collect();
        if without {
            flavors.push(AUTH_NONE);
        }
        Ok(MntOk { handle, flavors })
    }
}

/// The reason why MNT fails.
enum MountError {
    NoExport,
    Refused(AccessDenial),
    Fs(FsError),
}

impl From<FsError> for MountError {
    fn from(e: FsError) -> Self {
        Self::Fs(e)
    }
}

impl std::fmt::Display for MountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoExport => f.write_str("there is no such export"),
            Self::Refused(r) => r.fmt(f),
            Self::Fs(e) => e.fmt(f),
        }
    }
}

impl MountError {
    fn status(&self) -> Status {
        match self {
            Self::NoExport => Status::NoEnt,
            Self::Refused(_) => Status::Access,
            Self::Fs(e) => match e {
                FsError::NoEnt | FsError::Stale => Status::NoEnt,
                FsError::Perm => Status::Perm,
                FsError::Access => Status::Access,
                FsError::NotDir => Status::NotDir,
                FsError::Inval => Status::Inval,
                FsError::NameTooLong => Status::NameTooLong,
                FsError::Io => Status::Io,
                _ => Status::ServerFault,
            },
        }
    }
}

/// Maximum number of symbolic links in one path, as in Linux.
const MAX_LINKS: usize = 40;

/// Resolves `path` from the export's root, including symbolic links that stay in the export. The path must
/// not contain `..`.
async fn walk(export: &Export, caller: &Identity, path: &[u8]) -> Result<Handle, FsError> {
    if names(path).any(|name| name == b"..") {
        return Err(FsError::Inval);
    }
    // `parents`: the directories from the root to the current one. `pending`: names to be resolved, the next
    // one last.
    let mut parents = vec![export.fs().root()];
    let mut pending: Vec<Vec<u8>> = names(path).rev().map(<[u8]>::to_vec).collect();
    let mut links = 0;
    while let Some(name) = pending.pop() {
        if name == b".." {
            // The parent of the root is outside the export.
            if parents.len() == 1 {
                return Err(FsError::Access);
            }
            parents.pop();
            continue;
        }
        let at = parents.last().ok_or(FsError::ServerFault)?;
        let (next, attr) = export.fs().lookup(caller, at, &name).await?;
        match attr.kind {
            FileKind::Directory => parents.push(next),
            FileKind::Symlink if links < MAX_LINKS => {
                links += 1;
                let (target, _) = export.fs().readlink(caller, &next).await?;
                if target.starts_with(b"/") {
                    parents.truncate(1);
                }
                let below = resolve_link(export, &target)?;
                pending.extend(names(below).rev().map(<[u8]>::to_vec));
            }
            _ => return Err(FsError::NotDir),
        }
    }
    parents.pop().ok_or(FsError::ServerFault)
}

/// The components of a path without empty ones and `.`.
fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|n| !matches!(*n, b"" | b"."))
}

/// A link's target relative to the link, or, if it is absolute, to the export's root. Absolute targets are
/// paths on the server.
fn resolve_link<'t>(export: &Export, target: &'t [u8]) -> Result<&'t [u8], FsError> {
    if !target.starts_with(b"/") {
        return Ok(target);
    }
    match &export.policy().backend {
        Backend::Local { path } => strip_export(path.as_os_str().as_bytes(), target).ok_or(FsError::Access),
        Backend::Memory { .. } => Err(FsError::Access),
    }
}

async fn mnt(env: Arc<Env>, call: CallContext, mut reply: Encoder) -> Outcome {
    let path: Dirpath<'_> = call.arguments()?;
    let shown = path.0.escape_ascii();
    match env.resolve(&call, path.0).await {
        Ok(mounted) => {
            tracing::info!(peer = %call.sender.peer.addr, path = %shown, "mounted");
            env.mounts.add(client(&call.sender.peer), path.0);
            encode_mnt(&Ok(mounted), &mut reply);
        }
        Err(error) => {
            tracing::warn!(peer = %call.sender.peer.addr, path = %shown, "mount refused: {error}");
            if let MountError::Refused(refusal) = &error {
                env.counters.refused();
                if matches!(refusal, AccessDenial::Flavor(_)) {
                    return Err(Fault::Auth(AuthStat::TooWeak));
                }
            }
            encode_mnt(&Err(error.status()), &mut reply);
        }
    }
    Ok(reply.into())
}
