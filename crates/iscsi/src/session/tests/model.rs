//! Both roles over a lossless pipe, with their owners: random commands and interleavings.

use std::collections::{BTreeMap, HashMap, VecDeque};

use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use super::*;
use crate::{
    iser::RemoteBuffer,
    pdu::{Residual, TaskAttribute, TaskFunction, TaskResult},
};

const DISK: usize = 16 << 10;
const ABORTED: u8 = 0x40;

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }
}

enum Wire {
    Pdu { bhs: Bhs, data: Vec<u8>, advertised: Advertised, invalidate: Option<u32> },
    RdmaWrite { stag: u32, address: u64, data: Vec<u8> },
}

/// A task at the initiator, found by its STag.
struct Submitted {
    itt: u32,
    command: Command,
    buffer: Vec<u8>,
    outcome: Option<Outcome>,
}

/// A task that the target's SCSI layer executes.
enum Execution {
    Started,
    Fetching,
    Ready,
    Aborted,
}

/// Both ends, the pipe, and the owners of both sessions.
pub(super) struct Pair {
    random: Random,
    i: InitiatorSession,
    t: TargetSession,
    to_target: VecDeque<Wire>,
    to_initiator: VecDeque<Wire>,
    disk: Vec<u8>,
    /// By STag, which is also in the CDB.
    submitted: BTreeMap<u32, Submitted>,
    stags: HashMap<u32, u32>,
    executing: BTreeMap<u32, Execution>,
    buffers: HashMap<u32, Vec<u8>>,
    reads: VecDeque<(u32, RemoteBuffer, u32, u32)>,
    /// The data that the target returned, by STag.
    served: HashMap<u32, Vec<u8>>,
    requests: usize,
    answers: usize,
    functions: Vec<(u32, TaskFunction, u64)>,
    closed: bool,
    /// The highest maximum so far.
    max_tasks: u32,
    first_burst: u32,
}

fn stag_of(command: &Command) -> u32 {
    u32::from_be_bytes([command.cdb[12], command.cdb[13], command.cdb[14], command.cdb[15]])
}

fn place_of(command: &Command) -> (usize, usize) {
    let n = |at: usize| usize::from(u16::from_be_bytes([command.cdb[at], command.cdb[at + 1]]));
    (n(2), n(4))
}

impl Pair {
    pub(super) fn new(
        seed: u64,
        limits: Parameters,
        initiator_receives: u32,
        transport: Transport,
        max_tasks: u32,
    ) -> Self {
        let near_end = u32::MAX - 3;
        let mut config = TargetConfig {
            parameters: transport.apply(Parameters { max_send_data: initiator_receives, ..limits }),
            remote_invalidate: transport.remote_invalidate(),
            discovery: false,
            cid: 1,
            stat_sn: near_end,
            exp_cmd_sn: near_end,
            max_tasks,
            max_unsolicited: 8 << 10,
        };
        config.parameters.max_receive_data = limits.max_send_data;
        let t = TargetSession::new(config);
        let numbers = t.login_numbers();
        let i = InitiatorSession::new(InitiatorConfig {
            parameters: transport.apply(Parameters { max_receive_data: initiator_receives, ..limits }),
            cid: 1,
            cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
            exp_stat_sn: numbers.stat_sn.wrapping_add(1),
        });
        Self {
            random: Random(SplitMix64::seed_from_u64(seed)),
            i,
            t,
            to_target: VecDeque::new(),
            to_initiator: VecDeque::new(),
            disk: (0..DISK).map(|n| (n * 7 + n / 251) as u8).collect(),
            submitted: BTreeMap::new(),
            stags: HashMap::new(),
            executing: BTreeMap::new(),
            buffers: HashMap::new(),
            reads: VecDeque::new(),
            served: HashMap::new(),
            requests: 0,
            answers: 0,
            functions: Vec::new(),
            closed: false,
            max_tasks,
            first_burst: limits.first_burst,
        }
    }

    fn submit(&mut self) {
        let direction = [Direction::None, Direction::Read, Direction::Write][self.random.below(3)];
        let length = match self.random.below(4) {
            0 => self.random.below(20),
            1 => 512 * (1 + self.random.below(8)),
            _ => self.random.below(6000),
        };
        // The length of the CDB differs from the expected length in a quarter of the commands.
        let expected = match self.random.below(8) {
            0 => self.random.below(6000),
            1 => length + self.random.below(3),
            _ => length,
        };
        let direction = if expected == 0 { Direction::None } else { direction };
        let expected = if direction == Direction::None { 0 } else { expected };
        let stag = 1000 + self.submitted.len() as u32;
        let mut cdb = [0; 16];
        cdb[0] = u8::from(direction == Direction::Write);
        cdb[2..4].copy_from_slice(&(self.random.below(DISK - 6100) as u16).to_be_bytes());
        cdb[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        cdb[12..].copy_from_slice(&stag.to_be_bytes());
        let lun = self.random.below(2) as u64;
        let command =
            Command { lun, attribute: TaskAttribute::SIMPLE, cdb, direction, expected: expected as u32 };
        let buffer = match direction {
            Direction::Write => (0..expected).map(|_| self.random.below(256) as u8).collect(),
            _ => vec![0xee; expected],
        };
        let remote = RemoteBuffer { stag, base: u64::from(stag) << 32 };
        let itt = self.i.submit(command, Some(remote)).unwrap();
        self.stags.insert(itt, stag);
        self.submitted.insert(stag, Submitted { itt, command, buffer, outcome: None });
    }

    /// Takes one step of a kind. Returns whether it had an effect.
    fn step(&mut self, kind: usize) -> bool {
        match kind {
            0 => self.initiator_sends(),
            1 => self.target_receives(),
            2 => self.target_event(),
            3 => self.target_sends(),
            4 => self.initiator_receives(),
            5 => self.initiator_event(),
            6 => self.rdma_read(),
            7 => self.perform_function(),
            _ => self.execute(),
        }
    }

    fn initiator_sends(&mut self) -> bool {
        let Some(pdu) = self.i.poll_transmit() else {
            return false;
        };
        let data = match &pdu.data {
            Payload::Bytes(bytes) => bytes.clone(),
            Payload::Task { itt, offset, length } => {
                let task = &self.submitted[&self.stags[itt]];
                assert!(task.outcome.is_none(), "data of an ended task");
                task.buffer[*offset as usize..][..*length as usize].to_vec()
            }
        };
        assert!(data.len() <= 1 << 20);
        let (bhs, advertised) = (pdu.encode(), pdu.advertised);
        self.to_target.push_back(Wire::Pdu { bhs, data, advertised, invalidate: None });
        true
    }

    fn target_receives(&mut self) -> bool {
        if self.closed || !self.t.accepts_input() {
            return false;
        }
        let Some(Wire::Pdu { bhs, data, advertised, .. }) = self.to_target.pop_front() else {
            return false;
        };
        let placement = self.t.begin(&bhs, &[], advertised).expect("a valid request");
        let control = match placement {
            Placement::Task { itt, offset, length, excess } => {
                assert_eq!((length + excess) as usize, data.len());
                // Unsolicited data comes before the task has its buffer, and no more than FirstBurstLength.
                let size = self.first_burst as usize;
                let buffer = self.buffers.entry(itt).or_insert_with(|| vec![0; size]);
                buffer[offset as usize..][..length as usize].copy_from_slice(&data[..length as usize]);
                Vec::new()
            }
            Placement::Control { length } => {
                assert_eq!(length as usize, data.len());
                data
            }
            Placement::None => {
                assert!(data.is_empty());
                data
            }
            Placement::Discard { length } => {
                assert_eq!(length as usize, data.len());
                Vec::new()
            }
        };
        self.t.finish(&control).expect("a valid request");
        assert!(self.t.tasks().count() <= self.max_tasks as usize, "tasks beyond the window");
        true
    }

    fn target_event(&mut self) -> bool {
        let Some(event) = self.t.poll_event() else {
            return false;
        };
        match event {
            TargetEvent::Execute { itt, command } => {
                let submitted = &self.submitted[&stag_of(&command)];
                assert_eq!((submitted.itt, submitted.command), (itt, command));
                assert!(self.executing.insert(itt, Execution::Started).is_none(), "executed once");
            }
            TargetEvent::DataReady { itt } => {
                assert!(matches!(self.executing.insert(itt, Execution::Ready), Some(Execution::Fetching)));
            }
            TargetEvent::RdmaRead { itt, source, offset, length } => {
                self.reads.push_back((itt, source, offset, length));
            }
            TargetEvent::Abort { itt } => {
                self.reads.retain(|read| read.0 != itt);
                self.buffers.remove(&itt);
                if let Some(execution) = self.executing.get_mut(&itt) {
                    *execution = Execution::Aborted;
                }
            }
            TargetEvent::Manage { itt, function, lun } => self.functions.push((itt, function, lun)),
            TargetEvent::Text { itt, text } => {
                assert_eq!(text, b"SendTargets=\0");
                self.t.answer_text(itt, vec![b'x'; 2000], true);
            }
            TargetEvent::MoreText { itt } => self.t.answer_text(itt, vec![b'x'; 1000], false),
        }
        true
    }

    fn perform_function(&mut self) -> bool {
        let Some((itt, ..)) = self.functions.pop() else {
            return false;
        };
        self.t.managed(itt, TaskResult::COMPLETE);
        true
    }

    fn execute(&mut self) -> bool {
        if self.executing.is_empty() {
            return false;
        }
        let n = self.random.below(self.executing.len());
        let (&itt, execution) = self.executing.iter().nth(n).unwrap();
        if let Execution::Aborted = execution {
            self.executing.remove(&itt);
            self.t.complete(itt, Completion::default());
            return true;
        }
        let command = *self.t.command(itt).unwrap();
        let (at, length) = place_of(&command);
        let size = length.min(command.expected as usize);
        match (execution, command.direction) {
            (Execution::Fetching, _) => {
                // A command may fail before its data is complete, but not during an RDMA Read.
                if self.random.below(32) != 0 || self.reads.iter().any(|read| read.0 == itt) {
                    return false;
                }
                self.executing.remove(&itt);
                self.t.complete(itt, Completion { status: 2, length: 0, sense: vec![0x70; 18] });
                return true;
            }
            (Execution::Started, _) if self.random.below(8) == 0 => {
                self.executing.remove(&itt);
                self.t.complete(itt, Completion { status: 2, length: 0, sense: vec![0x70; 18] });
                return true;
            }
            (Execution::Started, Direction::Write) => {
                self.buffers
                    .entry(itt)
                    .or_default()
                    .resize((command.expected as usize).max(self.first_burst as usize), 0);
                self.executing.insert(itt, Execution::Fetching);
                self.t.fetch(itt, length as u32);
                return true;
            }
            (_, Direction::Write) => self.disk[at..at + size].copy_from_slice(&self.buffers[&itt][..size]),
            (_, Direction::Read) => {
                let data = self.disk[at..at + size].to_vec();
                self.served.insert(stag_of(&command), data.clone());
                self.buffers.insert(itt, data);
            }
            (_, Direction::None) => {}
        }
        if command.direction == Direction::Write {
            assert_eq!(self.buffers[&itt][..size], self.submitted[&stag_of(&command)].buffer[..size]);
        }
        self.executing.remove(&itt);
        self.t.complete(itt, Completion { status: 0, length: length as u64, sense: Vec::new() });
        true
    }

    fn rdma_read(&mut self) -> bool {
        let Some((itt, source, offset, length)) = self.reads.pop_front() else {
            return false;
        };
        let task = &self.submitted[&source.stag];
        assert_eq!(task.itt, itt);
        let at = (source.base - (u64::from(source.stag) << 32)) as usize;
        let data = &task.buffer[at..at + length as usize];
        self.buffers.get_mut(&itt).unwrap()[offset as usize..][..length as usize].copy_from_slice(data);
        self.t.rdma_read_done(itt);
        true
    }

    fn target_sends(&mut self) -> bool {
        match self.t.poll_transmit() {
            None => return false,
            Some(TargetTransmit::Close) => self.closed = true,
            Some(TargetTransmit::RdmaWrite { itt, sink, offset, length }) => {
                let data = self.buffers[&itt][offset as usize..][..length as usize].to_vec();
                let write = Wire::RdmaWrite { stag: sink.stag, address: sink.base, data };
                self.to_initiator.push_back(write);
            }
            Some(TargetTransmit::Pdu(pdu)) => {
                let data = match &pdu.data {
                    Payload::Bytes(bytes) => bytes.clone(),
                    Payload::Task { itt, offset, length } => {
                        self.buffers[itt][*offset as usize..][..*length as usize].to_vec()
                    }
                };
                if let Some(itt) = pdu.ends {
                    self.buffers.remove(&itt);
                }
                let (bhs, advertised) = (pdu.encode(), Advertised::default());
                let wire = Wire::Pdu { bhs, data, advertised, invalidate: pdu.invalidate };
                self.to_initiator.push_back(wire);
            }
        }
        true
    }

    fn initiator_receives(&mut self) -> bool {
        if !self.i.accepts_input() {
            return false;
        }
        match self.to_initiator.pop_front() {
            None => return false,
            Some(Wire::RdmaWrite { stag, address, data }) => {
                let task = self.submitted.get_mut(&stag).unwrap();
                assert!(task.outcome.is_none(), "an RDMA Write after the end of its task");
                let at = (address - (u64::from(stag) << 32)) as usize;
                task.buffer[at..at + data.len()].copy_from_slice(&data);
            }
            Some(Wire::Pdu { bhs, data, invalidate, .. }) => {
                let control = match self.i.begin(&bhs, &[], invalidate).expect("a valid response") {
                    Placement::Task { itt, offset, length, excess } => {
                        assert_eq!((excess, length as usize), (0, data.len()));
                        let task = self.submitted.get_mut(&self.stags[&itt]).unwrap();
                        task.buffer[offset as usize..][..data.len()].copy_from_slice(&data);
                        Vec::new()
                    }
                    Placement::Control { .. } => data,
                    Placement::None | Placement::Discard { .. } => Vec::new(),
                };
                self.i.finish(&control).expect("a valid response");
            }
        }
        true
    }

    fn initiator_event(&mut self) -> bool {
        match self.i.poll_event() {
            None => return false,
            Some(InitiatorEvent::Completed { itt, outcome }) => {
                let stag = self.stags.remove(&itt).expect("a task that has not ended");
                let task = self.submitted.get_mut(&stag).unwrap();
                check_outcome(task, &outcome, self.served.get(&stag));
                let ended = !self.executing.contains_key(&itt) && self.reads.iter().all(|read| read.0 != itt);
                assert!(ended, "the target uses the data of an ended task");
                assert!(task.outcome.replace(outcome).is_none(), "one outcome");
            }
            Some(InitiatorEvent::Text { text, .. }) => {
                assert_eq!(text, vec![b'x'; 3000]);
                self.answers += 1;
            }
            Some(InitiatorEvent::Managed { .. } | InitiatorEvent::Pong { .. }) => self.answers += 1,
            Some(InitiatorEvent::LoggedOut { .. }) => self.answers += 1,
            Some(other) => panic!("{other:?}"),
        }
        true
    }

    /// A request that is not a command.
    fn disturb(&mut self) {
        let tasks: Vec<u32> = self.stags.keys().copied().collect();
        let sent = match self.random.below(8) {
            0 | 1 if !tasks.is_empty() => {
                let itt = tasks[self.random.below(tasks.len())];
                self.i.abort(itt).is_ok_and(|tag| tag.is_some())
            }
            2 => self.i.manage(TaskFunction::LOGICAL_UNIT_RESET, self.random.below(2) as u64).is_ok(),
            3 => self.i.manage(TaskFunction::ABORT_TASK_SET, 0).is_ok(),
            4 => self.i.ping(vec![1; 100]).is_ok(),
            5 => self.i.send_text(b"SendTargets=\0".to_vec()).is_ok(),
            6 => {
                self.t.ping();
                false
            }
            _ => {
                let max = 1 + self.random.below(6) as u32;
                self.max_tasks = self.max_tasks.max(max);
                self.t.set_max_tasks(max);
                false
            }
        };
        self.requests += usize::from(sent);
    }

    /// Submits commands and sends other requests at random times, and checks the final state.
    pub(super) fn run(&mut self, commands: usize, disturbances: usize) {
        let (mut commands, mut disturbances) = (commands, disturbances);
        while commands + disturbances > 0 {
            match self.random.below(24) {
                0 if commands > 0 => {
                    commands -= 1;
                    self.submit();
                }
                1 if disturbances > 0 => {
                    disturbances -= 1;
                    self.disturb();
                }
                _ => {
                    let kind = self.random.below(9);
                    self.step(kind);
                }
            }
        }
        self.drain();
        assert!(self.submitted.values().all(|task| task.outcome.is_some()), "a task without an outcome");
        assert_eq!(self.answers, self.requests);
        assert!(self.i.unfinished().is_empty() && self.t.tasks().next().is_none());
        assert!(self.buffers.is_empty() && self.executing.is_empty());
        assert!(!self.t.ping_outstanding());
        self.i.logout().unwrap();
        self.drain();
        assert!(self.closed);
        assert_eq!(self.answers, self.requests + 1);
    }

    fn drain(&mut self) {
        let mut idle = 0;
        while idle < 200 {
            let kind = self.random.below(9);
            idle = if self.step(kind) { 0 } else { idle + 1 };
        }
    }
}

fn check_outcome(task: &Submitted, outcome: &Outcome, served: Option<&Vec<u8>>) {
    let Outcome::Completed { status, sense, residual, transferred } = outcome else {
        assert_eq!(*outcome, Outcome::Aborted);
        return;
    };
    let (expected, length) = (task.command.expected, place_of(&task.command).1 as u32);
    if *status != 0 {
        assert_ne!(*status, ABORTED);
        assert_eq!(*sense, [0x70; 18]);
        return;
    }
    let wanted = match length {
        n if n < expected => Residual::Underflow(expected - n),
        n if n > expected => Residual::Overflow(n - expected),
        _ => Residual::None,
    };
    assert_eq!((*residual, *transferred), (wanted, length.min(expected)));
    if task.command.direction == Direction::Read {
        let data = served.expect("data that the target served");
        assert_eq!(task.buffer[..data.len()], data[..]);
        assert!(task.buffer[data.len()..].iter().all(|&byte| byte == 0xee), "data beyond the residual");
    }
}
