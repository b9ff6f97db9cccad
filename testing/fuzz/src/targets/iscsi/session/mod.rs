//! The full feature phase of both roles, over TCP and iSER, with a third party that changes, adds and removes PDUs.

mod initiator;
mod target;

use std::collections::VecDeque;

use millrace_iscsi::{
    iser::{Advertised, RemoteBuffer},
    negotiation::{IserParameters, Parameters},
    pdu::{BHS_BYTES, Bhs, TaskFunction},
    session::Direction,
};

use self::{initiator::InitiatorEnd, target::TargetEnd};
use super::pdu::{HEADERS, header};
use crate::bytes::{Input, operations};

/// The first command number and status number.
const CMD_SN: u32 = u32::MAX - 3;
const STAT_SN: u32 = u32::MAX - 5;
const MAX_TASKS: u32 = 6;
const FIRST_BURST: u32 = 1024;
const MAX_DATA: u32 = 1024;

/// Kinds of operations.
const SUBMIT: u8 = 0;
const TO_TARGET: u8 = 1;
const TO_INITIATOR: u8 = 2;
const COMPLETE: u8 = 3;
const ABORT: u8 = 4;
const MANAGE: u8 = 5;
const ASK: u8 = 6;
const LOG_OUT: u8 = 7;
const TELL: u8 = 8;
/// The kinds from here on are those of the third party.
const FLIP: u8 = 9;
const TWICE: u8 = 10;
const DROP: u8 = 11;
const RAW: u8 = 12;
const RAW_IN_ORDER: u8 = 13;
const KINDS: u8 = 14;

/// Kind and operand.
type Operation<'a> = (u8, &'a [u8]);

/// A PDU or RDMA operation in flight from one end to the other.
#[derive(Debug, Clone)]
enum Wire {
    Pdu { bhs: Bhs, data: Vec<u8>, advertised: Advertised, invalidate: Option<u32> },
    RdmaWrite { sink: RemoteBuffer, length: u32 },
}

/// Both ends, and the PDUs and RDMA operations in flight.
struct World {
    initiator: InitiatorEnd,
    target: TargetEnd,
    to_initiator: VecDeque<Wire>,
    to_target: VecDeque<Wire>,
}

fn parameters(flags: u8) -> Parameters {
    let iser = IserParameters { max_unexpected_pdus: 4, hello_required: false, solicited_only: false };
    Parameters {
        header_digest: false,
        data_digest: false,
        max_send_data: MAX_DATA,
        max_receive_data: MAX_DATA,
        initial_r2t: flags & 1 != 0,
        immediate_data: flags & 2 != 0,
        max_burst: 2048,
        first_burst: FIRST_BURST,
        max_outstanding_r2t: 1 + u16::from(flags >> 3 & 1),
        time2wait: 2,
        time2retain: 20,
        iser: (flags & 4 != 0).then_some(iser),
    }
}

/// Executes the target with `input`: flags, and operations. No end panics, places data outside of its task, completes
/// a task twice, or succeeds with data that did not arrive. Without the third party, neither end violates the
/// protocol, and all tasks end.
pub(in crate::targets) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let parameters = parameters(input.u8());
    let mut world = World {
        initiator: InitiatorEnd::new(parameters),
        target: TargetEnd::new(parameters),
        to_initiator: VecDeque::new(),
        to_target: VecDeque::new(),
    };
    while let Some((kind, operand)) = input.operation() {
        world.operation(kind % KINDS, operand);
        world.collect();
    }
    world.drain();
    world.target.end(world.initiator.changed);
    world.initiator.end();
}

impl World {
    fn operation(&mut self, kind: u8, operand: &[u8]) {
        let mut fields = Input::new(operand);
        match kind {
            SUBMIT => {
                let direction =
                    [Direction::None, Direction::Read, Direction::Write][usize::from(fields.u8() % 3)];
                let (expected, length, status) = (fields.u16() % 8192, fields.u16() % 8192, fields.u8());
                self.initiator.submit(direction, expected.into(), length, status);
            }
            TO_TARGET => (0..=operand.len()).for_each(|_| self.deliver(true)),
            TO_INITIATOR => (0..=operand.len()).for_each(|_| self.deliver(false)),
            COMPLETE => self.target.work(fields.u8()),
            ABORT => self.initiator.abort(fields.u8()),
            MANAGE => self.initiator.manage(TaskFunction(1 + fields.u8() % 8), (fields.u8() % 2).into()),
            ASK => self.initiator.ask(fields.u8().is_multiple_of(2), fields.rest()),
            LOG_OUT => self.initiator.log_out(),
            TELL => self.target.tell(fields.u8()),
            _ => self.third_party(kind, operand),
        }
    }

    /// An act of the third party. The first byte of the operand selects the direction.
    fn third_party(&mut self, kind: u8, operand: &[u8]) {
        self.initiator.changed = true;
        let mut fields = Input::new(operand);
        let to_target = fields.u8().is_multiple_of(2);
        let numbers = if to_target { self.target.numbers() } else { self.initiator.numbers() };
        let queue = if to_target { &mut self.to_target } else { &mut self.to_initiator };
        match kind {
            FLIP => {
                if let Some(Wire::Pdu { bhs, data, .. }) = queue.front_mut() {
                    for pair in fields.rest().chunks_exact(2) {
                        bhs[usize::from(pair[0]) % BHS_BYTES] ^= pair[1];
                    }
                    with_length(bhs, data);
                }
            }
            TWICE => {
                if let Some(first) = queue.front().cloned() {
                    queue.push_front(first);
                }
            }
            DROP => drop(queue.pop_front()),
            _ => {
                let mut bhs = [0; BHS_BYTES];
                let bytes = fields.take(BHS_BYTES);
                bhs[..bytes.len()].copy_from_slice(bytes);
                if kind == RAW_IN_ORDER {
                    bhs[24..32].copy_from_slice(&numbers);
                }
                let mut data = fields.rest().to_vec();
                data.truncate(2 * MAX_DATA as usize);
                let buffer = Some(RemoteBuffer { stag: 1, base: 0 });
                let advertised = Advertised { read: buffer, write: buffer };
                with_length(&mut bhs, &data);
                queue.push_front(Wire::Pdu { bhs, data, advertised, invalidate: None });
            }
        }
        self.deliver(to_target);
    }

    fn deliver(&mut self, to_target: bool) {
        self.collect();
        if to_target {
            if let Some(wire) = self.to_target.pop_front() {
                self.target.receive(wire);
            }
        } else if let Some(wire) = self.to_initiator.pop_front() {
            self.initiator.receive(wire);
        }
    }

    /// Takes events and PDUs of both ends.
    fn collect(&mut self) {
        self.initiator.collect(&mut self.to_target);
        self.target.collect(&mut self.to_initiator, &self.initiator);
        for itt in std::mem::take(&mut self.initiator.completed) {
            // The initiator may use the memory of the task again.
            assert!(self.initiator.changed || !self.target.uses(itt), "the data of an ended task is in use");
        }
    }

    /// Delivers and executes everything.
    fn drain(&mut self) {
        for n in 0.. {
            assert!(n < 100_000, "the ends are busy without an end");
            self.collect();
            if self.to_target.is_empty() && self.to_initiator.is_empty() && !self.target.has_work() {
                return;
            }
            self.deliver(true);
            self.deliver(false);
            self.target.work(0);
        }
    }
}

/// Makes the length in a header that of the data, which a transport delivers.
fn with_length(bhs: &mut Bhs, data: &[u8]) {
    bhs[4] = 0;
    bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
}

/// Correct sessions of each kind; the same with one act of the third party of each kind; each PDU instead of the first.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let read: (u8, &[u8]) = (SUBMIT, &[1, 0x10, 0, 0x10, 0]);
    let short: (u8, &[u8]) = (SUBMIT, &[1, 0x10, 0, 0, 7]);
    let write: (u8, &[u8]) = (SUBMIT, &[2, 0x0c, 3, 0x0c, 3]);
    let failed: (u8, &[u8]) = (SUBMIT, &[2, 0x08, 0, 0x08, 0, 2]);
    let none: (u8, &[u8]) = (SUBMIT, &[0]);
    let out: (u8, &[u8]) = (TO_TARGET, &[0; 3]);
    let back: (u8, &[u8]) = (TO_INITIATOR, &[0; 3]);
    let complete: (u8, &[u8]) = (COMPLETE, &[0]);
    let scripts: [&[(u8, &[u8])]; 7] = [
        &[read, write, none, out, complete, complete, back, out, complete, back],
        &[write, out, complete, back, out, complete, back, short, failed, out, complete, complete, back],
        &[write, read, out, (ABORT, &[0]), out, back, (ABORT, &[1]), out, back],
        &[write, read, write, out, (MANAGE, &[1, 0]), out, complete, back, (MANAGE, &[4, 1]), out, back],
        &[(ASK, &[0, 1, 2, 3]), (ASK, b"\x01SendTargets=\0"), out, back, (TELL, &[0]), back, out],
        &[(TELL, &[1]), (TELL, &[3]), back, write, out, (LOG_OUT, &[]), out, complete, back],
        &[read, out, (TELL, &[2]), back],
    ];
    let acts: [(u8, &[u8]); 8] = [
        (FLIP, &[0, 1, 0x80]),
        (FLIP, &[1, 1, 0x01, 43, 4]),
        (FLIP, &[0, 27, 1]),
        (FLIP, &[1, 27, 1]),
        (TWICE, &[0]),
        (TWICE, &[1]),
        (DROP, &[0]),
        (DROP, &[1]),
    ];
    let mut all: Vec<Vec<u8>> = Vec::new();
    for (n, script) in scripts.iter().enumerate() {
        for flags in [0, 1, 2, 3, 7, 10, 12, 14] {
            all.push([&[flags][..], &operations(script)].concat());
        }
        for (at, act) in acts.iter().enumerate() {
            let mut changed = script.to_vec();
            changed.insert((at + n) % (script.len() + 1), *act);
            all.push([&[at as u8 * 3 % 16][..], &operations(&changed)].concat());
        }
    }
    all.extend(changed_fields());
    for (n, hex) in HEADERS.iter().enumerate() {
        let raw = [&[u8::from(n >= 9)][..], &header(hex), &[0; 48]].concat();
        for kind in [RAW, RAW_IN_ORDER] {
            all.push(
                [&[n as u8 % 16][..], &operations(&[read, write, out, (kind, &raw), complete, back])]
                    .concat(),
            );
        }
    }
    all
}

/// A write, a read and an abort in which each PDU is changed, one field at a time.
fn changed_fields() -> Vec<Vec<u8>> {
    const FIELDS: [(u8, u8); 16] = [
        (0, 0x40),
        (1, 0x80),
        (1, 0x40),
        (1, 0x21),
        (15, 1),
        (19, 1),
        (22, 2),
        (23, 1),
        (27, 1),
        (31, 1),
        (35, 1),
        (39, 1),
        (42, 2),
        (43, 1),
        (46, 2),
        (47, 1),
    ];
    let write: Operation<'_> = (SUBMIT, &[2, 0x0c, 0, 0x0c, 0]);
    let read: Operation<'_> = (SUBMIT, &[1, 0x0c, 0, 0x0c, 0]);
    let (out, back, work): (Operation<'_>, Operation<'_>, Operation<'_>) =
        ((TO_TARGET, &[]), (TO_INITIATOR, &[]), (COMPLETE, &[0]));
    let scripts: [&[Operation<'_>]; 3] = [
        &[write, out, out, work, back, out, out, back, out, work, back],
        &[read, out, work, back, back, back, write, out, back],
        &[write, read, out, work, out, (ABORT, &[0]), back, out, out, out, work, back, back],
    ];
    let mut all = Vec::new();
    for (flags, script) in
        [0, 3, 9].iter().flat_map(|flags| scripts.iter().map(move |script| (*flags, script)))
    {
        let deliveries = (0..script.len()).filter(|at| matches!(script[*at].0, TO_TARGET | TO_INITIATOR));
        for (at, (byte, mask)) in deliveries.flat_map(|at| FIELDS.map(|field| (at, field))) {
            let act = [u8::from(script[at].0 == TO_INITIATOR), byte, mask];
            let mut changed = script.to_vec();
            changed[at] = (FLIP, &act);
            all.push([&[flags][..], &operations(&changed)].concat());
        }
    }
    all
}
