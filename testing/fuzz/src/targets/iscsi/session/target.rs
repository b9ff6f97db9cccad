//! The target with its owner: the SCSI layer and the RDMA operations.

use std::collections::{BTreeMap, VecDeque};

use millrace_iscsi::{
    iser::Advertised,
    negotiation::Parameters,
    pdu::TaskResult,
    session::{
        Command, Completion, Direction, Payload, Placement, TargetConfig, TargetEvent, TargetSession,
        TargetTransmit,
    },
};

use super::{CMD_SN, FIRST_BURST, MAX_TASKS, STAT_SN, Wire, initiator::InitiatorEnd};

/// Immediate commands that a session executes beyond the window.
const MAX_IMMEDIATE: usize = 4;
/// Maximum of immediate and unsolicited data of all tasks.
const MAX_UNSOLICITED: u64 = MAX_TASKS as u64 * FIRST_BURST as u64;

/// A command that the SCSI layer executes.
struct Execution {
    command: Command,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Started,
    Fetching,
    Ready,
    Aborted,
}

pub(super) struct TargetEnd {
    session: TargetSession,
    executing: BTreeMap<u32, Execution>,
    /// Which bytes of the data of writes have arrived, also before their execution.
    arrived: BTreeMap<u32, Vec<bool>>,
    /// RDMA Reads in progress: task, offset, length.
    reads: VecDeque<(u32, u32, u32)>,
    functions: VecDeque<u32>,
    /// `ExpCmdSN` and the next `StatSN`, as the last sent PDU has them.
    numbers: [u8; 8],
    is_rdma: bool,
    closed: bool,
    violated: bool,
}

/// Length of the data of a command, and its status.
fn demand(command: &Command) -> (u32, u8) {
    (u16::from_be_bytes([command.cdb[2], command.cdb[3]]).into(), command.cdb[1])
}

impl TargetEnd {
    pub(super) fn new(parameters: Parameters) -> Self {
        let config = TargetConfig {
            parameters,
            remote_invalidate: true,
            discovery: false,
            cid: 1,
            stat_sn: STAT_SN,
            exp_cmd_sn: CMD_SN,
            max_tasks: MAX_TASKS,
            max_unsolicited: MAX_UNSOLICITED,
        };
        Self {
            session: TargetSession::new(config),
            executing: BTreeMap::new(),
            arrived: BTreeMap::new(),
            reads: VecDeque::new(),
            functions: VecDeque::new(),
            numbers: [CMD_SN.to_be_bytes(), STAT_SN.to_be_bytes()].concat().try_into().expect("eight bytes"),
            is_rdma: parameters.iser.is_some(),
            closed: false,
            violated: false,
        }
    }

    /// `CmdSN` and `ExpStatSN` that a request may have now.
    pub(super) fn numbers(&self) -> [u8; 8] {
        self.numbers
    }

    /// An asynchronous message or ping to the initiator.
    pub(super) fn tell(&mut self, what: u8) {
        match what % 5 {
            0 => drop(self.session.ping()),
            1 => drop(self.session.request_logout(5)),
            2 => self.session.drop_connection(),
            3 => drop(self.session.report_event(0, &[0x70; 18])),
            _ => self.session.set_max_tasks(u32::from(what) % MAX_TASKS),
        }
    }

    pub(super) fn receive(&mut self, wire: Wire) {
        let Wire::Pdu { bhs, data, advertised, .. } = wire else { return };
        if self.closed {
            return;
        }
        let advertised = if self.is_rdma { advertised } else { Advertised::default() };
        assert!(self.session.accepts_input(), "all PDUs were taken");
        let placement = self.session.begin(&bhs, &[], advertised);
        if let Ok(placement) = placement {
            self.place(placement, data.len());
        }
        let control = matches!(placement, Ok(Placement::Control { .. }));
        let failed = placement.is_err() || self.session.finish(if control { &data } else { &[] }).is_err();
        self.violated |= failed;
        assert!(
            self.session.tasks().count() <= MAX_TASKS as usize + MAX_IMMEDIATE,
            "more tasks than the maximum"
        );
    }

    fn place(&mut self, placement: Placement, received: usize) {
        let placed = match placement {
            Placement::None => 0,
            Placement::Control { length } | Placement::Discard { length } => length,
            Placement::Task { itt, offset, length, excess } => {
                let expected = self.session.command(itt).expect("data of a task").expected;
                let buffer = match self.executing.get(&itt) {
                    Some(execution) if execution.state != State::Started => demand(&execution.command).0,
                    _ => FIRST_BURST,
                };
                let end = offset.checked_add(length).expect("data inside of the task");
                assert!(end <= expected.min(buffer), "{length} bytes at {offset} are outside of the buffer");
                self.arrive(itt, offset, length);
                length + excess
            }
        };
        assert_eq!(placed as usize, received);
    }

    fn arrive(&mut self, itt: u32, offset: u32, length: u32) {
        let arrived = self.arrived.entry(itt).or_default();
        let end = (offset + length) as usize;
        if arrived.len() < end {
            arrived.resize(end, false);
        }
        arrived[offset as usize..end].fill(true);
    }

    /// Takes events, and PDUs and RDMA Writes to send, and begins RDMA Reads from `initiator`.
    pub(super) fn collect(&mut self, wires: &mut VecDeque<Wire>, initiator: &InitiatorEnd) {
        while let Some(event) = self.session.poll_event() {
            self.event(event, initiator);
        }
        while !self.closed
            && let Some(transmit) = self.session.poll_transmit()
        {
            match transmit {
                TargetTransmit::Close => self.closed = true,
                TargetTransmit::RdmaWrite { itt, sink, offset, length } => {
                    let expected = self.session.command(itt).expect("a task").expected;
                    assert!(self.is_rdma && offset.checked_add(length).is_some_and(|end| end <= expected));
                    wires.push_back(Wire::RdmaWrite { sink, length });
                }
                TargetTransmit::Pdu(pdu) => {
                    let bhs = pdu.encode();
                    let data = match &pdu.data {
                        Payload::Bytes(bytes) => bytes.clone(),
                        Payload::Task { length, .. } => vec![0xa5; *length as usize],
                    };
                    if let Some(itt) = pdu.ends {
                        self.arrived.remove(&itt);
                        assert!(
                            !self.executing.contains_key(&itt),
                            "a response before the end of the execution"
                        );
                    }
                    self.numbers[..4].copy_from_slice(&bhs[28..32]);
                    let stat_sn = u32::from_be_bytes([bhs[24], bhs[25], bhs[26], bhs[27]]).wrapping_add(1);
                    self.numbers[4..].copy_from_slice(&stat_sn.to_be_bytes());
                    let advertised = Advertised::default();
                    wires.push_back(Wire::Pdu { bhs, data, advertised, invalidate: pdu.invalidate });
                }
            }
        }
    }

    fn event(&mut self, event: TargetEvent, initiator: &InitiatorEnd) {
        match event {
            TargetEvent::Execute { itt, command } => {
                let execution = Execution { command, state: State::Started };
                assert!(self.executing.insert(itt, execution).is_none(), "a command is executed twice");
            }
            TargetEvent::DataReady { itt } => {
                let execution = self.executing.get_mut(&itt).expect("a command in execution");
                assert_eq!(execution.state, State::Fetching);
                let wanted = demand(&execution.command).0.min(execution.command.expected) as usize;
                let arrived = self.arrived.get(&itt).and_then(|arrived| arrived.get(..wanted));
                assert!(wanted == 0 || arrived.is_some_and(|a| a.iter().all(|a| *a)), "data is missing");
                execution.state = State::Ready;
            }
            TargetEvent::RdmaRead { itt, source, offset, length } => {
                let execution = self.executing.get(&itt).expect("a command in execution");
                assert!(offset.checked_add(length).is_some_and(|end| end <= execution.command.expected));
                let exposed = initiator.is_exposed(source, length);
                assert!(exposed || initiator.changed, "an RDMA Read outside of the buffer");
                self.reads.push_back((itt, offset, length));
            }
            TargetEvent::Abort { itt } => {
                self.reads.retain(|read| read.0 != itt);
                if let Some(execution) = self.executing.get_mut(&itt) {
                    execution.state = State::Aborted;
                }
            }
            TargetEvent::Manage { itt, .. } => self.functions.push_back(itt),
            TargetEvent::Text { itt, text } => {
                let more = !text.is_empty();
                self.session.answer_text(itt, text.repeat(3), more);
            }
            TargetEvent::MoreText { itt } => self.session.answer_text(itt, b"A=b\0".to_vec(), false),
        }
    }

    /// Whether the SCSI layer or an RDMA Read uses the data of a task.
    pub(super) fn uses(&self, itt: u32) -> bool {
        self.executing.contains_key(&itt) || self.reads.iter().any(|read| read.0 == itt)
    }

    pub(super) fn has_work(&self) -> bool {
        let fetching = |e: &Execution| e.state == State::Fetching;
        let runnable = self.executing.values().any(|e| !fetching(e));
        runnable || !self.reads.is_empty() || !self.functions.is_empty()
    }

    /// Does the next work: an RDMA Read, a task management function, or a step of the `n`th command.
    pub(super) fn work(&mut self, n: u8) {
        if let Some((itt, offset, length)) = self.reads.pop_front() {
            self.arrive(itt, offset, length);
            self.session.rdma_read_done(itt);
            return;
        }
        let tags: Vec<u32> =
            self.executing.iter().filter(|(_, e)| e.state != State::Fetching).map(|(itt, _)| *itt).collect();
        let Some(&itt) = tags.get(usize::from(n) % tags.len().max(1)) else {
            if let Some(itt) = self.functions.pop_front() {
                self.session.managed(itt, TaskResult::COMPLETE);
            }
            return;
        };
        let Some(execution) = self.executing.get_mut(&itt) else { return };
        let (length, status) = demand(&execution.command);
        match (execution.state, execution.command.direction) {
            (State::Started, Direction::Write) if status == 0 => {
                execution.state = State::Fetching;
                self.session.fetch(itt, length);
            }
            (state, _) => {
                self.executing.remove(&itt);
                let sense = if status == 0 { Vec::new() } else { vec![0x70; 18] };
                let length = if status == 0 { length.into() } else { 0 };
                self.session.complete(itt, Completion { status, length, sense });
                if state == State::Aborted {
                    self.arrived.remove(&itt);
                }
            }
        }
    }

    /// Checks the end of an execution in which the third party did (`changed`), or did not act.
    pub(super) fn end(self, changed: bool) {
        assert!(changed || !self.violated, "a violation by a correct initiator");
        assert!(changed || self.closed || self.session.tasks().next().is_none(), "tasks that never end");
        assert!(!self.violated || self.closed, "a violation does not end the connection");
    }
}
