//! Replacement of the exports of a running server, with connections and open files unaffected.

use std::{fmt, sync::Arc, time::Duration};

use millrace_nfs4_state::DelegationKind;
use millrace_runtime::RuntimeRef;
use millrace_tls::ServerConfig;

use crate::{
    Config, ExportConfig, ServerError,
    backend::{Opener, Resources},
    config::Delegations,
    export::{Entry, Export, Exports, new_usage},
    file_key::split_key,
    nfs4_clients::now,
    shared::{Shared, kerberos},
};

/// The result of a reload ([`crate::Running::reload`]). iSCSI targets are listed as `target NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Names of exports that are new, or have another directory, and of new targets.
    pub added: Vec<String>,
    /// Names of exports that were removed, or have another directory: handles of their files are stale. Names of
    /// removed targets, whose initiators are requested to log out.
    pub removed: Vec<String>,
    /// Names of exports with changed access rules or identities, and of targets with changed settings. If the disks
    /// of a target have changed, its initiators are requested to log out. `tls` if certificate, key, authorities or
    /// revocation lists have changed, which concerns later connections, and ends sessions whose certificate is not trusted any more.
    /// `kerberos` if its settings have changed.
    pub changed: Vec<String>,
    /// Changed settings that take effect after a restart, by key (`shards`) or export (`export /x:
    /// sync_metadata`).
    pub unapplied: Vec<String>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("added", &self.added),
            ("removed", &self.removed),
            ("changed", &self.changed),
            ("unchanged until a restart", &self.unapplied),
        ];
        let mut written = false;
        for (what, names) in parts.into_iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "{}{what}: {}", if written { "; " } else { "" }, names.join(", "))?;
            written = true;
        }
        if written { Ok(()) } else { f.write_str("nothing has changed") }
    }
}

/// Replaces the exports and targets by those of `new`; `open` opens added exports.
///
/// # Errors
/// [`ServerError`]; the exports and targets are unchanged then.
pub(crate) fn reload(
    shared: &Shared,
    rt: &RuntimeRef,
    new: &Config,
    open: &mut Opener,
) -> Result<Reloaded, ServerError> {
    let with = Resources { arena: &shared.arena, runtime: rt, state_dir: shared.config.state_dir.as_deref() };
    let tls = new.tls.as_ref().map(ServerConfig::load).transpose()?;
    let (acceptor, owners) = kerberos(new)?.unzip();
    let old = shared.exports.load_full();
    let mut result = Reloaded { unapplied: changed_settings(&shared.config, new), ..Reloaded::default() };
    let mut entries = Vec::with_capacity(new.exports.len());
    for e in &new.exports {
        entries.push(match same(&old, e) {
            Some(export) => {
                let policy = merge_policy(export, e, &mut result);
                Entry { policy, fs: Arc::clone(export.whole()), usage: Arc::clone(export.usage()) }
            }
            None => {
                result.added.push(e.name.clone());
                let opened = open(e, &with);
                let failed = |reason| ServerError::Export { name: e.name.clone(), reason };
                Entry { policy: e.clone(), fs: opened.map_err(failed)?, usage: new_usage(shared.shards) }
            }
        });
    }
    let removed = old.iter().filter(|o| !new.exports.iter().any(|e| matches(o, e)));
    result.removed = removed.map(|o| o.name().to_owned()).collect();
    let exports = Exports::new(entries, shared.secret)?;
    // First, so that the files of LUNs count as used.
    if exports.delegates() {
        shared.nfs4_clients.state.enable_delegations(Some(now(with.runtime)));
    }
    let targets = shared.targets.prepare(&new.targets, &exports)?;
    let changes = shared.targets.replace(targets)?;
    if shared.tls.set(tls) {
        result.changed.push("tls".into());
    }
    if std::mem::replace(&mut *shared.kerberos.lock(), new.kerberos.clone()) != new.kerberos {
        shared.gss.set(acceptor);
        result.changed.push("kerberos".into());
    }
    shared.exports.store(exports);
    shared.groups.iter().for_each(|groups| groups.clear());
    shared.owners.set(owners);
    recall_delegations(shared, &old, now(with.runtime));
    let lists = [
        (&mut result.added, changes.added),
        (&mut result.removed, changes.removed),
        (&mut result.changed, changes.changed),
    ];
    for (list, names) in lists {
        list.extend(names.iter().map(|name| format!("target {name}")));
    }
    Ok(result)
}

/// Recalls the delegations that exports do not permit any more. The callbacks are sent after the next request.
fn recall_delegations(shared: &Shared, old: &Exports, now: Duration) {
    let exports = shared.exports.load();
    for export in old.iter() {
        let permitted =
            exports.by_id(export.id()).map_or(Delegations::None, |export| export.policy().delegations);
        let kind = match permitted {
            _ if permitted >= export.policy().delegations => continue,
            Delegations::None => DelegationKind::Read,
            _ => DelegationKind::Write,
        };
        let selects = |key: &[u8]| split_key(key).is_some_and(|(id, _)| id == export.id());
        shared.nfs4_clients.state.recall_all(kind, selects, now);
    }
}

/// Whether `e` has the name and backend of the export.
fn matches(export: &Export, e: &ExportConfig) -> bool {
    export.name() == e.name && export.policy().backend.identity() == e.backend.identity()
}

fn same<'o>(old: &'o Exports, e: &ExportConfig) -> Option<&'o Arc<Export>> {
    old.iter().find(|o| matches(o, e))
}

/// The new policy of a retained export, with the old settings of its open file system.
fn merge_policy(export: &Export, new: &ExportConfig, result: &mut Reloaded) -> ExportConfig {
    let old = export.policy();
    let opened = [
        ("the size of its backend", old.backend != new.backend),
        ("sync_metadata", old.sync_metadata != new.sync_metadata),
        ("identities", old.identities != new.identities),
    ];
    for (what, _) in opened.into_iter().filter(|(_, differs)| *differs) {
        result.unapplied.push(format!("export {}: {what}", new.name));
    }
    let policy = ExportConfig {
        backend: old.backend.clone(),
        sync_metadata: old.sync_metadata,
        identities: old.identities,
        ..new.clone()
    };
    if policy != *old {
        result.changed.push(new.name.clone());
    }
    policy
}

/// Keys of the changed settings that cannot be changed in a running server.
fn changed_settings(old: &Config, new: &Config) -> Vec<String> {
    // Lists every field, so that a new field must be added here.
    let Config {
        exports: _,
        targets: _,
        listen_rdma,
        listen_tcp,
        listen_iscsi,
        listen_iser,
        provider,
        rdma_protocol,
        shards,
        float_shards,
        busy_poll,
        crc,
        state_dir,
        manage_groups,
        registration,
        limits,
        nfs4,
        stages,
        tls: _,
        kerberos: _,
    } = old;
    let differs = [
        ("listen_rdma", *listen_rdma != new.listen_rdma),
        ("listen_tcp", *listen_tcp != new.listen_tcp),
        ("listen_iscsi", *listen_iscsi != new.listen_iscsi),
        ("listen_iser", *listen_iser != new.listen_iser),
        ("provider", *provider != new.provider),
        ("rdma_protocol", *rdma_protocol != new.rdma_protocol),
        ("shards", *shards != new.shards),
        ("float_shards", *float_shards != new.float_shards),
        ("busy_poll", *busy_poll != new.busy_poll),
        ("crc", *crc != new.crc),
        ("state_dir", *state_dir != new.state_dir),
        ("manage_groups", *manage_groups != new.manage_groups),
        ("registration", *registration != new.registration),
        ("limits", *limits != new.limits),
        ("nfs4", *nfs4 != new.nfs4),
        ("stages", *stages != new.stages),
    ];
    differs.into_iter().filter(|(_, d)| *d).map(|(key, _)| key.to_owned()).collect()
}
