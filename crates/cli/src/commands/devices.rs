//! `millrace devices`.

use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
    table::{Align, Table},
    units::ByteSize,
};
use millrace_rdma_providers::ProviderChoice;
use millrace_rdma_verbs::{self as verbs, Details, Device, Features, Limits, Port, Transport, VerbsError};
use serde_json::{Value, json};

use crate::args::DevicesArgs;

const IWARP: &str = "in software, over TCP, on all addresses";

pub(super) fn run(args: &DevicesArgs) -> CommandResult {
    let devices = verbs::devices();
    let addresses = addresses()?;
    let text = if args.json {
        format!("{}\n", to_json(&devices, &addresses))
    } else {
        to_text(&devices, &addresses)
    };
    output::write(text.as_bytes())?;
    Ok(Outcome::Done)
}

/// The provider that `auto` selects for a local address.
struct Address {
    address: String,
    interface: String,
    provider: &'static str,
    why: String,
}

fn addresses() -> Result<Vec<Address>, Failure> {
    let interfaces = if_addrs::get_if_addrs()
        .map_err(|e| Failure::new(format!("cannot list the addresses of this host: {e}")))?;
    let judge = |i: if_addrs::Interface| {
        let chosen = ProviderChoice::Auto.to_listen(i.ip()).map_err(|e| Failure::new(e.to_string()))?;
        Ok(Address {
            address: i.ip().to_string(),
            provider: chosen.provider.name(),
            why: chosen.why,
            interface: i.name,
        })
    };
    interfaces.into_iter().map(judge).collect()
}

/// Number of usable devices, or the reason if there are none.
fn usable(devices: &Result<Vec<Device>, VerbsError>) -> Result<usize, String> {
    let devices = devices.as_ref().map_err(ToString::to_string)?;
    let failed = |d: &Device| d.details.as_ref().err().map(|e| format!("{}: {e}", d.name));
    match devices.iter().filter(|d| d.details.is_ok()).count() {
        0 => Err(devices.iter().filter_map(failed).collect::<Vec<_>>().join("; ")),
        n => Ok(n),
    }
}

fn to_text(devices: &Result<Vec<Device>, VerbsError>, addresses: &[Address]) -> String {
    let verbs = match usable(devices) {
        Ok(1) => ("yes", "1 device".to_owned()),
        Ok(n) => ("yes", format!("{n} devices")),
        Err(why) => ("no", why),
    };
    let mut t = Table::new(&[("provider", Align::Left), ("usable", Align::Left), ("", Align::Left)]);
    t.row(["iwarp", "yes", IWARP]);
    t.row(["verbs", verbs.0, &verbs.1]);
    let mut out = t.to_string();
    for d in devices.iter().flatten() {
        out.push_str(&format!("\n{}\n", heading(d)));
        match &d.details {
            Ok(details) => out.push_str(&describe(d, details).to_string()),
            Err(why) => out.push_str(&format!("  cannot be opened: {why}\n")),
        }
    }
    let mut t = Table::new(&[
        ("address", Align::Left),
        ("interface", Align::Left),
        ("auto selects", Align::Left),
        ("reason", Align::Left),
    ]);
    for a in addresses {
        t.row([&a.address, &a.interface, a.provider, &a.why]);
    }
    format!("{out}\n{t}")
}

const fn transport(d: &Device) -> &'static str {
    match d.transport {
        Transport::InfiniBand => "InfiniBand or RoCE",
        Transport::Iwarp => "iWARP",
        _ => "unsupported transport",
    }
}

fn heading(d: &Device) -> String {
    let mut out = format!("device {}: {}, {}", d.name, d.node_type, transport(d));
    if let Ok(details) = &d.details {
        out.push_str(&format!(", GUID {:016x}", details.guid));
        if !details.firmware.is_empty() {
            out.push_str(&format!(", firmware {}", details.firmware));
        }
    }
    out
}

/// Names of features, and whether the device has them.
const fn features(f: &Features) -> [(&'static str, bool); 5] {
    [
        ("memory windows", f.memory_windows),
        ("remote invalidation", f.send_with_invalidate),
        ("shared receive queues", f.shared_receive_queue),
        ("on-demand paging", f.on_demand_paging),
        ("implicit on-demand paging", f.implicit_on_demand_paging),
    ]
}

/// Names and values of limits.
fn limits(l: &Limits) -> [(&'static str, u64); 15] {
    [
        ("max_qp", l.max_qp.into()),
        ("max_qp_wr", l.max_qp_wr.into()),
        ("max_sge", l.max_sge.into()),
        ("max_sge_rd", l.max_sge_rd.into()),
        ("max_cq", l.max_cq.into()),
        ("max_cqe", l.max_cqe.into()),
        ("max_mr", l.max_mr.into()),
        ("max_mr_size", l.max_mr_size),
        ("page_size_cap", l.page_size_cap),
        ("max_mw", l.max_mw.into()),
        ("max_srq", l.max_srq.into()),
        ("max_srq_wr", l.max_srq_wr.into()),
        ("max_qp_rd_atom", l.max_qp_rd_atom.into()),
        ("max_qp_init_rd_atom", l.max_qp_init_rd_atom.into()),
        ("max_res_rd_atom", l.max_res_rd_atom.into()),
    ]
}

fn describe(device: &Device, d: &Details) -> Table {
    let mut t = Table::bare(&[Align::Left, Align::Left]);
    for p in &d.ports {
        // The path MTU that iWARP devices report has no meaning.
        let mtu = match device.transport {
            Transport::Iwarp => String::new(),
            _ => format!("path MTU {} of {} bytes, ", p.active_mtu, p.max_mtu),
        };
        let message = ByteSize(p.max_message.into()).human();
        t.row([
            format!("  port {}", p.number),
            format!("{}, {}, {mtu}messages up to {message}", p.state, p.link_layer),
        ]);
        for g in &p.gids {
            t.row([format!("  GID {}", g.index), format!("{} ({})", g.address, g.kind)]);
        }
    }
    let named = |there: bool| {
        let names: Vec<_> = features(&d.features).into_iter().filter(|f| f.1 == there).map(|f| f.0).collect();
        if names.is_empty() { "-".into() } else { names.join(", ") }
    };
    t.row(["  supports".into(), named(true)]);
    t.row(["  lacks".into(), named(false)]);
    let l = &d.limits;
    t.row([
        "  queue pairs".into(),
        format!(
            "{} of {} work requests, {} SGEs (RDMA Read: {})",
            l.max_qp, l.max_qp_wr, l.max_sge, l.max_sge_rd
        ),
    ]);
    t.row([
        "  RDMA Reads".into(),
        format!(
            "{} inbound, {} outbound per queue pair; {} in total",
            l.max_qp_rd_atom, l.max_qp_init_rd_atom, l.max_res_rd_atom
        ),
    ]);
    t.row([
        "  memory".into(),
        match l.max_mr_size {
            u64::MAX => format!("{} regions of any size, {} windows", l.max_mr, l.max_mw),
            most => format!("{} regions of up to {}, {} windows", l.max_mr, ByteSize(most).human(), l.max_mw),
        },
    ]);
    t.row([
        "  queues".into(),
        format!(
            "{} completion queues of {}, {} shared receive queues of {}",
            l.max_cq, l.max_cqe, l.max_srq, l.max_srq_wr
        ),
    ]);
    t
}

fn to_json(devices: &Result<Vec<Device>, VerbsError>, addresses: &[Address]) -> Value {
    let verbs = usable(devices);
    json!({
        "providers": [
            { "name": "iwarp", "usable": true, "why": IWARP },
            { "name": "verbs", "usable": verbs.is_ok(), "why": verbs.err() },
        ],
        "devices": devices.iter().flatten().map(device_json).collect::<Vec<_>>(),
        "addresses": addresses
            .iter()
            .map(|a| json!({ "address": a.address, "interface": a.interface, "provider": a.provider, "why": a.why }))
            .collect::<Vec<_>>(),
    })
}

fn device_json(d: &Device) -> Value {
    let known = d.details.as_ref().ok();
    json!({
        "name": d.name,
        "type": d.node_type,
        "transport": transport(d),
        "error": d.details.as_ref().err(),
        "guid": known.map(|k| format!("{:016x}", k.guid)),
        "firmware": known.map(|k| &k.firmware),
        "features": known.map(|k| Value::from_iter(features(&k.features))),
        "limits": known.map(|k| Value::from_iter(limits(&k.limits))),
        "ports": known.map(|k| k.ports.iter().map(port_json).collect::<Vec<_>>()),
    })
}

fn port_json(p: &Port) -> Value {
    let gids = p.gids.iter();
    json!({
        "number": p.number,
        "state": p.state,
        "link_layer": p.link_layer,
        "active_mtu": p.active_mtu,
        "max_mtu": p.max_mtu,
        "max_message": p.max_message,
        "gids": gids
            .map(|g| json!({ "index": g.index, "address": g.address.to_string(), "kind": g.kind }))
            .collect::<Vec<_>>(),
    })
}
