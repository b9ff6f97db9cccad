//! Log entries about exports and targets, with warnings of those that every host may change.

use crate::{ExportConfig, Squash, TargetSettings};

/// Logs `exports`, of a server that only this host reaches if `loopback`.
pub(crate) fn exports<'e>(exports: impl IntoIterator<Item = &'e ExportConfig>, loopback: bool) {
    for e in exports {
        tracing::info!(export = e.name, backend = %e.backend, read_only = e.read_only, squash = ?e.squash, "exported");
        let of_all = match e.clients.as_slice() {
            [] => vec![e.clone()],
            clients => clients.iter().filter(|c| c.hosts.is_any()).map(|c| e.of(c)).collect(),
        };
        if let Some(of_all) = of_all.iter().find(|of_all| !loopback && !of_all.read_only) {
            let whom = match of_all.squash {
                Squash::None => "any user, root included",
                Squash::Root => "any user but root",
                Squash::All => "the anonymous user",
            };
            tracing::warn!(
                export = e.name,
                "every host that reaches this server may change this export as {whom}; name the hosts that may \
                 use it (clients), or make it read-only"
            );
        }
    }
}

/// Logs `targets` with their disks, of a server that only this host reaches if `loopback`.
pub(crate) fn targets<'t>(targets: impl IntoIterator<Item = &'t TargetSettings>, loopback: bool) {
    for t in targets {
        for (number, lun) in t.numbered() {
            let (number, block) = (number.number(), lun.block_size.bytes());
            tracing::info!(target = %t.name, lun = number, path = %lun.path.display(), block, read_only = lun.read_only, "disk");
        }
        if !loopback && t.chap.is_none() && t.luns.iter().any(|lun| !lun.read_only) {
            tracing::warn!(
                target = %t.name,
                "every host that reaches this server may change the disks of this target; require authentication (CHAP), \
                 or make them read-only"
            );
        }
    }
}
