//! The initiator with its owner.

use std::collections::{BTreeMap, VecDeque};

use millrace_iscsi::{
    iser::RemoteBuffer,
    negotiation::Parameters,
    pdu::{RESERVED_TAG, Residual, TaskAttribute, TaskFunction},
    session::{
        Command, Direction, InitiatorConfig, InitiatorEvent, InitiatorSession, Outcome, Payload, Placement,
        RequestError,
    },
};

use super::{CMD_SN, MAX_TASKS, STAT_SN, Wire};

/// Maximum number of tasks of an execution.
const MAX_SUBMITTED: u32 = 64;

/// A task without an outcome.
struct Submitted {
    command: Command,
    stag: u32,
    /// Which bytes of the data have arrived.
    arrived: Vec<bool>,
}

pub(super) struct InitiatorEnd {
    session: InitiatorSession,
    tasks: BTreeMap<u32, Submitted>,
    /// Tags of tasks that have ended.
    pub(super) completed: Vec<u32>,
    submitted: u32,
    /// `ExpCmdSN` of the target and the next `StatSN`, as the last sent PDU has them.
    numbers: [u8; 8],
    is_rdma: bool,
    /// Whether the third party has acted. It may have changed the length of a command, so that the target accesses
    /// memory outside of the buffer, which an RDMA provider refuses.
    pub(super) changed: bool,
    /// Whether a violation ended the session.
    violated: bool,
    /// Whether the session ended as intended, or will.
    ended: bool,
}

impl InitiatorEnd {
    pub(super) fn new(parameters: Parameters) -> Self {
        let config = InitiatorConfig {
            parameters,
            cid: 1,
            cmd_sn: CMD_SN,
            max_cmd_sn: CMD_SN.wrapping_add(MAX_TASKS - 1),
            exp_stat_sn: STAT_SN,
        };
        Self {
            session: InitiatorSession::new(config),
            tasks: BTreeMap::new(),
            completed: Vec::new(),
            submitted: 0,
            numbers: [0; 8],
            is_rdma: parameters.iser.is_some(),
            changed: false,
            violated: false,
            ended: false,
        }
    }

    /// `StatSN` and `ExpCmdSN` that a response may have now.
    pub(super) fn numbers(&self) -> [u8; 8] {
        self.numbers
    }

    /// The address of the data of the task with this tag.
    fn base(stag: u32) -> u64 {
        u64::from(stag) << 32
    }

    /// Submits a command whose target transfers `length` bytes and reports `status`.
    pub(super) fn submit(&mut self, direction: Direction, expected: u32, length: u16, status: u8) {
        if self.submitted == MAX_SUBMITTED {
            return;
        }
        let expected = if direction == Direction::None { 0 } else { expected };
        let direction = if expected == 0 { Direction::None } else { direction };
        self.submitted += 1;
        let stag = 1000 + self.submitted;
        let mut cdb = [0; 16];
        cdb[1] = status;
        cdb[2..4].copy_from_slice(&length.to_be_bytes());
        let lun = u64::from(self.submitted % 2);
        let command = Command { lun, attribute: TaskAttribute::SIMPLE, cdb, direction, expected };
        let buffer = RemoteBuffer { stag, base: Self::base(stag) };
        match self.session.submit(command, Some(buffer)) {
            Ok(itt) => {
                assert_ne!(itt, RESERVED_TAG);
                let task = Submitted { command, stag, arrived: vec![false; expected as usize] };
                assert!(self.tasks.insert(itt, task).is_none(), "a tag is used twice");
            }
            Err(error) => assert_eq!(error, RequestError::Closing),
        }
    }

    pub(super) fn abort(&mut self, n: u8) {
        let tags: Vec<u32> = self.tasks.keys().copied().collect();
        if let Some(itt) = tags.get(usize::from(n) % tags.len().max(1)) {
            self.requested(|session| session.abort(*itt).map(drop));
        }
    }

    pub(super) fn manage(&mut self, function: TaskFunction, lun: u64) {
        if function != TaskFunction::ABORT_TASK {
            self.ended |= function == TaskFunction::TARGET_COLD_RESET;
            self.requested(|session| session.manage(function, lun).map(drop));
        }
    }

    pub(super) fn ask(&mut self, ping: bool, data: &[u8]) {
        let data = data.to_vec();
        self.requested(|session| if ping { session.ping(data) } else { session.send_text(data) }.map(drop));
    }

    pub(super) fn log_out(&mut self) {
        self.requested(|session| session.logout().map(drop));
        self.ended = true;
    }

    fn requested(&mut self, request: impl FnOnce(&mut InitiatorSession) -> Result<(), RequestError>) {
        if let Err(error) = request(&mut self.session) {
            assert!(!matches!(error, RequestError::NoBuffer(_)), "{error}");
        }
    }

    pub(super) fn receive(&mut self, wire: Wire) {
        match wire {
            Wire::RdmaWrite { sink, length } => {
                assert!(self.is_exposed(sink, length) || self.changed, "an RDMA Write outside of the buffer");
            }
            Wire::Pdu { bhs, data, invalidate, .. } => {
                assert!(self.session.accepts_input(), "all PDUs were taken");
                let placement = self.session.begin(&bhs, &[], invalidate);
                if let Ok(placement) = placement {
                    self.place(placement, data.len());
                }
                let control = matches!(placement, Ok(Placement::Control { .. }));
                let failed =
                    placement.is_err() || self.session.finish(if control { &data } else { &[] }).is_err();
                if failed {
                    self.violated = true;
                    assert_eq!(self.session.poll_transmit(), None, "a PDU after a violation");
                }
            }
        }
    }

    /// Whether `length` bytes from `at` are in the buffer of a task without an outcome.
    pub(super) fn is_exposed(&self, at: RemoteBuffer, length: u32) -> bool {
        self.tasks.values().any(|task| {
            let offset = at.base.wrapping_sub(Self::base(task.stag));
            let end = offset.checked_add(length.into());
            task.stag == at.stag && end.is_some_and(|end| end <= u64::from(task.command.expected))
        })
    }

    fn place(&mut self, placement: Placement, received: usize) {
        let placed = match placement {
            Placement::None => 0,
            Placement::Control { length } | Placement::Discard { length } => length,
            Placement::Task { itt, offset, length, excess } => {
                let task = self.tasks.get_mut(&itt).expect("data of a task");
                assert_eq!(task.command.direction, Direction::Read);
                let range = task.arrived.get_mut(offset as usize..(offset + length) as usize);
                range.expect("data inside of the task").fill(true);
                length + excess
            }
        };
        assert_eq!(placed as usize, received);
    }

    /// Takes events, and PDUs to send.
    pub(super) fn collect(&mut self, wires: &mut VecDeque<Wire>) {
        while let Some(event) = self.session.poll_event() {
            match event {
                InitiatorEvent::Completed { itt, outcome } => self.completed(itt, &outcome),
                InitiatorEvent::LoggedOut { .. } | InitiatorEvent::Dropped { .. } => self.ended = true,
                _ => {}
            }
        }
        while let Some(pdu) = self.session.poll_transmit() {
            let length = pdu.data.length() as usize;
            let data = match &pdu.data {
                Payload::Bytes(bytes) => bytes.clone(),
                Payload::Task { itt, offset, length } => {
                    let task = self.tasks.get(itt).expect("data of an ended task");
                    assert_eq!(task.command.direction, Direction::Write);
                    assert!(offset.checked_add(*length).is_some_and(|end| end <= task.command.expected));
                    vec![0x5a; *length as usize]
                }
            };
            assert_eq!(data.len(), length);
            let bhs = pdu.encode();
            // ExpStatSN, and CmdSN, which the target expects next if all was delivered.
            self.numbers[..4].copy_from_slice(&bhs[28..32]);
            if bhs[0] & 0x3f != 5 {
                self.numbers[4..].copy_from_slice(&bhs[24..28]);
            }
            wires.push_back(Wire::Pdu { bhs, data, advertised: pdu.advertised, invalidate: None });
        }
    }

    /// Success means that all bytes which the residual count leaves have arrived.
    fn completed(&mut self, itt: u32, outcome: &Outcome) {
        let task = self.tasks.remove(&itt).expect("one outcome of each task");
        self.completed.push(itt);
        let Outcome::Completed { status, residual, transferred, sense } = outcome else { return };
        let expected = task.command.expected;
        assert!(*transferred <= expected && sense.len() <= usize::from(u16::MAX));
        if *status != 0 {
            return;
        }
        match residual {
            Residual::None | Residual::Overflow(_) => assert_eq!(*transferred, expected),
            Residual::Underflow(missing) => assert_eq!(*transferred, expected - missing),
        }
        if task.command.direction == Direction::Read && !self.is_rdma {
            let arrived = task.arrived[..*transferred as usize].iter().all(|arrived| *arrived);
            assert!(arrived, "a read has succeeded without its data");
        }
    }

    /// Checks the end of an execution.
    pub(super) fn end(self) {
        let unfinished: Vec<u32> = self.session.unfinished().iter().map(|task| task.itt).collect();
        let mut sorted = unfinished.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, self.tasks.keys().copied().collect::<Vec<_>>(), "tasks without an outcome");
        if !self.changed {
            assert!(!self.violated, "a violation by a correct target");
            assert!(self.ended || unfinished.is_empty(), "tasks that never end");
        }
    }
}
