//! Other exports for a server that runs: connections, open files and everything else stay as they are.

use std::{fmt, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use millrace_runtime::RuntimeRef;

use crate::{
    Config, ExportConfig, ServerError,
    backend::{Opener, Resources},
    export::{Entry, Export, Exports, unused},
    server::Shared,
};

/// The exports as they are now. A call loads them once, so that a reload does not change them while it is executed.
pub(crate) struct ExportTable(ArcSwap<Exports>);

impl ExportTable {
    pub(crate) fn new(exports: Exports) -> Self {
        Self(ArcSwap::from_pointee(exports))
    }

    /// The exports, for use without waiting.
    pub(crate) fn load(&self) -> Guard<Arc<Exports>> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::TABLE_LOADS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.0.load()
    }

    /// The exports, for use across waits.
    pub(crate) fn load_full(&self) -> Arc<Exports> {
        Guard::into_inner(self.load())
    }

    fn store(&self, exports: Exports) {
        self.0.store(Arc::new(exports));
    }
}

/// What a reload did ([`crate::Running::reload`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Exports that are new, or have another directory.
    pub added: Vec<String>,
    /// Exports that are gone, or have another directory: handles of their files are stale.
    pub removed: Vec<String>,
    /// Exports that let in others, or as others, than before.
    pub changed: Vec<String>,
    /// Settings that differ and wait for a restart, by their key (`shards`) or export (`export /x: sync_metadata`).
    pub kept: Vec<String>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("added", &self.added),
            ("removed", &self.removed),
            ("changed", &self.changed),
            ("kept as it was until a restart", &self.kept),
        ];
        let mut said = false;
        for (what, names) in parts.into_iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "{}{what}: {}", if said { "; " } else { "" }, names.join(", "))?;
            said = true;
        }
        if said { Ok(()) } else { f.write_str("nothing has changed") }
    }
}

/// Makes the exports those of `new`; `open` opens those that are added.
///
/// # Errors
/// [`ServerError`]; then nothing has changed.
pub(crate) fn reload(
    shared: &Shared,
    rt: &RuntimeRef,
    new: &Config,
    open: &mut Opener,
) -> Result<Reloaded, ServerError> {
    let with = Resources { arena: &shared.arena, runtime: rt, state_dir: shared.config.state_dir.as_deref() };
    let old = shared.exports.load_full();
    let mut done = Reloaded { kept: kept(&shared.config, new), ..Reloaded::default() };
    let mut entries = Vec::with_capacity(new.exports.len());
    for e in &new.exports {
        entries.push(match same(&old, e) {
            Some(export) => {
                let policy = carried(export, e, &mut done);
                Entry { policy, fs: Arc::clone(export.fs()), usage: Arc::clone(export.usage()) }
            }
            None => {
                done.added.push(e.name.clone());
                let opened = open(e, &with);
                let failed = |reason| ServerError::Export { name: e.name.clone(), reason };
                Entry { policy: e.clone(), fs: opened.map_err(failed)?, usage: unused(shared.shards) }
            }
        });
    }
    let gone = old.iter().filter(|o| !new.exports.iter().any(|e| is_same(o, e)));
    done.removed = gone.map(|o| o.name().to_owned()).collect();
    shared.exports.store(Exports::new(entries, shared.secret)?);
    Ok(done)
}

/// Whether `e` has the same files as the export.
fn is_same(export: &Export, e: &ExportConfig) -> bool {
    export.name() == e.name && export.policy().backend.identity() == e.backend.identity()
}

fn same<'o>(old: &'o Exports, e: &ExportConfig) -> Option<&'o Arc<Export>> {
    old.iter().find(|o| is_same(o, e))
}

/// The new policy of an export that stays; what its open file system was given stays too.
fn carried(export: &Export, new: &ExportConfig, done: &mut Reloaded) -> ExportConfig {
    let old = export.policy();
    let opened = [
        ("the size of its backend", old.backend != new.backend),
        ("sync_metadata", old.sync_metadata != new.sync_metadata),
        ("identities", old.identities != new.identities),
    ];
    for (what, _) in opened.into_iter().filter(|(_, differs)| *differs) {
        done.kept.push(format!("export {}: {what}", new.name));
    }
    let policy = ExportConfig {
        backend: old.backend.clone(),
        sync_metadata: old.sync_metadata,
        identities: old.identities,
        ..new.clone()
    };
    if policy != *old {
        done.changed.push(new.name.clone());
    }
    policy
}

/// The settings that differ and cannot change while the server runs.
fn kept(old: &Config, new: &Config) -> Vec<String> {
    // Every field is named, so that a new one is not forgotten here.
    let Config {
        exports: _,
        listen_rdma,
        listen_tcp,
        provider,
        design,
        exposed_buffers,
        exposure,
        shards,
        float_shards,
        crc,
        state_dir,
        registration,
        limits,
        stages,
    } = old;
    let differs = [
        ("listen_rdma", *listen_rdma != new.listen_rdma),
        ("listen_tcp", *listen_tcp != new.listen_tcp),
        ("provider", *provider != new.provider),
        ("design", *design != new.design),
        ("exposed_buffers", *exposed_buffers != new.exposed_buffers),
        ("exposure", *exposure != new.exposure),
        ("shards", *shards != new.shards),
        ("float_shards", *float_shards != new.float_shards),
        ("crc", *crc != new.crc),
        ("state_dir", *state_dir != new.state_dir),
        ("registration", *registration != new.registration),
        ("limits", *limits != new.limits),
        ("stages", *stages != new.stages),
    ];
    differs.into_iter().filter(|(_, d)| *d).map(|(key, _)| key.to_owned()).collect()
}
