//! Initiator ports and the TransportIDs that identify them (SPC-4 section 7.6.4.6, RFC 7143 section 4.2.7).

use std::sync::Arc;

/// Longest iSCSI name in bytes (RFC 7143 section 4.2.7.2).
pub(super) const MAX_NAME: usize = 223;

/// Longest TransportID in bytes: header, name, separator, 12 hexadecimal digits and NUL, in words of four bytes.
pub(super) const MAX_TRANSPORT_ID: usize = 4 + (MAX_NAME + SEPARATOR.len() + 12 + 1).next_multiple_of(4);

/// Smallest value of ADDITIONAL LENGTH.
const MIN_ADDITIONAL_LENGTH: usize = 20;

/// PROTOCOL IDENTIFIER of SCSI over iSCSI.
const ISCSI: u8 = 5;

/// Separates the iSCSI name from the ISID in a TransportID of an initiator port.
const SEPARATOR: &str = ",i,0x";

/// An iSCSI name is empty, longer than 223 bytes, or has a comma, a space or a control character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid iSCSI name: it must have 1 to 223 bytes and no comma, space or control character; \
     configure a name as in RFC 7143 section 4.2.7"
)]
pub struct InvalidName;

/// An iSCSI initiator port: the name of the iSCSI node and the ISID (RFC 7143 section 3.4.2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InitiatorPort {
    name: Arc<str>,
    isid: [u8; 6],
}

impl InitiatorPort {
    /// The port of the node `name` with `isid`. ASCII letters of the name are folded to lower case (RFC 3722).
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(name: &str, isid: [u8; 6]) -> Result<Self, InvalidName> {
        Ok(Self { name: node_name(name).ok_or(InvalidName)?, isid })
    }

    /// The iSCSI name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The initiator's part of the session identifier.
    pub fn isid(&self) -> [u8; 6] {
        self.isid
    }

    /// The TransportID of TPID FORMAT 01b.
    pub fn transport_id(&self) -> Vec<u8> {
        let mut text = format!("{}{SEPARATOR}", self.name).into_bytes();
        for byte in self.isid {
            text.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        text.resize((text.len() + 1).next_multiple_of(4).max(MIN_ADDITIONAL_LENGTH), 0);
        let mut id = vec![0x40 | ISCSI, 0];
        id.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        id.extend_from_slice(&text);
        id
    }
}

/// `name` in lower case, if it is valid.
fn node_name(name: &str) -> Option<Arc<str>> {
    let valid = |c: char| c != ',' && c != ' ' && !c.is_control();
    let fits = (1..=MAX_NAME).contains(&name.len());
    (fits && name.chars().all(valid)).then(|| name.to_ascii_lowercase().into())
}

/// The initiator ports that a TransportID in a parameter list identifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TransportId {
    /// Every initiator port of a node (TPID FORMAT 00b).
    Node(Arc<str>),
    /// One initiator port (TPID FORMAT 01b).
    Port(InitiatorPort),
}

impl TransportId {
    /// The first TransportID of `bytes`, and the bytes after it; `None` if it is malformed or truncated.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[format, _, high, low], rest) = bytes.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        if format & 0x0f != ISCSI || length < MIN_ADDITIONAL_LENGTH || !length.is_multiple_of(4) {
            return None;
        }
        let (text, rest) = rest.split_at_checked(length)?;
        let end = text.iter().position(|&byte| byte == 0)?;
        let text = std::str::from_utf8(text.get(..end)?).ok()?;
        let id = match format >> 6 {
            0 => Self::Node(node_name(text)?),
            1 => Self::Port(port(text)?),
            _ => return None,
        };
        Some((id, rest))
    }
}

/// The port `NAME,i,0xISID`.
fn port(text: &str) -> Option<InitiatorPort> {
    let (name, isid) = text.split_once(SEPARATOR)?;
    if !(1..=12).contains(&isid.len()) || !isid.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let [_, _, isid @ ..] = u64::from_str_radix(isid, 16).ok()?.to_be_bytes();
    InitiatorPort::new(name, isid).ok()
}
