//! Additional header segments (RFC 7143 section 11.2.2): length of the contents (16), type (8), contents, padding
//! to 4 bytes.

use super::{Invalid, opcode};

const EXTENDED_CDB: u8 = 1;
const BIDIRECTIONAL: u8 = 2;

/// Checks the additional header segments `ahs` of a PDU with `opcode` (byte 0 of the header).
///
/// # Errors
///
/// Any segment is an error, because both types that RFC 7143 defines belong to commands that are not supported;
/// the error states which. Without segments the result is `Ok`.
pub fn check_ahs(byte0: u8, ahs: &[u8]) -> Result<(), Invalid> {
    let mut rest = ahs;
    let mut refused = None;
    while let [l0, l1, kind, specific @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*l0, *l1])); // The length of `specific`, without padding.
        let padded = (length + 3).next_multiple_of(4) - 3;
        let error = match kind & 0x3f {
            EXTENDED_CDB if length > 1 => Invalid::ExtendedCdb,
            BIDIRECTIONAL if length == 5 => Invalid::Bidirectional,
            _ => return Err(Invalid::Ahs),
        };
        refused = refused.or(Some(error));
        let Some(next) = specific.get(padded..) else {
            return Err(Invalid::Ahs);
        };
        rest = next;
    }
    match refused {
        _ if !rest.is_empty() => Err(Invalid::Ahs),
        Some(_) if byte0 & 0x3f != opcode::SCSI_COMMAND => Err(Invalid::Ahs),
        Some(error) => Err(error),
        None => Ok(()),
    }
}
