//! A peer that sends arbitrary bytes and PDUs, with pauses.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{IoSlice, IoSliceMut},
    time::Duration,
};

use millrace_iscsi::pdu::{BHS_BYTES, Bhs, Part, PduReader};
use millrace_runtime::{ByteStream, MemoryStream, RuntimeExt, RuntimeRef, timeout};

use super::{
    super::pdu::{Rules, encoded, header},
    scene::{FIRST_BURST, MAX_BURST, TARGET},
};
use crate::bytes::Input;

/// Maximum number of operations of one input.
const OPERATIONS: usize = 96;
/// Time limit for the target to accept or send bytes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Kinds of operations.
pub(super) const BYTES: u8 = 0;
pub(super) const PDU: u8 = 1;
/// A PDU with the numbers that the target expects.
pub(super) const IN_ORDER: u8 = 2;
pub(super) const LOG_IN: u8 = 3;
pub(super) const READ: u8 = 4;
pub(super) const PAUSE: u8 = 5;
pub(super) const SHUT_DOWN: u8 = 6;
pub(super) const RESET: u8 = 7;
/// Another connection, beside the earlier ones.
pub(super) const OPEN: u8 = 8;
/// The data that the last R2T requests.
pub(super) const ANSWER: u8 = 9;
/// Switches to the next connection.
pub(super) const SWITCH: u8 = 10;
/// The first half of what the next operation writes is written now, the rest before anything else on this connection.
pub(super) const DIVIDE: u8 = 11;
const KINDS: u8 = 12;

const RULES: Rules = Rules { max_data: 0x00ff_ffff, header_digest: false, data_digest: false };

/// One connection.
struct Peer {
    stream: Option<MemoryStream>,
    reader: PduReader,
    /// `CmdSN` of the next command.
    cmd_sn: u32,
    /// The next `StatSN`.
    stat_sn: u32,
    /// The last R2T.
    r2t: Option<Bhs>,
    /// Whether the next bytes are divided.
    divide: bool,
    /// Bytes that were held back.
    rest: Vec<u8>,
}

pub(super) struct Attacker<'a, C> {
    rt: &'a RuntimeRef,
    connect: &'a C,
    /// The connection of the next operation, and others.
    peer: Peer,
    others: VecDeque<Peer>,
}

impl<'a, C: Fn() -> Option<MemoryStream>> Attacker<'a, C> {
    pub(super) fn new(rt: &'a RuntimeRef, connect: &'a C) -> Self {
        Self { rt, connect, peer: Peer::over(connect()), others: VecDeque::new() }
    }

    /// Executes the operations, and returns the streams that the target has to close.
    pub(super) async fn execute(mut self, script: &[u8]) -> Vec<MemoryStream> {
        let mut script = Input::new(script);
        for _ in 0..OPERATIONS {
            let Some((kind, operand)) = script.operation() else { break };
            let mut fields = Input::new(operand);
            let (rt, peer) = (self.rt, &mut self.peer);
            match kind % KINDS {
                BYTES => peer.write(rt, operand).await,
                PDU => peer.pdu(rt, operand, false).await,
                IN_ORDER => peer.pdu(rt, operand, true).await,
                LOG_IN => peer.log_in(rt, fields.u8(), fields.rest()).await,
                READ => peer.read(rt, usize::from(fields.u8())).await,
                PAUSE => self.rt.sleep(Duration::from_millis(fields.u16().into())).await,
                SHUT_DOWN => peer.stream.iter_mut().for_each(|stream| stream.shutdown()),
                RESET => {
                    peer.stream.iter_mut().for_each(|stream| stream.abort());
                    *peer = Peer::over((self.connect)());
                }
                OPEN => self.others.push_back(std::mem::replace(peer, Peer::over((self.connect)()))),
                ANSWER => peer.answer(rt, operand).await,
                SWITCH => {
                    if let Some(next) = self.others.pop_front() {
                        self.others.push_back(std::mem::replace(peer, next));
                    }
                }
                _ => peer.divide = true,
            }
        }
        self.others.push_back(self.peer);
        self.others.into_iter().filter_map(|peer| peer.stream).collect()
    }
}

impl Peer {
    fn over(stream: Option<MemoryStream>) -> Self {
        Self {
            stream,
            reader: PduReader::new(RULES.max_data),
            cmd_sn: 0,
            stat_sn: 0,
            r2t: None,
            divide: false,
            rest: Vec::new(),
        }
    }

    /// Writes as much as the target accepts in time.
    async fn write(&mut self, rt: &RuntimeRef, bytes: &[u8]) {
        let mut bytes = [&std::mem::take(&mut self.rest)[..], bytes].concat();
        if std::mem::take(&mut self.divide) {
            self.rest = bytes.split_off(bytes.len() / 2);
        }
        let Some(stream) = &mut self.stream else { return };
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            let write = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)]));
            match timeout(&**rt, PATIENCE, write).await {
                Some(Ok(n @ 1..)) => bytes = &bytes[n..],
                _ => return,
            }
        }
    }

    async fn pdu(&mut self, rt: &RuntimeRef, operand: &[u8], in_order: bool) {
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
        self.write(rt, &encoded(&bhs, &[], data, RULES)).await;
        let command = matches!(bhs[0], 0..=4 | 6);
        self.cmd_sn = self.cmd_sn.wrapping_add(u32::from(in_order && command));
    }

    /// Logs in with the keys of `text` besides the names, and an ISID with `n`.
    async fn log_in(&mut self, rt: &RuntimeRef, n: u8, text: &[u8]) {
        let mut bhs = header("43870000 00000000 80000000 00010000 00000000 00010000 00000064 00000000");
        bhs[13] = n;
        // The lengths are those of the target, which would otherwise offer them in a further PDU.
        let names = format!(
            "InitiatorName=iqn.2026-01.example:host\0TargetName={TARGET}\0MaxBurstLength={MAX_BURST}\0\
             FirstBurstLength={FIRST_BURST}\0"
        );
        let mut data = names.into_bytes();
        data.extend(text);
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        self.cmd_sn = 100;
        self.write(rt, &encoded(&bhs, &[], &data, RULES)).await;
        self.read(rt, 1).await;
    }

    /// Reads until `pdus` PDUs have arrived, or none arrives in time.
    async fn read(&mut self, rt: &RuntimeRef, pdus: usize) {
        for _ in 0..pdus {
            while self.reader.next().0 != Part::End {
                let (_, missing) = self.reader.next();
                let Some(stream) = &mut self.stream else { return };
                let mut bytes = vec![0; missing];
                let read = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut bytes)]));
                match timeout(&**rt, PATIENCE, read).await {
                    Some(Ok(n @ 1..)) => self.reader.supply(&bytes[..n]).expect("no digests"),
                    _ => return,
                }
            }
            let bhs = *self.reader.header().expect("a header");
            self.reader.finish();
            self.note(&bhs);
        }
    }

    /// Records numbers and R2Ts.
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
    async fn answer(&mut self, rt: &RuntimeRef, changes: &[u8]) {
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
        self.write(rt, &encoded(&bhs, &[], &vec![0x77; length as usize], RULES)).await;
    }
}
