//! `millrace blk ls` and `info`.

use millrace_iscsi_initiator::{
    BlockDevice, IscsiName, Lun, Options, UnitInfo, Url, discover, logical_units,
};
use millrace_program::{
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
    table::{Align, Table},
    units::{ByteSize, grouped},
};
use serde_json::{Value, json};

use super::{failed, open, options, parse};
use crate::args::{BlkInfoArgs, BlkLsArgs};

/// A logical unit of a target.
type Unit = (IscsiName, Lun, Result<UnitInfo, String>);

pub(super) fn ls(args: &BlkLsArgs) -> CommandResult {
    let url = parse(&args.url)?;
    let options = options(&url, &args.options)?;
    executor::small()?.block_on(async {
        let names = match &url.target {
            Some(name) => vec![name.clone()],
            None => {
                discover(&url, &options).await.map_err(|e| failed(&e))?.into_iter().map(|t| t.name).collect()
            }
        };
        let (mut units, mut failures) = (Vec::new(), 0);
        for name in &names {
            match of_target(&url, name, &options).await {
                Ok(found) => units.extend(found),
                Err(e) if names.len() == 1 => return Err(e),
                Err(e) => {
                    eprintln!("millrace: {e}");
                    failures += 1;
                }
            }
        }
        let text = if args.json { to_json(&url, &units) } else { to_text(&units) };
        output::write(text.as_bytes())?;
        Ok(match failures {
            0 => Outcome::Done,
            n if n == names.len() => Outcome::Failed,
            _ => Outcome::Partial,
        })
    })
}

async fn of_target(url: &Url, name: &IscsiName, options: &Options) -> Result<Vec<Unit>, Failure> {
    let units = logical_units(url, name, options).await.map_err(|e| failed(&e))?;
    Ok(units.into_iter().map(|(lun, unit)| (name.clone(), lun, unit)).collect())
}

fn to_text(units: &[Unit]) -> String {
    let mut table = Table::new(&[
        ("target", Align::Left),
        ("LUN", Align::Right),
        ("size", Align::Right),
        ("block", Align::Right),
        ("device", Align::Left),
    ]);
    for (name, lun, unit) in units {
        let (size, block, device) = match unit {
            Ok(unit) => {
                let mode = if unit.read_only { ", read-only" } else { "" };
                let device = format!("{}{mode}", unit.identity);
                (ByteSize(unit.capacity).human().to_string(), unit.block_size.to_string(), device)
            }
            Err(reason) => ("-".into(), "-".into(), reason.clone()),
        };
        table.row([name.to_string(), lun.number().to_string(), size, block, device]);
    }
    table.to_string()
}

fn to_json(url: &Url, units: &[Unit]) -> String {
    let one = |(name, lun, unit): &Unit| {
        let mut at = Url::new(url.transport, url.address.clone(), Some(name.clone()), Some(*lun));
        at.tls = url.tls.clone();
        let mut value = match unit {
            Ok(unit) => unit_json(unit),
            Err(reason) => json!({ "error": reason }),
        };
        if let Some(object) = value.as_object_mut() {
            object.insert("url".into(), at.to_string().into());
            object.insert("target".into(), name.to_string().into());
            object.insert("lun".into(), lun.number().into());
        }
        format!("{value}\n")
    };
    units.iter().map(one).collect()
}

fn unit_json(unit: &UnitInfo) -> Value {
    let (identity, limits) = (&unit.identity, &unit.limits);
    json!({
        "vendor": identity.vendor,
        "product": identity.product,
        "revision": identity.revision,
        "serial": identity.serial,
        "device_id": identity.device_id,
        "capacity": unit.capacity,
        "block_size": unit.block_size,
        "read_only": unit.read_only,
        "write_cache": unit.write_cache,
        "max_transfer": limits.max_transfer,
        "optimal_transfer": limits.optimal_transfer,
        "max_discard": limits.max_discard,
        "max_write_zeroes": limits.max_write_zeroes,
        "discard_reads_zeroes": unit.discard_reads_zeroes,
    })
}

pub(super) fn info(args: &BlkInfoArgs) -> CommandResult {
    executor::small()?.block_on(async {
        let disk = open(&args.url, &args.options).await?;
        let text = if args.json { format!("{}\n", unit_json(disk.info())) } else { describe(&disk) };
        disk.close().await;
        output::write(text.as_bytes())?;
        Ok(Outcome::Done)
    })
}

fn describe(disk: &BlockDevice) -> String {
    let unit = disk.info();
    let (identity, limits) = (&unit.identity, &unit.limits);
    let size = |bytes: u64| ByteSize(bytes).human().to_string();
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    let cache = match unit.write_cache {
        Some(true) => "volatile: writes are durable after a flush",
        Some(false) => "none: completed writes are durable",
        None => "unknown",
    };
    let discard = match limits.max_discard {
        Some(max) if unit.discard_reads_zeroes => {
            format!("up to {} per command; then reads zeros", size(max))
        }
        Some(max) => format!("up to {} per command", size(max)),
        None => "not supported".into(),
    };
    let mut table = Table::bare(&[Align::Left, Align::Left]);
    table.row(["vendor", &identity.vendor]);
    table.row(["product", &identity.product]);
    table.row(["revision", &identity.revision]);
    table.row(["serial number", &known(&identity.serial)]);
    table.row(["device identifier", &known(&identity.device_id)]);
    table.row(["size", &format!("{} ({} bytes)", size(unit.capacity), grouped(unit.capacity))]);
    table.row(["block size", &unit.block_size.to_string()]);
    table.row(["access", if unit.read_only { "read-only" } else { "read and write" }]);
    table.row(["write cache", cache]);
    table.row(["transfers", &format!("up to {} per command", size(limits.max_transfer.into()))]);
    table.row(["zeros", &format!("up to {} per command", size(limits.max_write_zeroes))]);
    table.row(["discard", &discard]);
    table.to_string()
}
