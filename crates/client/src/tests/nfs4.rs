//! NFSv4 with a scripted server: a small one with sessions whose replies the tests change.

use std::{collections::HashMap, sync::Arc, time::Duration};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_nfs::v4::*;
use millrace_oncrpc::CallContext;
use millrace_runtime::{RuntimeExt, sync::Mutex};
use millrace_xdr::{Decoder, Encoder};

use super::script::{Act, Script, quick, run};
use crate::{Error, Options, RetryPolicy, Version, handles::Client, ops::SetAttributes};

/// The fault of a request.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    None,
    /// The operation fails.
    Fail(Operation, Status),
    /// The connection is lost before or after the execution.
    LoseBefore,
    LoseAfter,
    /// The reply does not arrive.
    Mute,
    /// The result of SEQUENCE is that of another request.
    Other(fn(&mut SequenceOk)),
    /// The reply lacks its last result, or has one more, or has the result of another operation.
    Short,
    Long,
    Swapped,
    /// No results, and this status.
    Reject(Status),
}

pub(super) struct Server {
    client_id: u64,
    session: u8,
    /// The last sequence number and reply of each slot.
    slots: HashMap<u32, (u32, Vec<u8>)>,
    /// The operations executed, without repetitions.
    executed: Vec<Operation>,
    pub(super) requests: u32,
    bound: bool,
    /// The handle of all objects.
    handle: Vec<u8>,
    pub(super) received: Received,
    /// The value of `suppattr_exclcreat`.
    pub(super) exclusive_attributes: Option<Bitmap>,
    /// The attributes that the result of OPEN names.
    pub(super) named: Bitmap,
    /// The size of all objects.
    pub(super) size: u64,
    /// The owners of all objects.
    owners: [Option<Owner<'static>>; 2],
    /// The result of COPY.
    pub(super) copy: CopyOk,
    arena: Arena,
}

/// Arguments that the server has received.
#[derive(Default)]
pub(super) struct Received {
    /// The handle of the last PUTFH.
    put: Vec<u8>,
    /// The verifier and the attributes of each exclusive OPEN, with repetitions.
    pub(super) opens: Vec<(Verifier, Bitmap)>,
    /// The attributes of each SETATTR, with repetitions.
    pub(super) set: Vec<Bitmap>,
    /// The owner and the group of each SETATTR, as text.
    owners: Vec<String>,
}

type Hook = Box<dyn FnMut(&mut Server, &[Operation]) -> Fault + Send>;

/// The operations of a request. Their arguments are added to `received`.
fn operations(call: &CallContext, received: &mut Received) -> Vec<Operation> {
    let mut d = call.args();
    let frame: CompoundArgs<'_> = d.get().unwrap();
    (0..frame.operations)
        .map(|_| {
            let operation = d.get().unwrap();
            skip(&mut d, operation, received);
            operation
        })
        .collect()
}

fn skip(d: &mut Decoder<'_>, operation: Operation, received: &mut Received) {
    use Operation as Op;
    match operation {
        Op::Sequence => drop(d.get::<SequenceArgs>().unwrap()),
        Op::ExchangeId => drop(d.get::<ExchangeIdArgs<'_>>().unwrap()),
        Op::CreateSession => drop(d.get::<CreateSessionArgs<'_>>().unwrap()),
        Op::BindConnToSession => drop(d.get::<BindConnToSessionArgs>().unwrap()),
        Op::ReclaimComplete => drop(d.get::<ReclaimCompleteArgs>().unwrap()),
        Op::DestroySession => drop(d.get::<DestroySessionArgs>().unwrap()),
        Op::DestroyClientid => drop(d.get::<DestroyClientidArgs>().unwrap()),
        Op::Putfh => received.put = d.get::<PutfhArgs<'_>>().unwrap().handle.to_vec(),
        Op::Getattr => drop(d.get::<GetattrArgs>().unwrap()),
        Op::Lookup => drop(d.get::<LookupArgs<'_>>().unwrap()),
        Op::Access => drop(d.get::<AccessArgs>().unwrap()),
        Op::Readdir => drop(d.get::<ReaddirArgs>().unwrap()),
        Op::Create => drop(d.get::<CreateArgs<'_, Attributes<'_>>>().unwrap()),
        Op::Copy => drop(d.get::<CopyArgs<'_>>().unwrap()),
        Op::Open => {
            let args: OpenArgs<'_, Fattr<'_>> = d.get().unwrap();
            let Some(CreateHow::Exclusive41(verifier, attributes)) = args.create else {
                panic!("the script has only exclusive opens")
            };
            received.opens.push((verifier, attributes.set));
        }
        Op::Listxattrs => drop(d.get::<ListxattrsArgs>().unwrap()),
        Op::Setxattr => drop(d.get::<SetxattrArgs<'_>>().unwrap()),
        Op::Getxattr => drop(d.get::<GetxattrArgs<'_>>().unwrap()),
        Op::Removexattr => drop(d.get::<RemovexattrArgs<'_>>().unwrap()),
        Op::Close => drop(d.get::<CloseArgs>().unwrap()),
        Op::Setattr => {
            let attributes = d.get::<SetattrArgs<Fattr<'_>>>().unwrap().attributes;
            received.set.push(attributes.set);
            let values = attributes.decode_values().unwrap();
            received.owners.push(format!("{:?} {:?}", values.owner, values.owner_group));
        }
        Op::SecinfoNoName => drop(d.get::<SecinfoNoNameArgs>().unwrap()),
        Op::Putrootfh | Op::Getfh | Op::Savefh | Op::RestoreFh => {}
        other => panic!("the script has no {other}"),
    }
}

fn put_ok(e: &mut Encoder, operation: Operation, server: &Server) {
    use Operation as Op;
    e.put(&operation);
    e.put(&Status::Ok);
    match operation {
        Op::ExchangeId => e.put(&ExchangeIdOk {
            client_id: ClientId { number: server.client_id },
            sequence: 1,
            flags: exchange_id_flags::USE_NON_PNFS,
            state_protect: None,
            server_owner: ServerOwner { minor_id: 0, major_id: Opaque(b"script") },
            server_scope: Opaque(b"script"),
            implementation: None,
        }),
        Op::CreateSession => {
            let limits = ChannelAttrs {
                max_request_size: 1 << 20,
                max_response_size: 1 << 20,
                max_response_size_cached: 4096,
                max_operations: 16,
                max_requests: 4,
                ..ChannelAttrs::default()
            };
            let session = SessionId([server.session; 16]);
            e.put(&CreateSessionOk { session, sequence: 1, flags: 0, fore: limits, back: limits });
        }
        Op::BindConnToSession => {
            let session = SessionId([server.session; 16]);
            e.put(&BindConnToSessionOk { session, direction: Direction::Fore, use_rdma: false });
        }
        Op::Access => e.put(&AccessOk { supported: u32::MAX, access: u32::MAX }),
        Op::Getfh => e.put(&GetfhOk { handle: Opaque(&server.handle) }),
        Op::Getattr => e.put(&Attributes {
            file_type: Some(FileType::Directory),
            size: Some(server.size),
            fsid: Some(Fsid { major: 1, minor: 0 }),
            fileid: Some(1),
            lease_time: Some(90),
            owner: server.owners[0],
            owner_group: server.owners[1],
            suppattr_exclcreat: server.exclusive_attributes,
            ..Attributes::default()
        }),
        Op::Copy => e.put(&server.copy),
        Op::Open => e.put(&OpenOk {
            stateid: Stateid { seqid: 1, other: [1; 12] },
            dir: ChangeInfo::default(),
            flags: 0,
            set: server.named,
            delegation: Delegation::None,
        }),
        Op::Close => e.put(&StateidOk { stateid: Stateid::ANONYMOUS }),
        // A list without an end.
        Op::Listxattrs => e.put(&ListxattrsOk { cookie: 7, names: List(vec![Opaque(b"k")]), eof: false }),
        Op::Getxattr => e.put(&GetxattrOk { value: Opaque(b"v") }),
        Op::Setxattr | Op::Removexattr => e.put(&ChangeInfo::default()),
        Op::Setattr => e.put(&Bitmap::EMPTY),
        Op::SecinfoNoName => {
            e.put(&SecinfoOk { flavors: List(vec![Secinfo::kerberos(1), Secinfo::kerberos(3)]) })
        }
        Op::Create => e.put(&CreateOk { dir: ChangeInfo::default(), set: Bitmap::EMPTY }),
        _ => {}
    }
}

impl Server {
    fn answer(&mut self, call: &CallContext, hook: &mut Hook) -> Act {
        let ops = operations(call, &mut self.received);
        self.requests += 1;
        let fault = hook(self, &ops);
        match fault {
            Fault::LoseBefore => return Act::Lose,
            Fault::Mute => return Act::Mute,
            _ => {}
        }
        let mut e = Encoder::new(&self.arena, 512);
        self.execute(call, &ops, fault, &mut e);
        if matches!(fault, Fault::LoseAfter) {
            return Act::Lose;
        }
        let reply = e.finish().unwrap().gather(&self.arena.copy_from(&[0; 4]).unwrap()).to_vec();
        Act::Answer(Box::new(move |e| e.put_raw(&reply)))
    }

    fn execute(&mut self, call: &CallContext, ops: &[Operation], fault: Fault, e: &mut Encoder) {
        let mut d = call.args();
        d.get::<CompoundArgs<'_>>().unwrap();
        if let Fault::Reject(status) = fault {
            CompoundEncoder::begin(e, b"").reject(e, status);
            return;
        }
        let mut sequence = None;
        if ops.first() == Some(&Operation::Sequence) {
            d.get::<Operation>().unwrap();
            let args: SequenceArgs = d.get().unwrap();
            let refused = match (self.slots.get(&args.slot), fault) {
                (_, Fault::Fail(Operation::Sequence, status)) => Some(status),
                _ if args.session != SessionId([self.session; 16]) => Some(Status::BadSession),
                (Some((last, reply)), _) if args.sequence == *last => {
                    e.put_raw(reply);
                    return;
                }
                (known, _) => {
                    (args.sequence != known.map_or(1, |(last, _)| last + 1)).then_some(Status::SeqMisordered)
                }
            };
            if let Some(status) = refused {
                let mut results = CompoundEncoder::begin(e, b"");
                results.operation(e, Operation::Sequence);
                results.fail(e, status);
                results.finish(e);
                return;
            }
            sequence = Some(args);
        }
        let start = e.len();
        let mut results = CompoundEncoder::begin(e, b"");
        let last = ops.len() - 1;
        for (i, op) in ops.iter().enumerate() {
            if matches!(fault, Fault::Short) && i == last {
                break;
            }
            results.operation(e, *op);
            if let Fault::Fail(failing, status) = fault
                && failing == *op
            {
                results.fail(e, status);
                break;
            }
            e.truncate(e.len() - 8);
            match (op, &sequence) {
                (Operation::Sequence, Some(args)) => {
                    let mut ok = SequenceOk {
                        session: args.session,
                        sequence: args.sequence,
                        slot: args.slot,
                        highest_slot: 3,
                        target_highest_slot: 3,
                        status_flags: 0,
                    };
                    if let Fault::Other(change) = fault {
                        change(&mut ok);
                    }
                    e.put(op);
                    e.put(&Status::Ok);
                    e.put(&ok);
                }
                _ if matches!(fault, Fault::Swapped) && i == last => put_ok(e, Operation::Savefh, self),
                _ => put_ok(e, *op, self),
            }
            if *op == Operation::CreateSession {
                self.slots.clear();
            }
            self.executed.push(*op);
        }
        if matches!(fault, Fault::Long) {
            results.operation(e, Operation::Savefh);
        }
        results.finish(e);
        if let Some(args) = sequence {
            let message = {
                let mut copy = Encoder::new(&self.arena, 512);
                std::mem::swap(&mut copy, e);
                copy.finish().unwrap()
            };
            let bytes = message.gather(&self.arena.copy_from(&[0; 4]).unwrap()).to_vec();
            e.put_raw(&bytes);
            self.slots.insert(args.slot, (args.sequence, bytes[start..].to_vec()));
        }
    }

    /// A restart: the server loses its records of clients.
    pub(super) fn restart(&mut self) {
        self.client_id += 1;
        self.session += 1;
        self.slots.clear();
    }
}

/// A script that runs the server, and the server.
pub(super) fn script(
    hook: impl FnMut(&mut Server, &[Operation]) -> Fault + Send + 'static,
) -> (Arc<Script>, Arc<Mutex<Server>>) {
    let server = Arc::new(Mutex::new(Server {
        client_id: 1,
        session: 1,
        slots: HashMap::new(),
        executed: Vec::new(),
        requests: 0,
        bound: true,
        handle: vec![1],
        received: Received::default(),
        exclusive_attributes: None,
        named: Bitmap::EMPTY,
        size: 0,
        owners: [None; 2],
        copy: CopyOk {
            callback_id: None,
            count: 0,
            committed: StableHow::FileSync,
            verifier: Verifier::default(),
            requirements: CopyRequirements { consecutive: true, synchronous: true },
        },
        arena: Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false }),
    }));
    let (shared, mut hook): (_, Hook) = (Arc::clone(&server), Box::new(hook));
    (Script::new(move |_, call| shared.lock().answer(call, &mut hook)), server)
}

pub(super) async fn mount(script: &Arc<Script>, retry: RetryPolicy) -> Result<Client, Error> {
    script.mount_with("/", Options { retry, ..Options::default() }.vers(Some(Version::V4_2))).await
}

fn is_mkdir(ops: &[Operation]) -> bool {
    ops.contains(&Operation::Create)
}

pub(super) fn count(server: &Mutex<Server>, operation: Operation) -> usize {
    server.lock().executed.iter().filter(|op| **op == operation).count()
}

/// Applies `faults` to the requests with an operation, in order; later requests succeed.
pub(super) fn on(
    operation: Operation,
    faults: Vec<Fault>,
) -> impl FnMut(&mut Server, &[Operation]) -> Fault + Send {
    let mut faults = faults.into_iter();
    move |_, ops| match ops.contains(&operation) {
        true => faults.next().unwrap_or(Fault::None),
        false => Fault::None,
    }
}

#[test]
fn a_client_mounts_with_one_session() {
    run(async {
        let (script, server) = script(|_, _| Fault::None);
        let c = mount(&script, quick()).await.unwrap();
        let attributes = c.getattr(c.root()).await.unwrap();
        assert_eq!((attributes.file_type, c.export()), (crate::FileType::Directory, "/"));
        for once in [Operation::ExchangeId, Operation::CreateSession, Operation::ReclaimComplete] {
            assert_eq!(count(&server, once), 1, "{once}");
        }
    });
}

/// As of Linux servers, whose root has the flavors of its export.
#[test]
fn a_root_that_needs_another_flavor_is_refused_with_those_that_it_accepts() {
    run(async {
        let faults = vec![Fault::Fail(Operation::Putrootfh, Status::WrongSec); 2];
        let (script, _) = script(on(Operation::Putrootfh, faults));
        let e = mount(&script, quick()).await.unwrap_err();
        assert!(e.to_string().contains("it accepts: krb5, krb5p; use sec=krb5"), "{e}");
    });
}

#[test]
fn handles_have_at_most_128_bytes() {
    run(async {
        let (script, server) = script(|_, _| Fault::None);
        server.lock().handle = (0..128).collect();
        let c = mount(&script, quick()).await.unwrap();
        assert_eq!(c.root().as_bytes(), server.lock().handle);
        c.getattr(c.root()).await.unwrap();
        assert_eq!(server.lock().received.put, c.root().as_bytes());
        server.lock().handle = vec![0; 129];
        assert!(mount(&script, quick()).await.is_err());
    });
}

#[test]
fn a_call_is_executed_once_after_lost_connections() {
    run(async {
        let faults = vec![Fault::LoseBefore, Fault::LoseAfter, Fault::LoseAfter];
        let (script, server) = script(on(Operation::Create, faults));
        let c = mount(&script, quick()).await.unwrap();
        c.mkdir(c.root(), "d", SetAttributes::default()).await.unwrap();
        assert_eq!((count(&server, Operation::Create), c.stats().retransmits), (1, 3));
    });
}

#[test]
fn an_abandoned_call_is_settled_before_its_slot_is_used_again() {
    run(async {
        for executed in [false, true] {
            let fault = if executed { Fault::LoseAfter } else { Fault::Mute };
            let (script, server) = script(on(Operation::Create, vec![fault]));
            let c = mount(&script, RetryPolicy::NONE).await.unwrap();
            let mkdir = c.mkdir(c.root(), "d", SetAttributes::default()).await;
            assert!(matches!(mkdir, Err(Error::Unreachable { .. })), "{mkdir:?}");
            let before = server.lock().requests;
            c.getattr(c.root()).await.unwrap();
            // A SEQUENCE alone, and the call.
            assert_eq!(server.lock().requests - before, 2);
            assert_eq!(count(&server, Operation::Create), usize::from(executed));
            c.getattr(c.root()).await.unwrap();
            assert_eq!(server.lock().requests - before, 3);
        }
    });
}

#[test]
fn a_lost_session_is_replaced_and_a_forgotten_client_id_too() {
    run(async {
        for status in [Status::BadSession, Status::DeadSession, Status::SeqMisordered, Status::BadSlot] {
            let fault = Fault::Fail(Operation::Sequence, status);
            let (script, server) = script(on(Operation::Create, vec![fault]));
            let c = mount(&script, quick()).await.unwrap();
            server.lock().session = 9;
            c.mkdir(c.root(), "d", SetAttributes::default()).await.unwrap();
            assert_eq!(count(&server, Operation::CreateSession), 2, "{status:?}");
            assert_eq!(count(&server, Operation::ReclaimComplete), 1, "{status:?}");
        }
        let mut stale = true;
        let (script, server) = script(move |server, ops| match ops {
            [_, _, _, Operation::Create, ..] if std::mem::take(&mut stale) => {
                server.restart();
                Fault::None
            }
            [Operation::CreateSession] if server.client_id == 2 && server.session == 2 => {
                server.session = 3;
                Fault::Fail(Operation::CreateSession, Status::StaleClientid)
            }
            _ => Fault::None,
        });
        let c = mount(&script, quick()).await.unwrap();
        c.mkdir(c.root(), "d", SetAttributes::default()).await.unwrap();
        for twice in [Operation::ExchangeId, Operation::CreateSession, Operation::ReclaimComplete] {
            assert_eq!(count(&server, twice), 2, "{twice}");
        }
        assert_eq!(count(&server, Operation::Create), 1);
    });
}

#[test]
fn a_connection_is_bound_to_the_session_if_the_server_demands_it() {
    run(async {
        let (script, server) = script(|server, ops| match ops {
            [Operation::BindConnToSession] => {
                server.bound = true;
                Fault::None
            }
            _ if is_mkdir(ops) && !server.bound => {
                Fault::Fail(Operation::Sequence, Status::ConnNotBoundToSession)
            }
            _ => Fault::None,
        });
        let c = mount(&script, quick()).await.unwrap();
        server.lock().bound = false;
        c.mkdir(c.root(), "d", SetAttributes::default()).await.unwrap();
        assert_eq!(count(&server, Operation::BindConnToSession), 1);
    });
}

#[test]
fn owners_with_names_are_users_of_this_host_in_the_domain_of_the_client() {
    run(async {
        let (script, server) = script(|_, _| Fault::None);
        let name = |name: &'static str| Some(Owner::Name(name.as_bytes()));
        for (owners, domain, expected) in [
            ([name("daemon@Example.org"), name("root@example.org")], "example.ORG", (1, 0)),
            ([name("daemon@Example.org"), name("root@example.org")], "other.net", (65534, 65534)),
            ([name("no-such-user@example.org"), Some(Owner::Id(7))], "example.org", (65534, 7)),
            ([name("root"), None], "example.org", (65534, 65534)),
        ] {
            server.lock().owners = owners;
            let options = Options { retry: quick(), domain: Some(domain.into()), ..Options::default() };
            let c = script.mount_with("/", options.vers(Some(Version::V4_2))).await.unwrap();
            for _ in 0..2 {
                let attributes = c.getattr(c.root()).await.unwrap();
                assert_eq!((attributes.uid, attributes.gid), expected, "{owners:?} {domain}");
            }
        }
    });
}

#[test]
fn a_server_that_does_not_accept_numbers_of_owners_is_given_names() {
    run(async {
        let refuses = Fault::Fail(Operation::Setattr, Status::BadOwner);
        let (script, server) =
            script(on(Operation::Setattr, vec![refuses, Fault::None, refuses, refuses, refuses]));
        let options = Options { retry: quick(), domain: Some("example.org".into()), ..Options::default() };
        let c = script.mount_with("/", options.vers(Some(Version::V4_2))).await.unwrap();
        let set = async |uid, gid| {
            c.setattr(c.root(), SetAttributes { uid, gid, ..SetAttributes::default() }, None).await
        };
        set(Some(1), Some(3_999_999_999)).await.unwrap();
        // An owner without a name, and one whose name the server does not accept.
        set(Some(3_999_999_999), None).await.unwrap_err();
        set(None, Some(0)).await.unwrap_err();
        set(None, Some(0)).await.unwrap();
        let expected = [
            "Some(1) Some(3999999999)",
            "Some(\"daemon@example.org\") Some(3999999999)",
            "Some(3999999999) None",
            "None Some(0)",
            "None Some(\"root@example.org\")",
            "None Some(0)",
        ];
        assert_eq!(server.lock().received.owners, expected);
    });
}

/// PUTFH finds a directory that another client removes before GETATTR.
#[test]
fn a_directory_that_is_removed_while_it_is_read_is_stale() {
    run(async {
        let fault = Fault::Fail(Operation::Getattr, Status::Stale);
        let (script, _) = script(on(Operation::Readdir, vec![fault]));
        let c = mount(&script, quick()).await.unwrap();
        let error = c.readdir(c.root()).await.unwrap_err();
        assert!(matches!(error, Error::Nfs { status: millrace_nfs::v3::Status::Stale, .. }), "{error}");
    });
}

#[test]
fn a_session_whose_back_channel_cannot_be_used_is_replaced() {
    run(async {
        let fault = Fault::Other(|ok| ok.status_flags |= sequence_flags::BACKCHANNEL_FAULT);
        let (script, server) = script(on(Operation::Lookup, vec![fault]));
        let c = mount(&script, quick()).await.unwrap();
        c.lookup(c.root(), "x").await.unwrap();
        // A task replaces it.
        while count(&server, Operation::CreateSession) < 2 {
            c.runtime().sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(count(&server, Operation::DestroySession), 1);
        c.lookup(c.root(), "x").await.unwrap();
        assert_eq!(count(&server, Operation::CreateSession), 2);
    });
}

#[test]
fn invalid_replies_are_errors() {
    run(async {
        for (fault, reason) in [
            (Fault::Other(|ok| ok.session = SessionId([99; 16])), "another session ID"),
            (Fault::Other(|ok| ok.slot = 77), "another slot"),
            (Fault::Other(|ok| ok.sequence += 1), "another sequence number"),
            (Fault::Short, "no result of GETATTR"),
            (Fault::Long, "1 results more"),
            (Fault::Swapped, "invalid"),
            (Fault::Reject(Status::Ok), "no result of SEQUENCE"),
        ] {
            let (script, _) = script(on(Operation::Lookup, vec![fault]));
            let c = mount(&script, quick()).await.unwrap();
            let error = c.lookup(c.root(), "x").await.unwrap_err();
            assert!(matches!(error, Error::BadReply { .. }), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
            // Later calls succeed, perhaps after SEQUENCE alone.
            c.lookup(c.root(), "x").await.unwrap();
        }
    });
}

#[test]
fn endless_requests_for_patience_end_with_the_retry_policy() {
    let retry = RetryPolicy { max_elapsed: Duration::from_millis(20), ..quick() };
    run(async {
        for (operation, status) in [
            (Operation::Lookup, Status::Delay),
            (Operation::Sequence, Status::Delay),
            (Operation::Sequence, Status::BadSession),
            (Operation::Sequence, Status::SeqMisordered),
            (Operation::Sequence, Status::RetryUncachedRep),
            (Operation::Lookup, Status::RetryUncachedRep),
            (Operation::Sequence, Status::ConnNotBoundToSession),
        ] {
            let (script, _) = script(move |_, ops| match ops.contains(&Operation::Lookup) {
                true => Fault::Fail(operation, status),
                false => Fault::None,
            });
            let c = mount(&script, retry).await.unwrap();
            let error = c.lookup(c.root(), "x").await.unwrap_err();
            let jukebox = error.status() == Some(millrace_nfs::v3::Status::Jukebox);
            assert!(jukebox || matches!(error, Error::Unreachable { .. }), "{operation} {status:?}: {error}");
        }
        let (script, _) = script(|_, ops| match ops {
            [Operation::CreateSession] => Fault::Fail(Operation::CreateSession, Status::StaleClientid),
            _ => Fault::None,
        });
        assert!(matches!(mount(&script, retry).await, Err(Error::Unreachable { .. })));
    });
}

#[test]
fn a_server_without_the_minor_version_is_reported() {
    run(async {
        let (script, _) = script(|_, _| Fault::Reject(Status::MinorVersMismatch));
        let error = mount(&script, quick()).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
        assert_eq!(error.to_string(), "script does not offer NFSv4.2; mount with vers=3");
    });
}
