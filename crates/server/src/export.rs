//! The export table: which handle or path belongs to which file system, and who may use it as whom.

use std::{fmt, sync::Arc};

use oncrpc::{Credential, Peer};
use smallvec::SmallVec;
use vfs::{FileSystemRef, FsError, FsInfo, Handle, Identity};

use crate::{
    ServerError,
    config::{ExportConfig, Squash},
    handle::{HandleBytes, Sealer, export_of},
};

/// Why a caller may not use an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its address is in none of the export's networks.
    Network,
    /// Its port is not below 1024.
    Port,
    /// It brought no credential, or one that we do not understand.
    Credential,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "its address is in none of the export's client networks",
            Self::Port => "the export wants calls from a privileged port (below 1024)",
            Self::Credential => "the export wants an AUTH_SYS credential",
        })
    }
}

/// One export: policy, file system, and the seal of its handles.
pub(crate) struct Export {
    policy: ExportConfig,
    fs: FileSystemRef,
    info: FsInfo,
    sealer: Sealer,
}

impl Export {
    pub(crate) fn name(&self) -> &str {
        &self.policy.name
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

    pub(crate) fn seal(&self, handle: &Handle) -> HandleBytes {
        self.sealer.seal(handle)
    }

    /// Whether the peer may use this export at all, whoever calls.
    pub(crate) fn admit_peer(&self, peer: &Peer) -> Result<(), Refusal> {
        let p = &self.policy;
        if !p.clients.is_empty() && !p.clients.iter().any(|n| n.contains(peer.addr.ip())) {
            return Err(Refusal::Network);
        }
        if p.require_privileged_port && peer.addr.port() >= 1024 {
            return Err(Refusal::Port);
        }
        Ok(())
    }

    /// Whether the caller may use this export, and as whom.
    pub(crate) fn admit(&self, peer: &Peer, cred: &Credential) -> Result<Identity, Refusal> {
        self.admit_peer(peer)?;
        let p = &self.policy;
        let anonymous = || Identity { uid: p.anon_uid, gid: p.anon_gid, gids: SmallVec::new() };
        let sys = match cred {
            Credential::Sys(sys) => sys,
            Credential::None if p.allow_auth_none => return Ok(anonymous()),
            _ => return Err(Refusal::Credential),
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
}

impl Exports {
    /// The table of `entries`; handles are sealed under `secret`, or under keys that follow from the entries.
    pub(crate) fn new(
        entries: Vec<(ExportConfig, FileSystemRef)>,
        secret: Option<[u64; 2]>,
    ) -> Result<Self, ServerError> {
        let mut list: Vec<Arc<Export>> = Vec::with_capacity(entries.len());
        for (policy, fs) in entries {
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
            list.push(Arc::new(Export { policy, fs, info, sealer }));
        }
        Ok(Self { list })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.list.iter()
    }

    /// The export and the file that an NFS handle names.
    pub(crate) fn open(&self, handle: &[u8]) -> Result<(&Arc<Export>, Handle), FsError> {
        let id = export_of(handle).ok_or(FsError::BadHandle)?;
        let export = self.list.iter().find(|e| e.sealer.id() == id).ok_or(FsError::Stale)?;
        Ok((export, export.sealer.open(handle).ok_or(FsError::BadHandle)?))
    }

    /// The export whose name `path` is or lies below (the longest such name), and the rest of the path.
    pub(crate) fn find<'p>(&self, path: &'p [u8]) -> Option<(&Arc<Export>, &'p [u8])> {
        let below = |e: &&Arc<Export>| rest_below(e.name().as_bytes(), path).is_some();
        let export = self.list.iter().filter(below).max_by_key(|e| e.name().len())?;
        Some((export, rest_below(export.name().as_bytes(), path)?))
    }
}

/// What of `path` lies below `name`: `/a/b` below `/a` is `/b`; `/ab` is not below `/a`.
fn rest_below<'p>(name: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(name.strip_suffix(b"/").unwrap_or(name))?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}
