//! Peers that violate the protocol: each ends its own connection at most, and leaves no memory in use.

use std::sync::atomic::Ordering;

use millrace_iscsi::{
    iser::{Advertised, HEADER_BYTES, Header, Hello, HelloReply, Message, PREFIX_BYTES, RemoteBuffer},
    pdu::{
        Bhs, DataOut, NopOut, RESERVED_TAG, Request, RequestNumbers, Response, ScsiCommand, TaskAttribute,
        TaskFunction, TaskRequest, TextRequest,
    },
    session::{Direction, InitiatorEvent, Outcome},
};
use millrace_iscsi_target::ConnectionLimits;
use millrace_rdma::{Access, ConnectParams, ReadRequest, Segment, SteeringTag, WorkId, WriteRequest};
use millrace_runtime::RuntimeExt;
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use super::common::{Bench, Client, Ended, message, pattern, run, rw10};

const NONE: Advertised = Advertised { write: None, read: None };
const BUFFER: RemoteBuffer = RemoteBuffer { stag: 0x1234_5678, base: 0x7f00_0000_0000 };

/// A READ or WRITE of `blocks` blocks.
fn command(itt: u32, numbers: RequestNumbers, write: bool, blocks: u16) -> ScsiCommand {
    let mut cdb = [0; 16];
    cdb[..10].copy_from_slice(&rw10(if write { 0x2a } else { 0x28 }, 0, blocks));
    ScsiCommand {
        immediate: false,
        last: true,
        read: !write,
        write,
        attribute: TaskAttribute::SIMPLE,
        lun: 0,
        itt,
        expected: u32::from(blocks) * 512,
        numbers,
        cdb,
    }
}

pub(crate) fn nop(numbers: RequestNumbers) -> NopOut {
    NopOut { immediate: true, lun: 0, itt: 7, ttt: RESERVED_TAG, numbers }
}

/// Logs in. Returns the numbers of the next request.
async fn session(bench: &Bench) -> (Client, RequestNumbers) {
    let mut client = bench.connect().await;
    client.log_in(1).await.unwrap();
    client.clear_attention().await;
    let stat_sn = client.established.as_ref().unwrap().stat_sn;
    // POWER ON and GOOD follow the login.
    (client, RequestNumbers { cmd_sn: 102, exp_stat_sn: stat_sn + 2 })
}

pub(crate) fn hello(hello: Hello) -> [u8; HEADER_BYTES] {
    Header::Hello(hello).encode()
}

/// A message that ends the connection.
type Violation = fn(RequestNumbers) -> Vec<u8>;

fn pdu(request: Request, advertised: Advertised, data: &[u8]) -> Vec<u8> {
    message(advertised, &request.encode(data.len() as u32), data)
}

fn write_of(n: RequestNumbers, advertised: Option<RemoteBuffer>, data: &[u8]) -> Vec<u8> {
    let advertised = Advertised { write: advertised, read: None };
    pdu(Request::ScsiCommand(command(5, n, true, 64)), advertised, data)
}

const VIOLATIONS: [(&str, Violation); 20] = [
    ("an empty Send", |_| vec![0; 1]),
    ("a part of the iSER header", |_| vec![0x10; HEADER_BYTES - 1]),
    ("a part of the BHS", |n| pdu(Request::NopOut(nop(n)), NONE, &[])[..PREFIX_BYTES - 1].to_vec()),
    ("a reserved opcode of iSER", |_| vec![0x40; PREFIX_BYTES]),
    ("a HelloReply", |_| {
        let reply = HelloReply { rejected: false, max_version: 10, version: 10, ord: 1 };
        Header::HelloReply(reply).encode().to_vec()
    }),
    ("a DataSegmentLength beyond the Send", |n| {
        message(NONE, &Request::NopOut(nop(n)).encode(4096), &[0; 4095])
    }),
    ("a part of the stated immediate data", |n| {
        write_of(n, Some(BUFFER), &[0; 512])[..PREFIX_BYTES + 511].to_vec()
    }),
    // As libiscsi 1.19 does.
    ("a write without its immediate data", |n| write_of(n, Some(BUFFER), &[0; 512])[..PREFIX_BYTES].to_vec()),
    ("a read that states immediate data", |n| {
        let advertised = Advertised { write: Some(BUFFER), read: Some(BUFFER) };
        message(advertised, &Request::ScsiCommand(command(5, n, false, 8)).encode(512), &[])
    }),
    ("a Send beyond the DataSegmentLength", |n| message(NONE, &Request::NopOut(nop(n)).encode(4), &[0; 8])),
    ("additional header segments beyond the Send", |n| {
        let mut bhs = Request::ScsiCommand(command(5, n, false, 1)).encode(0);
        bhs[4] = 255;
        message(NONE, &bhs, &[0; 64])
    }),
    ("more data than TargetRecvDataSegmentLength", |n| pdu(Request::NopOut(nop(n)), NONE, &[0; 8196])),
    ("more immediate data than FirstBurstLength", |n| write_of(n, Some(BUFFER), &[0; 8704])),
    ("a write without a buffer", |n| write_of(n, None, &[0; 512])),
    ("a read without a buffer", |n| pdu(Request::ScsiCommand(command(5, n, false, 8)), NONE, &[])),
    ("a read with the buffer of a write", |n| {
        let advertised = Advertised { write: Some(BUFFER), read: None };
        pdu(Request::ScsiCommand(command(5, n, false, 8)), advertised, &[])
    }),
    ("a buffer beyond the address space", |n| {
        write_of(n, Some(RemoteBuffer { stag: 1, base: u64::MAX - 511 }), &[])
    }),
    ("a command that announces unsolicited data", |n| {
        let command = ScsiCommand { last: false, ..command(5, n, true, 64) };
        let advertised = Advertised { write: Some(BUFFER), read: None };
        pdu(Request::ScsiCommand(command), advertised, &[])
    }),
    ("solicited data in a Send", |n| {
        let exp_stat_sn = n.exp_stat_sn;
        let mut messages = write_of(n, Some(BUFFER), &[]);
        let data =
            DataOut { last: true, lun: 0, itt: 5, ttt: RESERVED_TAG, exp_stat_sn, data_sn: 0, offset: 0 };
        messages.extend(pdu(Request::DataOut(data), NONE, &[0; 512]));
        messages
    }),
    ("a login PDU after the login", |_| {
        let mut bhs: Bhs = [0; 48];
        (bhs[0], bhs[1]) = (0x43, 0x87);
        message(NONE, &bhs, &[])
    }),
];

#[test]
fn violations_end_the_connection() {
    run(&ConnectionLimits::default(), async |bench| {
        for (n, (case, bytes)) in VIOLATIONS.into_iter().enumerate() {
            let (mut client, numbers) = session(&bench).await;
            client.send_bytes(&bytes(numbers));
            for response in client.expect_end().await {
                let harmless = matches!(response, Response::Reject(_));
                assert!(harmless, "{case}: {response:?}");
            }
            bench.expect_idle().await;
            assert_eq!(bench.stats.malformed.load(Ordering::Relaxed), n as u64 + 1, "{case}");
        }
        bench.expect_service().await;
    });
}

/// Changes some bytes, or the length, of `message`.
fn mutate(message: &mut Vec<u8>, random: &mut impl FnMut(usize) -> usize) {
    for _ in 0..=random(3) {
        let at = random(message.len());
        message[at] = [0, 0xff, message[at] ^ 1 << random(8), random(256) as u8][random(4)];
    }
    if random(4) == 0 {
        message.resize(random(message.len() + 8), 0x5a);
    }
}

#[test]
fn mutated_messages_leave_no_memory_in_use() {
    run(&ConnectionLimits::default(), async |bench| {
        for seed in 1..=60_u64 {
            println!("seed {seed}");
            let mut generator = SplitMix64::seed_from_u64(seed);
            let mut random = |below: usize| (generator.next_u64() % below.max(1) as u64) as usize;
            let (mut client, n) = session(&bench).await;
            let (region, buffer) = client.expose(&[7; 65536], Access::RemoteWrite);
            let (source, written) = client.expose(&[8; 65536], Access::RemoteRead);
            for i in 0..6 {
                let n = RequestNumbers { cmd_sn: n.cmd_sn + i, ..n };
                let advertised = Advertised { write: Some(written), read: Some(buffer) };
                let request = match random(5) {
                    0 => Request::NopOut(nop(n)),
                    1 | 2 => Request::ScsiCommand(command(i, n, random(2) == 0, 128)),
                    3 => Request::Text(TextRequest {
                        immediate: true,
                        last: true,
                        continued: false,
                        lun: 0,
                        itt: i,
                        ttt: RESERVED_TAG,
                        numbers: n,
                    }),
                    _ => Request::Task(TaskRequest {
                        immediate: true,
                        function: TaskFunction::LOGICAL_UNIT_RESET,
                        lun: 0,
                        itt: i,
                        referenced: RESERVED_TAG,
                        numbers: n,
                        ref_cmd_sn: 0,
                        exp_data_sn: 0,
                    }),
                };
                let mut message = pdu(request, advertised, &[b'x'; 64][..random(64)]);
                mutate(&mut message, &mut random);
                client.send_bytes(&message);
            }
            // Until the target has processed all, or closed the connection.
            let answers = async { while client.receive_message().await.is_ok() {} };
            let end = bench.rt.sleep(std::time::Duration::from_secs(1));
            futures::future::select(std::pin::pin!(answers), end).await;
            drop((client, region, source));
            bench.expect_idle().await;
        }
        bench.expect_service().await;
    });
}

#[test]
fn violations_end_a_login() {
    run(&ConnectionLimits::default(), async |bench| {
        let numbers = RequestNumbers { cmd_sn: 100, exp_stat_sn: 0 };
        let mut login: Bhs = [0; 48];
        (login[0], login[1]) = (0x43, 0x87);
        let cases: [(&str, Vec<u8>); 6] = [
            ("a part of the BHS", message(NONE, &login, &[])[..PREFIX_BYTES - 1].to_vec()),
            ("another protocol", vec![0x47; 4096]),
            ("a PDU of the full feature phase", pdu(Request::NopOut(nop(numbers)), NONE, &[])),
            ("no names", message(NONE, &login, &[])),
            ("a message longer than those of a login", message(NONE, &login, &[0; 16384])),
            ("a HelloReply", Header::Hello(Hello::new(1)).encode().map(|b| b | 0x10).to_vec()),
        ];
        for (case, bytes) in cases {
            let mut client = bench.connect().await;
            client.send_bytes(&bytes);
            for response in client.expect_end().await {
                let Response::Login(response) = response else { panic!("{case}: {response:?}") };
                assert_ne!(response.status_class, 0, "{case}");
            }
            bench.expect_idle().await;
        }
        bench.expect_service().await;
    });
}

#[test]
fn a_hello_is_answered_once() {
    run(&ConnectionLimits::default(), async |bench| {
        for in_login in [true, false] {
            let mut client = bench.connect().await;
            if !in_login {
                client.log_in(1).await.unwrap();
            }
            client.send_bytes(&hello(Hello::new(4)));
            let (reply, _) = client.receive_message().await.unwrap();
            let Ok(Message::HelloReply(reply)) = Message::decode(&reply) else { panic!("{reply:?}") };
            assert_eq!((reply.rejected, reply.version), (false, 10));
            assert!((1..=4).contains(&reply.ord), "{reply:?}");
            if in_login {
                client.log_in(1).await.unwrap();
            }
            client.clear_attention().await;
            client.write(0, &pattern(65536, 3)).await;
            client.send_bytes(&hello(Hello::new(4)));
            client.expect_end().await;
            bench.expect_idle().await;
        }
        let mut client = bench.connect().await;
        client.send_bytes(&hello(Hello { max_version: 9, min_version: 1, ird: 1 }));
        let (reply, _) = client.receive_message().await.unwrap();
        assert!(matches!(Message::decode(&reply), Ok(Message::HelloReply(reply)) if reply.rejected));
        assert_eq!(client.receive_message().await.unwrap_err(), Ended);
        drop(client);
        bench.expect_idle().await;
    });
}

#[test]
fn a_wrong_tag_ends_its_own_connection_only() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut other = bench.connect().await;
        other.log_in(2).await.unwrap();
        other.clear_attention().await;
        for write in [true, false] {
            // A tag that does not exist, the tag of the other direction, and a range that is too short.
            for case in 0..3 {
                let (mut client, numbers) = session(&bench).await;
                let rights = [Access::RemoteRead, Access::RemoteWrite];
                let access = rights[usize::from(write == (case == 1))];
                let (region, mut buffer) = client.expose(&[0x5a; 16384], access);
                let buffer = match case {
                    0 => BUFFER,
                    1 => buffer,
                    _ => {
                        buffer.base += 1;
                        buffer
                    }
                };
                let advertised = Advertised { write: Some(buffer), read: Some(buffer) };
                client.send_bytes(&pdu(
                    Request::ScsiCommand(command(5, numbers, write, 32)),
                    advertised,
                    &[],
                ));
                let responses = client.expect_end().await;
                assert!(responses.is_empty(), "{responses:?}");
                drop(region);
                other.write(0, &pattern(65536, case)).await;
                assert!(other.read(0, 128).await == pattern(65536, case));
            }
        }
        other.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn two_commands_with_one_tag_end_their_own_connection_at_most() {
    run(&ConnectionLimits::default(), async |bench| {
        let (mut client, numbers) = session(&bench).await;
        let (region, buffer) = client.expose(&[0; 65536], Access::RemoteWrite);
        let advertised = Advertised { write: None, read: Some(buffer) };
        for n in 0..8 {
            let numbers = RequestNumbers { cmd_sn: numbers.cmd_sn + n, ..numbers };
            client.send_bytes(&pdu(
                Request::ScsiCommand(command(50 + n, numbers, false, 128)),
                advertised,
                &[],
            ));
        }
        // The first response invalidates the tag.
        let responses = client.expect_end().await;
        assert!(responses.len() <= 1, "{responses:?}");
        drop(region);
        bench.expect_idle().await;
        bench.expect_service().await;
    });
}

#[test]
fn rdma_operations_of_the_initiator_end_the_connection() {
    run(&ConnectionLimits::default(), async |bench| {
        for read in [false, true] {
            let (mut client, _) = session(&bench).await;
            let other = Segment { handle: SteeringTag(0x100), length: 4096, offset: 0 };
            if read {
                let (id, sink) = (WorkId(1), vec![client.arena.alloc(4096).unwrap()]);
                if client.qp.post_read(ReadRequest { id, from: other, sink }).is_err() {
                    continue; // The provider limits the depth to the target's, which is 0.
                }
            } else {
                let data = client.arena.copy_from(&[0x66; 4096]).unwrap().into();
                client.qp.post_write(WriteRequest { data, to: other }).unwrap();
            }
            assert!(client.expect_end().await.is_empty());
            bench.expect_idle().await;
        }
        bench.expect_service().await;
    });
}

#[test]
fn an_initiator_that_serves_no_rdma_reads_is_refused() {
    run(&ConnectionLimits::default(), async |bench| {
        let client = bench.connect_with(ConnectParams { ird: 0, ..ConnectParams::default() }).await;
        assert!(client.expect_end().await.is_empty());
        bench.expect_idle().await;
        assert_eq!(bench.stats.logins_refused.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_disconnect_with_rdma_reads_in_flight_releases_their_memory() {
    run(&ConnectionLimits::default(), async |bench| {
        let before = {
            let mut client = bench.connect().await;
            client.log_in(1).await.unwrap();
            client.clear_attention().await;
            let before = client.read(0, 8192).await;
            client.log_out().await;
            before
        };
        for polls in [0, 1, 3] {
            let mut client = bench.connect().await;
            client.settings.immediate_data = false;
            client.log_in(1).await.unwrap();
            client.clear_attention().await;
            for n in 0..3 {
                client.submit(&rw10(0x2a, n * 8192, 8192), Direction::Write, pattern(4 << 20, 9));
            }
            client.flush();
            let ping = client.session().ping(Vec::new()).unwrap();
            client.flush();
            let pong =
                |e: &InitiatorEvent| matches!(e, InitiatorEvent::Pong { itt } if *itt == ping).then_some(());
            for _ in 0..polls {
                client.event(pong).await.ok();
                client.events.push(InitiatorEvent::Pong { itt: ping });
            }
            drop(client);
            bench.expect_idle().await;
        }
        let mut client = bench.connect().await;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        assert!(client.read(0, 8192).await == before, "an incomplete write is not executed");
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn receives_suffice_for_the_command_window_and_unexpected_pdus() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect().await;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        for _ in 0..3 {
            let commands: Vec<u32> =
                (0..300).map(|_| client.submit(&[0; 6], Direction::None, Vec::new())).collect();
            let pings: Vec<u32> = (0..6).map(|_| client.session().ping(vec![1; 8192]).unwrap()).collect();
            for itt in commands {
                let outcome = client.outcome(itt).await;
                assert!(matches!(outcome, Ok(Outcome::Completed { status: 0, .. })), "{outcome:?}");
            }
            for itt in pings {
                let pong = |e: &InitiatorEvent| {
                    matches!(e, InitiatorEvent::Pong { itt: i } if *i == itt).then_some(())
                };
                client.event(pong).await.unwrap();
            }
        }
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn a_storm_of_messages_is_bounded() {
    run(&ConnectionLimits::default(), async |bench| {
        let (mut client, numbers) = session(&bench).await;
        for n in 0..3000 {
            let request = NopOut { itt: n, ..nop(numbers) };
            client.send_bytes(&pdu(Request::NopOut(request), NONE, &[7; 8192]));
        }
        // More messages than receives may end the connection.
        while client.receive().await.is_ok() {
            assert!(bench.transient() <= 8 << 20, "{:?}", bench.arena.stats());
        }
        drop(client);
        bench.expect_idle().await;
        bench.expect_service().await;
    });
}

#[test]
fn connections_share_the_memory_of_receives() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut clients = Vec::new();
        for n in 0..24 {
            let mut client = bench.connect().await;
            client.log_in(n).await.unwrap();
            client.clear_attention().await;
            clients.push(client);
        }
        assert!(bench.budget.stats().in_use <= 16 << 20, "{:?}", bench.budget.stats());
        for client in &mut clients {
            client.write(0, &pattern(1 << 20, 1)).await;
        }
        for client in clients {
            client.log_out().await;
        }
        bench.expect_idle().await;
    });
}

#[test]
fn silent_initiators_are_disconnected() {
    run(&ConnectionLimits::default(), async |bench| {
        // Connections without a login.
        for _ in 0..3 {
            let client = bench.connect().await;
            client.expect_end().await;
        }
        // An initiator that answers pings remains; one that does not ends.
        let mut client = bench.connect().await;
        client.log_in(1).await.unwrap();
        for _ in 0..5 {
            client.step().await.unwrap();
        }
        assert_eq!(client.expect_end().await.len(), 1);
        bench.expect_idle().await;
        assert_eq!(bench.stats.stalled.load(Ordering::Relaxed), 4);
        bench.expect_service().await;
    });
}

#[test]
fn an_initiator_that_does_not_poll_is_disconnected() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect().await;
        client.settings.immediate_data = false;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        client.submit(&rw10(0x2a, 0, 8192), Direction::Write, pattern(4 << 20, 9));
        client.flush();
        // In software, the initiator serves RDMA Reads only while it polls.
        futures::future::poll_fn(|cx| {
            client.qp.flush(cx);
            std::task::Poll::Ready(())
        })
        .await;
        bench.rt.sleep(std::time::Duration::from_secs(200)).await;
        assert_eq!(bench.table.sessions(), 0);
        assert_eq!(bench.stats.stalled.load(Ordering::Relaxed), 1);
        drop(client);
        bench.expect_idle().await;
    });
}
