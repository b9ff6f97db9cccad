//! An iSCSI initiator on a blocking TCP connection.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use millrace_iscsi::{
    chap::Mutual,
    discovery::{self, DiscoveredTarget, SendTargets},
    login::{Established, InitiatorConfig as LoginConfig, InitiatorLogin, InitiatorStep, LoginError},
    negotiation::Settings,
    pdu::{Bhs, Isid, Part, PduReader, TaskAttribute, padding},
    session::{
        Command, Direction, InitiatorConfig, InitiatorEvent, InitiatorSession, Outcome, Payload, Placement,
    },
};
use millrace_scsi::{Lun, initiator};

/// The status GOOD.
pub(crate) const GOOD: u8 = 0;

/// The end of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) status: u8,
    pub(crate) sense: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// A session with one connection and without digests.
pub(crate) struct Initiator {
    stream: TcpStream,
    reader: PduReader,
    session: InitiatorSession,
    data: HashMap<u32, Vec<u8>>,
}

impl Initiator {
    /// Logs in to `target`, or for discovery if it is `None`.
    pub(crate) fn log_in(
        addr: SocketAddr,
        target: Option<&str>,
        chap: Option<Mutual>,
    ) -> Result<Self, LoginError> {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut reader = PduReader::new(1 << 20);
        let (mut login, mut pdu) = InitiatorLogin::new(LoginConfig {
            initiator: "iqn.2026-01.example:host".parse().unwrap(),
            target: target.map(|name| name.parse().unwrap()),
            isid: Isid([0x80, 0, 0, 0, 0, 1]),
            cid: 1,
            cmd_sn: 1,
            settings: Settings::default(),
            chap,
            random: [7; 33],
            redirects: 0,
        });
        let established = loop {
            send(&mut stream, &pdu.bhs, &pdu.data);
            let (bhs, data) = receive(&mut stream, &mut reader).expect("a login response");
            match login.receive(&bhs, &data)? {
                InitiatorStep::Send(next) => pdu = next,
                InitiatorStep::Established(established) => break *established,
                InitiatorStep::Redirect { .. } => panic!("a redirection"),
            }
        };
        let Established { parameters, cid, cmd_sn, max_cmd_sn, stat_sn, .. } = established;
        let exp_stat_sn = stat_sn;
        let config = InitiatorConfig { parameters, cid, cmd_sn, max_cmd_sn, exp_stat_sn };
        Ok(Self { stream, reader, session: InitiatorSession::new(config), data: HashMap::new() })
    }

    /// As [`Self::log_in`], and reports the unit attention conditions of `lun`.
    pub(crate) fn ready(addr: SocketAddr, target: &str, lun: u16) -> Self {
        let mut new = Self::log_in(addr, Some(target), None).unwrap();
        new.clear_attention(lun);
        new
    }

    /// TEST UNIT READY until the unit attention conditions are reported.
    pub(crate) fn clear_attention(&mut self, lun: u16) {
        while self.execute(lun, [0; 16], Direction::None, Vec::new()).status != GOOD {}
    }

    fn flush(&mut self) {
        while let Some(pdu) = self.session.poll_transmit() {
            let data = match &pdu.data {
                Payload::Bytes(bytes) => bytes.clone(),
                Payload::Task { itt, offset, length } => {
                    self.data[itt][*offset as usize..][..*length as usize].to_vec()
                }
            };
            send(&mut self.stream, &pdu.encode(), &data);
        }
    }

    /// The event that `select` maps, when it comes; others are discarded. `None` if the target closes the connection.
    fn event<T>(&mut self, select: impl Fn(InitiatorEvent) -> Option<T>) -> Option<T> {
        loop {
            self.flush();
            while let Some(event) = self.session.poll_event() {
                if let Some(selected) = select(event) {
                    return Some(selected);
                }
            }
            let (bhs, data) = receive(&mut self.stream, &mut self.reader)?;
            let place = self.session.begin(&bhs, &[], None).unwrap();
            if let Placement::Task { itt, offset, length, .. } = place {
                let length = length as usize;
                self.data.get_mut(&itt).unwrap()[offset as usize..][..length]
                    .copy_from_slice(&data[..length]);
            }
            let control = matches!(place, Placement::Control { .. });
            self.session.finish(if control { &data } else { &[] }).unwrap();
        }
    }

    /// Executes a command with data to send, or the number of bytes to receive.
    pub(crate) fn execute(&mut self, lun: u16, cdb: [u8; 16], direction: Direction, data: Vec<u8>) -> Done {
        let lun = u64::from_be_bytes(Lun::new(lun).unwrap().to_bytes());
        let expected = data.len() as u32;
        let command = Command { lun, attribute: TaskAttribute::SIMPLE, cdb, direction, expected };
        let itt = self.session.submit(command, None).unwrap();
        self.data.insert(itt, data);
        let outcome = self.event(|event| match event {
            InitiatorEvent::Completed { itt: done, outcome } if done == itt => Some(outcome),
            _ => None,
        });
        let mut data = self.data.remove(&itt).unwrap();
        match outcome {
            Some(Outcome::Completed { status, sense, transferred, .. }) => {
                data.truncate(transferred as usize);
                Done { status, sense, data }
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&mut self, lun: u16, lba: u64, blocks: u32, data: &[u8]) -> Done {
        self.execute(lun, initiator::write_16(lba, blocks, false), Direction::Write, data.to_vec())
    }

    pub(crate) fn read(&mut self, lun: u16, lba: u64, blocks: u32, bytes: usize) -> Vec<u8> {
        let done = self.execute(lun, initiator::read_16(lba, blocks, false), Direction::Read, vec![0; bytes]);
        assert_eq!((done.status, done.sense), (GOOD, Vec::new()));
        done.data
    }

    /// Number of blocks of a disk and their length.
    pub(crate) fn capacity(&mut self, lun: u16) -> (u64, u32) {
        let done = self.execute(lun, initiator::read_capacity_16(), Direction::Read, vec![0; 32]);
        let capacity = initiator::capacity(&done.data).unwrap();
        (capacity.blocks, capacity.block_bytes)
    }

    /// The NAA identifier of a disk.
    pub(crate) fn identifier(&mut self, lun: u16) -> Vec<u8> {
        let done = self.execute(lun, initiator::vital_page(0x83, 1024), Direction::Read, vec![0; 1024]);
        let naa = initiator::designators(&done.data).unwrap().into_iter().find(|d| d.kind == 3);
        naa.unwrap().value
    }

    /// The targets that discovery reports.
    pub(crate) fn discover(addr: SocketAddr) -> Vec<DiscoveredTarget> {
        let mut session = Self::log_in(addr, None, None).unwrap();
        session.session.send_text(SendTargets::All.encode()).unwrap();
        let text = session.event(|event| match event {
            InitiatorEvent::Text { text, .. } => Some(text),
            _ => None,
        });
        discovery::decode(&text.unwrap()).unwrap()
    }

    /// Waits until the target requests a logout; then logs out.
    pub(crate) fn expect_logout(mut self) {
        let requested = |event| matches!(event, InitiatorEvent::LogoutRequested { .. }).then_some(());
        self.event(requested).expect("a request to log out");
        self.session.logout().unwrap();
        let logged_out = |event| matches!(event, InitiatorEvent::LoggedOut { .. }).then_some(());
        self.event(logged_out).expect("a response to the logout");
    }
}

fn send(stream: &mut TcpStream, bhs: &Bhs, data: &[u8]) {
    let mut bytes = [bhs, data].concat();
    bytes.resize(bytes.len() + padding(data.len() as u32), 0);
    stream.write_all(&bytes).unwrap();
}

/// Receives a PDU; `None` at the end of the connection.
fn receive(stream: &mut TcpStream, reader: &mut PduReader) -> Option<(Bhs, Vec<u8>)> {
    let mut data = Vec::new();
    loop {
        let (part, missing) = reader.next();
        if part == Part::End {
            break;
        }
        let mut bytes = vec![0; missing];
        let n = stream.read(&mut bytes).unwrap();
        if n == 0 {
            return None;
        }
        reader.supply(&bytes[..n]).unwrap();
        if part == Part::Data {
            data.extend_from_slice(&bytes[..n]);
        }
    }
    let bhs = *reader.header().unwrap();
    reader.finish();
    Some((bhs, data))
}
