//! Targets that violate the protocol: the connection ends with an error, and no memory stays exposed.

use std::{collections::VecDeque, future::poll_fn, task::Poll};

use millrace_buffer::{Arena, Buffer};
use millrace_iscsi::{
    iser::{Advertised, Header, Hello, Message, PREFIX_BYTES, RemoteBuffer, max_message, prefix},
    login::{Admission, Authority, Grant, Identity, Progress, Refusal, Status, TargetConfig, TargetLogin},
    negotiation::{IserSettings, Parameters, Settings},
    pdu::{Bhs, NopIn, Numbers, RESERVED_TAG, Residual, Response, ScsiResponse},
    session::Direction,
};
use millrace_iscsi_initiator::iser::{Error, LoggedIn, log_in};
use millrace_rdma::{
    Completion, Memory, QueuePair, ReadRequest, Segment, SendRequest, SteeringTag, WorkId, WriteRequest,
};

use crate::bench::{Bench, bytes, command, login_config, pattern, run, rw10};

const NONE: Advertised = Advertised { write: None, read: None };

/// A target that sends arbitrary messages.
struct Raw {
    qp: Box<dyn QueuePair>,
    arena: Arena,
    inbox: VecDeque<Buffer>,
}

struct Anyone;

impl Authority for Anyone {
    fn admit(&mut self, _: &Identity) -> Result<Admission, Refusal> {
        Ok(Admission { chap: None })
    }

    fn establish(&mut self, _: &Identity, _: &Parameters) -> Result<Grant, Status> {
        Ok(Grant { tsih: 1, window: 8 })
    }
}

impl Raw {
    fn new(mut qp: Box<dyn QueuePair>, arena: Arena) -> Self {
        for _ in 0..16 {
            qp.post_receive(arena.alloc(max_message(8192)).unwrap()).unwrap();
        }
        Self { qp, arena, inbox: VecDeque::new() }
    }

    fn send(&mut self, message: &[u8], invalidate: Option<u32>) {
        let data = self.arena.copy_from(message).unwrap().into();
        let invalidate = invalidate.map(SteeringTag);
        self.qp.post_send(SendRequest { data, invalidate, solicited: true, signaled: None }).ok();
    }

    /// The next message; `None` at the end of the connection.
    async fn receive(&mut self) -> Option<Buffer> {
        while self.inbox.is_empty() {
            let mut out = Vec::new();
            let polled = poll_fn(|cx| match self.qp.poll(cx, &mut out) {
                Poll::Ready(Ok(())) if out.is_empty() => Poll::Pending,
                other => other,
            });
            polled.await.ok()?;
            for completion in out {
                if let Completion::Received { buffer, .. } = completion {
                    self.inbox.push_back(buffer);
                }
            }
        }
        self.inbox.pop_front()
    }

    /// Accepts a login.
    async fn log_in(&mut self) {
        let iser = Some(IserSettings { max_send_data: 8192, max_unexpected_pdus: 8 });
        let mut login = TargetLogin::new(TargetConfig {
            settings: Settings { iser, max_receive_data: 8192, ..Settings::default() },
            portal_group: 1,
            stat_sn: 1,
            random: [1; 33],
        });
        loop {
            let request = self.receive().await.unwrap();
            let Ok(Message::Pdu(pdu)) = Message::decode(&request) else { panic!("{request:?}") };
            let reply = login.receive(pdu.bhs, pdu.data, &mut Anyone);
            let answer = reply.pdu.unwrap();
            self.send(&message(&answer.bhs, &answer.data), None);
            if matches!(reply.progress, Progress::Established(_)) {
                return;
            }
        }
    }
}

fn message(bhs: &Bhs, data: &[u8]) -> Vec<u8> {
    let mut bytes = prefix(NONE, bhs).to_vec();
    bytes.extend_from_slice(data);
    bytes
}

/// A response with status GOOD for the first command.
fn good(itt: u32, stat_sn: u32) -> ScsiResponse {
    let numbers = Numbers { stat_sn, exp_cmd_sn: 101, max_cmd_sn: 108 };
    ScsiResponse { response: 0, status: 0, itt, numbers, exp_data_sn: 0, residual: Residual::None }
}

/// The messages of a target after a read of 4096 bytes with tag 0 and STag `stag`. The next status number is `sn`.
type Answer = fn(sn: u32, stag: u32) -> (Vec<u8>, Option<u32>);

const VIOLATIONS: [(&str, Answer); 11] = [
    ("a part of the BHS", |sn, _| {
        (message(&Response::Scsi(good(0, sn)).encode(0), &[])[..PREFIX_BYTES - 1].to_vec(), None)
    }),
    ("a DataSegmentLength beyond the Send", |sn, _| {
        (message(&Response::Scsi(good(0, sn)).encode(20), &[0; 19]), None)
    }),
    ("a Send beyond the DataSegmentLength", |sn, _| {
        (message(&Response::Scsi(good(0, sn)).encode(0), &[0; 4]), None)
    }),
    ("sense data of a wrong length", |sn, _| {
        (message(&Response::Scsi(good(0, sn)).encode(4), &[0xff; 4]), None)
    }),
    ("a Hello", |_, _| (Header::Hello(Hello::new(1)).encode().to_vec(), None)),
    ("a reserved opcode of iSER", |_, _| (vec![0; PREFIX_BYTES], None)),
    ("a message longer than the receives", |sn, _| {
        (message(&Response::Scsi(good(0, sn)).encode(4096), &[0; 4096]), None)
    }),
    ("a login PDU after the login", |sn, _| {
        let mut bhs = Response::Scsi(good(0, sn)).encode(0);
        (bhs[0], bhs[1]) = (0x23, 0x87);
        (message(&bhs, &[]), None)
    }),
    ("a response for an unknown task", |sn, _| (message(&Response::Scsi(good(77, sn)).encode(0), &[]), None)),
    ("a status number that is not the next one", |sn, _| {
        (message(&Response::Scsi(good(0, sn + 1)).encode(0), &[]), None)
    }),
    ("the invalidation of an open task's tag by another PDU", |sn, stag| {
        let numbers = Numbers { stat_sn: sn, exp_cmd_sn: 101, max_cmd_sn: 108 };
        let ping = NopIn { lun: 0, itt: RESERVED_TAG, ttt: 5, numbers };
        (message(&Response::NopIn(ping).encode(0), &[]), Some(stag))
    }),
];

/// Runs `violation` on a target after a read of 4096 bytes to the buffer. The next status number is the second argument.
async fn violate(bench: &Bench, case: &str, violation: impl FnOnce(&mut Raw, u32, RemoteBuffer)) {
    let (ours, theirs) = bench.queue_pairs().await;
    let domain = ours.domain();
    let mut raw = Raw::new(theirs, bench.fixture.arena.clone());
    let target = async {
        raw.log_in().await;
        let request = raw.receive().await.unwrap();
        let Ok(Message::Pdu(pdu)) = Message::decode(&request) else { panic!("{request:?}") };
        let buffer = pdu.advertised.read.unwrap();
        let exp_stat_sn = u32::from_be_bytes(pdu.bhs[28..32].try_into().unwrap());
        violation(&mut raw, exp_stat_sn, buffer);
        drop(request);
        while raw.receive().await.is_some() {}
    };
    let initiator = async {
        let logged_in = log_in(ours, bench.arena.clone(), login_config(1, Settings::default())).await;
        let Ok(LoggedIn::Established(mut connection)) = logged_in else { panic!("{case}: the login failed") };
        let mut buffer = bench.arena.alloc(4096).unwrap();
        buffer.copy_from_slice(&pattern(4096, 1));
        let read = command(&rw10(0x28, 0, 8), Direction::Read, 4096);
        assert_eq!(connection.submit(read, Some(Memory::Owned(buffer))).unwrap(), 0);
        let end = poll_fn(|cx| connection.poll_event(cx)).await;
        assert!(
            matches!(end, Err(Error::Message(_) | Error::Violation(_) | Error::Connection(_))),
            "{case}: {end:?}"
        );
        let mut unfinished = connection.into_unfinished();
        assert_eq!(unfinished.len(), 1, "{case}");
        if let Some(memory) = unfinished.remove(0).1 {
            assert!(bytes(Some(memory)) == pattern(4096, 1), "{case}");
        }
        assert_eq!(domain.exposed(), (0, 0), "{case}");
    };
    futures::future::join(target, initiator).await;
    drop((raw, domain));
    assert_eq!((bench.arena.stats().in_use, bench.transient()), (0, 0), "{case}");
}

#[test]
fn violations_end_the_connection_and_the_exposure() {
    run(async |bench| {
        for (case, answer) in VIOLATIONS {
            let send = |raw: &mut Raw, sn, buffer: RemoteBuffer| {
                let (bytes, invalidate) = answer(sn, buffer.stag);
                raw.send(&bytes, invalidate);
            };
            violate(&bench, case, send).await;
        }
    });
}

/// A success follows each RDMA Write, as after a correct one.
#[test]
fn rdma_operations_outside_of_the_buffer_end_the_connection_and_the_exposure() {
    run(async |bench| {
        for (case, stag, offset) in
            [("a tag that is not exposed", 1, 0), ("beyond the end", 0, 1), ("before the start", 0, u64::MAX)]
        {
            let write = |raw: &mut Raw, sn, buffer: RemoteBuffer| {
                let (handle, offset) = (buffer.stag.wrapping_add(stag), buffer.base.wrapping_add(offset));
                let to = Segment { handle: SteeringTag(handle), length: 4096, offset };
                let data = raw.arena.copy_from(&[0xee; 4096]).unwrap().into();
                raw.qp.post_write(WriteRequest { data, to }).unwrap();
                raw.send(&message(&Response::Scsi(good(0, sn)).encode(0), &[]), None);
            };
            violate(&bench, case, write).await;
        }
        let read = |raw: &mut Raw, _, buffer: RemoteBuffer| {
            let from = Segment { handle: SteeringTag(buffer.stag), length: 4096, offset: buffer.base };
            let sink = vec![raw.arena.alloc(4096).unwrap()];
            raw.qp.post_read(ReadRequest { id: WorkId(1), from, sink }).unwrap();
        };
        violate(&bench, "a read of the buffer of a read", read).await;
    });
}

#[test]
fn violations_end_a_login() {
    run(async |bench| {
        let cases: [(&str, Vec<u8>); 4] = [
            ("another protocol", vec![0x47; 4096]),
            ("a part of the BHS", vec![0x10; PREFIX_BYTES - 1]),
            ("a response of the full feature phase", message(&Response::Scsi(good(0, 1)).encode(0), &[])),
            ("a message longer than those of a login", vec![0x10; 16000]),
        ];
        for (case, bytes) in cases {
            let (ours, theirs) = bench.queue_pairs().await;
            let mut raw = Raw::new(theirs, bench.fixture.arena.clone());
            let login = log_in(ours, bench.arena.clone(), login_config(1, Settings::default()));
            let target = async {
                drop(raw.receive().await);
                raw.send(&bytes, None);
                while raw.receive().await.is_some() {}
            };
            let (logged_in, ()) = futures::future::join(login, target).await;
            assert!(logged_in.is_err(), "{case}");
            drop(raw);
            assert_eq!((bench.arena.stats().in_use, bench.transient()), (0, 0), "{case}");
        }
    });
}
