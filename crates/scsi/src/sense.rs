//! Status codes and sense data (SAM-5 section 5.3, SPC-4 section 4.5).

use std::fmt;

use crate::bytes::{be16, be32, be64};

/// Status of a command (SAM-5 section 5.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The command completed.
    Good = 0x00,
    /// Sense data describes the outcome.
    CheckCondition = 0x02,
    /// The device server cannot accept the command now.
    Busy = 0x08,
    /// The command conflicts with a reservation.
    ReservationConflict = 0x18,
    /// The task set has no room for the command.
    TaskSetFull = 0x28,
}

/// Sense key (SPC-4 section 4.5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SenseKey {
    /// No error.
    NoSense = 0x0,
    /// Completed after recovery.
    RecoveredError = 0x1,
    /// The logical unit is not accessible.
    NotReady = 0x2,
    /// The medium failed.
    MediumError = 0x3,
    /// The device failed.
    HardwareError = 0x4,
    /// The command or its parameters are invalid.
    IllegalRequest = 0x5,
    /// A unit attention condition.
    UnitAttention = 0x6,
    /// The medium is protected against this access.
    DataProtect = 0x7,
    /// Blank medium.
    BlankCheck = 0x8,
    /// Vendor specific.
    VendorSpecific = 0x9,
    /// A copy command was aborted.
    CopyAborted = 0xa,
    /// The device server aborted the command; the initiator may send it again.
    AbortedCommand = 0xb,
    /// Reserved.
    Reserved = 0xc,
    /// The medium is full.
    VolumeOverflow = 0xd,
    /// Data does not match the medium.
    Miscompare = 0xe,
    /// Completed with additional information.
    Completed = 0xf,
}

impl SenseKey {
    /// The key of the lower four bits of `code`.
    pub const fn from_code(code: u8) -> Self {
        match code & 0xf {
            0x0 => Self::NoSense,
            0x1 => Self::RecoveredError,
            0x2 => Self::NotReady,
            0x3 => Self::MediumError,
            0x4 => Self::HardwareError,
            0x5 => Self::IllegalRequest,
            0x6 => Self::UnitAttention,
            0x7 => Self::DataProtect,
            0x8 => Self::BlankCheck,
            0x9 => Self::VendorSpecific,
            0xa => Self::CopyAborted,
            0xb => Self::AbortedCommand,
            0xc => Self::Reserved,
            0xd => Self::VolumeOverflow,
            0xe => Self::Miscompare,
            _ => Self::Completed,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::NoSense => "NO SENSE",
            Self::RecoveredError => "RECOVERED ERROR",
            Self::NotReady => "NOT READY",
            Self::MediumError => "MEDIUM ERROR",
            Self::HardwareError => "HARDWARE ERROR",
            Self::IllegalRequest => "ILLEGAL REQUEST",
            Self::UnitAttention => "UNIT ATTENTION",
            Self::DataProtect => "DATA PROTECT",
            Self::BlankCheck => "BLANK CHECK",
            Self::VendorSpecific => "VENDOR SPECIFIC",
            Self::CopyAborted => "COPY ABORTED",
            Self::AbortedCommand => "ABORTED COMMAND",
            Self::Reserved => "RESERVED",
            Self::VolumeOverflow => "VOLUME OVERFLOW",
            Self::Miscompare => "MISCOMPARE",
            Self::Completed => "COMPLETED",
        }
    }
}

/// Additional sense code and its qualifier (SPC-4 annex F).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdditionalSense(
    /// ADDITIONAL SENSE CODE.
    pub u8,
    /// ADDITIONAL SENSE CODE QUALIFIER.
    pub u8,
);

macro_rules! additional_sense {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $qualifier:literal, $text:literal;)*) => {
        impl AdditionalSense {
            $(
                #[doc = $text]
                pub const $name: Self = Self($code, $qualifier);
            )*

            /// The name in the standard; `None` for codes that this crate does not use.
            pub const fn name(self) -> Option<&'static str> {
                match (self.0, self.1) {
                    $(($code, $qualifier) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

additional_sense! {
    NONE = 0x00, 0x00, "NO ADDITIONAL SENSE INFORMATION";
    NOT_READY = 0x04, 0x00, "LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE";
    WRITE_ERROR = 0x0c, 0x00, "WRITE ERROR";
    INVALID_INFORMATION_UNIT = 0x0e, 0x03, "INVALID FIELD IN COMMAND INFORMATION UNIT";
    READ_ERROR = 0x11, 0x00, "UNRECOVERED READ ERROR";
    PARAMETER_LIST_LENGTH = 0x1a, 0x00, "PARAMETER LIST LENGTH ERROR";
    MISCOMPARE = 0x1d, 0x00, "MISCOMPARE DURING VERIFY OPERATION";
    INVALID_OPCODE = 0x20, 0x00, "INVALID COMMAND OPERATION CODE";
    LBA_OUT_OF_RANGE = 0x21, 0x00, "LOGICAL BLOCK ADDRESS OUT OF RANGE";
    INVALID_FIELD_IN_CDB = 0x24, 0x00, "INVALID FIELD IN CDB";
    LUN_NOT_SUPPORTED = 0x25, 0x00, "LOGICAL UNIT NOT SUPPORTED";
    INVALID_FIELD_IN_PARAMETERS = 0x26, 0x00, "INVALID FIELD IN PARAMETER LIST";
    INVALID_RELEASE = 0x26, 0x04, "INVALID RELEASE OF PERSISTENT RESERVATION";
    WRITE_PROTECTED = 0x27, 0x00, "WRITE PROTECTED";
    SOFTWARE_WRITE_PROTECTED = 0x27, 0x02, "LOGICAL UNIT SOFTWARE WRITE PROTECTED";
    SPACE_ALLOCATION_FAILED = 0x27, 0x07, "SPACE ALLOCATION FAILED WRITE PROTECT";
    POWER_ON = 0x29, 0x00, "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED";
    DEVICE_RESET = 0x29, 0x03, "BUS DEVICE RESET FUNCTION OCCURRED";
    NEXUS_LOSS = 0x29, 0x07, "I_T NEXUS LOSS OCCURRED";
    MODE_PARAMETERS_CHANGED = 0x2a, 0x01, "MODE PARAMETERS CHANGED";
    RESERVATIONS_PREEMPTED = 0x2a, 0x03, "RESERVATIONS PREEMPTED";
    RESERVATIONS_RELEASED = 0x2a, 0x04, "RESERVATIONS RELEASED";
    REGISTRATIONS_PREEMPTED = 0x2a, 0x05, "REGISTRATIONS PREEMPTED";
    CAPACITY_CHANGED = 0x2a, 0x09, "CAPACITY DATA HAS CHANGED";
    COMMANDS_CLEARED = 0x2f, 0x00, "COMMANDS CLEARED BY ANOTHER INITIATOR";
    SAVING_NOT_SUPPORTED = 0x39, 0x00, "SAVING PARAMETERS NOT SUPPORTED";
    INQUIRY_CHANGED = 0x3f, 0x03, "INQUIRY DATA HAS CHANGED";
    REPORTED_LUNS_CHANGED = 0x3f, 0x0e, "REPORTED LUNS DATA HAS CHANGED";
    INTERNAL_FAILURE = 0x44, 0x00, "INTERNAL TARGET FAILURE";
    REGISTRATION_RESOURCES = 0x55, 0x04, "INSUFFICIENT REGISTRATION RESOURCES";
}

/// The field in error (SPC-4 section 4.5.2.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldPointer {
    /// Whether the field is in the CDB; otherwise in the parameter data.
    pub in_cdb: bool,
    /// Offset of the byte.
    pub byte: u16,
    /// The most significant bit of the field, 0 to 7; `None` for the whole byte.
    pub bit: Option<u8>,
}

/// Sense data of a CHECK CONDITION, or of REQUEST SENSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// Whether the error is deferred: it is that of an earlier command which had GOOD status, as of a write that the device
    /// could not move from its cache to the medium. The command with this sense data was not executed (SPC-4 section
    /// 4.5.7). Disks of this crate report such errors as the current error of a flush instead.
    pub deferred: bool,
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code and qualifier.
    pub additional: AdditionalSense,
    /// INFORMATION field: an LBA, or the offset of a miscompare.
    pub information: Option<u64>,
    /// The invalid field of an ILLEGAL REQUEST.
    pub field: Option<FieldPointer>,
}

impl Sense {
    /// Length of fixed format sense data in bytes.
    pub const LEN: usize = 18;

    /// Sense data without INFORMATION and field pointer.
    pub const fn new(key: SenseKey, additional: AdditionalSense) -> Self {
        Self { deferred: false, key, additional, information: None, field: None }
    }

    /// ILLEGAL REQUEST.
    pub(crate) const fn illegal(additional: AdditionalSense) -> Self {
        Self::new(SenseKey::IllegalRequest, additional)
    }

    /// INVALID FIELD IN CDB with a pointer to `byte`, and `bit` if the field is shorter than a byte.
    pub(crate) const fn cdb_field(byte: u16, bit: Option<u8>) -> Self {
        let field = Some(FieldPointer { in_cdb: true, byte, bit });
        Self { field, ..Self::illegal(AdditionalSense::INVALID_FIELD_IN_CDB) }
    }

    /// INVALID FIELD IN PARAMETER LIST with a pointer to `byte`.
    pub(crate) const fn parameter(byte: u16) -> Self {
        let field = Some(FieldPointer { in_cdb: false, byte, bit: None });
        Self { field, ..Self::illegal(AdditionalSense::INVALID_FIELD_IN_PARAMETERS) }
    }

    /// Adds INFORMATION.
    pub(crate) const fn with_information(self, information: u64) -> Self {
        Self { information: Some(information), ..self }
    }

    /// This error as a deferred one.
    pub const fn into_deferred(self) -> Self {
        Self { deferred: true, ..self }
    }

    /// Fixed format sense data (SPC-4 section 4.5.3). INFORMATION above 32 bits is left out, with VALID 0.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let information = self.information.and_then(|i| u32::try_from(i).ok());
        out[0] = if self.deferred { 0x71 } else { 0x70 } | if information.is_some() { 0x80 } else { 0 };
        out[2] = self.key as u8;
        out[3..7].copy_from_slice(&information.unwrap_or(0).to_be_bytes());
        out[7] = Self::LEN as u8 - 8;
        out[12] = self.additional.0;
        out[13] = self.additional.1;
        if let Some(field) = self.field {
            let bit = field.bit.map_or(0, |b| 0x08 | (b & 0x07));
            out[15] = 0x80 | if field.in_cdb { 0x40 } else { 0 } | bit;
            out[16..18].copy_from_slice(&field.byte.to_be_bytes());
        }
        out
    }

    /// Decodes sense data of a current or deferred error in fixed or descriptor format. `None` if the response
    /// code is another one or the data is too short for the additional sense code.
    pub fn decode(data: &[u8]) -> Option<Self> {
        match data.first()? & 0x7f {
            0x70 => Self::decode_fixed(data),
            0x71 => Self::decode_fixed(data).map(Self::into_deferred),
            0x72 => Self::decode_descriptors(data),
            0x73 => Self::decode_descriptors(data).map(Self::into_deferred),
            _ => None,
        }
    }

    fn decode_fixed(data: &[u8]) -> Option<Self> {
        let key = SenseKey::from_code(*data.get(2)?);
        let valid = data.first()? & 0x80 != 0;
        let additional = match be16(data, 12) {
            Some(_) if *data.get(7)? < 6 => AdditionalSense::NONE,
            Some(code) => AdditionalSense((code >> 8) as u8, code as u8),
            None => return None,
        };
        let specific = data.get(15..18).filter(|s| s.first().is_some_and(|b| b & 0x80 != 0));
        Some(Self {
            deferred: false,
            key,
            additional,
            information: if valid { be32(data, 3).map(u64::from) } else { None },
            field: specific.filter(|_| key == SenseKey::IllegalRequest).and_then(field_pointer),
        })
    }

    fn decode_descriptors(data: &[u8]) -> Option<Self> {
        let mut sense =
            Self::new(SenseKey::from_code(*data.get(1)?), AdditionalSense(*data.get(2)?, *data.get(3)?));
        let length = usize::from(data.get(7).copied().unwrap_or(0));
        let mut rest = data.get(8..).unwrap_or_default();
        rest = rest.get(..length).unwrap_or(rest);
        while let [kind, len, ..] = *rest {
            let end = usize::from(len) + 2;
            let Some(descriptor) = rest.get(..end) else { break };
            match kind {
                0x00 => sense.information = be64(descriptor, 4),
                0x02 if sense.key == SenseKey::IllegalRequest => {
                    sense.field = descriptor.get(4..7).and_then(field_pointer);
                }
                _ => {}
            }
            rest = rest.get(end..).unwrap_or_default();
        }
        Some(sense)
    }
}

/// Decodes the three bytes of sense key specific data.
fn field_pointer(data: &[u8]) -> Option<FieldPointer> {
    let flags = *data.first()?;
    let bit = (flags & 0x08 != 0).then_some(flags & 0x07);
    Some(FieldPointer { in_cdb: flags & 0x40 != 0, byte: be16(data, 1)?, bit })
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdditionalSense(code, qualifier) = self.additional;
        let text = self.additional.name().unwrap_or("additional sense code");
        let deferred = if self.deferred { "deferred " } else { "" };
        write!(f, "{deferred}{}: {text} ({:x}/{code:02x}/{qualifier:02x})", self.key.name(), self.key as u8)?;
        if let Some(information) = self.information {
            write!(f, ", information {information}")?;
        }
        if let Some(field) = self.field {
            let place = if field.in_cdb { "CDB" } else { "parameter list" };
            write!(f, ", byte {} of the {place}", field.byte)?;
        }
        Ok(())
    }
}

impl std::error::Error for Sense {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_format_is_byte_exact() {
        let miscompare = Sense::new(SenseKey::Miscompare, AdditionalSense::MISCOMPARE).with_information(7);
        assert_eq!(miscompare.to_bytes(), [0xf0, 0, 0x0e, 0, 0, 0, 7, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0]);
        let field = Sense::cdb_field(1, Some(3));
        assert_eq!(field.to_bytes(), [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcb, 0, 1]);
        let parameter = Sense::parameter(0x102);
        assert_eq!(parameter.to_bytes()[12..], [0x26, 0, 0, 0x80, 1, 2]);
        let deferred = Sense::new(SenseKey::MediumError, AdditionalSense::WRITE_ERROR).into_deferred();
        assert_eq!(deferred.to_bytes()[..14], [0x71, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0c, 0]);
        for sense in [miscompare, field, parameter, deferred] {
            assert_eq!(Sense::decode(&sense.to_bytes()), Some(sense));
        }
    }

    #[test]
    fn large_information_is_not_truncated() {
        let sense = Sense::new(SenseKey::MediumError, AdditionalSense::READ_ERROR).with_information(1 << 32);
        assert_eq!(sense.to_bytes()[..7], [0x70, 0, 3, 0, 0, 0, 0]);
    }

    #[test]
    fn descriptor_format_is_decoded() {
        let data = [
            0x72, 5, 0x24, 0, 0, 0, 0, 20, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 2, 2, 6, 0, 0, 0xc0, 0, 9, 0,
        ];
        let sense = Sense::decode(&data).unwrap();
        assert_eq!((sense.deferred, sense.information), (false, Some(0x1_0000_0002)));
        assert!(Sense::decode(&[&[0x73][..], &data[1..]].concat()).unwrap().deferred);
        assert_eq!(sense.field, Some(FieldPointer { in_cdb: true, byte: 9, bit: None }));
        for len in 0..data.len() {
            let _ = Sense::decode(&data[..len]);
        }
        // Decoding ends also with descriptors of length 0.
        assert!(Sense::decode(&[0x72, 5, 0x24, 0, 0, 0, 0, 255, 0, 0, 0, 0]).is_some());
    }

    #[test]
    fn text_names_key_code_and_field() {
        assert_eq!(
            Sense::cdb_field(2, None).to_string(),
            "ILLEGAL REQUEST: INVALID FIELD IN CDB (5/24/00), byte 2 of the CDB"
        );
        let unknown = Sense::new(SenseKey::HardwareError, AdditionalSense(0x3e, 1));
        assert_eq!(unknown.to_string(), "HARDWARE ERROR: additional sense code (4/3e/01)");
    }
}
