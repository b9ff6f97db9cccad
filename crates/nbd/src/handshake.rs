//! The fixed newstyle handshake, without I/O.

use crate::wire::{
    ALLOCATION, ALLOCATION_ID, CLIENT_FLAGS_BYTES, IHAVEOPT, OPTION_BYTES, export_flag, handshake_flag, info,
    option, option_reply, put_option_reply, split_u16, split_u32, split_u64,
};

/// Maximum length of the data of an option in bytes: a name of 4096 bytes, and the rest of NBD_OPT_GO.
pub(crate) const MAX_OPTION: usize = 8192;
/// Maximum number of options of a connection.
const MAX_OPTIONS: u32 = 128;
/// Length of the zeros after the reply to NBD_OPT_EXPORT_NAME.
const ZEROES: usize = 124;
/// Why a name is unknown.
const NO_SUCH_EXPORT: &[u8] = b"there is one export, whose name is empty";
/// Preferred block size, unless that of the device is larger.
const PREFERRED: u32 = 4096;

/// A violation of the protocol, after which the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// The description of the export that the server sends.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    /// Number of bytes.
    pub(crate) size: u64,
    /// Minimum block size: a power of two.
    pub(crate) block_size: u32,
    /// Maximum length of a read or write in bytes.
    pub(crate) max_payload: u32,
    /// Transmission flags without NBD_FLAG_SEND_DF.
    pub(crate) flags: u16,
    /// A text for users.
    pub(crate) text: String,
}

/// The options that the client has negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Negotiated {
    /// Structured replies.
    pub(crate) structured: bool,
    /// The metadata context `base:allocation`.
    pub(crate) allocation: bool,
}

/// The phase after an option.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another option.
    Option,
    /// The transmission phase.
    Transmission(Negotiated),
    /// The end of the connection.
    End,
}

/// The state of a handshake. The caller supplies the client flags once, then options.
#[derive(Debug)]
pub(crate) struct Handshake {
    export: Description,
    fixed: bool,
    no_zeroes: bool,
    negotiated: Negotiated,
    options: u32,
}

impl Handshake {
    pub(crate) fn new(export: Description) -> Self {
        Self { export, fixed: false, no_zeroes: false, negotiated: Negotiated::default(), options: 0 }
    }

    pub(crate) fn client_flags(&mut self, bytes: [u8; CLIENT_FLAGS_BYTES]) -> Result<(), Violation> {
        let flags = u32::from_be_bytes(bytes);
        let fixed = u32::from(handshake_flag::FIXED_NEWSTYLE);
        let no_zeroes = u32::from(handshake_flag::NO_ZEROES);
        if flags & !(fixed | no_zeroes) != 0 {
            return Err(Violation("unknown client flags"));
        }
        (self.fixed, self.no_zeroes) = (flags & fixed != 0, flags & no_zeroes != 0);
        Ok(())
    }

    /// The type of an option and the length of its data.
    pub(crate) fn option_header(&mut self, bytes: &[u8; OPTION_BYTES]) -> Result<(u32, usize), Violation> {
        let fields = split_u64(bytes).and_then(|(magic, rest)| {
            let (kind, rest) = split_u32(rest)?;
            Some((magic, kind, split_u32(rest)?.0 as usize))
        });
        let Some((IHAVEOPT, kind, length)) = fields else {
            return Err(Violation("an option without its magic number"));
        };
        if length > MAX_OPTION {
            return Err(Violation("an option is too long"));
        }
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Err(Violation("too many options"));
        }
        if !self.fixed && kind != option::EXPORT_NAME {
            return Err(Violation("an option of the fixed newstyle, which the client did not select"));
        }
        Ok((kind, length))
    }

    /// Processes an option, and appends the reply to `out`.
    pub(crate) fn option(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Next, Violation> {
        match kind {
            option::EXPORT_NAME => return self.export_name(data, out),
            option::GO | option::INFO => return Ok(self.go(kind, data, out)),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(kind, data, out),
            option::ABORT => {
                put_option_reply(out, kind, option_reply::ACK, &[]);
                return Ok(Next::End);
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                put_option_reply(out, kind, option_reply::ERR_INVALID, b"the option has no data");
            }
            option::LIST => {
                let server = [&[0; 4], self.export.text.as_bytes()].concat();
                put_option_reply(out, kind, option_reply::SERVER, &server);
                put_option_reply(out, kind, option_reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY => {
                self.negotiated.structured = true;
                put_option_reply(out, kind, option_reply::ACK, &[]);
            }
            _ => put_option_reply(out, kind, option_reply::ERR_UNSUP, b"the option is not supported"),
        }
        Ok(Next::Option)
    }

    /// Transmission flags.
    fn flags(&self) -> u16 {
        self.export.flags | if self.negotiated.structured { export_flag::SEND_DF } else { 0 }
    }

    /// Lists or selects metadata contexts. A selection replaces the one before, also if it is refused.
    fn meta_context(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) {
        let selects = kind == option::SET_META_CONTEXT;
        if selects {
            self.negotiated.allocation = false;
        }
        let Some((name, queries)) = decode_meta_context(data) else {
            return put_option_reply(out, kind, option_reply::ERR_INVALID, b"malformed data");
        };
        if !self.negotiated.structured {
            let text = b"metadata contexts need structured replies";
            return put_option_reply(out, kind, option_reply::ERR_INVALID, text);
        }
        if !name.is_empty() {
            return put_option_reply(out, kind, option_reply::ERR_UNKNOWN, NO_SUCH_EXPORT);
        }
        // A list without queries is that of all contexts; with the name of a namespace, that of its contexts.
        let all = !selects && (queries.is_empty() || queries.contains(&&b"base:"[..]));
        if all || queries.contains(&ALLOCATION) {
            self.negotiated.allocation |= selects;
            let id = if selects { ALLOCATION_ID } else { 0 };
            let context = [&id.to_be_bytes()[..], ALLOCATION].concat();
            put_option_reply(out, kind, option_reply::META_CONTEXT, &context);
        }
        put_option_reply(out, kind, option_reply::ACK, &[]);
    }

    fn export_name(&self, name: &[u8], out: &mut Vec<u8>) -> Result<Next, Violation> {
        if !name.is_empty() {
            return Err(Violation("there is one export, whose name is empty"));
        }
        out.extend_from_slice(&self.export.size.to_be_bytes());
        out.extend_from_slice(&self.flags().to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; ZEROES]);
        }
        Ok(Next::Transmission(self.negotiated))
    }

    fn go(&self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        let Some((name, wanted)) = decode_go(data) else {
            put_option_reply(out, kind, option_reply::ERR_INVALID, b"malformed data");
            return Next::Option;
        };
        if !name.is_empty() {
            put_option_reply(out, kind, option_reply::ERR_UNKNOWN, NO_SUCH_EXPORT);
            return Next::Option;
        }
        let export = &self.export;
        let mut put = |number: u16, fields: &[&[u8]]| {
            let data = [&[&number.to_be_bytes()[..]], fields].concat().concat();
            put_option_reply(out, kind, option_reply::INFO, &data);
        };
        put(info::EXPORT, &[&export.size.to_be_bytes(), &self.flags().to_be_bytes()]);
        if wanted.contains(&info::NAME) {
            put(info::NAME, &[]);
        }
        if wanted.contains(&info::DESCRIPTION) {
            put(info::DESCRIPTION, &[export.text.as_bytes()]);
        }
        // Also for a client that did not request it: a server may do so, and the size matters.
        let (min, max) = (export.block_size, export.max_payload);
        let preferred = min.max(PREFERRED).to_be_bytes();
        put(info::BLOCK_SIZE, &[&min.to_be_bytes(), &preferred, &max.to_be_bytes()]);
        put_option_reply(out, kind, option_reply::ACK, &[]);
        match kind {
            option::GO => Next::Transmission(self.negotiated),
            _ => Next::Option,
        }
    }
}

/// The name of the export, and the client's queries.
fn decode_meta_context(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (length, rest) = split_u32(data)?;
    let (name, rest) = rest.split_at_checked(length as usize)?;
    let (count, mut rest) = split_u32(rest)?;
    let mut queries = Vec::new();
    for _ in 0..count {
        let (length, after) = split_u32(rest)?;
        let (query, after) = after.split_at_checked(length as usize)?;
        queries.push(query);
        rest = after;
    }
    rest.is_empty().then_some((name, queries))
}

/// The name of the export, and the types of information that the client requests.
fn decode_go(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (length, rest) = split_u32(data)?;
    let (name, rest) = rest.split_at_checked(length as usize)?;
    let (count, mut rest) = split_u16(rest)?;
    let mut wanted = Vec::new();
    for _ in 0..count {
        let (number, after) = split_u16(rest)?;
        wanted.push(number);
        rest = after;
    }
    rest.is_empty().then_some((name, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake(client_flags: u32) -> Handshake {
        let mut handshake = Handshake::new(Description {
            size: 0x0102_0304_0000,
            block_size: 512,
            max_payload: 32 << 20,
            flags: export_flag::HAS_FLAGS | export_flag::SEND_FLUSH,
            text: "disk".into(),
        });
        handshake.client_flags(client_flags.to_be_bytes()).unwrap();
        handshake
    }

    /// The reply to an option, and what follows.
    fn reply(handshake: &mut Handshake, kind: u32, data: &[u8]) -> (Vec<u8>, Next) {
        let mut out = Vec::new();
        let next = handshake.option(kind, data, &mut out).unwrap();
        (out, next)
    }

    /// The type of the first reply.
    fn kind(out: &[u8]) -> u32 {
        u32::from_be_bytes(out[12..16].try_into().unwrap())
    }

    fn header(kind: u32, length: u32) -> [u8; OPTION_BYTES] {
        let mut out = *b"IHAVEOPT\0\0\0\0\0\0\0\0";
        out[8..12].copy_from_slice(&kind.to_be_bytes());
        out[12..].copy_from_slice(&length.to_be_bytes());
        out
    }

    /// The header of a reply to an option.
    macro_rules! reply_header {
        ($option:literal, $kind:literal, $length:literal) => {
            concat!("0003e889045565a9", "000000", $option, $kind, "000000", $length)
        };
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn export_name_enters_the_transmission_phase() {
        let (out, next) = reply(&mut handshake(3), option::EXPORT_NAME, &[]);
        assert_eq!(hex(&out), concat!("0000010203040000", "0005"));
        assert_eq!(next, Next::Transmission(Negotiated::default()));
        let (out, _) = reply(&mut handshake(1), option::EXPORT_NAME, &[]);
        assert_eq!((out.len(), &out[10..]), (134, &[0; 124][..]));
        let mut out = Vec::new();
        assert!(handshake(3).option(option::EXPORT_NAME, b"other", &mut out).is_err());
    }

    #[test]
    fn go_describes_the_export() {
        let mut handshake = handshake(3);
        let (out, next) = reply(&mut handshake, option::STRUCTURED_REPLY, &[]);
        assert_eq!((hex(&out).as_str(), next), (reply_header!("08", "00000001", "00"), Next::Option));
        // No name; NAME, DESCRIPTION and BLOCK_SIZE.
        let (out, next) = reply(&mut handshake, option::GO, b"\0\0\0\0\0\x03\0\x01\0\x02\0\x03");
        let expected = [
            reply_header!("07", "00000003", "0c"),
            "0000",
            "0000010203040000",
            "0085", // SEND_DF is there because of the structured replies.
            reply_header!("07", "00000003", "02"),
            "0001",
            reply_header!("07", "00000003", "06"),
            "0002",
            "6469736b",
            reply_header!("07", "00000003", "0e"),
            "0003",
            "00000200",
            "00001000",
            "02000000",
            reply_header!("07", "00000001", "00"),
        ];
        assert_eq!(hex(&out), expected.concat());
        assert_eq!(next, Next::Transmission(Negotiated { structured: true, allocation: false }));
    }

    #[test]
    fn info_stays_in_the_handshake() {
        let (out, next) = reply(&mut handshake(3), option::INFO, &[0; 6]);
        assert!(hex(&out).ends_with(reply_header!("06", "00000001", "00")));
        assert_eq!((out.len(), next), (20 + 12 + 20 + 14 + 20, Next::Option));
    }

    #[test]
    fn options_with_wrong_data_get_an_error_and_change_nothing() {
        let mut handshake = handshake(3);
        let long_name = [&5_u32.to_be_bytes()[..], b"other\0\0"].concat();
        let wrong: &[(u32, &[u8], u32)] = &[
            (option::GO, b"", option_reply::ERR_INVALID),
            (option::GO, b"\0\0\0\x01\0\0", option_reply::ERR_INVALID),
            (option::GO, b"\xff\xff\xff\xff\0\0", option_reply::ERR_INVALID),
            (option::GO, b"\0\0\0\0\0\x02\0\x01", option_reply::ERR_INVALID),
            (option::GO, b"\0\0\0\0\0\0\0", option_reply::ERR_INVALID),
            (option::GO, &long_name, option_reply::ERR_UNKNOWN),
            (option::INFO, &long_name, option_reply::ERR_UNKNOWN),
            (option::LIST, b"x", option_reply::ERR_INVALID),
            (option::STRUCTURED_REPLY, b"x", option_reply::ERR_INVALID),
            (5, b"", option_reply::ERR_UNSUP), // STARTTLS
            (option::SET_META_CONTEXT, b"\0\0\0\0", option_reply::ERR_INVALID),
            // Metadata contexts require structured replies.
            (
                option::SET_META_CONTEXT,
                b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation",
                option_reply::ERR_INVALID,
            ),
            (0xffff_ffff, b"", option_reply::ERR_UNSUP),
        ];
        for (option, data, error) in wrong {
            let (out, next) = reply(&mut handshake, *option, data);
            assert_eq!((kind(&out), next), (*error, Next::Option), "option {option} with {data:?}");
        }
        assert_eq!(handshake.negotiated, Negotiated::default());
    }

    /// The data of an option for the default export.
    fn queries(all: &[&str]) -> Vec<u8> {
        let mut data = [&[0; 4][..], &(all.len() as u32).to_be_bytes()].concat();
        for query in all {
            data.extend((query.len() as u32).to_be_bytes());
            data.extend(query.as_bytes());
        }
        data
    }

    fn structured() -> Handshake {
        let mut handshake = handshake(3);
        reply(&mut handshake, option::STRUCTURED_REPLY, &[]);
        handshake
    }

    const ALLOCATION_HEX: &str = "626173653a616c6c6f636174696f6e";

    #[test]
    fn the_allocation_context_is_selected() {
        let mut handshake = structured();
        let set = queries(&["qemu:dirty-bitmap:x", "base:allocation", "base:allocation"]);
        let (out, next) = reply(&mut handshake, option::SET_META_CONTEXT, &set);
        let expected = [
            reply_header!("0a", "00000004", "13"),
            "00000001",
            ALLOCATION_HEX,
            reply_header!("0a", "00000001", "00"),
        ];
        assert_eq!((hex(&out), next), (expected.concat(), Next::Option));
        let negotiated = Negotiated { structured: true, allocation: true };
        for enter in [option::GO, option::EXPORT_NAME] {
            let data: &[u8] = if enter == option::GO { b"\0\0\0\0\0\0" } else { &[] };
            assert_eq!(reply(&mut handshake, enter, data).1, Next::Transmission(negotiated));
        }
        // Another selection of metadata contexts replaces the earlier one, even if it is refused.
        let other = [&5_u32.to_be_bytes()[..], b"other\0\0\0\0"].concat();
        for (data, answer) in [
            (queries(&[]), option_reply::ACK),
            (queries(&["base:"]), option_reply::ACK),
            (queries(&["base:other"]), option_reply::ACK),
            (other, option_reply::ERR_UNKNOWN),
            (b"\0\0\0\0\xff\xff\xff\xff".to_vec(), option_reply::ERR_INVALID),
        ] {
            handshake.negotiated.allocation = true;
            let (out, _) = reply(&mut handshake, option::SET_META_CONTEXT, &data);
            assert_eq!((kind(&out), handshake.negotiated.allocation), (answer, false), "{data:?}");
        }
    }

    #[test]
    fn metadata_contexts_are_listed_without_being_selected() {
        let context = [
            reply_header!("09", "00000004", "13"),
            "00000000",
            ALLOCATION_HEX,
            reply_header!("09", "00000001", "00"),
        ]
        .concat();
        for (list, listed) in [
            (queries(&[]), true),
            (queries(&["base:"]), true),
            (queries(&["base:allocation"]), true),
            (queries(&["qemu:"]), false),
        ] {
            let mut handshake = structured();
            let (out, _) = reply(&mut handshake, option::LIST_META_CONTEXT, &list);
            let expected = if listed { &context } else { reply_header!("09", "00000001", "00") };
            assert_eq!(hex(&out), expected, "{list:?}");
            assert!(!handshake.negotiated.allocation);
        }
    }

    #[test]
    fn list_and_abort_are_answered() {
        let (out, next) = reply(&mut handshake(3), option::LIST, &[]);
        let expected = [
            reply_header!("03", "00000002", "08"),
            "00000000",
            "6469736b",
            reply_header!("03", "00000001", "00"),
        ];
        assert_eq!((hex(&out), next), (expected.concat(), Next::Option));
        let (out, next) = reply(&mut handshake(3), option::ABORT, b"ignored");
        assert_eq!((hex(&out).as_str(), next), (reply_header!("02", "00000001", "00"), Next::End));
    }

    #[test]
    fn violations_end_the_handshake() {
        assert!(handshake(0).client_flags([0, 0, 0, 4]).is_err());
        let mut fixed = handshake(1);
        assert_eq!(fixed.option_header(&header(7, 6)), Ok((7, 6)));
        assert_eq!(fixed.option_header(&header(7, 8192)), Ok((7, 8192)));
        assert!(fixed.option_header(&header(7, 8193)).is_err());
        assert!(fixed.option_header(b"IHAVEOPX\0\0\0\x07\0\0\0\0").is_err());
        assert!(handshake(0).option_header(&header(option::GO, 6)).is_err());
        assert!(handshake(0).option_header(&header(option::EXPORT_NAME, 0)).is_ok());
        let mut flood = handshake(1);
        for _ in 0..MAX_OPTIONS {
            flood.option_header(&header(option::LIST, 0)).unwrap();
        }
        assert!(flood.option_header(&header(option::LIST, 0)).is_err());
    }
}
