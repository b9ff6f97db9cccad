//! Hostile and malformed requests fail with their status, and the server continues.

use millrace_nfs::v4::*;
use millrace_oncrpc::{AcceptError, RpcError};
use millrace_server::Server;

use super::compound::*;
use crate::common::{Caller, Proto, config, run};

fn with_session(test: impl AsyncFn(&Caller, &Session, &[u8])) {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let server = Server::start(config(&["/x=memory:8MiB,squash=none"])).unwrap();
            let c = Caller::connect(&server, proto).await;
            let s = Session::new(&c, b"client").await;
            let export = s.path(&c, "/x").await.unwrap();
            test(&c, &s, &export).await;
            // The session still works.
            assert_eq!(s.path(&c, "/x").await.unwrap(), export);
        });
    }
}

#[test]
fn long_tags_and_counts_are_rejected() {
    with_session(async |c, s, _| {
        let garbage = async |tag: &[u8], ops: &[Op]| match try_send(
            c,
            &Compound { tag, minor_version: 2, ops },
        )
        .await
        {
            Err(RpcError::Accept(AcceptError::GarbageArgs)) => true,
            other => panic!("{:?}", other.map(|r| r.status)),
        };
        assert!(garbage(&vec![b't'; 1 << 20], &[putrootfh()]).await);
        let many: Vec<Op> = std::iter::once(sequence(SequenceArgs {
            session: s.ok.session,
            sequence: 1,
            slot: 5,
            highest_slot: 5,
            cache_this: false,
        }))
        .chain((0..10_000).map(|_| putrootfh()))
        .collect();
        assert_eq!(send(c, 2, &many).await.next(), (53, Status::TooManyOps));
    });
}

#[test]
fn malformed_arguments_are_rejected() {
    with_session(async |c, s, export| {
        // A bitmap of 2^30 words, a file handle of 129 bytes, and arguments that end too early.
        for op in [raw(&[9, 1 << 30, 0]), raw(&[22, 129, 0]), raw(&[22, u32::MAX]), raw(&[25, 0]), raw(&[15])]
        {
            assert_eq!(s.status(c, [putfh(export), op]).await, Status::BadXdr);
        }
        // Attributes with values that are longer or shorter than those of the mask.
        for op in [raw(&[37, 1, 2, 8, 2, 0]), raw(&[37, 1, 2, 0]), raw(&[17, 1, 2, 8, 2, 0])] {
            assert_eq!(s.status(c, [putfh(export), op]).await, Status::BadXdr);
        }
        assert_eq!(s.status(c, [putfh(&[2, 0, 0])]).await, Status::BadHandle);
        assert_eq!(s.status(c, [putfh(&[])]).await, Status::BadHandle);
        let mut forged = export.to_vec();
        forged[12] ^= 1;
        assert_eq!(s.status(c, [putfh(&forged)]).await, Status::BadHandle);
        assert_eq!(s.status(c, [getfh()]).await, Status::NoFileHandle);
        assert_eq!(s.status(c, [op(Operation::RestoreFh, ())]).await, Status::NoFileHandle);
    });
}

/// The plan of a call keeps the positions of eight operations at most, and ends at the first that has no known size.
#[test]
fn the_results_before_a_malformed_operation_are_returned() {
    with_session(async |c, s, export| {
        let channel = ChannelAttrs { max_operations: 64, ..CHANNEL };
        let (client, number) = (s.client, 2);
        let created = send(c, 1, &[create_session(client, number, channel)]).await;
        let session = created.take::<CreateSessionOk>(Operation::CreateSession);
        assert!(session.fore.max_operations >= 24, "{session:?}");
        let mut next = 1..;
        for valid in 0..20 {
            for (minor_version, bad, status) in [
                (2, raw(&[9, 1 << 30, 0]), (9, Status::BadXdr)),
                (2, raw(&[9]), (9, Status::BadXdr)),
                (2, raw(&[22, 129, 0]), (22, Status::BadXdr)),
                (2, raw(&[38, 0]), (38, Status::BadXdr)),
                (2, raw(&[2]), (OP_ILLEGAL, Status::OpIllegal)),
                (2, raw(&[9999]), (OP_ILLEGAL, Status::OpIllegal)),
                (1, raw(&[69, 0, 0, 0, 0, 0, 0, 0]), (OP_ILLEGAL, Status::OpIllegal)),
                (2, raw(&[49]), (49, Status::NotSupp)),
                (2, getattr(&[Attribute::FileType]), (9, Status::Ok)),
            ] {
                let arguments = SequenceArgs {
                    session: session.session,
                    sequence: next.next().unwrap(),
                    slot: 0,
                    highest_slot: 0,
                    cache_this: false,
                };
                let ops: Vec<Op> = [sequence(arguments), putfh(export)]
                    .into_iter()
                    .chain((0..valid).map(|_| getattr(&[Attribute::FileType])))
                    .chain([bad])
                    .collect();
                let results = send(c, minor_version, &ops).await;
                let _: SequenceOk = results.take(Operation::Sequence);
                results.skip(&[Operation::Putfh]);
                for _ in 0..valid {
                    let found: Attributes<'_> = results.take(Operation::Getattr);
                    assert_eq!(found.file_type, Some(FileType::Directory));
                }
                assert_eq!((results.next(), results.count), (status, valid + 3), "after {valid} operations");
                assert_eq!(results.status, status.1);
            }
        }
    });
}

/// The root of all exports, which is no file of an export, has no state.
#[test]
fn stateids_of_the_root_of_all_exports_are_bad() {
    with_session(async |c, s, _| {
        let stateid = Stateid { seqid: 1, other: [7; 12] };
        let (lock_type, seqid, offset, length) = (LockType::Read, 0, 0, u64::MAX);
        for on in [
            op(Operation::Locku, LockuArgs { lock_type, seqid, stateid, offset, length }),
            op(Operation::Close, CloseArgs { seqid, stateid }),
            op(
                Operation::OpenDowngrade,
                OpenDowngradeArgs { stateid, seqid, share_access: 1, share_deny: 0 },
            ),
            op(Operation::Delegreturn, DelegreturnArgs { stateid }),
        ] {
            assert_eq!(s.status(c, [putrootfh(), on]).await, Status::BadStateid);
        }
    });
}

#[test]
fn bad_names_are_rejected() {
    with_session(async |c, s, export| {
        for operation in [Operation::Lookup, Operation::Remove, Operation::Secinfo] {
            let status = async |name: &str| s.status(c, [putfh(export), named(operation, name)]).await;
            assert_eq!(status("").await, Status::Inval, "{operation}");
            assert_eq!(status(".").await, Status::BadName);
            assert_eq!(status("..").await, Status::BadName);
            assert_eq!(status("a/b").await, Status::BadChar);
            assert_eq!(status("a\0b").await, Status::BadChar);
            assert_eq!(status(&"n".repeat(256)).await, Status::NameTooLong);
            assert_eq!(status("absent").await, Status::NoEnt);
        }
    });
}

#[test]
fn bulk_data_never_exceeds_the_reserved_memory() {
    with_session(async |c, s, export| {
        let created = s.send(c, [putfh(export), open(b"o", "f", 3, 0, true), getfh()]).await;
        created.skip(&[Operation::Putfh]);
        let opened: OpenOk<'_> = created.take(Operation::Open);
        let file = created.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
        let results = s.send_for_data(c, [putfh(&file), read(opened.stateid, 0, u32::MAX)]).await;
        assert_eq!(results.skip(&[Operation::Putfh]).read(), (vec![], true));
        // Memory is reserved for one of the largest READs.
        let anonymous = || read(Stateid::ANONYMOUS, 0, u32::MAX);
        let results = s.send_for_data(c, [putfh(&file), anonymous(), anonymous()]).await;
        assert_eq!((results.status, results.count), (Status::RepTooBig, 4));
        // Two smaller READs fit into the reply.
        let small = |offset| read(Stateid::ANONYMOUS, offset, 100_000);
        let results = s.send_for_data(c, [putfh(&file), small(0), small(5)]).await;
        assert_eq!((results.status, results.count), (Status::Ok, 4));
    });
}

#[test]
fn exchange_id_checks_its_flags_and_protection() {
    with_session(async |c, _, _| {
        let status = async |flags, state_protect| {
            let args = ExchangeIdArgs {
                owner: ClientOwner { verifier: [1; 8], id: Opaque(b"odd") },
                flags,
                state_protect,
                implementation: None,
            };
            send(c, 2, &[op(Operation::ExchangeId, args)]).await.status
        };
        assert_eq!(status(1 << 20, StateProtect::None).await, Status::Inval);
        let protected = ProtectedOperations { must_enforce: Bitmap::EMPTY, must_allow: Bitmap::EMPTY };
        assert_eq!(status(0, StateProtect::MachineCredential(protected)).await, Status::Inval);
        assert_eq!(status(0, StateProtect::Ssv).await, Status::EncrAlgUnsupp);
    });
}
