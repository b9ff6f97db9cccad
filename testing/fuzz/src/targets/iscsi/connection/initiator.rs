//! A correct initiator.

use std::{
    collections::HashMap,
    future::poll_fn,
    io::{IoSlice, IoSliceMut},
    time::Duration,
};

use millrace_iscsi::{
    login::{InitiatorConfig as LoginConfig, InitiatorLogin, InitiatorStep},
    negotiation::{DigestPolicy, Settings},
    pdu::{Bhs, Isid, Part, PduReader, TaskAttribute},
    session::{
        Command, Direction, InitiatorConfig, InitiatorEvent, InitiatorSession, Outcome, Payload, Placement,
    },
};
use millrace_runtime::{ByteStream, MemoryStream, RuntimeExt};

use super::{
    super::pdu::{Rules, encoded},
    scene::{HONEST, Scene, TARGET, password},
};

const MAX_DATA: u32 = 262_144;

struct Initiator {
    stream: MemoryStream,
    reader: PduReader,
    rules: Rules,
}

/// Writes and reads several times with pauses at the target [`HONEST`].
pub(super) async fn work(scene: &Scene) {
    let (mut initiator, mut session) = Initiator::start(scene, HONEST).await;
    // POWER ON.
    initiator.execute(&mut session, [0; 16], Direction::None, Vec::new()).await;
    for round in 0..3_u8 {
        let blocks = 1 + round * 40;
        let mut cdb = [0; 16];
        (cdb[0], cdb[5], cdb[8]) = (0x2a, round, blocks);
        let data: Vec<u8> = (0..usize::from(blocks) * 512).map(|n| (n * 7 / 3) as u8 ^ round).collect();
        let (status, _) = initiator.execute(&mut session, cdb, Direction::Write, data.clone()).await;
        assert_eq!(status, 0, "a write");
        scene.rt.sleep(Duration::from_millis(700)).await;
        cdb[0] = 0x28;
        let buffer = vec![0xee; data.len()];
        let (status, read) = initiator.execute(&mut session, cdb, Direction::Read, buffer).await;
        assert!(status == 0 && read == data, "a read of what was written");
    }
    initiator.log_out(session).await;
}

/// Reads from the target [`TARGET`], if no persistent reservation excludes it.
pub(super) async fn read(scene: &Scene) {
    let (mut initiator, mut session) = Initiator::start(scene, TARGET).await;
    let cdb = |bytes: &[(usize, u8)]| {
        let mut cdb = [0; 16];
        bytes.iter().for_each(|(at, byte)| cdb[*at] = *byte);
        cdb
    };
    // POWER ON, and changes that others have made.
    for _ in 0..4 {
        initiator.execute(&mut session, [0; 16], Direction::None, Vec::new()).await;
    }
    let inquiry = cdb(&[(0, 0x12), (4, 36)]);
    let (status, _) = initiator.execute(&mut session, inquiry, Direction::Read, vec![0; 36]).await;
    assert_eq!(status, 0, "INQUIRY");
    let reservation = cdb(&[(0, 0x5e), (1, 1), (8, 24)]);
    let (status, data) = initiator.execute(&mut session, reservation, Direction::Read, vec![0; 24]).await;
    assert_eq!(status, 0, "PERSISTENT RESERVE IN");
    if data[7] == 0 {
        let read = cdb(&[(0, 0x28), (8, 1)]);
        let (status, _) = initiator.execute(&mut session, read, Direction::Read, vec![0; 512]).await;
        assert_eq!(status, 0, "READ");
    }
    initiator.log_out(session).await;
}

impl Initiator {
    /// Logs in to `target`.
    async fn start(scene: &Scene, target: &str) -> (Self, InitiatorSession) {
        let stream = scene.connect([10, 0, 2, 1], 1 << 14, 3000).expect("a connection");
        let rules = Rules { max_data: MAX_DATA, header_digest: false, data_digest: false };
        let mut initiator = Self { stream, reader: PduReader::new(MAX_DATA), rules };
        let session = initiator.log_in(target).await;
        (initiator, session)
    }

    async fn log_out(mut self, mut session: InitiatorSession) {
        session.logout().expect("a logout");
        while self.step(&mut session, &mut HashMap::new()).await {}
        self.stream.shutdown();
    }

    async fn log_in(&mut self, target: &str) -> InitiatorSession {
        let (mut login, mut pdu) = InitiatorLogin::new(LoginConfig {
            initiator: "iqn.2026-01.example:correct".parse().expect("a name"),
            target: Some(target.parse().expect("a name")),
            isid: Isid([0x80, 0, 0, 0, 0, 9]),
            cid: 1,
            cmd_sn: 100,
            settings: Settings { header_digest: DigestPolicy::Require, ..Settings::default() },
            chap: (target == HONEST).then(password),
            random: [9; 33],
            redirects: 0,
        });
        loop {
            self.send(&pdu.bhs, &pdu.data).await;
            let (bhs, data) = self.receive().await.expect("a login response");
            match login.receive(&bhs, &data).expect("a login") {
                InitiatorStep::Send(next) => pdu = next,
                InitiatorStep::Redirect { .. } => panic!("a redirection"),
                InitiatorStep::Established(established) => {
                    let parameters = established.parameters;
                    self.rules.header_digest = parameters.header_digest;
                    self.rules.data_digest = parameters.data_digest;
                    self.reader.set(MAX_DATA, parameters.header_digest, parameters.data_digest);
                    return InitiatorSession::new(InitiatorConfig {
                        parameters,
                        cid: established.cid,
                        cmd_sn: established.cmd_sn,
                        max_cmd_sn: established.max_cmd_sn,
                        exp_stat_sn: established.stat_sn,
                    });
                }
            }
        }
    }

    async fn send(&mut self, bhs: &Bhs, data: &[u8]) {
        let bytes = encoded(bhs, &[], data, self.rules);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let written = poll_fn(|cx| self.stream.poll_write(cx, &[IoSlice::new(rest)])).await;
            rest = &rest[written.expect("the target reads")..];
        }
    }

    /// The next PDU; `None` at the end of the stream.
    async fn receive(&mut self) -> Option<(Bhs, Vec<u8>)> {
        let mut data = Vec::new();
        loop {
            let (part, missing) = self.reader.next();
            if part == Part::End {
                let bhs = *self.reader.header().expect("a header");
                self.reader.finish();
                return Some((bhs, data));
            }
            let mut bytes = vec![0; missing];
            let read = poll_fn(|cx| self.stream.poll_read(cx, &mut [IoSliceMut::new(&mut bytes)])).await;
            let bytes = &bytes[..read.ok().filter(|n| *n > 0)?];
            self.reader.supply(bytes).expect("a correct PDU");
            if part == Part::Data {
                data.extend(bytes);
            }
        }
    }

    /// Sends what the session has to send, and processes the next PDU. `false` at the end of the connection.
    async fn step(&mut self, session: &mut InitiatorSession, buffers: &mut HashMap<u32, Vec<u8>>) -> bool {
        while let Some(pdu) = session.poll_transmit() {
            let data = match &pdu.data {
                Payload::Bytes(bytes) => bytes.clone(),
                Payload::Task { itt, offset, length } => {
                    buffers[itt][*offset as usize..][..*length as usize].to_vec()
                }
            };
            self.send(&pdu.encode(), &data).await;
        }
        let Some((bhs, data)) = self.receive().await else { return false };
        let placement = session.begin(&bhs, &[], None).expect("a correct target");
        if let Placement::Task { itt, offset, length, .. } = placement {
            let buffer = buffers.get_mut(&itt).expect("a task");
            buffer[offset as usize..][..length as usize].copy_from_slice(&data);
        }
        let control = matches!(placement, Placement::Control { .. });
        session.finish(if control { &data } else { &[] }).expect("a correct target");
        true
    }

    /// Executes a command; returns status and data.
    async fn execute(
        &mut self,
        session: &mut InitiatorSession,
        cdb: [u8; 16],
        direction: Direction,
        data: Vec<u8>,
    ) -> (u8, Vec<u8>) {
        let (attribute, expected) = (TaskAttribute::SIMPLE, data.len() as u32);
        let command = Command { lun: 0, attribute, cdb, direction, expected };
        let tag = session.submit(command, None).expect("a session");
        let mut buffers = HashMap::from([(tag, data)]);
        loop {
            assert!(self.step(session, &mut buffers).await, "the target has closed the connection");
            while let Some(event) = session.poll_event() {
                if let InitiatorEvent::Completed { itt, outcome: Outcome::Completed { status, .. } } = event {
                    assert_eq!(itt, tag);
                    return (status, buffers.remove(&tag).unwrap_or_default());
                }
            }
        }
    }
}
