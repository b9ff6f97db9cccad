//! The contents of a Send: an iSER header, and the PDU that follows it.

use super::{HEADER_BYTES, Header, HeaderError, Hello, HelloReply, header::Advertised};
use crate::pdu::{BHS_BYTES, Bhs, Lengths, MAX_AHS_BYTES, padding};

/// Length of the iSER header and the basic header segment in bytes.
pub const PREFIX_BYTES: usize = HEADER_BYTES + BHS_BYTES;

/// Maximum length of a message whose data segment has at most `data` bytes.
pub const fn max_message(data: u32) -> usize {
    PREFIX_BYTES + MAX_AHS_BYTES + data as usize
}

/// A control-type PDU without digests (RFC 7145 section 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pdu<'a> {
    /// The buffers of the iSER header.
    pub advertised: Advertised,
    /// Basic header segment.
    pub bhs: &'a Bhs,
    /// Additional header segments.
    pub ahs: &'a [u8],
    /// Data segment.
    pub data: &'a [u8],
}

/// A received Send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A PDU.
    Pdu(Pdu<'a>),
    /// The initiator's Hello.
    Hello(Hello),
    /// The target's answer to a Hello.
    HelloReply(HelloReply),
}

/// Why a received message is invalid. The connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The iSER header is invalid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The length of the message is not the one that its header states.
    #[error("the peer sent an iSER message of {received} bytes; its header states {stated}")]
    Length {
        /// Length in bytes.
        received: usize,
        /// Length that the header states in bytes, without padding; at least the length of the headers.
        stated: usize,
    },
    /// The message belongs to the other role, or is repeated.
    #[error("the peer sent an unexpected iSER {0}")]
    Unexpected(&'static str),
}

impl<'a> Message<'a> {
    /// Decodes a message. Padding after the data segment is optional, and ignored.
    ///
    /// # Errors
    ///
    /// The header is invalid, or the message is shorter or longer than its header states.
    pub fn decode(message: &'a [u8]) -> Result<Self, MessageError> {
        let (header, rest) = Header::decode(message)?;
        let received = message.len();
        let advertised = match header {
            Header::Control(advertised) => advertised,
            Header::Hello(_) | Header::HelloReply(_) if !rest.is_empty() => {
                return Err(MessageError::Length { received, stated: HEADER_BYTES });
            }
            Header::Hello(hello) => return Ok(Self::Hello(hello)),
            Header::HelloReply(reply) => return Ok(Self::HelloReply(reply)),
        };
        let Some((bhs, rest)) = rest.split_first_chunk::<BHS_BYTES>() else {
            return Err(MessageError::Length { received, stated: PREFIX_BYTES });
        };
        let lengths = Lengths::of(bhs);
        let length = lengths.ahs + lengths.data as usize;
        if rest.len() < length || rest.len() > length + padding(lengths.data) {
            return Err(MessageError::Length { received, stated: PREFIX_BYTES + length });
        }
        let (ahs, data) = rest[..length].split_at(lengths.ahs);
        Ok(Self::Pdu(Pdu { advertised, bhs, ahs, data }))
    }
}

/// The iSER header and the basic header segment of a PDU to send. Its data segment follows.
pub fn prefix(advertised: Advertised, bhs: &Bhs) -> [u8; PREFIX_BYTES] {
    let mut bytes = [0; PREFIX_BYTES];
    bytes[..HEADER_BYTES].copy_from_slice(&Header::Control(advertised).encode());
    bytes[HEADER_BYTES..].copy_from_slice(bhs);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iser::RemoteBuffer;

    /// A control message whose header states 4 bytes of AHS and 5 bytes of data, and `rest` bytes after it.
    fn message(rest: usize) -> Vec<u8> {
        let mut bhs = [0; BHS_BYTES];
        (bhs[0], bhs[4], bhs[7]) = (1, 1, 5);
        let read = Some(RemoteBuffer { stag: 0x501, base: 7 });
        let mut bytes = prefix(Advertised { write: None, read }, &bhs).to_vec();
        bytes.extend((0..rest).map(|i| i as u8));
        bytes
    }

    #[test]
    fn a_pdu_is_divided_into_headers_and_data() {
        for rest in 9..=12 {
            let bytes = message(rest);
            let Ok(Message::Pdu(pdu)) = Message::decode(&bytes) else { panic!("{rest} bytes") };
            assert_eq!(pdu.advertised.read, Some(RemoteBuffer { stag: 0x501, base: 7 }));
            assert_eq!((pdu.bhs[0], pdu.ahs, pdu.data), (1, &[0, 1, 2, 3][..], &[4, 5, 6, 7, 8][..]));
        }
    }

    #[test]
    fn a_message_of_another_length_than_stated_is_an_error() {
        for rest in [0, 8, 13] {
            let stated = PREFIX_BYTES + 9;
            let error = MessageError::Length { received: PREFIX_BYTES + rest, stated };
            assert_eq!(Message::decode(&message(rest)), Err(error));
        }
        let short = MessageError::Length { received: PREFIX_BYTES - 1, stated: PREFIX_BYTES };
        assert_eq!(Message::decode(&message(9)[..PREFIX_BYTES - 1]), Err(short));
        assert_eq!(Message::decode(&[0x10; 27]), Err(HeaderError::Short(27).into()));
    }

    #[test]
    fn nothing_follows_a_hello() {
        let mut bytes = Header::Hello(Hello::new(4)).encode().to_vec();
        assert_eq!(Message::decode(&bytes), Ok(Message::Hello(Hello::new(4))));
        bytes.push(0);
        let error = MessageError::Length { received: HEADER_BYTES + 1, stated: HEADER_BYTES };
        assert_eq!(Message::decode(&bytes), Err(error));
    }
}
