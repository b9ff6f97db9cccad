//! Byte-exact headers, identity of encoding and decoding, hostile bytes.

use proptest::prelude::*;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

fn bhs(hex: &str) -> Bhs {
    bytes(hex).try_into().unwrap()
}

const RN: RequestNumbers = RequestNumbers { cmd_sn: 0x0102_0304, exp_stat_sn: 0x0506_0708 };
const N: Numbers = Numbers { stat_sn: 0x1112_1314, exp_cmd_sn: 0x2122_2324, max_cmd_sn: 0x3132_3334 };
const LUN: u64 = 0x0001_0000_0000_0000;

fn request(hex: &str, data: u32, expected: Request) {
    assert_eq!(Request::decode(&bhs(hex)), Ok(expected));
    assert_eq!(expected.encode(data), bhs(hex));
}

fn response(hex: &str, data: u32, expected: Response) {
    assert_eq!(Response::decode(&bhs(hex)), Ok(expected));
    assert_eq!(expected.encode(data), bhs(hex));
}

#[test]
fn requests_have_the_expected_bytes() {
    request(
        "40800000 00000003 0001000000000000 00000007 ffffffff 01020304 05060708 00000000000000000000000000000000",
        3,
        Request::NopOut(NopOut { immediate: true, lun: LUN, itt: 7, ttt: RESERVED_TAG, numbers: RN }),
    );
    let mut cdb = [0; 16];
    cdb[..10].copy_from_slice(&[0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0]);
    // A read of 4096 bytes at block 8.
    request(
        "01c10000 00000000 0000000000000000 00000001 00001000 01020304 05060708 28000000000800000800000000000000",
        0,
        Request::ScsiCommand(ScsiCommand {
            immediate: false,
            last: true,
            read: true,
            write: false,
            attribute: TaskAttribute::SIMPLE,
            lun: 0,
            itt: 1,
            expected: 4096,
            numbers: RN,
            cdb,
        }),
    );
    request(
        "42810000 00000000 0001000000000000 00000009 00000001 01020304 05060708 0000000a 0000000b 0000000000000000",
        0,
        Request::Task(TaskRequest {
            immediate: true,
            function: TaskFunction::ABORT_TASK,
            lun: LUN,
            itt: 9,
            referenced: 1,
            numbers: RN,
            ref_cmd_sn: 10,
            exp_data_sn: 11,
        }),
    );
    request(
        "43870001 00010203 00023d000001 0009 00000005 00060000 01020304 05060708 00000000000000000000000000000000",
        0x1_0203,
        Request::Login(LoginRequest {
            stage: Stage::Operational,
            next: Some(Stage::FullFeature),
            continued: false,
            version_max: 0,
            version_min: 1,
            isid: Isid([0, 2, 0x3d, 0, 0, 1]),
            tsih: 9,
            itt: 5,
            cid: 6,
            numbers: RN,
        }),
    );
    request(
        "04800000 00000010 0000000000000000 00000005 ffffffff 01020304 05060708 00000000000000000000000000000000",
        16,
        Request::Text(TextRequest {
            immediate: false,
            last: true,
            continued: false,
            lun: 0,
            itt: 5,
            ttt: RESERVED_TAG,
            numbers: RN,
        }),
    );
    request(
        "05800000 00002000 0001000000000000 00000005 00000077 00000000 05060708 00000000 00000003 00006000 00000000",
        0x2000,
        Request::DataOut(DataOut {
            last: true,
            lun: LUN,
            itt: 5,
            ttt: 0x77,
            exp_stat_sn: RN.exp_stat_sn,
            data_sn: 3,
            offset: 0x6000,
        }),
    );
    request(
        "46810000 00000000 0000000000000000 00000005 00020000 01020304 05060708 00000000000000000000000000000000",
        0,
        Request::Logout(LogoutRequest {
            immediate: true,
            reason: LogoutReason::CONNECTION,
            itt: 5,
            cid: 2,
            numbers: RN,
        }),
    );
}

#[test]
fn responses_have_the_expected_bytes() {
    let numbers = N;
    response(
        "20800000 00000003 0001000000000000 00000007 ffffffff 11121314 21222324 31323334 000000000000000000000000",
        3,
        Response::NopIn(NopIn { lun: LUN, itt: 7, ttt: RESERVED_TAG, numbers }),
    );
    response(
        "21820002 00000014 0000000000000000 00000007 00000000 11121314 21222324 31323334 00000003 00000000 00000200",
        20,
        Response::Scsi(ScsiResponse {
            response: 0,
            status: 2,
            itt: 7,
            numbers,
            exp_data_sn: 3,
            residual: Residual::Underflow(512),
        }),
    );
    response(
        "22800500 00000000 0000000000000000 00000007 00000000 11121314 21222324 31323334 000000000000000000000000",
        0,
        Response::Task(TaskResponse { result: TaskResult::NOT_SUPPORTED, itt: 7, numbers }),
    );
    response(
        "23810000 00000005 00023d000001 0009 00000007 00000000 11121314 21222324 31323334 000000000000000000000000",
        5,
        Response::Login(LoginResponse {
            stage: Stage::Security,
            next: Some(Stage::Operational),
            continued: false,
            version_max: 0,
            version_active: 0,
            isid: Isid([0, 2, 0x3d, 0, 0, 1]),
            tsih: 9,
            itt: 7,
            numbers,
            status_class: 0,
            status_detail: 0,
        }),
    );
    response(
        "24400000 00000005 0000000000000000 00000007 00000001 11121314 21222324 31323334 000000000000000000000000",
        5,
        Response::Text(TextResponse { last: false, continued: true, lun: 0, itt: 7, ttt: 1, numbers }),
    );
    response(
        "25850000 00000400 0000000000000000 00000007 ffffffff 11121314 21222324 31323334 00000002 00000800 00000010",
        1024,
        Response::DataIn(DataIn {
            last: true,
            status: Some(DataInStatus { status: 0, residual: Residual::Overflow(16) }),
            itt: 7,
            numbers,
            data_sn: 2,
            offset: 2048,
        }),
    );
    response(
        "26800100 00000000 0000000000000000 00000007 00000000 11121314 21222324 31323334 00000000 00020014 00000000",
        0,
        Response::Logout(LogoutResponse {
            result: LogoutResult::NO_CID,
            itt: 7,
            numbers,
            time2wait: 2,
            time2retain: 20,
        }),
    );
    response(
        "31800000 00000000 0001000000000000 00000007 00000008 11121314 21222324 31323334 00000001 00010000 00040000",
        0,
        Response::R2t(R2t {
            lun: LUN,
            itt: 7,
            ttt: 8,
            numbers,
            r2t_sn: 1,
            offset: 0x1_0000,
            length: 0x4_0000,
        }),
    );
    response(
        "32800000 00000000 0000000000000000 ffffffff 00000000 11121314 21222324 31323334 01000001 00020003 00000000",
        0,
        Response::Async(AsyncMessage {
            lun: 0,
            numbers,
            event: AsyncEvent::LOGOUT,
            vendor_code: 0,
            parameters: [1, 2, 3],
        }),
    );
    response(
        "3f800500 00000030 0000000000000000 ffffffff 00000000 11121314 21222324 31323334 00000000 0000000000000000",
        48,
        Response::Reject(Reject { reason: RejectReason::COMMAND_NOT_SUPPORTED, numbers, data_sn: 0 }),
    );
}

#[test]
fn invalid_requests_name_their_reject_reason() {
    let mut h = [0; BHS_BYTES];
    for (byte0, error) in [
        (0x0f, Invalid::Opcode(0x0f)),
        (0x21, Invalid::Opcode(0x21)),
        (0x7f, Invalid::Opcode(0x3f)),
        (0x10, Invalid::Snack),
        (0x01, Invalid::Field("SCSI Command: unsolicited data without a write")),
    ] {
        h[0] = byte0;
        assert_eq!(Request::decode(&h), Err(error));
    }
    assert_eq!(Invalid::Opcode(0x0f).reject(), Some(RejectReason::COMMAND_NOT_SUPPORTED));
    assert_eq!(Invalid::Snack.reject(), Some(RejectReason::SNACK));
    assert_eq!(Invalid::HeaderDigest.reject(), None);
    // Login: stage 2, next stage 2, next not after current, current 3, T with C.
    for byte1 in [0x08, 0x82, 0x80, 0x85, 0x84, 0x0c, 0xc1] {
        h[..2].copy_from_slice(&[0x43, byte1]);
        let error = Request::decode(&h).unwrap_err();
        assert_eq!(error.reject(), Some(RejectReason::INVALID_PDU_FIELD), "byte 1 {byte1:#04x}");
    }
    // Text with F and C; tasks with the reserved tag; a NOP-Out without a tag that is not immediate.
    h[..2].copy_from_slice(&[0x04, 0xc0]);
    assert!(matches!(Request::decode(&h), Err(Invalid::Field(_))));
    h[16..20].fill(0xff);
    for byte0 in [0x00, 0x01, 0x02, 0x04, 0x05, 0x06] {
        h[..2].copy_from_slice(&[byte0, 0x80]);
        assert!(matches!(Request::decode(&h), Err(Invalid::Field(_))), "opcode {byte0:#04x}");
    }
}

#[test]
fn invalid_responses_are_errors() {
    let mut h = [0; BHS_BYTES];
    for start in [
        [0x25, 0x01], // Status in Data-In before the last.
        [0x25, 0x87], // Both residuals.
        [0x21, 0x86], // Both residuals.
        [0x31, 0x80], // An R2T for nothing.
        [0x24, 0x80], // A last Text Response with a tag.
        [0x23, 0x08], // Login stage 2.
        [0x01, 0x80], // A request.
    ] {
        h[..2].copy_from_slice(&start);
        assert!(Response::decode(&h).is_err(), "{start:02x?}");
    }
    h[..2].copy_from_slice(&[0x31, 0x80]);
    h[20..24].fill(0xff);
    h[47] = 1;
    assert_eq!(Response::decode(&h), Err(Invalid::Field("target transfer tag of an R2T")));
}

#[test]
fn additional_header_segments_are_refused_by_type() {
    let scsi = 0x01;
    assert_eq!(check_ahs(scsi, &[]), Ok(()));
    let bidirectional = bytes("0005 02 00 00001000");
    assert_eq!(check_ahs(scsi, &bidirectional), Err(Invalid::Bidirectional));
    let extended = bytes("0011 01 00 00000000 00000000 00000000 00000000");
    assert_eq!(check_ahs(scsi, &extended), Err(Invalid::ExtendedCdb));
    assert_eq!(
        check_ahs(scsi, &[bidirectional.clone(), extended.clone()].concat()),
        Err(Invalid::Bidirectional)
    );
    assert_eq!(check_ahs(0x00, &extended), Err(Invalid::Ahs));
    for hex in
        ["0005", "0005 02", "0005 0200", "0005 02 00 0000", "0006 02 00 00000000", "0005 03 00 00000000"]
    {
        assert_eq!(check_ahs(scsi, &bytes(hex)), Err(Invalid::Ahs), "{hex}");
    }
    assert_eq!(check_ahs(scsi, &[&bidirectional[..], &[0, 0]].concat()), Err(Invalid::Ahs));
    assert_eq!(check_ahs(scsi, &[0xff; MAX_AHS_BYTES]), Err(Invalid::Ahs));
}

#[test]
fn digests_are_those_of_rfc_7143() {
    // RFC 7143 appendix A.4 ("CRC Examples"): bytes as on the wire.
    assert_eq!(digest(&[&[0; 32]]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(digest(&[&[0xff; 32]]), [0x43, 0xab, 0xa8, 0x62]);
    let up: Vec<u8> = (0..32).collect();
    assert_eq!(digest(&[&up[..7], &up[7..]]), [0x4e, 0x79, 0xdd, 0x46]);
    let down: Vec<u8> = (0..32).rev().collect();
    assert_eq!(digest(&[&down]), [0x5c, 0xdb, 0x3f, 0x11]);
    let read = bytes(
        "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000",
    );
    assert_eq!(digest(&[&read]), [0x56, 0x3a, 0x96, 0xd9]);
}

/// A PDU as bytes of a stream.
fn stream(h: Bhs, ahs: &[u8], data: &[u8], header_digest: bool, data_digest: bool) -> Vec<u8> {
    let mut out = [&h[..], ahs].concat();
    out[4] = (ahs.len() / 4) as u8;
    if header_digest {
        let d = digest(&[&out]);
        out.extend(d);
    }
    let padded = [data, &[0; 3][..padding(data.len() as u32)]].concat();
    out.extend(&padded);
    if data_digest && !data.is_empty() {
        out.extend(digest(&[&padded]));
    }
    out
}

/// Header, AHS and data of a PDU.
type Pdu = (Bhs, Vec<u8>, Vec<u8>);

/// Feeds `stream` in pieces of at most `piece` bytes and returns the PDUs: header, AHS, data.
fn read(reader: &mut PduReader, mut stream: &[u8], piece: usize) -> Result<Vec<Pdu>, Invalid> {
    let (mut pdus, mut data) = (Vec::new(), Vec::new());
    loop {
        let (part, missing) = reader.next();
        if part == Part::End {
            pdus.push((*reader.header().unwrap(), reader.ahs().to_vec(), std::mem::take(&mut data)));
            reader.finish();
            continue;
        }
        assert_ne!(missing, 0);
        assert_eq!(reader.header().is_some(), matches!(part, Part::Data | Part::Pad | Part::DataDigest));
        let n = missing.min(piece).min(stream.len());
        if n == 0 {
            return Ok(pdus);
        }
        let (now, later) = stream.split_at(n);
        if part == Part::Data {
            data.extend(now);
        }
        reader.supply(now)?;
        stream = later;
    }
}

#[test]
fn a_changed_bit_is_a_digest_error() {
    let h = Request::DataOut(DataOut {
        last: true,
        lun: 0,
        itt: 1,
        ttt: 2,
        exp_stat_sn: 0,
        data_sn: 0,
        offset: 0,
    })
    .encode(5);
    let good = stream(h, &[], b"hello", true, true);
    for at in 8..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let mut reader = PduReader::new(8192);
        reader.set(8192, true, true);
        let expected = if at < BHS_BYTES + 4 { Invalid::HeaderDigest } else { Invalid::DataDigest };
        assert_eq!(read(&mut reader, &bad, 7), Err(expected), "byte {at}");
    }
}

#[test]
fn a_data_segment_beyond_the_limit_is_refused_at_its_header() {
    let h = Request::NopOut(NopOut { immediate: true, lun: 0, itt: 1, ttt: 2, numbers: RN }).encode(513);
    let error = Invalid::DataLength { length: 513, maximum: 512 };
    assert_eq!(PduReader::new(512).supply(&h), Err(error));
    assert_eq!(PduReader::new(513).supply(&h), Ok(()));
    assert_eq!(error.reject(), Some(RejectReason::PROTOCOL_ERROR));
}

prop_compose! {
    fn numbers()(stat_sn: u32, exp_cmd_sn: u32, max_cmd_sn: u32) -> Numbers {
        Numbers { stat_sn, exp_cmd_sn, max_cmd_sn }
    }
}

proptest! {
    /// A decoded value encodes to a header that decodes to the same value; no bytes make the decoders panic.
    #[test]
    fn encoding_is_the_inverse_of_decoding(mut h: Bhs, o in 0u8..0x40, data in 0..=MAX_DATA_BYTES) {
        h[0] = h[0] & 0xc0 | o;
        if let Ok(request) = Request::decode(&h) {
            let encoded = request.encode(data);
            prop_assert_eq!(Request::decode(&encoded), Ok(request));
            prop_assert_eq!(Lengths::of(&encoded), Lengths { ahs: 0, data });
        }
        if let Ok(response) = Response::decode(&h) {
            let encoded = response.encode(data);
            prop_assert_eq!(Response::decode(&encoded), Ok(response));
            prop_assert_eq!(Lengths::of(&encoded), Lengths { ahs: 0, data });
        }
    }

    #[test]
    fn any_division_of_a_stream_gives_the_same_pdus(
        n in numbers(),
        sizes in proptest::collection::vec((0usize..40, 0usize..5), 1..5),
        piece in 1usize..200,
        digests: (bool, bool),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (size, words) in sizes {
            let data: Vec<u8> = (0..size).map(|i| i as u8).collect();
            let ahs = vec![0x5a; words * 4];
            let mut h = Response::NopIn(NopIn { lun: 0, itt: 1, ttt: 2, numbers: n }).encode(size as u32);
            h[4] = words as u8;
            bytes.extend(stream(h, &ahs, &data, digests.0, digests.1));
            expected.push((h, ahs, data));
        }
        let mut reader = PduReader::new(8192);
        reader.set(8192, digests.0, digests.1);
        prop_assert_eq!(read(&mut reader, &bytes, piece), Ok(expected));
    }

    #[test]
    fn hostile_bytes_do_not_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        ahs in proptest::collection::vec(any::<u8>(), 0..40),
        byte0: u8,
    ) {
        let mut reader = PduReader::new(64);
        reader.set(64, true, true);
        let _ = read(&mut reader, &bytes, 13);
        let refused = check_ahs(byte0, &ahs);
        prop_assert!(ahs.is_empty() == refused.is_ok());
    }
}
