//! Identification of a logical unit by INQUIRY, READ CAPACITY and MODE SENSE.

use std::fmt;

use millrace_scsi::{
    Lun,
    initiator::{
        self as scsi, BlockLimits, Capacity, Designator, Inquiry, ModeParameters, Provisioning, block_limits,
        capacity, designators, mode_parameters, provisioning, serial_number, vital_page,
    },
};

use crate::{Error, error::Failure, exchange::Exchange};

/// Maximum bytes of one command when the device reports no maximum, or a larger one: larger transfers are split.
const MAX_TRANSFER: u32 = 1 << 20;
/// Maximum bytes that one WRITE SAME writes: about a second of work of a slow device.
const MAX_WRITE_SAME: u64 = 256 << 20;
/// Maximum bytes of one UNMAP when the device reports no maximum, or a larger one.
const MAX_UNMAP: u64 = 1 << 30;
/// Parameter data that is requested, in bytes.
const ALLOCATION: u16 = 512;

/// Names of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// T10 vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Product revision level.
    pub revision: String,
    /// Unit serial number, if the device has one.
    pub serial: Option<String>,
    /// Identifier of the logical unit, such as `naa.6001405000000001`, if the device has one.
    pub device_id: Option<String>,
}

impl Identity {
    /// Whether both are names of the same logical unit. The revision changes with updates.
    pub(crate) fn is_same_device(&self, other: &Self) -> bool {
        match (&self.device_id, &other.device_id) {
            (Some(a), Some(b)) => a == b,
            (None, None) => {
                (&self.vendor, &self.product, &self.serial) == (&other.vendor, &other.product, &other.serial)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.vendor, self.product)?;
        match self.device_id.as_ref().or(self.serial.as_ref()) {
            Some(id) => write!(f, " {id}"),
            None => Ok(()),
        }
    }
}

/// Limits of commands, in bytes. Operations of a [`BlockDevice`](crate::BlockDevice) are split accordingly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum length of a read or write command: that of the device, at most 1 MiB.
    pub max_transfer: u32,
    /// Preferred length of a read or write, if the device reports one.
    pub optimal_transfer: Option<u64>,
    /// Maximum length of a discard command; `None` if the device does not support UNMAP.
    pub max_discard: Option<u64>,
    /// Maximum length of a command that writes zeros: that of the device, at most 256 MiB.
    pub max_write_zeroes: u64,
}

/// A logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitInfo {
    /// Names.
    pub identity: Identity,
    /// Number of bytes.
    pub capacity: u64,
    /// Length of a block in bytes, a power of two from 512 to 65536.
    pub block_size: u32,
    /// Limits.
    pub limits: Limits,
    /// Whether the device is write-protected.
    pub read_only: bool,
    /// Whether completed writes are volatile until a flush; `None` if the device does not report it.
    pub write_cache: Option<bool>,
    /// Whether blocks may lack storage (thin provisioning).
    pub thin: bool,
    /// Whether discarded blocks read as zeros.
    pub discard_reads_zeroes: bool,
    /// Whether [`BlockDevice::punch_hole`](crate::BlockDevice::punch_hole) frees storage.
    pub punches_holes: bool,
}

/// Identifies the logical unit, and consumes unit attention conditions.
///
/// # Errors
/// The connection is lost, or there is no usable disk: reason and remedy as text.
pub(crate) async fn identify(exchange: &mut Exchange, lun: Lun) -> Result<Result<UnitInfo, String>, Error> {
    let inquiry = match exchange.execute(lun, scsi::inquiry_cdb(ALLOCATION), ALLOCATION.into()).await? {
        Ok(data) => data,
        Err(failure) => return Ok(Err(failure.to_string())),
    };
    let inquiry = match scsi::inquiry(&inquiry) {
        Ok(Inquiry { qualifier: 0, device_type: 0, .. }) => scsi::inquiry(&inquiry),
        Ok(Inquiry { qualifier: 0, device_type, .. }) => {
            return Ok(Err(format!(
                "the unit is not a disk (device type {device_type:#04x}); use another LUN"
            )));
        }
        Ok(_) => return Ok(Err("there is no such LUN; list them with `millrace blk ls`".into())),
        Err(e) => Err(e),
    };
    if let Err(failure) = exchange.execute(lun, scsi::test_unit_ready(), 0).await? {
        return Ok(Err(format!("the device is not ready: {failure}")));
    }
    let capacity_data = match exchange.execute(lun, scsi::read_capacity_16(), 32).await? {
        Ok(data) => data,
        Err(failure) => return Ok(Err(format!("READ CAPACITY(16): {failure}"))),
    };
    let mode =
        optional(exchange.execute(lun, scsi::mode_sense_10(0x08, ALLOCATION), ALLOCATION.into()).await?);
    let serial = page(exchange, lun, 0x80).await?.and_then(|d| serial_number(&d).ok());
    let names = page(exchange, lun, 0x83).await?.and_then(|d| designators(&d).ok()).unwrap_or_default();
    let limits = page(exchange, lun, 0xb0).await?.and_then(|d| block_limits(&d).ok()).unwrap_or_default();
    let thin = page(exchange, lun, 0xb2).await?.and_then(|d| provisioning(&d).ok()).unwrap_or_default();
    let parts = inquiry.and_then(|inquiry| Ok((inquiry, capacity(&capacity_data)?)));
    Ok(parts.map_err(|e| e.to_string()).and_then(|(inquiry, capacity)| {
        let identity = Identity {
            vendor: inquiry.vendor,
            product: inquiry.product,
            revision: inquiry.revision,
            serial: serial.filter(|s| !s.is_empty()),
            device_id: device_id(&names),
        };
        unit(identity, capacity, limits, thin, mode.and_then(|d| mode_parameters(&d).ok()))
    }))
}

/// Parameter data that a device need not have.
fn optional(result: Result<Vec<u8>, Failure>) -> Option<Vec<u8>> {
    result.ok()
}

async fn page(exchange: &mut Exchange, lun: Lun, code: u8) -> Result<Option<Vec<u8>>, Error> {
    Ok(optional(exchange.execute(lun, vital_page(code, ALLOCATION), ALLOCATION.into()).await?))
}

fn unit(
    identity: Identity,
    capacity: Capacity,
    limits: BlockLimits,
    thin: Provisioning,
    mode: Option<ModeParameters>,
) -> Result<UnitInfo, String> {
    let block = capacity.block_bytes;
    let bytes = capacity.blocks.checked_mul(block.into()).filter(|bytes| i64::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or("the capacity exceeds 8 EiB: check the target")?;
    // 0 stands for no limit.
    let bounded = |blocks: u64, most: u64| match blocks.saturating_mul(block.into()) {
        0 => most,
        reported => reported.min(most),
    };
    let max_transfer = bounded(limits.max_transfer.into(), MAX_TRANSFER.into());
    let optimal = u64::from(limits.optimal_transfer) * u64::from(block);
    Ok(UnitInfo {
        identity,
        capacity: bytes,
        block_size: block,
        limits: Limits {
            max_transfer: u32::try_from(max_transfer).unwrap_or(MAX_TRANSFER),
            optimal_transfer: Some(optimal).filter(|bytes| *bytes > 0),
            max_discard: thin.unmap.then(|| bounded(limits.max_unmap.into(), MAX_UNMAP)),
            max_write_zeroes: bounded(limits.max_write_same, MAX_WRITE_SAME),
        },
        read_only: mode.is_some_and(|m| m.write_protected),
        write_cache: mode.and_then(|m| m.write_cache),
        thin: capacity.thin,
        discard_reads_zeroes: thin.reads_zeros,
        punches_holes: thin.write_same_16 && thin.reads_zeros,
    })
}

/// The text form of the best designator of the logical unit.
fn device_id(names: &[Designator]) -> Option<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let printable = |bytes: &[u8]| {
        let text: String =
            bytes.iter().map(|b| if b.is_ascii_graphic() { char::from(*b) } else { ' ' }).collect();
        text.split_whitespace().collect::<Vec<_>>().join("_")
    };
    let of = |kind| names.iter().find(|d| d.association == 0 && d.kind == kind && !d.value.is_empty());
    let naa = of(3).map(|d| format!("naa.{}", hex(&d.value)));
    naa.or_else(|| of(2).map(|d| format!("eui.{}", hex(&d.value))))
        .or_else(|| of(8).map(|d| printable(&d.value)))
        .or_else(|| of(1).map(|d| format!("t10.{}", printable(&d.value))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(id: Option<&str>, serial: &str) -> Identity {
        let text = |s: &str| s.to_owned();
        Identity {
            vendor: text("V"),
            product: text("P"),
            revision: text("1"),
            serial: Some(text(serial)),
            device_id: id.map(text),
        }
    }

    #[test]
    fn limits_of_the_device_are_bounded() {
        let capacity = Capacity { blocks: 100, block_bytes: 4096, thin: true };
        let thin = Provisioning { unmap: true, ..Provisioning::default() };
        let limits = |l| unit(identity(None, "1"), capacity, l, thin, None).unwrap().limits;
        let none = limits(BlockLimits::default());
        assert_eq!((none.max_transfer, none.max_discard), (MAX_TRANSFER, Some(MAX_UNMAP)));
        let all = u32::MAX;
        let huge =
            BlockLimits { max_transfer: all, max_unmap: all, max_write_same: u64::MAX, ..Default::default() };
        assert_eq!(limits(huge), none);
        let few = BlockLimits { max_transfer: 2, max_unmap: 3, max_write_same: 4, ..BlockLimits::default() };
        let few = limits(few);
        assert_eq!((few.max_transfer, few.max_discard, few.max_write_zeroes), (8192, Some(12288), 16384));
        let capacity = Capacity { blocks: u64::MAX, ..capacity };
        assert!(unit(identity(None, "1"), capacity, BlockLimits::default(), thin, None).is_err());
    }

    #[test]
    fn a_device_is_recognized_by_its_identifier_or_its_serial_number() {
        assert!(identity(Some("naa.1"), "1").is_same_device(&identity(Some("naa.1"), "2")));
        assert!(!identity(Some("naa.1"), "1").is_same_device(&identity(Some("naa.2"), "1")));
        assert!(!identity(Some("naa.1"), "1").is_same_device(&identity(None, "1")));
        assert!(identity(None, "1").is_same_device(&identity(None, "1")));
        assert!(!identity(None, "1").is_same_device(&identity(None, "2")));
    }

    #[test]
    fn identifiers_have_no_control_characters() {
        let of = |kind, value: &[u8]| Designator { association: 0, kind, value: value.to_vec() };
        let port = Designator { association: 1, ..of(3, &[1]) };
        assert_eq!(device_id(&[of(1, b"IET \x1b[2J 1"), port.clone()]).unwrap(), "t10.IET_[2J_1");
        assert_eq!(device_id(&[of(1, b"x"), of(3, &[0x60, 1])]).unwrap(), "naa.6001");
        assert_eq!(device_id(&[port]), None);
    }
}
