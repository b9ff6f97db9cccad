//! The rules of COMPOUND and of sessions, byte by byte where the reply is constant.

use millrace_nfs::v4::*;
use millrace_server::Server;

use super::compound::*;
use crate::common::{Caller, Proto, config, run};

fn with_server(test: impl AsyncFn(&Caller)) {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let server = Server::start(config(&["/x=memory:8MiB,squash=none"])).unwrap();
            test(&Caller::connect(&server, proto).await).await;
        });
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

#[test]
fn other_minor_versions_are_rejected() {
    with_server(async |c| {
        for minor in [0, 3, u32::MAX] {
            let results = send(c, minor, &[putrootfh()]).await;
            assert_eq!(results.bytes(), words(&[10021, 3, u32::from_be_bytes(*b"tag\0"), 0]), "{minor}");
        }
        let empty = send(c, 1, &[]).await;
        assert_eq!(empty.bytes(), words(&[0, 3, u32::from_be_bytes(*b"tag\0"), 0]));
    });
}

#[test]
fn the_first_operation_must_be_sequence_or_alone() {
    with_server(async |c| {
        let answer = async |ops: &[Op]| {
            let results = send(c, 2, ops).await;
            let (number, status) = results.next();
            assert_eq!((results.count, results.status), (1, status));
            (number, status)
        };
        assert_eq!(answer(&[putrootfh()]).await, (24, Status::OpNotInSession));
        assert_eq!(answer(&[raw(&[200])]).await, (OP_ILLEGAL, Status::OpIllegal));
        assert_eq!(answer(&[raw(&[0])]).await, (OP_ILLEGAL, Status::OpIllegal));
        assert_eq!(answer(&[exchange_id(b"a", [1; 8]), putrootfh()]).await, (42, Status::NotOnlyOp));
        let session = Session::new(c, b"client").await;
        let twice = [sequence(session.sequence(false)), sequence(session.sequence(false))];
        let results = send(c, 2, &twice).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        assert_eq!(results.next(), (53, Status::SequencePos));
        // SEEK exists in minor version 2 only.
        for (minor, expected) in [(1, (OP_ILLEGAL, Status::OpIllegal)), (2, (65, Status::NotSupp))] {
            let fresh = Session::new(c, if minor == 1 { b"one" } else { b"two" }).await;
            let results = send(c, minor, &[sequence(fresh.sequence(false)), raw(&[65])]).await;
            let _: SequenceOk = results.take(Operation::Sequence);
            assert_eq!(results.next(), expected, "{minor}");
        }
    });
}

#[test]
fn a_mount_of_linux_gets_the_expected_replies() {
    with_server(async |c| {
        let identified = send(c, 2, &[exchange_id(b"Linux NFSv4.2 host", [7; 8])]).await;
        let first: ExchangeIdOk<'_> = identified.take(Operation::ExchangeId);
        assert_eq!((first.sequence, first.flags), (1, exchange_id_flags::USE_NON_PNFS));
        // Trunking discovery repeats EXCHANGE_ID.
        let again = send(c, 2, &[exchange_id(b"Linux NFSv4.2 host", [7; 8])]).await;
        let second: ExchangeIdOk<'_> = again.take(Operation::ExchangeId);
        assert_eq!(second.server_owner, first.server_owner);
        assert_eq!(second.server_scope, first.server_scope);
        let created = send(c, 2, &[create_session(second.client_id, second.sequence, CHANNEL)]).await;
        let session: CreateSessionOk = created.take(Operation::CreateSession);
        assert_eq!(session.sequence, 1);
        assert_eq!(session.flags & !create_session_flags::CONN_BACK_CHAN, 0);
        assert_eq!(session.fore.max_operations, CHANNEL.max_operations);
        assert_eq!(session.fore.max_requests, CHANNEL.max_requests);
        assert!(session.fore.max_response_size <= CHANNEL.max_response_size);
        let at = |sequence| SequenceArgs {
            session: session.session,
            sequence,
            slot: 0,
            highest_slot: 0,
            cache_this: false,
        };
        let complete = op(Operation::ReclaimComplete, ReclaimCompleteArgs { one_fs: false });
        let results = send(c, 2, &[sequence(at(1)), complete]).await;
        let mut expected = words(&[0, 3, u32::from_be_bytes(*b"tag\0"), 2, 53, 0]);
        expected.extend_from_slice(&session.session.0);
        expected.extend(words(&[1, 0, 63, 63, 0]));
        expected.extend(words(&[58, 0]));
        assert_eq!(results.bytes(), expected);
        let style = SecinfoNoNameArgs { style: SecinfoStyle::CurrentFh };
        let results =
            send(c, 2, &[sequence(at(2)), putrootfh(), op(Operation::SecinfoNoName, style), getfh()]).await;
        assert_eq!(
            results.bytes()[60..],
            words(&[24, 0, 52, 0, 2, 1, 0, 10, 10020]),
            "the file handle is consumed"
        );
        let attributes = [Attribute::FileType, Attribute::Fsid, Attribute::Mode, Attribute::MountedOnFileid];
        let results = send(c, 2, &[sequence(at(3)), putrootfh(), getattr(&attributes)]).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        results.skip(&[Operation::Putrootfh]);
        let root: Fattr<'_> = results.take(Operation::Getattr);
        let root = root.decode_values().unwrap();
        assert_eq!((root.file_type, root.mode), (Some(FileType::Directory), Some(0o555)));
        let destroy = op(Operation::DestroySession, DestroySessionArgs { session: session.session });
        assert_eq!(send(c, 2, &[destroy]).await.bytes()[12..], words(&[1, 44, 0]));
        let results = send(c, 2, &[sequence(at(4))]).await;
        assert_eq!(results.next(), (53, Status::BadSession));
        let destroy = op(Operation::DestroyClientid, DestroyClientidArgs { client_id: second.client_id });
        assert_eq!(send(c, 2, &[destroy]).await.status, Status::Ok);
    });
}

#[test]
fn a_session_is_destroyed_by_the_last_operation() {
    with_server(async |c| {
        for minor_version in [1, 2] {
            let (a, b) = (Session::new(c, b"a").await, Session::new(c, b"b").await);
            let destroy =
                |of: &Session| op(Operation::DestroySession, DestroySessionArgs { session: of.ok.session });
            let status = async |ops: &[Op]| send(c, minor_version, ops).await.status;
            let early = [sequence(a.sequence(false)), destroy(&a), putrootfh()];
            assert_eq!(status(&early).await, Status::NotOnlyOp);
            let other = [sequence(a.sequence(false)), destroy(&b), putrootfh()];
            assert_eq!(status(&other).await, Status::Ok);
            assert_eq!(status(&[sequence(b.sequence(false))]).await, Status::BadSession);
            let last = [sequence(a.sequence(false)), putrootfh(), destroy(&a)];
            assert_eq!(status(&last).await, Status::Ok);
            assert_eq!(status(&[sequence(a.sequence(false))]).await, Status::BadSession);
        }
    });
}

#[test]
fn requests_keep_the_limits_of_their_session() {
    with_server(async |c| {
        let identified = send(c, 2, &[exchange_id(b"small", [7; 8])]).await;
        let ok: ExchangeIdOk<'_> = identified.take(Operation::ExchangeId);
        let fore = ChannelAttrs {
            max_request_size: 1024,
            max_response_size: 600,
            max_response_size_cached: 200,
            max_operations: 4,
            max_requests: 2,
            ..CHANNEL
        };
        let created = send(c, 2, &[create_session(ok.client_id, ok.sequence, fore)]).await;
        let session: CreateSessionOk = created.take(Operation::CreateSession);
        assert_eq!(session.fore.max_response_size, 600);
        let at = |slot, sequence, cache_this| SequenceArgs {
            session: session.session,
            sequence,
            slot,
            highest_slot: slot,
            cache_this,
        };
        let many = [sequence(at(0, 1, false)), putrootfh(), putrootfh(), putrootfh(), putrootfh()];
        assert_eq!(send(c, 2, &many).await.next(), (53, Status::TooManyOps));
        assert_eq!(send(c, 2, &[sequence(at(2, 1, false))]).await.next(), (53, Status::BadSlot));
        assert_eq!(send(c, 2, &[sequence(at(0, 5, false))]).await.next(), (53, Status::SeqMisordered));
        let long = "n".repeat(1000);
        assert_eq!(
            send(c, 2, &[sequence(at(0, 1, false)), putrootfh(), lookup(&long)]).await.next(),
            (53, Status::ReqTooBig)
        );
        // These failures leave the slot unchanged.
        let all: Vec<_> =
            Attribute::ALL.iter().copied().filter(|a| !Attributes::WRITE_ONLY.contains(*a)).collect();
        let ops = |sequenced| [sequence(sequenced), putrootfh(), getattr(&all), getattr(&all)];
        let results = send(c, 2, &ops(at(0, 1, false))).await;
        assert_eq!((results.status, results.count), (Status::RepTooBig, 4));
        let results = send(c, 2, &ops(at(0, 2, true))).await;
        assert_eq!((results.status, results.count), (Status::RepTooBigToCache, 3));
    });
}
