//! iSCSI targets: disks on files of the exports.
//!
//! `Targets` opens the disks that a configuration lists (`prepare`) and replaces the targets that are served,
//! at the start and at a reload. Connections look up targets in its `TargetTable`.

mod identifier;
mod locate;
mod stats;

use std::{os::unix::ffi::OsStrExt, sync::Arc};

use millrace_buffer::Arena;
use millrace_iscsi::name::IscsiName;
use millrace_iscsi_target::{TableLimits, TargetConfig, TargetTable};
use millrace_nfs4_state::Changing;
use millrace_runtime::{RuntimeRef, sync::Mutex, tokio_rt::run_shard};
use millrace_scsi::{Disk, DiskConfig, Target};
use millrace_vfs::Identity;

use crate::{
    LunSettings, ServerError, TargetSettings,
    export::Exports,
    nfs4_clients::{Clients, now},
    own_files::reservations_of,
};
use identifier::Identifiers;
use locate::{Located, locate};
pub use stats::{IscsiStats, LunStats};

/// A disk with its file.
#[derive(Clone)]
struct OpenDisk {
    located: Located,
    disk: Arc<Disk>,
    /// The target uses the file as a client without an open would: NFSv4 clients get no delegation of it.
    _used: Arc<Changing>,
}

/// A target with its disks in the order of the settings.
#[derive(Clone)]
struct OpenTarget {
    settings: TargetSettings,
    disks: Vec<OpenDisk>,
    device: Arc<Target>,
}

impl OpenTarget {
    fn config(&self) -> TargetConfig {
        TargetConfig {
            name: self.settings.name.clone(),
            device: Arc::clone(&self.device),
            initiators: self.settings.initiators.clone(),
            chap: self.settings.chap.clone(),
            xprtsec: self.settings.xprtsec,
            addresses: self.settings.addresses.clone(),
        }
    }
}

/// The targets of a server.
pub(crate) struct Targets {
    table: Arc<TargetTable>,
    arena: Arena,
    identifiers: Identifiers,
    nfs4_clients: Arc<Clients>,
    rt: RuntimeRef,
    open: Mutex<Vec<OpenTarget>>,
}

/// Targets whose disks are open, for [`Targets::replace`].
pub(crate) struct Prepared(Vec<OpenTarget>);

/// The names of the targets that a replacement changes.
pub(crate) struct Changes {
    pub(crate) added: Vec<IscsiName>,
    pub(crate) removed: Vec<IscsiName>,
    pub(crate) changed: Vec<IscsiName>,
}

impl Targets {
    /// No targets. Identifiers of disks are derived from `secret`, or from the host if there is none.
    pub(crate) fn new(
        arena: &Arena,
        secret: Option<[u64; 2]>,
        nfs4_clients: &Arc<Clients>,
        rt: &RuntimeRef,
    ) -> Self {
        Self {
            table: TargetTable::new(TableLimits::default()),
            arena: arena.clone(),
            identifiers: Identifiers::new(secret),
            nfs4_clients: Arc::clone(nfs4_clients),
            rt: Arc::clone(rt),
            open: Mutex::default(),
        }
    }

    /// The table in which initiators look up targets.
    pub(crate) fn table(&self) -> &Arc<TargetTable> {
        &self.table
    }

    /// The settings of the present targets.
    pub(crate) fn settings(&self) -> Vec<TargetSettings> {
        self.open.lock().iter().map(|t| t.settings.clone()).collect()
    }

    /// The disks of the present targets.
    pub(crate) fn lun_stats(&self) -> Vec<LunStats> {
        let open = self.open.lock();
        let of_target = |t: &OpenTarget| {
            let luns = t.settings.numbered().zip(&t.disks);
            let stats = luns.map(|((lun, settings), open)| LunStats {
                target: t.settings.name.to_string(),
                lun: lun.number(),
                path: settings.path.clone(),
                bytes: open.disk.blocks() * u64::from(open.disk.config().block_size.bytes()),
                usage: open.disk.usage(),
            });
            stats.collect::<Vec<_>>()
        };
        open.iter().flat_map(of_target).collect()
    }

    /// Opens the disks of `settings` on files of `exports`. Disks whose files and properties are unchanged are
    /// retained; their capacity follows the size of the file.
    ///
    /// # Errors
    /// [`ServerError::Lun`] or [`ServerError::Thread`]; the present targets are unchanged.
    pub(crate) fn prepare(
        &self,
        settings: &[TargetSettings],
        exports: &Exports,
    ) -> Result<Prepared, ServerError> {
        if settings.is_empty() {
            return Ok(Prepared(Vec::new()));
        }
        // The caller's thread may run an executor, in which nothing may block on a future.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("millrace-targets".into());
            let opening = thread.spawn_scoped(scope, || run_shard(self.open_all(settings, exports)));
            let opened = opening.map_err(ServerError::Thread)?.join();
            let panicked =
                |_| ServerError::Thread(std::io::Error::other("it panicked while it opened disks"));
            opened.map_err(panicked)?.map_err(ServerError::Thread)?
        })
    }

    async fn open_all(
        &self,
        settings: &[TargetSettings],
        exports: &Exports,
    ) -> Result<Prepared, ServerError> {
        let old = self.open.lock().clone();
        let mut new: Vec<OpenTarget> = Vec::with_capacity(settings.len());
        for target in settings {
            let mut disks = Vec::with_capacity(target.luns.len());
            for lun in &target.luns {
                let taken = || new.iter().flat_map(|t| &t.disks).chain(&disks);
                let opened = self.open_disk(lun, exports, &old, taken()).await;
                let failed = |reason| ServerError::Lun {
                    target: target.name.clone(),
                    path: lun.path.display().to_string(),
                    reason,
                };
                disks.push(opened.map_err(failed)?);
            }
            let device = self.device(target, &disks, &old);
            new.push(OpenTarget { settings: target.clone(), disks, device });
        }
        Ok(Prepared(new))
    }

    /// Opens the disk of `lun`, or retains that of `old`. No disk of `taken` has the same file.
    async fn open_disk<'t>(
        &self,
        lun: &LunSettings,
        exports: &Exports,
        old: &[OpenTarget],
        mut taken: impl Iterator<Item = &'t OpenDisk>,
    ) -> Result<OpenDisk, String> {
        let located = locate(lun, exports).await?;
        if taken.any(|t| t.located.is_same_file(&located)) {
            return Err("another LUN has the same file under another name; give each LUN its own file".into());
        }
        let used = self.nfs4_clients.state.change(None, &located.key, now(&self.rt)).map_err(|_| {
            "NFSv4 clients have delegations of it, which the server recalls; repeat `millrace reload` in some seconds"
        })?;
        let used = Arc::new(used);
        let retained = old.iter().flat_map(|t| &t.disks).find(|o| {
            let config = o.disk.config();
            o.located.is_same_file(&located)
                && o.located.name == located.name
                && o.located.directory == located.directory
                && (config.block_size, config.read_only) == (lun.block_size, located.read_only)
        });
        if let Some(retained) = retained {
            retained.disk.refresh().await.map_err(|e| e.to_string())?;
            return Ok(OpenDisk { _used: used, ..retained.clone() });
        }
        let config = DiskConfig {
            block_size: lun.block_size,
            read_only: located.read_only,
            identifier: self.identifiers.of(lun.path.as_os_str().as_bytes()),
            record_directory: located.directory,
            record_name: reservations_of(&located.name),
        };
        let disk = Disk::open(Arc::clone(&located.fs), located.file, Identity::root(), config).await;
        Ok(OpenDisk { disk: disk.map_err(|e| e.to_string())?, located, _used: used })
    }

    /// The device of a target with `disks`: that of `old` if it has the same disks, so that its sessions continue.
    fn device(&self, target: &TargetSettings, disks: &[OpenDisk], old: &[OpenTarget]) -> Arc<Target> {
        let has_same_disks = |o: &&OpenTarget| {
            let same = |(a, b): (&OpenDisk, &OpenDisk)| Arc::ptr_eq(&a.disk, &b.disk);
            o.settings.name == target.name
                && o.settings.numbered().map(|(lun, _)| lun).eq(target.numbered().map(|(lun, _)| lun))
                && o.disks.iter().zip(disks).all(same)
        };
        if let Some(old) = old.iter().find(has_same_disks) {
            return Arc::clone(&old.device);
        }
        let config = millrace_scsi::TargetConfig { name: target.name.to_string(), arena: self.arena.clone() };
        let device = Target::new(config);
        for ((lun, _), open) in target.numbered().zip(disks) {
            // The device is new, and the settings have at most MAX_LUNS disks with different LUNs.
            let _ = device.add(lun, Arc::clone(&open.disk));
        }
        device
    }

    /// Replaces the targets. The sessions of targets that are removed or have other disks are requested to log out.
    ///
    /// # Errors
    /// Two targets have the same name; nothing changes.
    pub(crate) fn replace(&self, Prepared(new): Prepared) -> Result<Changes, ServerError> {
        let configs = new.iter().map(OpenTarget::config).collect();
        let mut open = self.open.lock();
        self.table.replace(configs).map_err(|e| ServerError::Config(e.to_string()))?;
        let old = std::mem::replace(&mut *open, new);
        let name = |t: &OpenTarget| t.settings.name.clone();
        let within = |list: &[OpenTarget], t: &OpenTarget| list.iter().any(|o| name(o) == name(t));
        let differs = |t: &&OpenTarget| {
            let old = old.iter().find(|o| name(o) == name(t));
            old.is_some_and(|o| o.settings != t.settings || !Arc::ptr_eq(&o.device, &t.device))
        };
        Ok(Changes {
            added: open.iter().filter(|t| !within(&old, t)).map(name).collect(),
            removed: old.iter().filter(|t| !within(&open, t)).map(name).collect(),
            changed: open.iter().filter(differs).map(name).collect(),
        })
    }
}
