//! Checks of an iSCSI target, step by step: name, port, MTU, protocol, targets, login, disks.

use millrace_iscsi_initiator::{
    Error, IscsiName, Lun, Options, Transport, UnitInfo, Url, discover, logical_units,
};
use millrace_program::units::ByteSize;
use millrace_rdma_providers::ProviderChoice;

use super::{
    Finding,
    port::{STEP_TIMEOUT, connect, mtu, resolve},
};
use crate::session;

/// Checks the portal of `url`, and its target and disk if present. Ends with the first broken step.
pub(crate) async fn target(url: &Url) -> Vec<Finding> {
    let mut out = Vec::new();
    // A broken step is the last finding.
    let _ = steps(url, &mut out).await.map_err(|broken| out.push(broken));
    out
}

async fn steps(url: &Url, out: &mut Vec<Finding>) -> Result<(), Finding> {
    let addr = resolve(&url.address.host, url.address.port)?;
    let provider = session::global().provider.unwrap_or_default();
    let devices = || provider.to_connect(addr).is_ok_and(|chosen| chosen.provider.name() != "iwarp");
    if url.transport == Transport::Tcp || provider == ProviderChoice::Iwarp || !devices() {
        let stream = connect(addr, "`millrace serve --lun disks=/EXPORT/FILE ...`")?;
        out.push(Finding::fine("port", format!("a server listens at {addr}")));
        out.push(mtu(&stream));
    }
    let mut options = Options::default();
    (options.provider, options.timeout, options.connect_timeout) = (provider, STEP_TIMEOUT, STEP_TIMEOUT);
    let found = discover(url, &options).await.map_err(|e| protocol_error(url, &e))?;
    let names: Vec<IscsiName> = found.into_iter().map(|target| target.name).collect();
    out.push(Finding::fine("protocol", format!("an iSCSI target answers over {}", transport(url))));
    out.push(targets(&names)?);
    let Some(name) = &url.target else { return Ok(()) };
    let units = logical_units(url, name, &options).await.map_err(|e| login_error(name, &names, &e))?;
    out.push(Finding::fine("login", format!("{name} accepts the login")));
    match url.lun {
        Some(lun) => out.push(disk(lun, &units)?),
        None => out.extend(units.iter().map(|(lun, unit)| unit_finding(*lun, unit))),
    }
    Ok(())
}

fn transport(url: &Url) -> &'static str {
    match url.transport {
        Transport::Tcp => "TCP",
        Transport::Iser => "RDMA (iSER)",
    }
}

fn protocol_error(url: &Url, e: &Error) -> Finding {
    let (reason, remedy) = match (e, url.transport) {
        (Error::Login { error, remedy, .. }, _) => (error.to_string(), remedy.as_str()),
        (Error::Connect { reason, .. } | Error::LoginLost { reason, .. }, Transport::Tcp) => (
            reason.clone(),
            "the port may belong to another service: use the port of iSCSI (3260), or try iser://",
        ),
        (Error::Connect { reason, .. } | Error::LoginLost { reason, .. }, Transport::Iser) => (
            reason.clone(),
            "the portal may have no iSER: start the server with `--listen-iser`, or try iscsi://",
        ),
        _ => (e.to_string(), "check the log of the target"),
    };
    Finding::broken("protocol", format!("discovery over {} fails: {reason}", transport(url)), remedy)
}

fn targets(names: &[IscsiName]) -> Result<Finding, Finding> {
    if names.is_empty() {
        return Err(Finding::broken(
            "targets",
            "this initiator may use no target",
            "add a [[target]], or the name of this initiator to its `initiators`, and run `millrace reload` there",
        ));
    }
    let names: Vec<&str> = names.iter().map(IscsiName::as_str).collect();
    Ok(Finding::fine("targets", names.join(", ")))
}

fn login_error(name: &IscsiName, listed: &[IscsiName], e: &Error) -> Finding {
    let found = format!("{name} refuses the login");
    match e {
        Error::Login { error, remedy, .. } if listed.contains(name) => {
            Finding::broken("login", format!("{found}: {error}"), remedy)
        }
        Error::Login { error, .. } => Finding::broken(
            "login",
            format!("{found}: {error}"),
            "use one of the listed targets, or add a [[target]] and run `millrace reload` there",
        ),
        e => Finding::broken("login", e.to_string(), "check the log of the target"),
    }
}

fn disk(lun: Lun, units: &[(Lun, Result<UnitInfo, String>)]) -> Result<Finding, Finding> {
    let Some((lun, unit)) = units.iter().find(|(other, _)| *other == lun) else {
        let luns: Vec<String> = units.iter().map(|(lun, _)| lun.number().to_string()).collect();
        return Err(Finding::broken(
            "disk",
            format!("the target has no LUN {}; it has {}", lun.number(), luns.join(", ")),
            "correct the LUN, the number after the target",
        ));
    };
    Ok(unit_finding(*lun, unit))
}

fn unit_finding(lun: Lun, unit: &Result<UnitInfo, String>) -> Finding {
    let number = lun.number();
    match unit {
        Ok(unit) => {
            let size = ByteSize(unit.capacity).human();
            let blocks = format!("LUN {number}: {size}, blocks of {} bytes", unit.block_size);
            if unit.read_only {
                let remedy =
                    "for write access, remove `read_only` of the disk, and run `millrace reload` there";
                return Finding::note("disk", format!("{blocks}, read-only"), remedy);
            }
            Finding::fine("disk", blocks)
        }
        Err(reason) => {
            Finding::broken("disk", format!("LUN {number}: {reason}"), "check the log of the target")
        }
    }
}
