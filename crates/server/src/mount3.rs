//! MOUNT version 3 (program 100005, RFC 1813 appendix I).

use std::{collections::VecDeque, net::IpAddr, ops::RangeInclusive, os::unix::ffi::OsStrExt, sync::Arc};

use millrace_nfs::mount::{
    Dirpath, ExportEntry, MntOk, MountEntry, Name, PROGRAM, Procedure, Status, VERSION, encode_list,
    encode_mnt,
};
use millrace_nfs::v3::FileHandle;
use millrace_oncrpc::{AuthStat, CallContext, Fault, MaybeReady, Outcome, Peer, Program};
use millrace_vfs::{FileKind, FsError, Handle, Identity};
use millrace_xdr::Encoder;
use parking_lot::Mutex;
use smallvec::smallvec;

use crate::{
    Backend,
    export::{Export, Refusal, rest_below},
    metrics::ShardCounters,
    reload::ExportTable,
};

/// AUTH_SYS, the one flavor that NFS is offered with.
const AUTH_SYS: u32 = 1;
/// Entries of the list of mounts. It is advisory (RFC 1813 section 5.2.2), so the oldest go.
const MAX_MOUNTS: usize = 1024;

/// Who has mounted what, as far as clients tell; shared by all shards.
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

    /// Forgets the client's mounts of `path`, or all of them.
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
    peer.addr.ip().to_canonical()
}

impl Env {
    /// All procedures but MNT.
    fn answer(&self, procedure: Procedure, call: &CallContext, mut reply: Encoder) -> Outcome {
        let client = client(&call.peer);
        match procedure {
            Procedure::Null | Procedure::Mnt => {}
            Procedure::Dump => self.put_mounts(&mut reply),
            Procedure::Umnt => {
                let path: Dirpath<'_> = call.arguments()?;
                tracing::info!(peer = %call.peer.addr, path = %path.0.escape_ascii(), "unmounted");
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
        let networks: Vec<Vec<String>> =
            exports.iter().map(|e| e.policy().clients.iter().map(ToString::to_string).collect()).collect();
        let entries: Vec<ExportEntry<'_>> = exports
            .iter()
            .zip(&networks)
            .map(|(e, nets)| ExportEntry {
                directory: Dirpath(e.name().as_bytes()),
                groups: nets.iter().map(|n| Name(n.as_bytes())).collect(),
            })
            .collect();
        encode_list(&entries, reply);
    }

    /// The handle of the directory at `path`.
    async fn resolve(&self, call: &CallContext, path: &[u8]) -> Result<FileHandle, Why> {
        let exports = self.exports.load_full();
        let (export, below) = exports.find(path).ok_or(Why::NoExport)?;
        let caller = export.admit(&call.peer, &call.header.cred).map_err(Why::Refused)?;
        let dir = walk(export, &caller, below).await?;
        FileHandle::new(&export.seal(&dir)).ok_or(Why::Fs(FsError::ServerFault))
    }
}

/// Why there is no handle for a MNT.
enum Why {
    NoExport,
    Refused(Refusal),
    Fs(FsError),
}

impl From<FsError> for Why {
    fn from(e: FsError) -> Self {
        Self::Fs(e)
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoExport => f.write_str("there is no such export"),
            Self::Refused(r) => r.fmt(f),
            Self::Fs(e) => e.fmt(f),
        }
    }
}

impl Why {
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

/// Symbolic links that one path may lead through, as in Linux.
const MAX_LINKS: usize = 40;

/// Follows `path` from the export's root, through symbolic links that stay in the export. The path itself may not lead
/// upwards.
async fn walk(export: &Export, caller: &Identity, path: &[u8]) -> Result<Handle, FsError> {
    if names(path).any(|name| name == b"..") {
        return Err(FsError::Inval);
    }
    // The directories from the root to the present one; what is still to be followed, the next name last.
    let mut above = vec![export.fs().root()];
    let mut todo: Vec<Vec<u8>> = names(path).rev().map(<[u8]>::to_vec).collect();
    let mut links = 0;
    while let Some(name) = todo.pop() {
        if name == b".." {
            // Above the root is outside the export.
            if above.len() == 1 {
                return Err(FsError::Access);
            }
            above.pop();
            continue;
        }
        let at = above.last().ok_or(FsError::ServerFault)?;
        let (next, attr) = export.fs().lookup(caller, at, &name).await?;
        match attr.kind {
            FileKind::Directory => above.push(next),
            FileKind::Symlink if links < MAX_LINKS => {
                links += 1;
                let (target, _) = export.fs().readlink(caller, &next).await?;
                if target.starts_with(b"/") {
                    above.truncate(1);
                }
                let below = within(export, &target)?;
                todo.extend(names(below).rev().map(<[u8]>::to_vec));
            }
            _ => return Err(FsError::NotDir),
        }
    }
    above.pop().ok_or(FsError::ServerFault)
}

/// The components of a path, without those that lead nowhere.
fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|n| !matches!(*n, b"" | b"."))
}

/// A link's target, from where the link is or, if it is absolute, from the export's root. Absolute targets are paths of
/// the server's machine.
fn within<'t>(export: &Export, target: &'t [u8]) -> Result<&'t [u8], FsError> {
    if !target.starts_with(b"/") {
        return Ok(target);
    }
    match &export.policy().backend {
        Backend::Local { path } => rest_below(path.as_os_str().as_bytes(), target).ok_or(FsError::Access),
        Backend::Memory { .. } => Err(FsError::Access),
    }
}

async fn mnt(env: Arc<Env>, call: CallContext, mut reply: Encoder) -> Outcome {
    let path: Dirpath<'_> = call.arguments()?;
    let shown = path.0.escape_ascii();
    match env.resolve(&call, path.0).await {
        Ok(handle) => {
            tracing::info!(peer = %call.peer.addr, path = %shown, "mounted");
            env.mounts.add(client(&call.peer), path.0);
            encode_mnt(&Ok(MntOk { handle, flavors: smallvec![AUTH_SYS] }), &mut reply);
        }
        Err(why) => {
            tracing::warn!(peer = %call.peer.addr, path = %shown, "mount refused: {why}");
            if let Why::Refused(refusal) = &why {
                env.counters.refused();
                if *refusal == Refusal::Credential {
                    return Err(Fault::Auth(AuthStat::TooWeak));
                }
            }
            encode_mnt(&Err(why.status()), &mut reply);
        }
    }
    Ok(reply.into())
}
