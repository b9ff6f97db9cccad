//! Numbers and layouts of the protocol, in network byte order.

/// First word of the server.
pub(crate) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Begins the newstyle handshake, and every option.
pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Begins a reply to an option.
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Length of the client flags in bytes.
pub(crate) const CLIENT_FLAGS_BYTES: usize = 4;
/// Length of the header of an option in bytes.
pub(crate) const OPTION_BYTES: usize = 16;
/// Length of the header of a request in bytes.
pub(crate) const REQUEST_BYTES: usize = 28;

/// Flags of the handshake, of both sides.
pub(crate) mod handshake_flag {
    /// NBD_FLAG_FIXED_NEWSTYLE, NBD_FLAG_C_FIXED_NEWSTYLE.
    pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// NBD_FLAG_NO_ZEROES, NBD_FLAG_C_NO_ZEROES.
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags (NBD_FLAG_*).
pub(crate) mod export_flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Options (NBD_OPT_*).
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options (NBD_REP_*).
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
}

/// Types of information about an export (NBD_INFO_*).
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Commands (NBD_CMD_*).
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands (NBD_CMD_FLAG_*).
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
}

/// The metadata context that states which blocks have storage.
pub(crate) const ALLOCATION: &[u8] = b"base:allocation";
/// Its number on each connection.
pub(crate) const ALLOCATION_ID: u32 = 1;

/// Flags of a range in [`ALLOCATION`] (NBD_STATE_*).
pub(crate) mod state {
    pub(crate) const HOLE: u32 = 1 << 0;
    pub(crate) const ZERO: u32 = 1 << 1;
}

/// NBD_REPLY_FLAG_DONE.
const DONE: u16 = 1 << 0;

/// Types of structured replies (NBD_REPLY_TYPE_*).
mod reply {
    pub(super) const NONE: u16 = 0;
    pub(super) const OFFSET_DATA: u16 = 1;
    pub(super) const BLOCK_STATUS: u16 = 5;
    pub(super) const ERROR: u16 = (1 << 15) + 1;
}

/// Maximum length of the text of an error in bytes.
const MAX_MESSAGE: usize = 1024;

/// Error of a request (NBD_E*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Errno {
    Perm = 1,
    Io = 5,
    NoMem = 12,
    Inval = 22,
    NoSpc = 28,
    Shutdown = 108,
}

/// The server's first message.
pub(crate) fn greeting() -> [u8; 18] {
    let mut out = [0; 18];
    out[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    out[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    out[16..].copy_from_slice(&flags.to_be_bytes());
    out
}

/// Appends a reply to an option.
pub(crate) fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    // The replies of the server are short.
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    /// The client's identification, which the reply repeats.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Request {
    /// `None` if the bytes do not begin with the magic number.
    pub(crate) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let (magic, rest) = split_u32(bytes)?;
        let (flags, rest) = split_u16(rest)?;
        let (command, rest) = split_u16(rest)?;
        let (cookie, rest) = split_u64(rest)?;
        let (offset, rest) = split_u64(rest)?;
        let (length, _) = split_u32(rest)?;
        (magic == REQUEST_MAGIC).then_some(Self { flags, command, cookie, offset, length })
    }
}

/// Appends a simple reply; the data of a read follows it.
pub(crate) fn put_simple_reply(out: &mut impl Extend<u8>, cookie: u64, error: Option<Errno>) {
    out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend(error.map_or(0, |e| e as u32).to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

fn put_chunk(out: &mut impl Extend<u8>, kind: u16, cookie: u64, length: u32) {
    out.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend(DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(length.to_be_bytes());
}

/// Appends the only chunk of a structured reply to a read; `length` bytes of data, at most the maximum payload, follow
/// it.
pub(crate) fn put_data_chunk(out: &mut impl Extend<u8>, cookie: u64, offset: u64, length: u32) {
    // A chunk with data is not empty.
    if length == 0 {
        return put_chunk(out, reply::NONE, cookie, 0);
    }
    put_chunk(out, reply::OFFSET_DATA, cookie, 8 + length);
    out.extend(offset.to_be_bytes());
}

/// Appends the only chunk of a structured reply with the states of consecutive ranges: length in bytes, and flags.
pub(crate) fn put_status_chunk(out: &mut impl Extend<u8>, cookie: u64, ranges: &[(u32, u32)]) {
    // The device reports at most 255 ranges.
    put_chunk(out, reply::BLOCK_STATUS, cookie, 4 + 8 * ranges.len() as u32);
    out.extend(ALLOCATION_ID.to_be_bytes());
    for (length, flags) in ranges {
        out.extend(length.to_be_bytes());
        out.extend(flags.to_be_bytes());
    }
}

/// Appends the only chunk of a structured reply with an error and the beginning of its text.
pub(crate) fn put_error_chunk(out: &mut impl Extend<u8>, cookie: u64, error: Errno, text: &str) {
    let text = &text[..text.floor_char_boundary(MAX_MESSAGE)];
    // At most MAX_MESSAGE.
    let length = text.len() as u16;
    put_chunk(out, reply::ERROR, cookie, 4 + 2 + u32::from(length));
    out.extend((error as u32).to_be_bytes());
    out.extend(length.to_be_bytes());
    out.extend(text.bytes());
}

/// The number at the start of `bytes`, and the rest.
pub(crate) fn split_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u16::from_be_bytes(*number), rest))
}

/// The number at the start of `bytes`, and the rest.
pub(crate) fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), rest))
}

/// The number at the start of `bytes`, and the rest.
pub(crate) fn split_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_has_both_magic_words_and_flags() {
        assert_eq!(&greeting(), b"NBDMAGICIHAVEOPT\x00\x03");
    }

    #[test]
    fn a_reply_to_an_option_repeats_it() {
        let mut out = Vec::new();
        put_option_reply(&mut out, 7, option_reply::ERR_UNKNOWN, b"no");
        let expected = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x02no";
        assert_eq!(out, expected);
    }

    #[test]
    fn a_request_is_decoded() {
        let bytes =
            b"\x25\x60\x95\x13\x00\x01\x00\x06\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x01\0\0\x10\0\0\x10\0\0";
        let request = Request {
            flags: command_flag::FUA,
            command: command::WRITE_ZEROES,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1_0000_1000,
            length: 0x10_0000,
        };
        assert_eq!(Request::decode(bytes), Some(request));
        let mut wrong = *bytes;
        wrong[3] = 0x14;
        assert_eq!(Request::decode(&wrong), None);
    }

    #[test]
    fn simple_replies_have_an_error_and_the_cookie() {
        let mut out = Vec::new();
        put_simple_reply(&mut out, 0x1122_3344_5566_7788, None);
        put_simple_reply(&mut out, 1, Some(Errno::Shutdown));
        let expected = b"\x67\x44\x66\x98\0\0\0\0\x11\x22\x33\x44\x55\x66\x77\x88\
            \x67\x44\x66\x98\0\0\0\x6c\0\0\0\0\0\0\0\x01";
        assert_eq!(out, expected);
    }

    #[test]
    fn structured_replies_have_one_chunk() {
        let mut out = Vec::new();
        put_data_chunk(&mut out, 5, 0x2000, 0x1000);
        let expected = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x05\0\0\x10\x08\0\0\0\0\0\0\x20\0";
        assert_eq!(out, expected);
        out.clear();
        put_data_chunk(&mut out, 5, 0x2000, 0);
        assert_eq!(out, b"\x66\x8e\x33\xef\0\x01\0\0\0\0\0\0\0\0\0\x05\0\0\0\0");
        out.clear();
        put_status_chunk(&mut out, 5, &[(0x1000, 0), (0x2000, state::HOLE | state::ZERO)]);
        let expected = b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x05\0\0\0\x14\0\0\0\x01\
            \0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\0\x03";
        assert_eq!(out, expected);
        out.clear();
        put_error_chunk(&mut out, 5, Errno::Io, "lost");
        let expected = b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x05\0\0\0\x0a\0\0\0\x05\0\x04lost";
        assert_eq!(out, expected);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut out = Vec::new();
        put_error_chunk(&mut out, 5, Errno::Io, &format!("{}é", "x".repeat(1023)));
        assert_eq!(out.len(), 20 + 6 + 1023);
        assert_eq!(out[24..26], 1023_u16.to_be_bytes());
    }
}
