//! The login phase of both roles, with a third party that changes their PDUs: one operation for each PDU.

use millrace_iscsi::{
    login::{LoginPdu, MAX_LOGIN_DATA},
    pdu::{BHS_BYTES, Bhs},
};

use super::{honest, honest::Ends, pdu::header};
use crate::bytes::{Input, operations};

/// Kinds of operations.
const PASS: u8 = 0;
const FLIP: u8 = 1;
const SET_WORD: u8 = 2;
const REPLACE: u8 = 3;
const APPEND: u8 = 4;
const FLIP_TEXT: u8 = 5;
const DIVIDE: u8 = 6;
const TWICE: u8 = 7;
const DROP: u8 = 8;
const RAW: u8 = 9;
const REPEAT: u8 = 10;
const KINDS: u8 = 11;
/// Bits of byte 1 of a login PDU.
const TRANSIT: u8 = 0x80;
const CONTINUE: u8 = 0x40;

/// Executes the target with `input`: the configuration of both ends, and operations.
pub(in crate::targets) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let ends = Ends::read(&mut input);
    ends.log_in(|_, pdu| {
        let (kind, operand) = input.operation().unwrap_or((PASS, &[]));
        change(pdu, kind % KINDS, operand)
    });
}

/// The PDUs that the receiver gets instead of `pdu`.
fn change(mut pdu: LoginPdu, kind: u8, operand: &[u8]) -> Vec<LoginPdu> {
    let mut fields = Input::new(operand);
    match kind {
        FLIP => flip(&mut pdu.bhs, operand),
        SET_WORD => {
            let at = usize::from(fields.u8() % 12) * 4;
            if let Some(word) = fields.rest().first_chunk::<4>() {
                pdu.bhs[at..at + 4].copy_from_slice(word);
            }
        }
        REPLACE => pdu.data = operand.to_vec(),
        APPEND => pdu.data.extend(operand),
        FLIP_TEXT => flip(&mut pdu.data, operand),
        DIVIDE => {
            let rest = pdu.data.split_off(usize::from(fields.u16()).min(pdu.data.len()));
            let mut first = pdu.clone();
            first.bhs[1] = first.bhs[1] & !TRANSIT | CONTINUE;
            return [first, LoginPdu { data: rest, ..pdu }].map(with_length).into();
        }
        TWICE => return [pdu.clone(), pdu].into(),
        DROP => return Vec::new(),
        RAW => {
            let bhs = fields.take(BHS_BYTES);
            pdu.bhs = [0; BHS_BYTES];
            pdu.bhs[..bhs.len()].copy_from_slice(bhs);
            pdu.data = fields.rest().to_vec();
        }
        REPEAT => {
            // A text in as many PDUs as the operand has bytes, each with the same contents.
            let mut part = pdu.clone();
            part.bhs[1] = part.bhs[1] & !TRANSIT | CONTINUE;
            part.data = vec![b'x'; usize::from(fields.u8()) * 32];
            return vec![with_length(part); operand.len()];
        }
        _ => {}
    }
    vec![with_length(pdu)]
}

/// Inverts bits: pairs of a position and a mask.
fn flip(bytes: &mut [u8], operand: &[u8]) {
    for pair in operand.chunks_exact(2) {
        let at = usize::from(pair[0]) % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= pair[1];
        }
    }
}

/// The PDU as a reader delivers it: with a data segment within the limit, of the length in the header.
fn with_length(mut pdu: LoginPdu) -> LoginPdu {
    pdu.data.truncate(MAX_LOGIN_DATA as usize);
    pdu.bhs[5..8].copy_from_slice(&(pdu.data.len() as u32).to_be_bytes()[1..]);
    pdu
}

const KEYS: &[u8] = b"InitiatorName=iqn.2001-04.com.example:i\0TargetName=iqn.2001-04.com.example:t\0";

/// Unchanged logins; one change of each kind, at different PDUs.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let request: Bhs = header("43870000 00000000 80000000 00010000 00000000 00010000 00000005 00000000");
    let raw = [&request[..], KEYS].concat();
    let early = [&header("01810000 00000000 0000000000000000 00000001 00000000 00000005")[..], KEYS].concat();
    let changes: [(u8, &[u8]); 22] = [
        (FLIP, &[1, 0x80]),
        (FLIP, &[1, 0x08, 7, 1]),
        (SET_WORD, &[3, 0, 1, 0, 77]),
        (SET_WORD, &[0, 0x43, 0x8b, 9, 9]),
        (REPLACE, &KEYS[..KEYS.len() - 1]),
        (REPLACE, b"InitiatorName\0"),
        (REPLACE, b""),
        (APPEND, KEYS),
        (APPEND, b"MaxBurstLength=511\0HeaderDigest=MD5\0X-a=1\0"),
        (APPEND, b"MaxRecvDataSegmentLength=0x1000\0IFMarker=Yes\0TaskReporting=FastAbort,RFC3720\0"),
        (APPEND, b"AuthMethod=CHAP,None\0CHAP_A=5,7,8\0"),
        (APPEND, b"CHAP_N=initiator\0CHAP_R=0x00\0CHAP_I=1\0CHAP_C=0x11\0"),
        (APPEND, b"RDMAExtensions=Yes\0TargetAddress=[2001:db8::1]:3260\0"),
        (APPEND, &[b'x'; 9000]),
        (FLIP_TEXT, &[3, 1, 40, 0x80]),
        (DIVIDE, &[0, 20]),
        (TWICE, &[]),
        (DROP, &[]),
        (RAW, &raw),
        (RAW, &early),
        (REPEAT, &[255; 70]),
        (REPEAT, &[0; 70]),
    ];
    let ends = honest::seeds();
    let mut out = ends.clone();
    for (n, change) in changes.iter().enumerate() {
        for (at, ends) in [(n % 5, &ends[n % ends.len()]), (0, &ends[0])] {
            let mut script: Vec<(u8, &[u8])> = vec![(PASS, &[]); at];
            script.push(*change);
            out.push([&ends[..], &operations(&script)].concat());
        }
    }
    out.extend(changed_fields());
    out
}

/// Logins in which one PDU is changed, one field at a time.
fn changed_fields() -> Vec<Vec<u8>> {
    const FIELDS: [(u8, u8); 12] = [
        (1, 0x80),
        (1, 0x83),
        (1, 0x81),
        (1, 0x04),
        (1, 0x40),
        (3, 1),
        (13, 1),
        (15, 1),
        (19, 1),
        (21, 1),
        (27, 1),
        (36, 1),
    ];
    let mut out = Vec::new();
    for ends in honest::seeds() {
        for (at, (byte, mask)) in (0..7).flat_map(|at| FIELDS.map(|field| (at, field))) {
            let change = [byte, mask];
            let mut script: Vec<(u8, &[u8])> = vec![(PASS, &[]); at];
            script.push((FLIP, &change));
            out.push([&ends[..], &operations(&script)].concat());
        }
    }
    out
}
