//! A peer that sends arbitrary bytes and PDUs, with pauses.

use std::{
    future::poll_fn,
    io::{IoSlice, IoSliceMut},
    time::Duration,
};

use millrace_iscsi::pdu::{BHS_BYTES, Bhs, Part, PduReader};
use millrace_runtime::{ByteStream, MemoryStream, RuntimeExt, RuntimeRef, timeout};

use super::{
    super::pdu::{HEADERS, Rules, encoded, header},
    scene::TARGET,
};
use crate::bytes::{Input, operations};

/// Maximum number of operations of one input.
const OPERATIONS: usize = 96;
/// Time limit for the target to accept or send bytes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Kinds of operations.
const BYTES: u8 = 0;
const PDU: u8 = 1;
/// A PDU with the numbers that the target expects.
const IN_ORDER: u8 = 2;
const LOG_IN: u8 = 3;
const READ: u8 = 4;
const PAUSE: u8 = 5;
const SHUT_DOWN: u8 = 6;
const RESET: u8 = 7;
/// Another connection; the one before stays open until the end.
const OPEN: u8 = 8;
/// The data that the last R2T requests.
const ANSWER: u8 = 9;
const KINDS: u8 = 10;

const RULES: Rules = Rules { max_data: 0x00ff_ffff, header_digest: false, data_digest: false };

pub(super) struct Attacker<'a, C> {
    rt: &'a RuntimeRef,
    connect: &'a C,
    stream: Option<MemoryStream>,
    /// Earlier connections.
    left: Vec<Option<MemoryStream>>,
    reader: PduReader,
    /// `CmdSN` of the next command.
    cmd_sn: u32,
    /// The next `StatSN`.
    stat_sn: u32,
    /// The last R2T.
    r2t: Option<Bhs>,
}

impl<'a, C: Fn() -> Option<MemoryStream>> Attacker<'a, C> {
    pub(super) fn new(rt: &'a RuntimeRef, connect: &'a C) -> Self {
        let mut attacker = Self {
            rt,
            connect,
            stream: None,
            left: Vec::new(),
            reader: PduReader::new(RULES.max_data),
            cmd_sn: 0,
            stat_sn: 0,
            r2t: None,
        };
        attacker.open();
        attacker
    }

    fn open(&mut self) {
        self.left.push(self.stream.take());
        self.stream = (self.connect)();
        self.reader = PduReader::new(RULES.max_data);
        self.r2t = None;
    }

    pub(super) async fn execute(mut self, script: &[u8]) {
        let mut script = Input::new(script);
        for _ in 0..OPERATIONS {
            let Some((kind, operand)) = script.operation() else { break };
            let mut fields = Input::new(operand);
            match kind % KINDS {
                BYTES => self.write(operand).await,
                PDU => self.pdu(operand, false).await,
                IN_ORDER => self.pdu(operand, true).await,
                LOG_IN => self.log_in(fields.u8(), fields.rest()).await,
                READ => self.read(usize::from(fields.u8())).await,
                PAUSE => self.rt.sleep(Duration::from_millis(fields.u16().into())).await,
                SHUT_DOWN => self.stream.iter_mut().for_each(|stream| stream.shutdown()),
                RESET => {
                    self.stream.iter_mut().for_each(|stream| stream.abort());
                    self.stream = None;
                    self.open();
                }
                OPEN => self.open(),
                _ => self.answer(operand).await,
            }
        }
    }

    /// Writes as much as the target accepts in time.
    async fn write(&mut self, mut bytes: &[u8]) {
        let Some(stream) = &mut self.stream else { return };
        while !bytes.is_empty() {
            let write = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)]));
            match timeout(&**self.rt, PATIENCE, write).await {
                Some(Ok(n @ 1..)) => bytes = &bytes[n..],
                _ => return,
            }
        }
    }

    async fn pdu(&mut self, operand: &[u8], in_order: bool) {
        let mut operand = Input::new(operand);
        let mut bhs = [0; BHS_BYTES];
        let bytes = operand.take(BHS_BYTES);
        bhs[..bytes.len()].copy_from_slice(bytes);
        if in_order {
            bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
            bhs[28..32].copy_from_slice(&self.stat_sn.to_be_bytes());
        }
        let data = operand.rest();
        bhs[4] = 0;
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        self.write(&encoded(&bhs, &[], data, RULES)).await;
        let command = matches!(bhs[0], 0..=4 | 6);
        self.cmd_sn = self.cmd_sn.wrapping_add(u32::from(in_order && command));
    }

    /// Logs in with the keys of `text` besides the names, and an ISID with `n`.
    async fn log_in(&mut self, n: u8, text: &[u8]) {
        let mut bhs = header("43870000 00000000 80000000 00010000 00000000 00010000 00000064 00000000");
        bhs[13] = n;
        let names = format!("InitiatorName=iqn.2026-01.example:host\0TargetName={TARGET}\0");
        let mut data = names.into_bytes();
        data.extend(text);
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        self.cmd_sn = 100;
        self.write(&encoded(&bhs, &[], &data, RULES)).await;
        self.read(1).await;
    }

    /// Reads until `pdus` PDUs have arrived, or none arrives in time.
    async fn read(&mut self, pdus: usize) {
        for _ in 0..pdus {
            while self.reader.next().0 != Part::End {
                let (_, missing) = self.reader.next();
                let Some(stream) = &mut self.stream else { return };
                let mut bytes = vec![0; missing];
                let read = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut bytes)]));
                match timeout(&**self.rt, PATIENCE, read).await {
                    Some(Ok(n @ 1..)) => self.reader.supply(&bytes[..n]).expect("no digests"),
                    _ => return,
                }
            }
            let bhs = *self.reader.header().expect("a header");
            self.reader.finish();
            self.note(&bhs);
        }
    }

    /// Remembers numbers and R2Ts.
    fn note(&mut self, bhs: &Bhs) {
        let word = |at: usize| u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]]);
        match bhs[0] & 0x3f {
            0x31 => self.r2t = Some(*bhs),
            0x25 if bhs[1] & 1 == 0 => {}
            _ => self.stat_sn = word(24).wrapping_add(1),
        }
    }

    /// A Data-Out PDU with all the data that the last R2T requests, changed by `changes`: pairs of a position in the
    /// header and a mask.
    async fn answer(&mut self, changes: &[u8]) {
        let Some(r2t) = self.r2t.take() else { return };
        let mut bhs = [0; BHS_BYTES];
        (bhs[0], bhs[1]) = (0x05, 0x80);
        bhs[8..24].copy_from_slice(&r2t[8..24]);
        bhs[28..32].copy_from_slice(&self.stat_sn.to_be_bytes());
        bhs[40..44].copy_from_slice(&r2t[40..44]);
        bhs[5..8].copy_from_slice(&r2t[45..48]);
        for pair in changes.chunks_exact(2) {
            bhs[usize::from(pair[0]) % BHS_BYTES] ^= pair[1];
        }
        let length = u32::from_be_bytes([0, r2t[45], r2t[46], r2t[47]]);
        self.write(&encoded(&bhs, &[], &vec![0x77; length as usize], RULES)).await;
    }
}

/// Sessions with commands of each kind, with and without reading; each PDU in and out of place; slow peers.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let keys = b"InitialR2T=Yes\0ImmediateData=No\0";
    let log_in = [&[1][..], keys].concat();
    let command = |flags: &str, expected: u16, cdb: &str, data: &[u8]| {
        let tag = cdb.len() as u16 + expected;
        let bhs = format!(
            "01{flags}0000 00000000 0000000000000000 0000{tag:04x} 0000{expected:04x} 00000000 00000000 {cdb}"
        );
        [&header(&bhs)[..], data].concat()
    };
    let ready = command("81", 0, "00", &[]);
    let write = command("a1", 4096, "2a00 00000002 00 0008", &[]);
    let immediate = command("a1", 1024, "2a00 00000010 00 0002", &[0x33; 1024]);
    let unsolicited = command("21", 4096, "2a00 00000020 00 0008", &[]);
    let read = command("c1", 0x4000, "2800 00000000 00 0020", &[]);
    let inquiry = command("c1", 255, "1200 00 00ff", &[]);
    let reserve = command("a1", 24, "5f00 0000 00 00000018", &[0; 24]);
    let (start, logout) = ((LOG_IN, &log_in[..]), header(HEADERS[7]));
    let abort = header("42810000 00000000 0000000000000000 00000077 00001018 00000000 00000000 00000065");
    let reset = header("42850000 00000000 0000000000000000 00000078 ffffffff");
    let some: (u8, &[u8]) = (READ, &[4]);
    let scripts: [&[(u8, &[u8])]; 10] = [
        &[
            start,
            (IN_ORDER, &ready),
            some,
            (IN_ORDER, &inquiry),
            (IN_ORDER, &read),
            (READ, &[40]),
            (IN_ORDER, &logout),
            some,
        ],
        &[
            start,
            (IN_ORDER, &ready),
            (IN_ORDER, &write),
            some,
            (ANSWER, &[]),
            some,
            (IN_ORDER, &read),
            (READ, &[9]),
        ],
        &[start, (IN_ORDER, &ready), (IN_ORDER, &write), some, (ANSWER, &[43, 1]), some],
        &[
            start,
            (IN_ORDER, &ready),
            (IN_ORDER, &write),
            some,
            (IN_ORDER, &abort),
            some,
            (IN_ORDER, &reset),
            some,
        ],
        &[
            (LOG_IN, b"\x02InitialR2T=No\0"),
            (IN_ORDER, &ready),
            (IN_ORDER, &immediate),
            (IN_ORDER, &unsolicited),
            some,
        ],
        &[
            start,
            (IN_ORDER, &ready),
            (IN_ORDER, &reserve),
            (IN_ORDER, &read),
            (OPEN, &[]),
            start,
            (IN_ORDER, &write),
            some,
        ],
        &[
            start,
            (IN_ORDER, &ready),
            (IN_ORDER, &write),
            (OPEN, &[]),
            (LOG_IN, &[2]),
            (IN_ORDER, &read),
            (SHUT_DOWN, &[]),
        ],
        &[
            start,
            (IN_ORDER, &read),
            (IN_ORDER, &read),
            (IN_ORDER, &read),
            (PAUSE, &[0xff, 0xff]),
            (PAUSE, &[0xff, 0xff]),
        ],
        &[
            (BYTES, &[0x43, 0x87]),
            (PAUSE, &[0x40, 0]),
            (BYTES, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n\r\n\r\n"),
            some,
        ],
        &[
            start,
            (BYTES, &write[..20]),
            (PAUSE, &[0x40, 0]),
            (RESET, &[]),
            start,
            (IN_ORDER, &write),
            (RESET, &[]),
            (OPEN, &[]),
        ],
    ];
    let mut out: Vec<Vec<u8>> =
        (0..).zip(&scripts).map(|(n, script)| [&[n % 8, n * 20][..], &operations(script)].concat()).collect();
    for hex in HEADERS {
        let pdu = [&header(hex)[..], &[0x41; 48]].concat();
        out.push(
            [&[5, 200][..], &operations(&[(PDU, &pdu), start, (IN_ORDER, &pdu), (PDU, &pdu), some])].concat(),
        );
    }
    out
}
