//! The mount of an export: the version of NFS, the session of NFSv4, and the root of the export.

use std::sync::Arc;

use millrace_nfs::v4;

use crate::{
    Connector, Error, Options, Version,
    credential::CallCredential,
    error::nfs_error,
    mount::{self, Mounted},
    ops::{self, Procedure, Status},
    pool::Pool,
    v3,
    v4::{
        Session,
        compounds::ServerInfo,
        is_unsupported,
        place::{self, Found},
    },
};

/// A mounted export.
pub(super) struct Mount {
    pub(super) version: Version,
    /// The session of NFSv4; `None` with NFSv3.
    pub(super) session: Option<Arc<Session>>,
    pub(super) mounted: Mounted,
    pub(super) info: ServerInfo,
}

/// What is needed to mount an export.
pub(super) struct Mounting<'a> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) connector: &'a dyn Connector,
    pub(super) credential: &'a CallCredential,
    pub(super) options: &'a Options,
    /// The path of the URL.
    pub(super) path: &'a [u8],
    /// Maximum size of the data of a call in bytes.
    pub(super) payload: u32,
}

impl Mounting<'_> {
    /// Mounts with the version of the options. Without one, tries the versions in order: an earlier version follows if
    /// the server lacks a version, and NFSv3 if the tree of NFSv4 does not have the path, because a server may export
    /// directories with NFSv3 only, or under other paths.
    pub(super) async fn mount(&self) -> Result<Mount, Error> {
        let negotiates = self.options.vers.is_none();
        let versions = self.options.vers.map_or_else(|| Version::ALL.to_vec(), |version| vec![version]);
        let mut unsupported = None;
        for version in versions {
            let attempt = match version.minor_version() {
                Some(minor_version) => self.mount_v4(version, minor_version).await,
                None => self.mount_v3().await.map(|mount| (mount, true)),
            };
            let is_elsewhere = match &attempt {
                Ok((_, known)) => !known,
                Err(e) => is_other_tree(e),
            };
            match attempt {
                Err(e @ Error::UnsupportedVersion { .. }) => unsupported = Some(e),
                attempt if negotiates && is_elsewhere && version != Version::V3 => {
                    return self.prefer_v3(attempt.map(|(mount, _)| mount)).await;
                }
                attempt => return attempt.map(|(mount, _)| mount),
            }
        }
        Err(unsupported.unwrap_or(Error::Closed))
    }

    /// Mounts with NFSv3 after an attempt with NFSv4 that did not find the path. Returns the result of that attempt if
    /// NFSv3 does not find the path either.
    async fn prefer_v3(&self, v4: Result<Mount, Error>) -> Result<Mount, Error> {
        match (self.mount_v3().await, v4) {
            (Ok(mount), v4) => {
                if let Some(session) = v4.ok().and_then(|mount| mount.session) {
                    session.destroy().await;
                }
                Ok(mount)
            }
            (Err(_), Ok(mount)) => Ok(mount),
            // It names all exports, or why the server refuses.
            (Err(e @ (Error::UnknownExport { .. } | Error::Mount { .. })), Err(_)) => Err(e),
            (Err(_), Err(e)) => Err(e),
        }
    }

    async fn mount_v3(&self) -> Result<Mount, Error> {
        let first = self.pool.any_transport().ok_or(Error::Closed)?;
        let caller = self.options.credential.credential();
        let arena = self.pool.arena.clone();
        let sec = self.options.sec;
        let mounted = mount::mount(self.connector, arena, caller, first, self.path, sec).await?;
        let args = ops::Fsinfo { root: mounted.root };
        let fsinfo = v3::call(self.pool, self.credential, &args, None).await?.result;
        let fsinfo = fsinfo.map_err(|status| self.refused(&mounted.export, status))?;
        let info = ServerInfo { fsinfo, exclusive_mode: false, xattrs: false };
        Ok(Mount { version: Version::V3, session: None, mounted, info })
    }

    /// Mounts with NFSv4. Returns whether the server's tree has the beginning of the path.
    async fn mount_v4(&self, version: Version, minor_version: u32) -> Result<(Mount, bool), Error> {
        let slots = self.options.credits.saturating_mul(self.options.nconnect as u32);
        let identity = &self.options.credential;
        let own = self.pool.callers.credential(identity);
        let (pool, domain) = (Arc::clone(self.pool), self.options.domain.clone());
        let machine = &identity.machine;
        let started = Session::start(pool, minor_version, machine, own, domain, slots, self.payload).await;
        let session = started.map_err(|e| match is_unsupported(&e) {
            true => Error::UnsupportedVersion { server: self.pool.server().to_owned(), version },
            false => e,
        })?;
        let mounted = self.mount_in(&session).await;
        if mounted.is_err() {
            session.destroy().await;
        }
        let (mounted, info, known) = mounted?;
        Ok((Mount { version, session: Some(session), mounted, info }, known))
    }

    async fn mount_in(&self, session: &Arc<Session>) -> Result<(Mounted, ServerInfo, bool), Error> {
        let Found { mounted, known } = place::find_export(session, self.credential, self.path).await?;
        let info = place::server_info(session, self.credential, mounted.root).await?;
        let info = info.map_err(|status| self.refused(&mounted.export, status))?;
        if self.options.attributes_before {
            let proof = place::change_proof(session, self.credential, mounted.root).await?;
            // A session is mounted once.
            session.proof.get_or_init(|| proof);
        }
        Ok((mounted, info, known))
    }

    /// The error of the first call on a mounted export. A rejection concerns the caller, as that of MNT.
    fn refused(&self, export: &str, status: Status) -> Error {
        let refused = match status {
            Status::Perm => millrace_nfs::mount::Status::Perm,
            Status::Access => millrace_nfs::mount::Status::Access,
            _ => return nfs_error(Procedure::Fsinfo, export, status),
        };
        Error::Mount { server: self.pool.server().to_owned(), path: export.to_owned(), status: refused }
    }
}

/// Whether an attempt with NFSv4 failed because its tree of exports lacks the path (`PUTROOTFH` fails with `NOENT` if
/// nothing is exported with NFSv4), or because of file handles that are longer than those of NFSv3.
fn is_other_tree(error: &Error) -> bool {
    match error {
        Error::Nfs4 { operation: v4::Operation::Putrootfh, status } => {
            matches!(status, v4::Status::NoEnt | v4::Status::Access | v4::Status::Perm)
        }
        Error::UnknownExport { .. } | Error::BadReply { .. } => true,
        _ => false,
    }
}
