//! The stream of PDUs (RFC 7143 section 11), with and without digests.

use millrace_iscsi::pdu::{
    BHS_BYTES, Bhs, Digest, Invalid, Lengths, Part, PduReader, Request, Response, check_ahs, digest, padding,
};

use crate::{
    bytes::{Input, from_hex, operations},
    heap::bounded,
    mutate::Random,
};

/// The parameters that a receiver has negotiated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Maximum data segment in bytes.
    pub(super) max_data: u32,
    /// PDUs have header digests.
    pub(super) header_digest: bool,
    /// Data segments have digests.
    pub(super) data_digest: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Pdu {
    bhs: Bhs,
    ahs: Vec<u8>,
    data: Vec<u8>,
}

/// The PDUs of a stream, the error that ended it, and the bytes of the last PDU if it is not complete.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    pdus: Vec<Pdu>,
    error: Option<Invalid>,
}

/// Executes the target with `input`: flags, a seed of the split, and operations. The operand of an even operation is
/// part of the stream, that of an odd one the header and the data of a PDU with correct lengths and digests. For any
/// split, the PDUs are those of a direct implementation of RFC 7143; those that a role accepts are encoded again.
pub(in crate::targets) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (flags, split) = (input.u8(), u64::from(input.u8()));
    let rules = Rules {
        max_data: [512, 8192, 70_000, 0x00ff_ffff][usize::from(flags >> 2 & 3)],
        header_digest: flags & 1 != 0,
        data_digest: flags & 2 != 0,
    };
    let mut stream = Vec::new();
    while let Some((kind, operand)) = input.operation() {
        match kind % 2 {
            0 => stream.extend(operand),
            _ => stream.extend(framed(operand, rules)),
        }
    }
    let expected = reference(&stream, rules);
    let whole = bounded(stream.len() * 2, || read(&stream, rules, None));
    assert_eq!(whole, expected);
    assert_eq!(read(&stream, rules, Some(Random::new(split))), expected, "split by seed {split}");
    for pdu in &whole.pdus {
        assert!(pdu.data.len() <= rules.max_data as usize, "a data segment exceeds the limit");
        accepted(pdu);
    }
}

/// Both roles decode the header; what they accept is encoded and decoded without a change.
fn accepted(pdu: &Pdu) {
    let (opcode, data) = (pdu.bhs[0] & 0x3f, pdu.data.len() as u32);
    let request = Request::decode(&pdu.bhs);
    if let Ok(request) = request {
        let again = request.encode(data);
        assert_eq!((Request::decode(&again), again[0] & 0x3f), (Ok(request), opcode));
        assert_eq!(Lengths::of(&again), Lengths { ahs: 0, data });
    }
    let response = Response::decode(&pdu.bhs);
    if let Ok(response) = response {
        let again = response.encode(data);
        assert_eq!((Response::decode(&again), again[0] & 0x3f), (Ok(response), opcode));
        assert_eq!(Lengths::of(&again), Lengths { ahs: 0, data });
    }
    assert!(request.is_err() || response.is_err(), "a PDU of both roles");
    for invalid in [request.err(), response.err()].into_iter().flatten() {
        assert!(!invalid.to_string().is_empty());
    }
    // No additional header segment is supported.
    assert_eq!(check_ahs(pdu.bhs[0], &pdu.ahs).is_ok(), pdu.ahs.is_empty());
}

/// A PDU with the header and the data of `operand`: up to three words of additional header segments.
fn framed(operand: &[u8], rules: Rules) -> Vec<u8> {
    let mut operand = Input::new(operand);
    let mut bhs = [0; BHS_BYTES];
    let header = operand.take(BHS_BYTES);
    bhs[..header.len()].copy_from_slice(header);
    let ahs = operand.take(usize::from(bhs[4] % 4) * 4);
    let ahs = &ahs[..ahs.len() & !3];
    let data = operand.rest();
    bhs[4] = (ahs.len() / 4) as u8;
    bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    encoded(&bhs, ahs, data, rules)
}

/// The bytes of a PDU.
pub(super) fn encoded(bhs: &Bhs, ahs: &[u8], data: &[u8], rules: Rules) -> Vec<u8> {
    let mut out = [bhs, ahs].concat();
    if rules.header_digest {
        out.extend(digest(&[bhs, ahs]));
    }
    let padded = [data, &[0; 3][..padding(data.len() as u32)]].concat();
    out.extend(&padded);
    if rules.data_digest && !data.is_empty() {
        out.extend(digest(&[&padded]));
    }
    out
}

fn read(mut stream: &[u8], rules: Rules, mut split: Option<Random>) -> Outcome {
    let mut reader = PduReader::new(rules.max_data);
    reader.set(rules.max_data, rules.header_digest, rules.data_digest);
    let (mut pdus, mut data) = (Vec::new(), Vec::new());
    loop {
        let (part, missing) = reader.next();
        assert_eq!(missing == 0, part == Part::End);
        assert_eq!(reader.header().is_some(), !matches!(part, Part::Header | Part::Ahs | Part::HeaderDigest));
        if part == Part::End {
            let bhs = *reader.header().expect("a header");
            pdus.push(Pdu { bhs, ahs: reader.ahs().to_vec(), data: std::mem::take(&mut data) });
            reader.finish();
            continue;
        }
        if stream.is_empty() {
            return Outcome { pdus, error: None };
        }
        let piece = split.as_mut().map_or(usize::MAX, |random| {
            let most = 1 << random.below(12);
            random.below(most) + 1
        });
        let (some, rest) = stream.split_at(missing.min(piece).min(stream.len()));
        if part == Part::Data {
            data.extend(some);
        }
        stream = rest;
        if let Err(error) = reader.supply(some) {
            return Outcome { pdus, error: Some(error) };
        }
    }
}

/// A direct implementation of the specification.
fn reference(stream: &[u8], rules: Rules) -> Outcome {
    let mut input = Input::new(stream);
    let mut pdus = Vec::new();
    let error = loop {
        match next(&mut input, rules) {
            Ok(Some(pdu)) => pdus.push(pdu),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    Outcome { pdus, error }
}

/// The next PDU; `None` if the stream ends before it is complete.
fn next(input: &mut Input<'_>, rules: Rules) -> Result<Option<Pdu>, Invalid> {
    let Some(bhs) = input.take(BHS_BYTES).first_chunk::<BHS_BYTES>().copied() else { return Ok(None) };
    let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]);
    if length > rules.max_data {
        return Err(Invalid::DataLength { length, maximum: rules.max_data });
    }
    let ahs_len = usize::from(bhs[4]) * 4;
    let ahs = input.take(ahs_len).to_vec();
    if ahs.len() < ahs_len {
        return Ok(None);
    }
    if rules.header_digest {
        let Some(sum) = input.take(4).first_chunk::<4>() else { return Ok(None) };
        if *sum != digest(&[&bhs, &ahs]) {
            return Err(Invalid::HeaderDigest);
        }
    }
    let padded_len = (length as usize).next_multiple_of(4);
    let padded = input.take(padded_len);
    if padded.len() < padded_len {
        return Ok(None);
    }
    if rules.data_digest && length > 0 {
        let Some(sum) = input.take(4).first_chunk::<4>() else { return Ok(None) };
        let mut expected = Digest::new();
        expected.update(padded);
        if *sum != expected.wire() {
            return Err(Invalid::DataDigest);
        }
    }
    Ok(Some(Pdu { bhs, ahs, data: padded[..length as usize].to_vec() }))
}

/// One header of each opcode (the rest of its bytes are zero), and headers with each error.
pub(in crate::targets) const HEADERS: [&str; 22] = [
    "40800000 00000000 0000000000000000 00000007 ffffffff 00000010 00000020",
    "01a10000 00000000 0001000000000000 00000001 00001000 00000010 00000020 00000000 2a000000 00080000 08000000",
    "01c10000 00000000 0000000000000000 00000001 00001000 00000010 00000020 00000000 28000000 00080000 08000000",
    "42810000 00000000 0000000000000000 00000002 00000001 00000011 00000020 00000010",
    "43870000 00000000 80000000 00010000 00000000 00010000 00000010 00000000",
    "04800000 00000000 0000000000000000 00000003 ffffffff 00000010 00000020",
    "05800000 00000000 0000000000000000 00000001 00000000 00000000 00000020 00000000 00000000 00000000",
    "46800000 00000000 0000000000000000 00000004 00010000 00000010 00000020",
    "10800000 00000000 0000000000000000 00000005 ffffffff 00000000 00000020",
    "20800000 00000000 0000000000000000 ffffffff 00000001 00000020 00000010 00000017",
    "21820002 00000000 0000000000000000 00000001 00000000 00000020 00000011 00000017 00000000 00000000 00000200",
    "22800000 00000000 0000000000000000 00000002 00000000 00000020 00000011 00000017",
    "23870000 00000000 80000000 00010009 00000000 00000000 00000020 00000010 00000017 00000000",
    "24800000 00000000 0000000000000000 00000003 ffffffff 00000020 00000011 00000017",
    "25810000 00000000 0000000000000000 00000001 ffffffff 00000020 00000011 00000017 00000000 00000000 00000000",
    "26800000 00000000 0000000000000000 00000004 00000000 00000020 00000011 00000017 00000000 00020014",
    "31800000 00000000 0000000000000000 00000001 00000000 00000020 00000011 00000017 00000000 00000000 00000200",
    "32800000 00000000 0000000000000000 ffffffff 00000000 00000020 00000011 00000017 00000000 01000000 00000005",
    "3f800400 00000000 0000000000000000 ffffffff 00000000 00000020 00000011 00000017",
    // Reserved bits, stage 2, an opcode that is reserved.
    "ffffffff 00000000 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff",
    "438b0000 00000000 80000000 00010000 00000000 00010000 00000010 00000000",
    "1e800000 00000000 0000000000000000 00000005",
];

/// The header of `hex`, padded with zeros.
pub(in crate::targets) fn header(hex: &str) -> Bhs {
    let mut bhs = [0; BHS_BYTES];
    let bytes = from_hex(hex);
    bhs[..bytes.len()].copy_from_slice(&bytes);
    bhs
}

/// Each header with and without digests and data; additional header segments; PDUs that end early.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let headers = HEADERS.map(header);
    let mut out: Vec<Vec<u8>> = Vec::new();
    for (n, pair) in (0..).zip(headers.chunks(2)) {
        let with_data = [&pair[0][..], b"InitiatorName=iqn.2001-04.com.example:i\0"].concat();
        out.push([&[n, n * 7][..], &operations(&[(1, &with_data), (1, &pair[1])])].concat());
    }
    let mut long = header(HEADERS[1]);
    long[4] = 2;
    let ahs = [&long[..], &from_hex("0005 01 00 01020304"), &[0xaa; 600]].concat();
    out.push([&[3, 9][..], &operations(&[(1, &ahs), (0, &headers[0])])].concat());
    long[4] = 255;
    out.push([&[0, 1][..], &operations(&[(0, &long), (0, &[0xff; 1020])])].concat());
    long[4..8].copy_from_slice(&[0, 0xff, 0xff, 0xff]);
    out.push([&[12, 2][..], &operations(&[(0, &long), (0, &[1; 2000])])].concat());
    // A wrong digest.
    let mut wrong =
        encoded(&headers[0], &[], b"ping", Rules { max_data: 512, header_digest: true, data_digest: true });
    wrong[50] ^= 1;
    out.push([&[3, 3][..], &operations(&[(0, &wrong)])].concat());
    out
}
