//! Log entries about exports and targets, with warnings of those that every host may change.

use std::net::{SocketAddr, ToSocketAddrs};

use millrace_oncrpc::SecurityFlavor;

use crate::{Config, ExportConfig, InvalidSetting, Squash, TargetSettings, client_rule::Hosts};

impl Config {
    /// The settings of which a start of the server warns in its log. Looks up the names of hosts.
    pub fn questionable_settings(&self) -> Vec<InvalidSetting> {
        let mut found = Vec::new();
        let is_local = reached_by_this_host_only(self.listen_tcp.iter().chain(&self.listen_rdma));
        for (i, e) in self.exports.iter().enumerate() {
            let what = open_export(e).filter(|_| !is_local);
            found.extend(what.map(|what| InvalidSetting::new(format!("exports.{i}"), what)));
            for (j, client) in e.clients.iter().enumerate() {
                let Hosts::Name(name) = &client.hosts else { continue };
                if let Err(e) = (name.as_str(), 0).to_socket_addrs() {
                    let field = format!("exports.{i}.clients.{j}");
                    found.push(InvalidSetting::new(field, unknown_host(name, &e)));
                }
            }
        }
        if !reached_by_this_host_only(self.listen_iscsi.iter().chain(&self.listen_iser)) {
            let open = self.targets.iter().enumerate().filter(|(_, t)| is_open(t));
            found.extend(open.map(|(i, _)| InvalidSetting::new(format!("targets.{i}"), OPEN_TARGET)));
        }
        found
    }
}

/// Whether only this host reaches a server at these addresses.
pub(crate) fn reached_by_this_host_only<'a>(addresses: impl IntoIterator<Item = &'a SocketAddr>) -> bool {
    addresses.into_iter().all(|addr| addr.ip().to_canonical().is_loopback())
}

/// The warning about the client `name` of an export.
pub(crate) fn unknown_host(name: &str, e: &std::io::Error) -> String {
    format!("cannot look up the client {name}: {e}; it is not admitted until a reload (`millrace reload`)")
}

/// The warning about an export that every host may change.
fn open_export(e: &ExportConfig) -> Option<String> {
    let of_all = match e.clients.as_slice() {
        [] => vec![e.clone()],
        clients => clients.iter().filter(|c| c.hosts.is_any()).map(|c| e.of(c)).collect(),
    };
    // Users with Kerberos are those that they claim to be.
    let any_user =
        |e: &&ExportConfig| !e.read_only && e.sec.iter().any(|flavor| flavor == SecurityFlavor::Sys);
    let whom = match of_all.iter().find(any_user)?.squash {
        Squash::None => "any user, root included",
        Squash::Root => "any user but root",
        Squash::All => "the anonymous user",
    };
    Some(format!(
        "every host that reaches this server may change this export as {whom}; name the hosts that may \
         use it (clients), or make it read-only"
    ))
}

/// Whether every host may change a disk of the target.
fn is_open(t: &TargetSettings) -> bool {
    t.chap.is_none() && t.luns.iter().any(|lun| !lun.read_only)
}

const OPEN_TARGET: &str = "every host that reaches this server may change the disks of this target; require authentication \
                           (CHAP), or make them read-only";

/// Logs `exports`, of a server that only this host reaches if `loopback`.
pub(crate) fn exports<'e>(exports: impl IntoIterator<Item = &'e ExportConfig>, loopback: bool) {
    for e in exports {
        tracing::info!(export = e.name, backend = %e.backend, read_only = e.read_only, squash = ?e.squash, "exported");
        if let Some(what) = open_export(e).filter(|_| !loopback) {
            tracing::warn!(export = e.name, "{what}");
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
        if !loopback && is_open(t) {
            tracing::warn!(target = %t.name, "{OPEN_TARGET}");
        }
    }
}
