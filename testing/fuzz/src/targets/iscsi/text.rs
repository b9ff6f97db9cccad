//! Text (RFC 7143 section 6): pairs, texts of several PDUs, values, discovery, and negotiations of honest ends.

use millrace_iscsi::{
    discovery::{self, SendTargets},
    name::{IscsiName, TargetAddress},
    text::{self, Assembly, MAX_BINARY, MAX_KEY, MAX_PAIRS, MAX_SEGMENTS, MAX_TEXT, TextError},
};

use super::honest;
use crate::{
    bytes::{Input, operations},
    heap::bounded,
};

/// Executes the target with `input`: the form, and its bytes.
pub(in crate::targets) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    match input.u8() % 5 {
        0 => pairs(input.rest()),
        1 => assembly(&mut input),
        2 => value(&String::from_utf8_lossy(input.rest())),
        3 => targets(input.rest()),
        _ => honest::negotiation(&mut input),
    }
}

/// A text that is accepted has valid keys and values, none of them twice, and is encoded without a change.
fn pairs(bytes: &[u8]) {
    let parsed = bounded(bytes.len(), || text::parse(bytes));
    let each: Result<Vec<_>, TextError> = text::pairs(bytes).collect();
    match &parsed {
        Ok(pairs) => {
            assert!(pairs.len() <= MAX_PAIRS);
            let mut again = Vec::new();
            for (n, (key, value)) in pairs.iter().enumerate() {
                assert!((1..=MAX_KEY).contains(&key.len()) && !key.contains(['=', ' ']));
                assert!(!value.contains(char::is_control));
                assert!(pairs[..n].iter().all(|(other, _)| other != key), "the key {key} twice");
                text::push(&mut again, key, value);
            }
            assert_eq!(text::parse(&again).as_ref(), Ok(pairs));
            assert_eq!(each.as_ref(), Ok(pairs));
        }
        Err(TextError::Duplicate(_) | TextError::TooMany) => {}
        Err(error) => {
            assert_eq!(each.as_ref(), Err(error));
            assert!(!error.to_string().contains(char::is_control), "the message of {error:?}");
        }
    }
}

/// Each operation is the text of a PDU, continued if its kind is odd.
fn assembly(input: &mut Input<'_>) {
    let mut assembly = Assembly::default();
    let (mut expected, mut segments) = (Vec::<u8>::new(), 0);
    while let Some((kind, operand)) = input.operation() {
        let continued = kind % 2 == 1;
        // A text of the maximum length needs more bytes than an input has.
        let segment = operand.repeat(usize::from(kind / 2) + 1);
        expected.extend(&segment);
        segments += 1;
        match assembly.push(&segment, continued) {
            Ok(Some(text)) => {
                assert!(!continued);
                assert_eq!(text, std::mem::take(&mut expected));
                segments = 0;
            }
            Ok(None) => assert!(continued),
            Err(error) => {
                assert_eq!(error, TextError::TooLong);
                assert!(expected.len() > MAX_TEXT || segments > MAX_SEGMENTS);
                return;
            }
        }
        assert!(expected.len() <= MAX_TEXT && segments <= MAX_SEGMENTS);
        assert_eq!(assembly.is_partial(), segments > 0);
    }
}

fn value(value: &str) {
    if let Some(bytes) = bounded(value.len(), || text::binary(value)) {
        assert!(bytes.len() <= MAX_BINARY && !bytes.is_empty());
        assert_eq!(text::binary(&text::binary_text(&bytes)), Some(bytes));
    }
    if let Some(number) = text::number(value) {
        for again in [number.to_string(), format!("{number:#x}")] {
            assert_eq!(text::number(&again), Some(number));
        }
    }
    if let Some(boolean) = text::boolean(value) {
        assert_eq!(text::yes_no(boolean), value);
    }
    if let Ok(name) = bounded(value.len(), || value.parse::<IscsiName>()) {
        assert!(name.as_str().eq_ignore_ascii_case(value));
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    if let Ok(address) = bounded(value.len(), || value.parse::<TargetAddress>()) {
        let again = address.to_string();
        let parsed = again.parse::<TargetAddress>().expect("an address that was printed is parsed");
        assert_eq!((parsed.port, parsed.tag), (address.port, address.tag), "{again}");
        assert_eq!(parsed.to_string(), again);
    }
}

/// Answers and requests of discovery: names and addresses that are accepted cannot contain anything else.
fn targets(bytes: &[u8]) {
    if let Ok(targets) = bounded(bytes.len(), || discovery::decode(bytes)) {
        let again = discovery::encode(&targets);
        let decoded = discovery::decode(&again).expect("an answer that was encoded is decoded");
        assert_eq!(discovery::encode(&decoded), again);
        let hosts = targets.iter().flat_map(|target| &target.addresses).map(|address| &address.host);
        let printable = |b: u8| b.is_ascii_alphanumeric() || b".-:%[]".contains(&b);
        assert!(hosts.into_iter().all(|host| host.bytes().all(printable)));
    }
    if let Ok(request) = bounded(bytes.len(), || SendTargets::decode(bytes)) {
        assert_eq!(SendTargets::decode(&request.encode()), Ok(request));
    }
}

/// Texts of each form, correct and with each error.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let many: String = (0..=MAX_PAIRS).map(|n| format!("K{n}=1\0")).collect();
    let texts: [(u8, &[u8]); 24] = [
        (0, b"InitiatorName=iqn.2001-04.com.example:a\0AuthMethod=CHAP,None\0"),
        (0, b"HeaderDigest=None,CRC32C\0DataDigest=None\0InitialR2T=Yes\0MaxBurstLength=262144\0\0\0"),
        (0, b"CHAP_A=5\0CHAP_I=17\0CHAP_C=0x0123456789abcdef0123456789abcdef\0"),
        (0, b"A=1\0B=2\0A=1\0"),
        (0, b"A=\x1b[2J\0A B=1\0=\0"),
        (0, b"A=\xc2\x9b\0"),
        (0, many.as_bytes()),
        (2, b"0x00ff10"),
        (2, b"0bAAECAw=="),
        (2, b"4294967295"),
        (2, b"0x40000"),
        (2, b"Yes"),
        (2, b"iqn.1993-08.org.debian:01:ab-cd.1"),
        (2, b"eui.02004567A425678D"),
        (2, b"naa.6200456710A4678D0123456789AC0DEF"),
        (2, b"192.0.2.1:3260,1"),
        (2, b"[2001:db8::1]:3260,65535"),
        (2, b"target.example"),
        (3, b"SendTargets=All\0"),
        (3, b"SendTargets=\0"),
        (3, b"SendTargets=iqn.2001-04.com.example:a\0"),
        (
            3,
            b"TargetName=iqn.2001-04.com.example:a\0TargetAddress=192.0.2.1:3260,1\0\
              TargetAddress=[2001:db8::1]:3260,2\0TargetName=iqn.2001-04.com.example:b\0",
        ),
        (3, b"TargetAddress=a:1,1\0"),
        (3, b"TargetName=iqn.2001-04.com.example:a\x1b]0;x\x07\0"),
    ];
    let mut out: Vec<Vec<u8>> = texts.iter().map(|(form, text)| [&[*form][..], text].concat()).collect();
    let chain: Vec<(u8, &[u8])> = vec![(1, b"x"); MAX_SEGMENTS + 1];
    let long: Vec<(u8, &[u8])> = vec![(0xff, &[b'x'; 512]); 3];
    for list in [&[(1, &b"A="[..]), (0, b"1\0")][..], &chain, &long] {
        out.push([&[1][..], &operations(list)].concat());
    }
    out.extend(honest::seeds().into_iter().map(|seed| [&[4][..], &seed].concat()));
    out
}
